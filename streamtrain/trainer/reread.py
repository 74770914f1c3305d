"""Reads records again that were read before, by their offsets: documents whose label is due, the first versions of
documents, what must become a dead letter. What the log does not hold any more is left out, never an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.errors import KafkaError
from streamtrain.trainer.fetch import BatchFetcher, OutOfRangeError
from streamtrain.trainer.headers import read_records
from streamtrain.trainer.record_batches import committed
from streamtrain.trainer.records import Records

STALLED_AFTER_S = 20.0  # a read that gets nothing for so long has failed
_PARTITION_BYTES = 128 * 1024  # what is asked for lies close together, and comes a little at a time
_LOOK_AGAIN_S = 0.1

Offsets = npt.NDArray[np.int64]


class Rereader:
    """Of one topic. Connects when it is first asked. All methods belong to one event loop."""

    def __init__(self, *, kafka: config.Kafka, topic: str, clock: Clock) -> None:
        self._topic = topic
        self._clock = clock
        self._fetcher = BatchFetcher(kafka=kafka, topic=topic, clock=clock, partition_bytes=_PARTITION_BYTES)
        self._started = False
        self._turn = asyncio.Lock()
        self._kept: dict[int, tuple[int, int, Records | None]] = {}  # last fetched: its offsets [begin, end)

    async def stop(self) -> None:
        if self._started:
            await self._fetcher.stop()

    async def read(self, wanted: Mapping[int, Offsets]) -> dict[int, Records]:
        """The records at these offsets (ascending, distinct) of each partition; without partitions that have none.
        Raises KafkaError when nothing comes within STALLED_AFTER_S."""
        parts: dict[int, list[Records]] = {}
        async for records in self.stream(wanted):
            parts.setdefault(records.partition, []).append(records)
        return {number: _joined(found) for number, found in parts.items()}

    async def stream(self, wanted: Mapping[int, Offsets]) -> AsyncIterator[Records]:
        """`read` in parts, as brokers return them: of each partition in order of offset."""
        left = {number: offsets for number, offsets in wanted.items() if len(offsets)}
        if not left:
            return
        async with self._turn:
            for number in list(left):
                if (kept := self._from_kept(number, left)) is not None:
                    yield kept
            if left and not self._started:
                await self._fetcher.start()
                self._started = True
            while left:
                for number in await self._fetch(left):
                    if (found := self._from_kept(number, left)) is not None:
                        yield found

    def _from_kept(self, number: int, left: dict[int, Offsets]) -> Records | None:
        """What the part that was fetched last holds of the partition's wanted offsets, which leave `left`; so do
        those that it shows not to be there."""
        if number not in left or number not in self._kept:
            return None
        begin, end, records = self._kept[number]
        offsets = left[number]
        low, high = np.searchsorted(offsets, (begin, end)).tolist()
        if low > 0 or high == 0:  # the first lie before it: it is left as it is for those behind
            return None
        if high == len(offsets):
            del left[number]
        else:
            left[number] = offsets[high:]
        return None if records is None else chosen(records, np.flatnonzero(np.isin(records.offsets, offsets[:high])))

    async def _fetch(self, left: dict[int, Offsets]) -> Sequence[int]:
        """Fetches from the first wanted offsets on until something has come; returns of which partitions."""
        deadline = self._clock.monotonic() + STALLED_AFTER_S
        while left:
            positions = {number: int(offsets[0]) for number, offsets in left.items()}
            late = self._clock.monotonic() >= deadline
            try:
                batches = committed(await self._fetcher.fetch(positions))
            except OutOfRangeError:
                if await self._drop_removed(left, late=late):
                    continue
                batches = committed(())
                await self._clock.sleep(_LOOK_AGAIN_S)
            found = {records.partition: records for records in read_records(batches)}
            moved = [number for number, end in batches.next_offsets.items() if end > positions[number]]
            for number in moved:
                self._kept[number] = (positions[number], batches.next_offsets[number], found.get(number))
            if moved:
                return moved
            if late:
                where = ", ".join(f"{number} at {offset}" for number, offset in positions.items())
                raise KafkaError(
                    f"{self._topic}: nothing came for {STALLED_AFTER_S:g} s (partition {where})",
                    hint="is the broker up, and has each partition a leader?",
                )
        return ()

    async def _drop_removed(self, left: dict[int, Offsets], *, late: bool) -> bool:
        """Whether there were any. late: also what lies beyond the log's end, which lags for a moment after a leader
        election."""
        starts, ends = await self._fetcher.bounds(tuple(left))
        dropped = False
        for number in [number for number in left if number in starts and number in ends]:
            offsets = left.pop(number)
            there = offsets >= starts[number]
            if late:
                there &= offsets < ends[number]
            dropped |= not there.all()
            if there.any():
                left[number] = offsets[there]
        return dropped


def chosen(records: Records, places: npt.NDArray[np.int64]) -> Records | None:
    """The records at these places, None without any."""
    if len(places) == 0:
        return None
    if len(places) == len(records):
        return records
    at = places.tolist()
    return replace(
        records,
        sequence=records.sequence[places],
        offsets=records.offsets[places],
        operations=bytes(records.operations[place] for place in at),
        namespaces=[records.namespaces[place] for place in at],
        keys=[records.keys[place] for place in at],
        document_keys=[records.document_keys[place] for place in at],
        cluster_times=records.cluster_times[places],
        wall_times_ms=records.wall_times_ms[places],
        values=[records.values[place] for place in at],
        others=None if records.others is None else [records.others[place] for place in at],
    )


def _joined(parts: Sequence[Records]) -> Records:
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        sequence=np.concatenate([part.sequence for part in parts]),
        offsets=np.concatenate([part.offsets for part in parts]),
        operations=b"".join(part.operations for part in parts),
        namespaces=[name for part in parts for name in part.namespaces],
        keys=[key for part in parts for key in part.keys],
        document_keys=[key for part in parts for key in part.document_keys],
        cluster_times=np.concatenate([part.cluster_times for part in parts]),
        wall_times_ms=np.concatenate([part.wall_times_ms for part in parts]),
        values=[value for part in parts for value in part.values],
        others=None,
    )

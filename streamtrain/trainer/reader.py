"""Reads exact offset ranges of the owned partitions from the source's topic, and verifies on the way that no record
is missing or repeated. It never moves a position by itself: what cannot be read as asked is an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import numpy as np

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.errors import ContinuityError, KafkaError, OffsetError
from streamtrain.trainer.fetch import BatchFetcher, OutOfRangeError
from streamtrain.trainer.headers import read_records
from streamtrain.trainer.record_batches import committed
from streamtrain.trainer.records import Records
from streamtrain.types import Learned

STALLED_AFTER_S = 20.0  # a read that gets nothing for so long has failed
_LOOK_AGAIN_S = 0.1


@dataclass(slots=True)
class _Partition:
    """fetched: the offset to fetch next. count: the `n` of the record that is handed on next, None until one has
    shown it. ahead: fetched records that no range has asked for yet."""

    fetched: int = 0
    count: int | None = None
    ahead: Records | None = None


class Reader:
    """Owns some partitions of one topic. All methods belong to one event loop."""

    def __init__(self, *, kafka: config.Kafka, topic: str, partitions: tuple[int, ...], clock: Clock) -> None:
        self._clock = clock
        self._topic = topic
        self._partitions = {number: _Partition() for number in partitions}
        self._fetcher = BatchFetcher(kafka=kafka, topic=topic, clock=clock)

    async def start(self) -> None:
        """Raises KafkaError when the topic cannot be reached."""
        await self._fetcher.start()

    async def stop(self) -> None:
        await self._fetcher.stop()

    async def locate(self, *, learned: Mapping[int, Learned], window_begins: Mapping[int, int]) -> Mapping[int, int]:
        """Goes to where the window begins, or the log if that is later; returns the offsets. A place whose count is
        not known (-1) takes that of the first record there.

        Raises OffsetError when records after what was learned are gone, or the log ends before it.
        """
        starts, _ = await self._checked_bounds({number: place.offset for number, place in learned.items()})
        for number, partition in self._partitions.items():
            place = learned[number]
            begin = min(max(window_begins[number], starts[number]), place.offset)
            partition.fetched, partition.ahead = begin, None
            partition.count = place.count if begin == place.offset and place.count >= 0 else None
        return {number: partition.fetched for number, partition in self._partitions.items()}

    async def read(self, ends: Mapping[int, int]) -> AsyncIterator[list[Records]]:
        """Everything from the present positions to `ends` (exclusive), in chunks as brokers return them: per chunk
        the next records of some partitions, each in order of offset.

        Raises ContinuityError, OffsetError, EnvelopeError, and KafkaError when nothing comes within
        STALLED_AFTER_S.
        """
        fetching: asyncio.Task[None] | None = None
        try:
            while True:
                chunk = [records for number, end in ends.items() if (records := self._take(number, end)) is not None]
                wanted = {number: end for number, end in ends.items() if not self._reached(number, end)}
                if wanted:
                    fetching = asyncio.create_task(self._fetch(wanted), name="fetch")
                    await self._clock.sleep(0)  # the request goes out before the chunk is worked on
                if chunk:
                    yield chunk
                if fetching is None:
                    return
                await fetching
                fetching = None
        finally:
            if fetching is not None:
                fetching.cancel()
                await asyncio.gather(fetching, return_exceptions=True)

    def counts(self) -> Mapping[int, int | None]:
        """The `n` that each partition's next record will carry, None where no record has shown it yet."""
        return {number: partition.count for number, partition in self._partitions.items()}

    def expect(self, learned: Mapping[int, Learned]) -> None:
        """Checks that the partitions stand at what was learned. Raises ContinuityError."""
        for number, place in learned.items():
            partition = self._partitions[number]
            if partition.count is None:
                partition.count = place.count
            if partition.count != place.count:
                raise ContinuityError(
                    f"{self._topic}/{number}: record {partition.count} comes at offset {place.offset}, "
                    f"but {place.count} records were learned up to there",
                    hint="was the topic written by something else, or truncated?",
                )

    def _reached(self, number: int, end: int) -> bool:
        """Whether everything below `end` was fetched: commit markers and aborted records take offsets too."""
        partition = self._partitions[number]
        return partition.ahead is not None or partition.fetched >= end

    def _take(self, number: int, end: int) -> Records | None:
        """The fetched records below `end`, verified."""
        partition = self._partitions[number]
        ahead = partition.ahead
        if ahead is None:
            return None
        cut = int(np.searchsorted(ahead.offsets, end))
        partition.ahead = ahead.part(number, slice(cut, None)) if cut < len(ahead) else None
        if cut == 0:
            return None
        records = ahead.part(number, slice(0, cut)) if cut < len(ahead) else ahead
        first = int(records.sequence[0]) if partition.count is None else partition.count
        wrong = np.flatnonzero(records.sequence != np.arange(first, first + cut))
        if len(wrong):
            row = int(wrong[0])
            raise ContinuityError(
                f"{self._topic}/{number}: record {int(records.sequence[row])} at offset "
                f"{int(records.offsets[row])} where {first + row} was expected: records are missing or repeated",
                hint="was the topic written by something else, or truncated?",
            )
        partition.count = first + cut
        return records

    async def _fetch(self, wanted: Mapping[int, int]) -> None:
        """Fetches until something has come for a partition of `wanted`, a range's end included."""
        deadline = self._clock.monotonic() + STALLED_AFTER_S
        while True:
            positions = {number: self._partitions[number].fetched for number in wanted}
            try:
                batches = committed(await self._fetcher.fetch(positions))
            except OutOfRangeError:
                await self._checked_bounds(positions)
                await self._clock.sleep(_LOOK_AGAIN_S)
                batches = committed(())
            for records in read_records(batches):
                partition = self._partitions[records.partition]
                below = int(np.searchsorted(records.offsets, partition.fetched))  # of a batch begun before it
                if below < len(records):
                    partition.ahead = records.part(records.partition, slice(below, None)) if below else records
            moved = False
            for number, offset in batches.next_offsets.items():
                partition = self._partitions[number]
                moved |= offset > partition.fetched
                partition.fetched = max(partition.fetched, offset)
            if moved:
                return
            if self._clock.monotonic() >= deadline:
                raise self._stalled(wanted)

    async def _checked_bounds(self, places: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        """Log starts and last stable offsets, between which `places` lie. After a leader election the latter may
        lag for a moment, so a log that seems to end too early is looked at again until the deadline.

        Raises OffsetError for a place that the log does not hold, KafkaError when a leader does not answer.
        """
        deadline = self._clock.monotonic() + STALLED_AFTER_S
        while True:
            starts, ends = await self._fetcher.bounds(tuple(places))
            late = self._clock.monotonic() >= deadline
            unknown = [number for number in places if number not in starts or number not in ends]
            for number, place in places.items():
                if number in starts and starts[number] > place:
                    raise self._lost(number, place, starts[number])
                if late and number in ends and ends[number] < place:
                    raise self._behind(number, place, ends[number])
            if not unknown and all(ends[number] >= place for number, place in places.items()):
                return starts, ends
            if late:
                raise KafkaError(
                    f"{self._topic}: no leader of the partitions {unknown} answered within {STALLED_AFTER_S:g} s",
                    hint="are all brokers up?",
                )
            await self._clock.sleep(_LOOK_AGAIN_S)

    def _lost(self, number: int, wanted: int, start: int) -> OffsetError:
        return OffsetError(
            f"{self._topic}/{number}: the log starts at offset {start}, but {wanted} is to be read next: "
            f"up to {start - wanted} records were removed before they were learned",
            hint="retention is shorter than the job was behind; retrain the job over what the window still holds",
        )

    def _behind(self, number: int, wanted: int, end: int) -> OffsetError:
        return OffsetError(
            f"{self._topic}/{number}: the log ends at offset {end}, before offset {wanted} that is to be read next",
            hint="the topic was created anew or lost records in an unclean leader election; retrain the job",
        )

    def _stalled(self, wanted: Mapping[int, int]) -> KafkaError:
        waiting = ", ".join(
            f"{number} at {self._partitions[number].fetched} of {end}" for number, end in wanted.items()
        )
        return KafkaError(
            f"{self._topic}: nothing came for {STALLED_AFTER_S:g} s (partition {waiting})",
            hint="is the broker up, and has each partition a leader?",
        )

"""A source's topic as control sees it: what is published (told by the publisher, so nobody polls), where the log
begins, where the window begins. It never takes what it does not know for zero."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.errors import StreamtrainError
from streamtrain.types import (
    Frontier,
    Learned,
    PartitionFrontier,
    Position,
    Published,
    Retention,
    RetentionState,
)
from streamtrain.window import planner
from streamtrain.window.ages import Ages
from streamtrain.window.topic_log import TopicLog

REFRESH_S = 5.0
NEAR_SHARE = 0.25  # of the retention: with less left before untrained records expire there is an alarm
_AGES_IN_ALL = 65_536

_log = structlog.get_logger()


class Offsets:
    """Implements `ports.OffsetsPort`, for all jobs of a source. `start` it before the publisher publishes; `run`
    keeps the log starts true; `on_published` is the publisher's callback."""

    def __init__(
        self,
        *,
        kafka: config.Kafka,
        topic: str,
        topic_epoch: int,
        partitions: int,
        clock: Clock,
        retention_s: float | None = None,
    ) -> None:
        self._topic, self._epoch = topic, topic_epoch
        self._clock = clock
        self._retention_s = kafka.retention if retention_s is None else retention_s
        self._kafka_log = TopicLog(kafka=kafka, topic=topic, partitions=partitions)
        self._begins = [0] * partitions
        self._ends = [0] * partitions
        self._stable = [0] * partitions  # last stable offsets when Kafka was last asked
        self._counts: list[int | None] = [None] * partitions
        self._ages = [Ages(base=0, capacity=0)] * partitions
        self._version = 0
        self._watermark = 0  # of the position whose counts these are
        self._moved = asyncio.Event()
        self._shrinking: set[int] = set()
        self._trouble = ""

    async def start(self, position: Position | None) -> None:
        """position: what the publisher's `start` returned. Raises KafkaError."""
        counts = (0,) * len(self._ends) if position is None else position.counts
        capacity = _AGES_IN_ALL // len(counts)
        self._counts = list(counts)
        self._watermark = 0 if position is None else position.cluster_time
        self._ages = [Ages(base=count, capacity=capacity) for count in counts]
        await self._kafka_log.start()
        await self._refresh()

    async def close(self) -> None:
        await self._kafka_log.close()

    async def run(self) -> None:
        """Until cancelled: looks every few seconds where the log begins and ends."""
        while True:
            await self._clock.sleep(REFRESH_S)
            try:
                await self._refresh()
                self._trouble = ""
            except StreamtrainError as error:
                if error.message != self._trouble:
                    _log.warning("log starts are not known now", topic=self._topic, reason=error.message)
                self._trouble = error.message

    async def _refresh(self) -> None:
        """An end may be seen late: a new leader, and after a start a last stable offset that follows in its time."""
        self._begins = list(await self._kafka_log.begins())
        before = tuple(self._ends)
        for partition, end in enumerate(await self._kafka_log.ends()):
            if end < self._stable[partition] and partition not in self._shrinking:
                self._shrinking.add(partition)  # a leader that has just changed may say so once
                continue
            # What was published since Kafka was asked is known already; an end that went back is another topic.
            self._ends[partition] = end if partition in self._shrinking else max(end, self._ends[partition])
            self._stable[partition] = end
            self._shrinking.discard(partition)
        if tuple(self._ends) != before:
            self._tell()

    # ----------------------------------------------------------------------- published

    def on_published(self, published: Published) -> None:
        now = self._clock.time()
        for partition, (end, count) in published.partition_ends.items():
            self._ends[partition] = max(self._ends[partition], end)
            self._counts[partition] = count
            self._ages[partition].add(count, now)
        self._watermark = max(self._watermark, published.position.cluster_time)
        self._tell()

    def _tell(self) -> None:
        """Wakes whoever waits for more than there was."""
        self._version += 1
        self._moved.set()
        self._moved = asyncio.Event()

    async def changed(self, since: Frontier) -> None:
        while self._version <= since.version:
            await self._moved.wait()

    async def frontier(self) -> Frontier:
        """From memory: it costs no request."""
        return Frontier(
            topic=self._topic,
            epoch=self._epoch,
            partitions=tuple(map(PartitionFrontier, self._begins, self._ends, self._counts)),
            as_of=self._clock.monotonic(),
            version=self._version,
            watermark=self._watermark,
        )

    # ----------------------------------------------------------------------- window

    async def window_begins(self, duration_s: float, max_records: int) -> tuple[int, ...]:
        # Kafka looks for a time below the last stable offset only, which follows a commit in its own time: where
        # it finds none the window begins there, not after what was committed just now.
        times = await self.at_time(int((self._clock.time() - duration_s) * 1000))
        return planner.window_begins(times, await self.frontier(), max_records)

    async def at_time(self, time_ms: int) -> tuple[int, ...]:
        stable = await self._kafka_log.ends()
        found = await self._kafka_log.at_time(time_ms)
        return tuple(end if at is None else at for at, end in zip(found, stable, strict=True))

    async def locate(self, offsets: Sequence[int]) -> tuple[Learned, ...]:
        """Moves an offset that Kafka has removed to the log start. Raises KafkaError."""
        starts = [max(offset, begin) for offset, begin in zip(offsets, self._begins, strict=True)]
        # Counts before ends: what is published meanwhile may only make a place too early, which is harmless.
        counts, ends = list(self._counts), list(self._ends)
        asked = {partition: start for partition, start in enumerate(starts) if start > 0}
        records = await self._kafka_log.first_records(asked, ends)
        places = []
        for partition, start in enumerate(starts):
            record, count = records.get(partition), counts[partition]
            if start == 0:
                places.append(Learned(0, 0))
            elif record is not None:
                places.append(Learned(start, record.n))
            elif count is not None:
                places.append(Learned(max(start, ends[partition]), count))
            else:
                raise StreamtrainError(f"the records of partition {partition} of {self._topic} are not counted yet")
        return tuple(places)

    # ----------------------------------------------------------------------- lateness, retention

    async def oldest_untrained_s(self, learned: Sequence[Learned]) -> float | None:
        """Asks Kafka about records that were published before this process began to listen."""
        times: list[float] = []
        unknown: dict[int, int] = {}
        for partition, place in enumerate(learned):
            count = self._counts[partition]
            if count is None or count <= place.count:
                continue
            if not self._ages[partition].knows(place.count):
                unknown[partition] = place.offset
            elif (at := self._ages[partition].published_at(place.count)) is not None:
                times.append(at)
        if unknown:
            starts = {partition: max(offset, self._begins[partition]) for partition, offset in unknown.items()}
            records = await self._kafka_log.first_records(starts, list(self._ends))
            times.extend(record.appended_ms / 1000 for record in records.values())
        return max(0.0, self._clock.time() - min(times)) if times else None

    async def retention(self, learned: Sequence[Learned], oldest_untrained_s: float | None) -> Retention:
        ahead = [
            partition
            for partition, place in enumerate(learned)
            if self._ends[partition] < place.offset or self._fewer_than(partition, place.count)
        ]
        if ahead:
            return Retention(RetentionState.AHEAD, tuple(ahead))
        lost = await self._lost(learned)
        if lost:
            return Retention(RetentionState.LOST, lost, 0.0)
        if oldest_untrained_s is None:
            return Retention(RetentionState.OK)
        headroom = self._retention_s - oldest_untrained_s
        near = headroom < NEAR_SHARE * self._retention_s
        return Retention(RetentionState.NEAR if near else RetentionState.OK, (), headroom)

    def _fewer_than(self, partition: int, count: int) -> bool:
        published = self._counts[partition]
        return published is not None and published < count

    async def _lost(self, learned: Sequence[Learned]) -> tuple[int, ...]:
        """Partitions whose log starts after what was learned, and not only after commit markers."""
        passed = {
            partition: self._begins[partition]
            for partition, place in enumerate(learned)
            if self._begins[partition] > place.offset and self._counts[partition] != place.count
        }
        if not passed:
            return ()
        records = await self._kafka_log.first_records(passed, list(self._ends))
        return tuple(
            partition
            for partition in passed
            if (records[partition].n if partition in records else self._counts[partition]) != learned[partition].count
        )

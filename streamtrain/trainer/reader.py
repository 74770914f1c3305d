"""Reads exact offset ranges of the owned partitions from the source's topic, and verifies on the way that no record
is missing or repeated. It never moves a position by itself: what cannot be read as asked is an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka import errors as kafka_errors

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.errors import ContinuityError, KafkaError, OffsetError
from streamtrain.topics import kafka_options
from streamtrain.trainer.headers import read_headers
from streamtrain.trainer.records import Records
from streamtrain.types import Learned

STALLED_AFTER_S = 20.0  # a read that gets nothing for so long has failed
START_WITHIN_S = 20.0
POLL_S = 0.02  # a poll that finds only commit markers waits as long as one that finds nothing
_CHUNK_BYTES = 16 * 1024 * 1024  # of documents handed on at once
_FETCH_BYTES = 32 * 1024 * 1024  # fetched ahead, over all partitions
_PARTITION_BYTES = (64 * 1024, 1024 * 1024)  # least and most of that per partition

_log = structlog.get_logger()


@dataclass(slots=True)
class _Partition:
    """position: the offset that is handed on next. count: the `n` it will carry, None until a record has shown
    it. ahead: fetched records that no range has asked for yet."""

    at: TopicPartition
    position: int
    count: int | None
    ahead: list[ConsumerRecord] = field(default_factory=list)
    paused: bool = False


class Reader:
    """Owns some partitions of one topic. All methods belong to one event loop."""

    def __init__(self, *, kafka: config.Kafka, topic: str, partitions: tuple[int, ...], clock: Clock) -> None:
        self._clock = clock
        self._topic = topic
        self._partitions = {
            number: _Partition(at=TopicPartition(topic, number), position=0, count=None) for number in partitions
        }
        share = _FETCH_BYTES // max(1, len(partitions))
        self._ahead_bytes = min(max(share, _PARTITION_BYTES[0]), _PARTITION_BYTES[1])
        self._consumer = AIOKafkaConsumer(
            **kafka_options(kafka),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            max_partition_fetch_bytes=self._ahead_bytes,
            fetch_max_bytes=_FETCH_BYTES,
        )

    async def start(self) -> None:
        """Raises KafkaError when the topic cannot be reached."""
        try:
            async with asyncio.timeout(START_WITHIN_S):
                await self._consumer.start()
        except (kafka_errors.KafkaError, TimeoutError) as error:
            raise KafkaError(
                f"cannot read {self._topic}: {error or type(error).__name__}", hint="is the broker up and reachable?"
            ) from error
        self._consumer.assign([partition.at for partition in self._partitions.values()])

    async def stop(self) -> None:
        await self._consumer.stop()

    async def locate(self, *, learned: Mapping[int, Learned], window_begins: Mapping[int, int]) -> Mapping[int, int]:
        """Goes to where the window begins, or the log if that is later; returns the offsets.

        Raises OffsetError when records after what was learned are gone, or the log ends before it.
        """
        starts, ends = await self._bounds(learned)
        for number, partition in self._partitions.items():
            place = learned[number]
            if starts[partition.at] > place.offset:
                raise self._lost(number, place.offset, starts[partition.at])
            if ends[partition.at] < place.offset:
                raise self._behind(number, place.offset, ends[partition.at])
            begin = min(max(window_begins[number], starts[partition.at]), place.offset)
            self._go(partition, begin, place.count if begin == place.offset else None)
        return {number: partition.position for number, partition in self._partitions.items()}

    async def _bounds(
        self, learned: Mapping[int, Learned]
    ) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
        """Log starts and last stable offsets. After a leader election the latter may lag for a moment, so a log
        that seems to end too early is looked at again until the deadline."""
        places = [partition.at for partition in self._partitions.values()]
        deadline = self._clock.monotonic() + STALLED_AFTER_S
        while True:
            try:
                starts = await self._consumer.beginning_offsets(places)
                ends = await self._consumer.end_offsets(places)
            except kafka_errors.KafkaError as error:
                raise KafkaError(f"cannot read the offsets of {self._topic}: {error}") from error
            complete = all(ends[place] >= learned[place.partition].offset for place in places)
            if complete or self._clock.monotonic() >= deadline:
                return starts, ends
            await self._clock.sleep(POLL_S)

    def _go(self, partition: _Partition, offset: int, count: int | None) -> None:
        self._consumer.seek(partition.at, offset)
        partition.position, partition.count = offset, count
        partition.ahead = []

    async def read(self, ends: Mapping[int, int]) -> AsyncIterator[list[Records]]:
        """Everything from the present positions to `ends` (exclusive), in chunks of bounded size: per chunk the
        next records of some partitions, each in order of offset.

        Raises ContinuityError, OffsetError, EnvelopeError, and KafkaError when nothing comes within
        STALLED_AFTER_S.
        """
        self._resume(ends)
        deadline = self._clock.monotonic() + STALLED_AFTER_S
        while True:
            chunk: list[Records] = []
            size = 0
            for number, end in ends.items():
                partition = self._partitions[number]
                records = _take(partition, end)
                if records:
                    read = self._checked(partition, records)
                    size += sum(map(len, read.values))
                    chunk.append(read)
                if size >= _CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
            if chunk:
                yield chunk
            if all(self._partitions[number].position >= end for number, end in ends.items()):
                return
            if chunk:
                deadline = self._clock.monotonic() + STALLED_AFTER_S
            if not await self._poll(ends) and self._clock.monotonic() >= deadline:
                raise self._stalled(ends)

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

    def _resume(self, ends: Mapping[int, int]) -> None:
        for number, end in ends.items():
            partition = self._partitions[number]
            if partition.paused and partition.position < end:
                self._consumer.resume(partition.at)
                partition.paused = False

    async def _poll(self, ends: Mapping[int, int]) -> bool:
        """Fetches what there is, for all partitions: aiokafka does not fetch from a broker while records of
        another of its partitions are left lying. Returns whether something came."""
        try:
            polled = await self._consumer.getmany(timeout_ms=int(POLL_S * 1000))
        except kafka_errors.OffsetOutOfRangeError:
            await self._explain_out_of_range()
            return False
        except kafka_errors.KafkaError as error:
            raise KafkaError(f"reading {self._topic} failed: {error}") from error
        moved = False
        for partition in self._partitions.values():
            records = polled.get(partition.at)
            if records:
                partition.ahead.extend(records)
                moved = True
            if not partition.ahead and not partition.paused:
                # Commit markers and aborted records take offsets too.
                position = await self._consumer.position(partition.at)
                moved |= position > partition.position
                partition.position = max(partition.position, position)
            elif not partition.paused and self._enough(partition, ends.get(partition.at.partition, 0)):
                self._consumer.pause(partition.at)
                partition.paused = True
        return moved

    def _enough(self, partition: _Partition, end: int) -> bool:
        """Whether so much lies beyond the range that it must not become more."""
        beyond = 0
        for record in reversed(partition.ahead):
            if record.offset < end or beyond > self._ahead_bytes:
                break
            beyond += record.serialized_value_size
        return beyond > self._ahead_bytes

    def _checked(self, partition: _Partition, records: list[ConsumerRecord]) -> Records:
        read = read_headers(partition.at.partition, records)
        first = int(read.sequence[0]) if partition.count is None else partition.count
        expected = np.arange(first, first + len(records))
        if not np.array_equal(read.sequence, expected):
            row = int(np.argmax(read.sequence != expected))
            raise ContinuityError(
                f"{self._topic}/{partition.at.partition}: record {int(read.sequence[row])} at offset "
                f"{records[row].offset} where {int(expected[row])} was expected: records are missing or repeated",
                hint="was the topic written by something else, or truncated?",
            )
        partition.count = first + len(records)
        return read

    async def _explain_out_of_range(self) -> None:
        """Raises OffsetError if the log really does not hold a position."""
        places = [partition.at for partition in self._partitions.values()]
        starts = await self._consumer.beginning_offsets(places)
        ends = await self._consumer.end_offsets(places)
        for number, partition in self._partitions.items():
            position = partition.ahead[-1].offset + 1 if partition.ahead else partition.position
            if starts[partition.at] > position:
                raise self._lost(number, position, starts[partition.at])
            if ends[partition.at] < position:
                raise self._behind(number, position, ends[partition.at])

    def _lost(self, number: int, wanted: int, start: int) -> OffsetError:
        return OffsetError(
            f"{self._topic}/{number}: the log starts at offset {start}, but {wanted} is to be read next: "
            f"up to {start - wanted} records were removed before they were learned",
            hint="retention is shorter than the job was behind; retrain the job over what the window still holds",
        )

    def _behind(self, number: int, wanted: int, end: int) -> OffsetError:
        return OffsetError(
            f"{self._topic}/{number}: the log ends at offset {end}, before offset {wanted} that was learned already",
            hint="the topic was created anew or lost records in an unclean leader election; retrain the job",
        )

    def _stalled(self, ends: Mapping[int, int]) -> KafkaError:
        waiting = ", ".join(
            f"{number} at {self._partitions[number].position} of {end}"
            for number, end in ends.items()
            if self._partitions[number].position < end
        )
        return KafkaError(
            f"{self._topic}: nothing came for {STALLED_AFTER_S:g} s (partition {waiting})",
            hint="is the broker up, and has each partition a leader?",
        )


def _take(partition: _Partition, end: int) -> list[ConsumerRecord]:
    """The fetched records below `end`; moves the position past them, and to `end` once something lies beyond."""
    ahead = partition.ahead
    if not ahead:
        return []
    if ahead[-1].offset < end:
        taken, partition.ahead = ahead, []
        partition.position = taken[-1].offset + 1
        return taken
    cut = next(index for index, record in enumerate(ahead) if record.offset >= end)
    taken, partition.ahead = ahead[:cut], ahead[cut:]
    partition.position = max(partition.position, end)
    return taken

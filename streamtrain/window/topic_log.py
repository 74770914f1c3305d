"""Questions to Kafka about one topic: where its partitions begin and end, what lies at a time or an offset. It
consumes nothing for good: no group, no commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka import errors as kafka_errors

from streamtrain import config
from streamtrain.kafka.failure import explain, explain_unreachable
from streamtrain.kafka.topics import kafka_options
from streamtrain.source import envelope

REQUEST_TIMEOUT_S = 30.0
FIRST_RECORDS_TIMEOUT_S = 60.0
_POLL_MS = 200
_FETCH_BYTES = 16 * 1024  # a whole batch comes in any case

T = TypeVar("T")
_FAILURES = (kafka_errors.KafkaError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """n: its sequence in the partition. appended_ms: when the broker appended it, UTC."""

    offset: int
    n: int
    appended_ms: int


class TopicLog:
    """All methods raise KafkaError, AuthenticationError or PermissionMissingError."""

    def __init__(self, *, kafka: config.Kafka, topic: str, partitions: int) -> None:
        self._kafka = kafka
        self._topic = topic
        self._partitions = [TopicPartition(topic, partition) for partition in range(partitions)]
        self._consumer: AIOKafkaConsumer | None = None

    async def start(self) -> None:
        self._consumer = self._new_consumer()
        try:
            await self._consumer.start()
        except _FAILURES as error:
            await self.close()
            doing = f"looking at the topic {self._topic}"
            raise await explain_unreachable(error, kafka=self._kafka, doing=doing) from error

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def begins(self) -> tuple[int, ...]:
        """The log start of each partition."""
        found = await self._ask(self._started().beginning_offsets(self._partitions))
        return tuple(found[partition] for partition in self._partitions)

    async def ends(self) -> tuple[int, ...]:
        """The last stable offset of each partition."""
        found = await self._ask(self._started().end_offsets(self._partitions))
        return tuple(found[partition] for partition in self._partitions)

    async def at_time(self, time_ms: int) -> tuple[int | None, ...]:
        """The first offset appended at that time or later; None where there is none."""
        found = await self._ask(self._started().offsets_for_times(dict.fromkeys(self._partitions, time_ms)))
        return tuple(None if (at := found[partition]) is None else at.offset for partition in self._partitions)

    async def first_records(self, offsets: Mapping[int, int], ends: Sequence[int]) -> dict[int, FirstRecord]:
        """The first committed record at or after each partition's offset. A partition that has none before
        its end is left out."""
        wanted = {partition: offset for partition, offset in offsets.items() if offset < ends[partition]}
        if not wanted:
            return {}
        consumer = self._new_consumer()
        try:
            async with asyncio.timeout(FIRST_RECORDS_TIMEOUT_S):
                await consumer.start()
                return await self._read_first(consumer, wanted, ends)
        except _FAILURES as error:
            raise self._explained(error) from error
        finally:
            await consumer.stop()

    async def _read_first(
        self, consumer: AIOKafkaConsumer, wanted: Mapping[int, int], ends: Sequence[int]
    ) -> dict[int, FirstRecord]:
        consumer.assign([self._partitions[partition] for partition in wanted])
        for partition, offset in wanted.items():
            consumer.seek(self._partitions[partition], offset)
        found: dict[int, FirstRecord] = {}
        left = set(wanted)
        while left:
            batches = await consumer.getmany(timeout_ms=_POLL_MS)
            for topic_partition, records in batches.items():
                if records and topic_partition.partition in left:
                    found[topic_partition.partition] = _first(records[0])
            # By the consumer's position: after the last record there may be nothing but commit markers.
            for partition in sorted(left):
                if partition in found or await consumer.position(self._partitions[partition]) >= ends[partition]:
                    left.discard(partition)
                    consumer.pause(self._partitions[partition])
        return found

    def _new_consumer(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            **kafka_options(self._kafka),
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=_FETCH_BYTES,
            request_timeout_ms=round(REQUEST_TIMEOUT_S * 1000),
        )

    def _started(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise RuntimeError("TopicLog is used before start or after close")
        return self._consumer

    async def _ask(self, question: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await question
        except _FAILURES as error:
            raise self._explained(error) from error

    def _explained(self, error: BaseException) -> Exception:
        return explain(error, kafka=self._kafka, doing=f"looking at the topic {self._topic}")


def _first(record: ConsumerRecord) -> FirstRecord:
    return FirstRecord(record.offset, envelope.decode(record.value, record.headers).n, record.timestamp)

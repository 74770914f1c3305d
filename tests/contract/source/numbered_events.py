"""Numbered change events, and what a topic holds of them: shared by the publisher's tests and their child process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import bson
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from streamtrain import config
from streamtrain.clock import SystemClock
from streamtrain.kafka import topics
from streamtrain.source import envelope
from streamtrain.source.publisher import Publisher
from streamtrain.types import ChangeEvent, Operation, Position, PositionKind

PARTITIONS = 4
SOURCE = "flights"


def event(i: int, *, version: int = 0, size: int = 20, operation: Operation = Operation.INSERT) -> ChangeEvent:
    return ChangeEvent(
        token=token(i),
        operation=operation,
        namespace="air.flights",
        document_key=bson.encode({"_id": i}),
        document=None if operation is Operation.DELETE else bson.encode({"_id": i, "v": version, "x": "a" * size}),
        cluster_time=(1000 + i) << 32 | 1,
        wall_time_ms=1_700_000_000_000 + i,
    )


def token(i: int) -> bytes:
    return bson.encode({"_data": f"82{1000 + i:08X}00000001"})


def position(i: int, kind: PositionKind = PositionKind.EVENT) -> Position:
    """Behind the event `i`."""
    return Position(
        stream=SOURCE,
        kind=kind,
        token=b"" if kind is PositionKind.START else token(i),
        cluster_time=(1000 + i) << 32 | 1,
        last_token=token(i),
        counts=(),
        cluster="c",
        pipeline="p",
        namespaces=("air.flights",),
        publisher_epoch=0,
    )


@asynccontextmanager
async def publishing(kafka: config.Kafka, **options: object) -> AsyncIterator[Publisher]:
    publisher = Publisher(
        **{"kafka": kafka, "source": SOURCE, "partitions": PARTITIONS, "clock": SystemClock(), **options}  # type: ignore[arg-type]
    )
    try:
        yield publisher
    finally:
        await publisher.close()


async def start(publisher: Publisher) -> Position:
    """As a source does: a fresh one saves its start position at once."""
    return await publisher.start() or await publisher.publish((), position(0, PositionKind.START))


async def read(kafka: config.Kafka, topic: str, *, partitions: int, at_least: int) -> list[ConsumerRecord]:
    """All that is committed. Kafka may show it a moment after the commit, hence `at_least`."""
    consumer = AIOKafkaConsumer(
        **topics.kafka_options(kafka),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_bytes=64 * 1024**2,
        max_partition_fetch_bytes=20 * 1024**2,
    )
    await consumer.start()
    try:
        wanted = [TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(wanted)
        await consumer.seek_to_beginning(*wanted)
        records: list[ConsumerRecord] = []
        async with asyncio.timeout(30):
            while True:
                ends = await consumer.end_offsets(wanted)
                while any([await consumer.position(partition) < ends[partition] for partition in wanted]):
                    for found in (await consumer.getmany(timeout_ms=200)).values():
                        records += found
                if len(records) >= at_least:
                    return records
    finally:
        await consumer.stop()


def source_topic(kafka: config.Kafka) -> str:
    return topics.source_topic(kafka.topic_prefix, SOURCE, 0)


async def check_content(kafka: config.Kafka, events: Sequence[ChangeEvent]) -> list[ConsumerRecord]:
    """The topic's records are the events, each once, each partition in order and numbered without gaps."""
    records = await read(kafka, source_topic(kafka), partitions=PARTITIONS, at_least=len(events))
    numbers = dict.fromkeys(range(PARTITIONS), 0)
    by_partition: dict[int, list[ChangeEvent]] = {partition: [] for partition in range(PARTITIONS)}
    for each in events:
        by_partition[envelope.partition_of(envelope.key_of(each.document_key), PARTITIONS)].append(each)
    for record in records:
        decoded = envelope.decode(record.value, record.headers)
        expected = by_partition[record.partition][numbers[record.partition]]
        assert decoded.n == numbers[record.partition]
        assert (decoded.document_key, decoded.document) == (expected.document_key, expected.document)
        assert record.key == envelope.key_of(expected.document_key)
        numbers[record.partition] += 1
    assert sum(numbers.values()) == len(events)
    return records

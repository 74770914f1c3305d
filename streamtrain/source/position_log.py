"""The positions topic, read back: the last committed position of a source."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition

from streamtrain import config
from streamtrain.kafka.topics import kafka_options, positions_topic
from streamtrain.source import position
from streamtrain.types import Position

READ_TIMEOUT_S = 60.0
_POLL_MS = 500


async def read_position(kafka: config.Kafka, source: str) -> Position | None:
    """The last position of `source` that was committed; None when there is none.

    To be called after `init_transactions` has ended every transaction of a predecessor. Raises TimeoutError, the
    client's errors, or SourceError for a position that cannot be read.
    """
    partition = TopicPartition(positions_topic(kafka.topic_prefix), 0)
    consumer = AIOKafkaConsumer(
        **kafka_options(kafka), isolation_level="read_committed", enable_auto_commit=False, auto_offset_reset="earliest"
    )
    key = source.encode()
    found: bytes | None = None
    async with asyncio.timeout(READ_TIMEOUT_S):
        try:
            await consumer.start()
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            end = (await consumer.end_offsets([partition]))[partition]
            # By the consumer's position, not by the last record: commit markers take offsets too.
            while await consumer.position(partition) < end:
                for record in (await consumer.getmany(partition, timeout_ms=_POLL_MS)).get(partition, ()):
                    if record.key == key and record.value is not None:
                        found = record.value
        finally:
            await consumer.stop()
    return None if found is None else position.decode(found)


async def record_ends(kafka: config.Kafka, topic: str, partitions: int) -> tuple[int, ...]:
    """The last stable offset of each partition."""
    consumer = AIOKafkaConsumer(**kafka_options(kafka), isolation_level="read_committed", enable_auto_commit=False)
    async with asyncio.timeout(READ_TIMEOUT_S):
        try:
            await consumer.start()
            wanted = [TopicPartition(topic, partition) for partition in range(partitions)]
            consumer.assign(wanted)
            ends = await consumer.end_offsets(wanted)
            return tuple(ends[partition] for partition in wanted)
        finally:
            await consumer.stop()

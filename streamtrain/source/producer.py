"""A transactional producer's beginning and end. It ends even while Kafka does not answer, and leaves no task behind."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.structs import RecordMetadata, TopicPartition

from streamtrain import config
from streamtrain.kafka import topics

# A commit must come before the broker gives the transaction up (that would look like being fenced).
TRANSACTION_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 20.0
# Below the 1,048,588 bytes that a topic takes by default.
BATCH_BYTES = 1_000_000
STOP_TIMEOUT_S = 2.0


async def start_producer(kafka: config.Kafka, source: str) -> AIOKafkaProducer:
    """Fences every other producer of the source: it ends their transactions before it returns."""
    producer = AIOKafkaProducer(
        **topics.kafka_options(kafka),
        transactional_id=topics.transactional_id(kafka.topic_prefix, source),
        transaction_timeout_ms=round(TRANSACTION_TIMEOUT_S * 1000),
        request_timeout_ms=round(REQUEST_TIMEOUT_S * 1000),
        max_batch_size=BATCH_BYTES,
    )
    try:
        await producer.start()
    except BaseException:
        await stop_producer(producer)
        raise
    return producer


async def queue_batch(
    producer: AIOKafkaProducer, batch: Any, topic: str, partition: int
) -> asyncio.Future[RecordMetadata]:
    """Answers once there is room for the batch: with where it will have been written. Nobody need wait for that."""
    future: asyncio.Future[RecordMetadata] = await producer.send_batch(batch, topic, partition=partition)
    future.add_done_callback(_retrieve)
    retrieve_drained(producer, topic, partition)
    return future


def retrieve_drained(producer: AIOKafkaProducer, topic: str, partition: int) -> None:
    """A batch that the sender gives up before it has taken it fails a second future, which nobody can wait for."""
    for queued in producer._message_accumulator._batches[TopicPartition(topic, partition)]:
        queued._drain_waiter.add_done_callback(_retrieve)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """So that the failure of what nobody waits for any more is not reported as forgotten."""
    if not future.cancelled():
        future.exception()


async def stop_producer(producer: AIOKafkaProducer) -> None:
    """A transaction under way stays uncommitted: the next producer, or Kafka, ends it."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await producer.stop()
    except Exception:  # noqa: BLE001 - it is let go of anyway, and its failure has been told by what it was used for
        pass
    finally:
        # aiokafka's sender tries again for ever; stop() would wait for it as long.
        left = [task for task in asyncio.all_tasks() if _belongs_to(task, producer)]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        ended = producer._txn_manager._transaction_waiter
        if ended is not None and ended.done() and not ended.cancelled():
            ended.exception()  # told already; asyncio would report it as forgotten
        await producer.client.close()


def _belongs_to(task: asyncio.Task[object], producer: AIOKafkaProducer) -> bool:
    """Whether it runs a method of the producer's sender or accumulator, which keep no list of their tasks."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    owner = None if frame is None else frame.f_locals.get("self")
    return owner is not None and (owner is producer._sender or owner is producer._message_accumulator)

"""Records that a job could not train on, as they were, with the reason: written to the job's dead-letter topic under
the key of their origin, so that writing one again is the same letter. A record is never dropped without one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors

from streamtrain import config
from streamtrain.errors import KafkaError
from streamtrain.topics import MAX_MESSAGE_BYTES, kafka_options

FLUSH_WITHIN_S = 20.0
_PENDING_BYTES = 8 * 1024 * 1024  # letters that are not acknowledged yet; more wait
_PENDING = 4096


@dataclass(frozen=True, slots=True)
class Letter:
    """origin: `topic/partition/offset` of the record. reason: `type:dep_delay` and the like, `invalid-bson`.
    value, headers: the record's own."""

    origin: str
    reason: str
    value: bytes
    headers: Sequence[tuple[str, bytes]]


class DeadLetters:
    """Writes letters of one job. The producer starts with the first letter: most jobs never write one."""

    def __init__(self, *, kafka: config.Kafka, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic
        self._producer: AIOKafkaProducer | None = None
        self._pending: dict[asyncio.Future[object], int] = {}  # bytes of each that is not known to be acknowledged

    async def write(self, letters: Sequence[Letter]) -> None:
        """Takes the letters over; waits while too many are not acknowledged. Raises KafkaError."""
        for letter in letters:
            if len(self._pending) >= _PENDING or sum(self._pending.values()) >= _PENDING_BYTES:
                await self.flush()
            field = letter.reason.partition(":")[2]
            headers = [
                ("reason", letter.reason.encode()),
                *([("field", field.encode())] if field else []),
                ("origin", letter.origin.encode()),
                *letter.headers,
            ]
            try:
                producer = await self._started()
                async with asyncio.timeout(FLUSH_WITHIN_S):
                    sent = await producer.send(
                        self._topic, value=letter.value, key=letter.origin.encode(), partition=0, headers=headers
                    )
            except (kafka_errors.KafkaError, TimeoutError) as error:
                raise self._failed(error) from error
            self._pending[sent] = len(letter.value)

    async def flush(self) -> None:
        """Returns once all letters are acknowledged by all in-sync replicas. Raises KafkaError."""
        pending = tuple(self._pending)
        try:
            async with asyncio.timeout(FLUSH_WITHIN_S):
                await asyncio.gather(*pending)
        except (kafka_errors.KafkaError, TimeoutError) as error:
            raise self._failed(error) from error
        for letter in pending:
            self._pending.pop(letter, None)

    async def stop(self) -> None:
        if self._producer is not None:
            await self._producer.stop()

    async def _started(self) -> AIOKafkaProducer:
        if self._producer is None:
            producer = AIOKafkaProducer(
                **kafka_options(self._kafka),
                acks="all",
                enable_idempotence=True,
                linger_ms=5,
                max_request_size=MAX_MESSAGE_BYTES,
            )
            async with asyncio.timeout(FLUSH_WITHIN_S):
                await producer.start()
            self._producer = producer
        return self._producer

    def _failed(self, error: BaseException) -> KafkaError:
        return KafkaError(
            f"dead letters cannot be written to {self._topic}: {error or type(error).__name__}",
            hint="does the topic exist, and may this user write to it?",
        )

"""Records that a job could not train on, as they were, with the reason: written to the job's dead-letter topic under
the key of their origin, so that writing one again is the same letter. A record is never dropped without one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors

from streamtrain import config
from streamtrain.errors import KafkaError
from streamtrain.kafka.topics import MAX_MESSAGE_BYTES, kafka_options

FLUSH_WITHIN_S = 20.0
_PENDING_BYTES = 8 * 1024 * 1024  # letters that are not acknowledged yet; more wait
_PENDING = 4096
_NAMED_BYTES = 64 * 1024  # of each header of a letter that names its record only

_TOO_LARGE = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.RecordTooLargeError,
)


@dataclass(frozen=True, slots=True)
class Letter:
    """origin: `topic/partition/offset` of the record. reason: `type:dep_delay` and the like, `invalid-bson`.
    value, headers: the record's own. lineage: the one that could not learn it. attempt: how often it had been replayed
    before that."""

    origin: str
    reason: str
    value: bytes
    headers: Sequence[tuple[str, bytes]]
    lineage: str = ""
    attempt: int = 0

    def named(self) -> Letter:
        """The letter without its document, for a topic that does not take it; `bytes` says how large that was."""
        headers = [(name, value[:_NAMED_BYTES]) for name, value in self.headers]
        return replace(self, value=b"", headers=[*headers, ("bytes", str(len(self.value)).encode())])


class DeadLetters:
    """Writes letters of one job. The producer starts with the first letter: most jobs never write one. Once a letter
    is lost every later call fails too: the rounds that it belongs to must not be saved."""

    def __init__(self, *, kafka: config.Kafka, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic
        self._producer: AIOKafkaProducer | None = None
        self._pending: dict[asyncio.Future[object], Letter] = {}  # not known to be acknowledged
        self._pending_bytes = 0
        self._turn = asyncio.Lock()  # a flush may be asked for while another, or a write, waits for the broker
        self._lost: KafkaError | None = None

    async def write(self, letters: Sequence[Letter]) -> None:
        """Takes the letters over; waits while too many are not acknowledged. Raises KafkaError."""
        async with self._turn:
            for letter in letters:
                if len(self._pending) >= _PENDING or self._pending_bytes >= _PENDING_BYTES:
                    await self._flush()
                try:
                    await self._send(letter)
                except kafka_errors.MessageSizeTooLargeError:  # more than the producer takes: it was not sent
                    await self._send(letter.named())

    async def flush(self) -> None:
        """Returns once all letters are acknowledged by all in-sync replicas. Raises KafkaError."""
        async with self._turn:
            await self._flush()

    async def _flush(self) -> None:
        if self._lost is not None:
            raise self._lost
        while self._pending:
            pending, self._pending, self._pending_bytes = self._pending, {}, 0
            try:
                async with asyncio.timeout(FLUSH_WITHIN_S):
                    outcomes = await asyncio.gather(*pending, return_exceptions=True)
            except TimeoutError as error:
                raise self._failed(error) from error
            failed = [
                (letter, outcome)
                for letter, outcome in zip(pending.values(), outcomes, strict=True)
                if isinstance(outcome, BaseException)
            ]
            if failed:
                await self._again(failed)

    async def _again(self, failed: Sequence[tuple[Letter, BaseException]]) -> None:
        """Names the records that the topic does not take as a whole. Raises KafkaError when there was another reason
        for a failure: letters are lost then."""
        too_large = [isinstance(error, _TOO_LARGE) and letter.value != b"" for letter, error in failed]
        if not any(too_large):
            raise self._failed(failed[0][1]) from failed[0][1]
        await self.stop()  # a refused batch leaves a gap in the producer's sequence
        for (letter, _), refused in zip(failed, too_large, strict=True):
            await self._send(letter.named() if refused else letter)

    async def stop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()

    async def _send(self, letter: Letter) -> None:
        """Raises MessageSizeTooLargeError, else KafkaError."""
        field = letter.reason.partition(":")[2]
        headers = [
            ("reason", letter.reason.encode()),
            *([("field", field.encode())] if field else []),
            ("origin", letter.origin.encode()),
            ("lineage", letter.lineage.encode()),
            ("attempt", str(letter.attempt).encode()),
            *letter.headers,
        ]
        try:
            producer = await self._started()
            async with asyncio.timeout(FLUSH_WITHIN_S):
                sent = await producer.send(
                    self._topic, value=letter.value, key=letter.origin.encode(), partition=0, headers=headers
                )
        except kafka_errors.MessageSizeTooLargeError:
            raise
        except (kafka_errors.KafkaError, TimeoutError) as error:
            raise self._failed(error) from error
        self._pending[sent] = letter
        self._pending_bytes += len(letter.value)

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
        self._lost = KafkaError(
            f"dead letters cannot be written to {self._topic}: {error or type(error).__name__}",
            hint="does the topic exist, and may this user write to it?",
        )
        return self._lost

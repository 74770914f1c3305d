"""A job's replay topic: its shape, and how letters get into it. One transaction for each batch, and one command at a
time: what Kafka has not committed was not replayed."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors

from streamtrain import config
from streamtrain.errors import FencedError, StreamtrainError
from streamtrain.kafka import topics
from streamtrain.kafka.failure import explain, explain_unreachable
from streamtrain.kafka.topic_admin import TopicSpec
from streamtrain.redrive.letters import Letter, Replayed
from streamtrain.redrive.topic_records import TopicRecords
from streamtrain.source.producer import retrieve_drained, stop_producer

REQUEST_TIMEOUT_S = 20.0
TRANSACTION_TIMEOUT_S = 60.0
BATCH_RECORDS = 500
BATCH_BYTES = 8 * 1024 * 1024
KEPT = 2  # times as long as letters: what was replayed must be known as long as there are letters to replay
_INT64 = struct.Struct(">q")
_FAILURES = (kafka_errors.KafkaError, OSError, TimeoutError)


def replay_spec(kafka: config.Kafka, job: str, *, epoch: int, partitions: int) -> TopicSpec:
    """epoch, partitions: of the source's topic."""
    return TopicSpec(
        topics.replay_topic(kafka.topic_prefix, job, epoch),
        partitions,
        {
            "cleanup.policy": "delete",
            "retention.ms": str(round(KEPT * kafka.retention * 1000)),
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(topics.MAX_MESSAGE_BYTES),
        },
    )


@dataclass(frozen=True, slots=True)
class State:
    """numbers: the sequence number of each partition's next record. replayed: what it holds."""

    numbers: tuple[int, ...]
    replayed: Replayed


class ReplayTopic:
    """From `begin` on nobody else writes to it. All methods raise KafkaError and its kin; once another command has
    begun, FencedError."""

    def __init__(self, *, kafka: config.Kafka, job: str, spec: TopicSpec) -> None:
        self._kafka = kafka
        self._job = job
        self._spec = spec
        self._producer: AIOKafkaProducer | None = None

    async def begin(self) -> State:
        """Ends what another command has under way, and says what is there."""
        producer = AIOKafkaProducer(
            **topics.kafka_options(self._kafka),
            transactional_id=topics.replay_transactional_id(self._kafka.topic_prefix, self._job),
            transaction_timeout_ms=round(TRANSACTION_TIMEOUT_S * 1000),
            request_timeout_ms=round(REQUEST_TIMEOUT_S * 1000),
            max_request_size=topics.MAX_MESSAGE_BYTES,
        )
        try:
            async with asyncio.timeout(TRANSACTION_TIMEOUT_S):
                await producer.start()
        except _FAILURES as error:
            await stop_producer(producer)
            raise await explain_unreachable(
                error, kafka=self._kafka, doing=f"replaying to {self._spec.name}"
            ) from error
        self._producer = producer
        return await self.state()

    async def state(self) -> State:
        """What is there; for looking only, without `begin`."""
        headers = []
        last: dict[int, int] = {}
        topic = TopicRecords(kafka=self._kafka, topic=self._spec.name, partitions=self._spec.partitions)
        async with topic as records:
            async for record in records.read():
                headers.append(record.headers)
                last[record.partition] = _INT64.unpack(dict(record.headers)["n"])[0]
            _, ends = await records.bounds()
        # Where all has expired: no number that was used can be as large as the offset.
        numbers = tuple(last[number] + 1 if number in last else end for number, end in enumerate(ends))
        return State(numbers, Replayed.of(headers))

    async def write(self, letters: Sequence[Letter], *, state: State, through: Sequence[int]) -> int:
        """Replays the letters; returns how many, which is all of them. through: offsets, per partition of the source's
        topic, up to which their documents are known not to be deleted."""
        numbers = list(state.numbers)
        times = dict(state.replayed.times)
        written = 0
        for batch in _batches(letters):
            await self._write(batch, numbers, times, through)
            written += len(batch)
        return written

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop_producer(producer)

    async def _write(
        self, batch: Sequence[Letter], numbers: list[int], times: dict[str, int], through: Sequence[int]
    ) -> None:
        producer = self._producer
        if producer is None:
            raise RuntimeError("ReplayTopic is used before begin or after close")
        try:
            async with asyncio.timeout(TRANSACTION_TIMEOUT_S), producer.transaction():
                sent = []
                for letter in batch:
                    times[letter.origin] = times.get(letter.origin, 0) + 1
                    headers = _headers(letter, numbers[letter.partition], times[letter.origin], through)
                    numbers[letter.partition] += 1
                    sent.append(
                        await producer.send(
                            self._spec.name,
                            value=letter.value,
                            key=letter.key,
                            partition=letter.partition,
                            headers=headers,
                        )
                    )
                    retrieve_drained(producer, self._spec.name, letter.partition)
                await asyncio.gather(*sent)
        except kafka_errors.ProducerFenced as error:
            raise FencedError(
                f"another command has begun to replay the dead letters of job {self._job}",
                hint="what this one had committed is replayed; the other goes on from there",
            ) from error
        except _FAILURES as error:
            raise self._failed(error) from error

    def _failed(self, error: BaseException) -> StreamtrainError:
        return explain(error, kafka=self._kafka, doing=f"replaying to {self._spec.name}")


def _headers(letter: Letter, number: int, attempt: int, through: Sequence[int]) -> list[tuple[str, bytes]]:
    envelope = [(name, _INT64.pack(number) if name == "n" else value) for name, value in letter.headers]
    return [
        *envelope,
        ("origin", letter.origin.encode()),
        ("lineage", letter.lineage.encode()),
        ("after", str(letter.attempt).encode()),
        ("attempt", str(attempt).encode()),
        ("through", str(through[letter.partition]).encode()),
    ]


def _batches(letters: Sequence[Letter]) -> list[list[Letter]]:
    batches: list[list[Letter]] = []
    size = 0
    for letter in letters:
        if not batches or len(batches[-1]) >= BATCH_RECORDS or size + len(letter.value) > BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(letter)
        size += len(letter.value)
    return batches

"""A source's records and its position, in one Kafka transaction (DESIGN idea 2). It must never commit one without
the other, nor anything while another daemon may be publishing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import bson
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors

from streamtrain import config, metrics
from streamtrain.clock import Clock
from streamtrain.errors import FencedError, KafkaError, OffsetError, SourceError, StreamtrainError
from streamtrain.kafka import topics
from streamtrain.kafka.failure import explain, explain_unreachable
from streamtrain.kafka.topic_admin import ensure_topics
from streamtrain.source import position as positions
from streamtrain.source.batches import Batches, Unfit, build
from streamtrain.source.envelope import key_of
from streamtrain.source.position_log import read_position, record_ends
from streamtrain.source.producer import BATCH_BYTES, queue_batch, start_producer, stop_producer
from streamtrain.source.source_topic import (
    SourceTopics,
    check_positions,
    check_records,
    max_message_bytes,
    source_topics,
)
from streamtrain.types import ChangeEvent, Position, Published

# Less than the broker gives a transaction (producer.TRANSACTION_TIMEOUT_S).
DELIVERY_TIMEOUT_S = 40.0
START_TIMEOUT_S = 60.0
LEASE_POLL_S = 0.05
SMALLEST_BATCH_BYTES = 16 * 1024
# A key that is larger is named by its beginning.
DEAD_LETTER_KEY_BYTES = 64 * 1024

# aiokafka asserts where its transaction has failed already: to the caller that is one more failed transaction.
_FAILURES = (kafka_errors.KafkaError, OSError, TimeoutError, AssertionError)

_TOO_LARGE = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.RecordTooLargeError,
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A transaction whose outcome is not known yet."""

    position: Position
    published: Published


class Publisher:
    """Publishes one source. `start` it, `publish` until something is raised, then `start` it again; `close` it.

    may_publish: whether this process holds the lease, asked before a transaction begins and before it is
    committed. on_published: told of every committed transaction, also of one with a position alone.
    """

    def __init__(
        self,
        *,
        kafka: config.Kafka,
        source: str,
        partitions: int,
        clock: Clock,
        may_publish: Callable[[], bool] = lambda: True,
        on_published: Callable[[Published], None] = lambda published: None,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._kafka = kafka
        self._source = source
        self._partitions = partitions
        self._clock = clock
        self._may_publish = may_publish
        self._on_published = on_published
        self._batch_bytes = batch_bytes
        self._max_record_bytes = topics.MAX_MESSAGE_BYTES
        self._producer: AIOKafkaProducer | None = None
        self._topics: SourceTopics | None = None
        self._epoch: int | None = None
        self._committed: Position | None = None
        self._attempt: _Attempt | None = None

    @property
    def position(self) -> Position | None:
        """What was committed last."""
        return self._committed

    # ------------------------------------------------------------------ start

    async def start(self) -> Position | None:
        """Fences every predecessor and returns the committed position, None for a source that has none.

        Waits while the lease is not held. Raises FencedError when a newer publisher is at work, OffsetError when
        Kafka has lost what was committed, KafkaError, AuthenticationError or PermissionMissingError.
        """
        await self.close()
        await self._until_allowed()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                return await self._start()
        except StreamtrainError:
            await self.close()
            raise
        except _FAILURES as error:
            await self.close()
            raise await explain_unreachable(error, kafka=self._kafka, doing="starting to publish") from error
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> Position | None:
        specs = source_topics(self._kafka, self._source, partitions=self._partitions, epoch=0)
        found = await ensure_topics(self._kafka, [specs.positions])
        check_positions(found[specs.positions.name], specs.positions)
        self._producer = await start_producer(self._kafka, self._source)
        position = await read_position(self._kafka, self._source)
        self._recognise(position)
        if position is not None:
            specs = source_topics(self._kafka, self._source, partitions=self._partitions, epoch=position.topic_epoch)
        await self._check(specs, position)
        # Else aiokafka forgets the leaders of topics that it learned of by itself, when it first asks for another.
        await self._producer.client.set_topics([spec.name for spec in specs.all])
        self._topics = specs
        self._committed = position
        if self._epoch is None:
            await self._claim(position)
        return self._committed

    async def _claim(self, position: Position | None) -> None:
        """Takes the next publisher epoch: a predecessor that comes back finds that it is one."""
        self._epoch = 1 if position is None else position.publisher_epoch + 1
        try:
            if position is not None:
                await self._transact((), position)
        except BaseException:
            self._epoch = None
            raise

    async def _check(self, specs: SourceTopics, position: Position | None) -> None:
        """Creates what is missing, and adapts to the topic's limits."""
        found = await ensure_topics(self._kafka, [specs.records, specs.dead_letters])
        state = found[specs.records.name]
        stored = None if position is None else len(position.counts)
        for warning in check_records(
            state, specs.records, source=self._source, stored=stored, retention_s=self._kafka.retention
        ):
            log.warning(warning, source=self._source)
        await self._compare_with_log(specs, position)
        self._max_record_bytes = min(self._max_record_bytes, max_message_bytes(state))
        self._batch_bytes = min(self._batch_bytes, self._max_record_bytes)

    def _recognise(self, found: Position | None) -> None:
        """Raises unless what was read back is what this publisher committed last, or tried to."""
        attempt, self._attempt = self._attempt, None
        if self._epoch is not None and found is not None and found.publisher_epoch > self._epoch:
            raise FencedError(
                f"a newer daemon publishes source {self._source!r}",
                hint="two daemons use the same kafka.topic_prefix: give one of them another",
            )
        if attempt is not None and found == attempt.position:
            self._settle(attempt)  # its commit had succeeded, only the answer was lost
        if self._committed is not None and found != self._committed:
            raise OffsetError(
                f"Kafka does not have the position of source {self._source!r} that it had acknowledged",
                hint="the positions topic was changed, or acknowledged records were lost: check the brokers; "
                "a restart goes on from what is there",
            )

    async def _compare_with_log(self, specs: SourceTopics, position: Position | None) -> None:
        """Raises OffsetError when the topic cannot be the one that the position speaks of."""
        counts = (0,) * self._partitions if position is None else position.counts
        ends = await record_ends(self._kafka, specs.records.name, len(counts))
        for partition, (end, count) in enumerate(zip(ends, counts, strict=True)):
            if end < count:
                raise OffsetError(
                    f"partition {partition} of {specs.records.name} ends at offset {end}, "
                    f"but {count} records have been published to it",
                    hint="the topic was created anew or lost records: restore it, or give the source a new name",
                )
        if position is None and any(ends):
            raise OffsetError(
                f"the topic {specs.records.name} holds records, but source {self._source!r} has no saved position",
                hint=f"remove the topic to start afresh, or restore {specs.positions.name}",
            )

    # ------------------------------------------------------------------ publish

    async def publish(self, events: Sequence[ChangeEvent], position: Position, /) -> Position:
        """All or nothing: the records of the events and the position behind them. Returns the committed position.

        `position` needs no counts and epochs. One of an empty batch is left out when it is not later than the
        committed one. Events that cannot be records go to the source's
        dead-letter topic, in the same transaction. Waits while the lease is not held. After it has raised
        (KafkaError, FencedError, ...) nothing of the call is visible unless `start` returns its position.
        """
        if self._producer is None or self._epoch is None:
            raise KafkaError(f"source {self._source!r} is not publishing: start it first")
        if (committed := self._committed) is not None and not positions.may_follow(position, committed):
            if not events:
                return committed
            raise SourceError(f"the change stream of source {self._source!r} has gone back behind its position")
        await self._until_allowed()
        try:
            async with asyncio.timeout(DELIVERY_TIMEOUT_S):
                return await self._transact(events, position)
        except _FAILURES as error:
            await self.close()
            raise explain(error, kafka=self._kafka, doing=f"publishing source {self._source!r}") from error
        except BaseException:
            await self.close()
            raise

    async def _transact(self, events: Sequence[ChangeEvent], position: Position) -> Position:
        producer, specs = self._producer, self._topics
        assert producer is not None
        assert specs is not None
        assert self._epoch is not None
        counts = (0,) * self._partitions if self._committed is None else self._committed.counts
        batches = build(
            events,
            counts=counts,
            timestamp_ms=round(self._clock.time() * 1000),
            max_record_bytes=self._max_record_bytes,
            batch_bytes=self._batch_bytes,
        )
        position = replace(
            position,
            counts=batches.counts,
            publisher_epoch=self._epoch,
            topic_epoch=0 if self._committed is None else self._committed.topic_epoch,
        )
        await producer.begin_transaction()
        sent = await self._send(producer, specs, batches, position)
        published = Published(
            partition_ends={partition: (end, position.counts[partition]) for partition, end in sent.items()},
            records=batches.records,
            bytes=batches.bytes,
            position=position,
        )
        if not self._may_publish():
            raise KafkaError("the lease was lost before the transaction could be committed")
        self._attempt = attempt = _Attempt(position, published)
        await producer.commit_transaction()
        self._attempt = None
        self._settle(attempt)
        self._count(events, batches)
        return position

    async def _send(
        self, producer: AIOKafkaProducer, specs: SourceTopics, batches: Batches, position: Position
    ) -> dict[int, int]:
        """Returns once all is acknowledged: per partition, the offset after the last record."""
        waiting: list[tuple[Any, int | None, asyncio.Future[Any]]] = []

        async def send(batch: Any, topic: str, partition: int, *, record: bool = False) -> None:
            future = await queue_batch(producer, batch, topic, partition)
            waiting.append((batch, partition if record else None, future))

        saved = producer.create_batch()
        saved.append(timestamp=None, key=self._source.encode(), value=positions.encode(position))
        await send(saved, specs.positions.name, 0)
        for letters in _dead_letters(batches.unfit, producer.create_batch):
            await send(letters, specs.dead_letters.name, 0)
        # The first batch of every partition before the second of any: a partition takes one at a time.
        for row in zip_longest(*batches.batches.values()):
            for number, batch in zip(batches.batches, row, strict=True):
                if batch is not None:
                    await send(batch, specs.records.name, number, record=True)
        # Before the commit: aiokafka would commit a transaction of which a batch has failed.
        outcomes = await asyncio.gather(*(future for _, _, future in waiting), return_exceptions=True)
        ends: dict[int, int] = {}
        for (batch, partition, _), outcome in zip(waiting, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                if isinstance(outcome, _TOO_LARGE):
                    self._learn_size(batch)
                raise outcome
            if partition is not None:
                ends[partition] = outcome.offset + batch.record_count()
        return ends

    def _learn_size(self, batch: Any) -> None:
        """The broker refused the batch for its size; what it takes was not told."""
        if batch.record_count() == 1:
            self._max_record_bytes = min(self._max_record_bytes, batch.size() - 1)
        self._batch_bytes = max(SMALLEST_BATCH_BYTES, min(self._batch_bytes, batch.size()) // 2)
        log.warning("the topic takes only smaller batches", source=self._source, batch_bytes=self._batch_bytes)

    def _settle(self, attempt: _Attempt) -> None:
        self._committed = attempt.position
        self._on_published(attempt.published)  # also a position alone: time has passed without changes

    def _count(self, events: Sequence[ChangeEvent], batches: Batches) -> None:
        metrics.SOURCE_EVENTS.labels(self._source).inc(batches.records)
        metrics.SOURCE_BYTES.labels(self._source).inc(batches.bytes)
        if events and (wall := events[-1].wall_time_ms) is not None:
            metrics.SOURCE_LAG.labels(self._source).set(max(0.0, self._clock.time() - wall / 1000))
        for unfit in batches.unfit:
            metrics.SOURCE_DEAD_LETTERS.labels(self._source, unfit.reason).inc()
            log.warning("an event became a dead letter", source=self._source, reason=unfit.reason)

    # ------------------------------------------------------------------ lease, end

    async def _until_allowed(self) -> None:
        while not self._may_publish():
            await self._clock.sleep(LEASE_POLL_S)

    async def close(self) -> None:
        """Lets go of the connections. A transaction under way stays uncommitted."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop_producer(producer)


def _dead_letters(unfit: Sequence[Unfit], create: Callable[[], Any]) -> list[Any]:
    """Batches of letters that name the events: the document itself would not fit."""
    batches: list[Any] = []
    for each in unfit:
        event = each.event
        key = event.document_key if each.reason == "no-id" else key_of(event.document_key)
        letter = bson.encode(
            {
                "reason": each.reason,
                "operation": event.operation.name.lower(),
                "namespace": event.namespace,
                "cluster_time": bson.Timestamp(event.cluster_time >> 32, event.cluster_time & 0xFFFF_FFFF),
                "wall_time_ms": event.wall_time_ms,
                "bytes": len(event.document or b""),
            }
        )
        record = {"timestamp": None, "key": key[:DEAD_LETTER_KEY_BYTES], "value": letter}
        if not batches or batches[-1].append(**record) is None:
            batches.append(create())
            batches[-1].append(**record)
    return batches

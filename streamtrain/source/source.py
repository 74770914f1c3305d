"""A source at work: it reads its change stream, publishes what it reads, and goes on from the committed position
after whatever goes wrong. It must never move the position past an event that is not in Kafka.

Two tasks share a queue that is bounded in bytes: one reads from MongoDB, one publishes to Kafka, a transaction
for all that is queued (up to a bound), so a transaction is small when little comes and large when much does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import structlog
from aiokafka.errors import KafkaError as AiokafkaError
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import PyMongoError

from streamtrain import cancelling, config
from streamtrain.clock import Clock
from streamtrain.errors import (
    HistoryLostError,
    InvalidatedError,
    KafkaError,
    SourceError,
    StreamtrainError,
)
from streamtrain.mongo_failure import text
from streamtrain.source import preflight
from streamtrain.source.change_stream import ChangeStream
from streamtrain.source.failures import is_known, meaning
from streamtrain.source.identity import verify
from streamtrain.source.lookup import complete
from streamtrain.source.prefetch import Prefetch
from streamtrain.source.progress import INVALIDATE, Progress, advance
from streamtrain.source.status import SourceState, SourceStatus
from streamtrain.types import ChangeEvent, Position

# A transaction takes no more batches once it holds this much.
TRANSACTION_RECORDS = 4_000
TRANSACTION_BYTES = 8 * 1024**2

# How long the server holds back an empty answer. mongos answers no sooner than its quietest shard.
AWAIT_S = 1.0
SHARDED_AWAIT_S = 0.1

BACKOFF_FIRST_S = 0.1
BACKOFF_LONGEST_S = 30.0
UNKNOWN_ERROR_TRIES = 8

MONGODB, KAFKA = "mongodb", "kafka"

# What an error makes of the source; any other error: FAILED.
_STATES: dict[type[StreamtrainError], SourceState] = {
    HistoryLostError: SourceState.LOST,
    InvalidatedError: SourceState.INVALIDATED,
}

T = TypeVar("T")

log = structlog.get_logger()


class PublisherPort(Protocol):
    """Where a source publishes (`publisher.py`)."""

    async def start(self) -> Position | None:
        """Fences any predecessor; returns the committed position, None for a source that has none. Called
        again after `publish` has raised."""

    async def publish(self, events: Sequence[ChangeEvent], position: Position, /) -> Position:
        """All or nothing: the events and the position behind them. Returns the position as it was saved."""

    async def close(self) -> None: ...


class _PublishingError(Exception):
    """Kafka's side failed (the cause tells how): what is committed must be read back before going on."""


class _StoppedError(Exception):
    """`stop` was called while something else was waited for."""


class Source:
    """Follows one collection. `run` it once."""

    def __init__(
        self,
        *,
        spec: config.Source,
        publisher: PublisherPort,
        clock: Clock,
        connect: Callable[[config.Source], AsyncMongoClient[Any]] = preflight.connect,
        rng: random.Random | None = None,
    ) -> None:
        """rng: spreads the waits of sources that failed together."""
        self._spec = spec
        self._namespace = f"{spec.database}.{spec.collection}"
        self._publisher = publisher
        self._clock = clock
        self._connect = connect
        self._rng = rng or random.Random()
        self._log = log.bind(source=spec.name)
        self._progress = Progress(source=spec.name, namespace=self._namespace, clock=clock)
        self._stopping = asyncio.Event()
        self._queue: Prefetch | None = None
        self._failures = {MONGODB: 0, KAFKA: 0}

    def status(self) -> SourceStatus:
        return self._progress.status()

    def stop(self) -> None:
        """Lets `run` return once the transaction in hand is committed; what is only prefetched is read again."""
        self._stopping.set()
        if self._queue is not None:
            self._queue.stop()

    async def run(self) -> None:
        """Returns after `stop`. Raises DependencyError or ConfigError when it cannot start, SourceError when
        the stream cannot go on, FencedError when a newer daemon publishes; all else it retries."""
        try:
            async with self._connect(self._spec) as client:
                facts = await self._unless_stopped(preflight.check(self._spec, client))
                await self._unless_stopped(self._start_publishing(facts))
                while True:
                    await self._attempt(client, facts)
        except _StoppedError:
            self._progress.state(SourceState.STOPPED)
        except StreamtrainError as error:
            self._progress.state(_STATES.get(type(error), SourceState.FAILED), error.message)
            raise
        finally:
            await self._publisher.close()

    async def _attempt(self, client: AsyncMongoClient[Any], facts: preflight.Facts) -> None:
        """Streams until something goes wrong, and waits before the next attempt."""
        try:
            await self._stream(client, facts)
        except _PublishingError as failed:
            await self._back_off(failed.__cause__ or failed, KAFKA)
            await self._restart_publishing(facts)
        except (PyMongoError, TimeoutError, OSError) as error:
            if (final := meaning(error, namespace=self._namespace)) is not None:
                raise final from error
            if self._failures[MONGODB] >= UNKNOWN_ERROR_TRIES and not is_known(error):
                raise SourceError(
                    f"{self._namespace} cannot be followed: {text(error)}",
                    hint="MongoDB gave the same unknown error each time; look it up, or report it",
                ) from error
            await self._back_off(error, MONGODB)

    async def _back_off(self, error: BaseException, side: str) -> None:
        self._failures[side] += 1
        longest = min(BACKOFF_LONGEST_S, BACKOFF_FIRST_S * 2.0 ** (self._failures[side] - 1))
        wait = longest * self._rng.uniform(0.5, 1.0)
        self._progress.restarted(side)
        self._progress.state(SourceState.BACKING_OFF, f"{side}: {_said(error)}")
        self._log.warning("the source tries again", side=side, wait_s=round(wait, 3), error=_said(error))
        await self._unless_stopped(self._clock.sleep(wait))

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises _StoppedError, and cancels the work, when `stop` comes first."""
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise _StoppedError
        finally:
            await cancelling.end(working, stopping)

    # ------------------------------------------------------------------ the position

    async def _start_publishing(self, facts: preflight.Facts) -> None:
        position = await self._publisher.start()
        start = preflight.start_position(self._spec, facts)
        if position is None:
            # Saved before the first event comes: what is written from now on is found again after any crash.
            position = await self._publisher.publish((), start)
            self._log.info("the source starts afresh", namespace=self._namespace)
        else:
            verify(position, identity=facts.identity, pipeline=start.pipeline, namespace=self._namespace)
            self._log.info("the source resumes", namespace=self._namespace, position=position.kind.value)
        # After an invalidate the collection is another one; and what may not be read today is still known.
        identity = facts.identity.completed(position.cluster)
        self._progress.resumed(replace(position, cluster=str(identity)))

    async def _restart_publishing(self, facts: preflight.Facts) -> None:
        while True:
            try:
                return await self._unless_stopped(self._start_publishing(facts))
            except (KafkaError, AiokafkaError, TimeoutError, OSError) as error:
                await self._back_off(error, KAFKA)

    # ------------------------------------------------------------------ streaming

    async def _stream(self, client: AsyncMongoClient[Any], facts: preflight.Facts) -> None:
        """Raises what ends the stream."""
        collection = client[self._spec.database][self._spec.collection]
        stream = ChangeStream(
            collection=collection,
            full_document=facts.full_document,
            position=self._progress.position,
            await_s=SHARDED_AWAIT_S if facts.sharded else AWAIT_S,
        )
        queue = self._queue = Prefetch(limit=self._spec.prefetch)
        self._progress.reads_through(queue)
        try:
            await self._unless_stopped(stream.open())
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(stream, queue, collection))
                await self._publish(queue)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures.exceptions[0].__cause__
        finally:
            await stream.close()

    async def _read(self, stream: ChangeStream, queue: Prefetch, collection: AsyncCollection[Any]) -> None:
        """Fills the queue. What goes wrong is put behind what was read before, which is still published."""
        happened = ""
        try:
            while True:
                batch = await stream.next(await queue.room())
                self._failures[MONGODB] = 0
                self._progress.state(SourceState.STREAMING)
                if batch.incomplete:
                    await complete(batch.changes, batch.incomplete, collection)
                if batch.changes or batch.others or self._progress.due(batch):
                    queue.put(batch)
                for other in batch.others:
                    if other.operation == INVALIDATE:
                        queue.finish(_invalidated(self._namespace, happened))
                        return
                    self._log.info("the collection changed", namespace=other.namespace, operation=other.operation)
                    happened = other.operation
        except (PyMongoError, TimeoutError, OSError, SourceError) as error:
            queue.finish(error)

    async def _publish(self, queue: Prefetch) -> None:
        """Publishes what the queue holds; raises what the queue ends with, and _StoppedError after `stop`."""
        while batches := await queue.take(records=TRANSACTION_RECORDS, size=TRANSACTION_BYTES):
            changes = batches[0].changes if len(batches) == 1 else [c for batch in batches for c in batch.changes]
            position = advance(self._progress.position, batches)
            if changes or position != self._progress.position:
                try:
                    saved = await self._publisher.publish(changes, position)
                except (KafkaError, AiokafkaError, TimeoutError, OSError) as error:
                    raise _PublishingError(_said(error)) from error
                self._failures[KAFKA] = 0
                self._progress.committed(saved, changes, sum(batch.size for batch in batches))
            queue.published()
        raise _StoppedError


def _invalidated(namespace: str, happened: str) -> InvalidatedError:
    return InvalidatedError(
        f"{namespace} is gone ({happened or 'it was dropped or renamed'}); all its changes until then are published",
        hint=f"create {namespace} again and restart: the source goes on after the {happened or 'change'}",
    )


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {text(error)}"

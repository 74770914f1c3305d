"""The demo from its first process to its last: starts the servers and the daemon, writes flights, shows what is
learned from them, waits until all of it is, and ends what it started in the opposite order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError as AioKafkaError
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from streamtrain import cancelling
from streamtrain.artifacts import DirectoryStore
from streamtrain.clock import Clock
from streamtrain.demo import trim
from streamtrain.demo.configuration import COLLECTION, DATABASE, JOB, LABEL, STATE_DATABASE, Addresses, configuration
from streamtrain.demo.job import Daemon
from streamtrain.demo.options import Options
from streamtrain.demo.reporter import Reporter
from streamtrain.demo.servers import Servers
from streamtrain.demo.summary import Summary
from streamtrain.demo.view import Baselines, Comparison, JobView, LiveView, Rate
from streamtrain.errors import MongoError, WorkerError
from streamtrain.registry.store import ManifestStore
from streamtrain.sandbox.flights import load_flights
from streamtrain.sandbox.kafka_broker import free_ports
from streamtrain.sandbox.streams import FlightEvent, Written, flights, stream_flights
from streamtrain.types import Manifest

TRAINING_DEADLINE_S = 180.0
CATCH_UP_DEADLINE_S = 60.0
_POLL_S = 0.25
_EARLY_LABELS = 5000  # after so many, a model should be ahead of what costs nothing
T = TypeVar("T")


class Session:
    """One run in `directory`, which must be empty."""

    def __init__(self, *, options: Options, directory: Path, reporter: Reporter, clock: Clock) -> None:
        self._options = options
        self._directory = directory
        self._reporter = reporter
        self._clock = clock
        self._began = clock.monotonic()
        self._written = Written()
        self._baselines = Baselines()
        self._job = JobView()
        self._comparison = Comparison()
        self._after_5000: Comparison | None = None
        self._first_learned_s: float | None = None
        self._caught_up_s: float | None = None
        self._write_rate, self._learn_rate = Rate(), Rate()

    async def run(self) -> Summary:
        """Raises StreamtrainError when a server, the daemon or the job fails. Ends everything it started, also
        when it is cancelled."""
        async with AsyncExitStack() as stack:
            self._reporter.step("reading the flights of 2013")
            table = await asyncio.to_thread(load_flights)
            self._reporter.step("starting MongoDB and Kafka")
            servers = stack.enter_context(Servers(directory=self._directory))
            client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(servers.mongo)
            stack.push_async_callback(client.close)
            await client[DATABASE].create_collection(COLLECTION)
            manifests = ManifestStore(
                database=client[STATE_DATABASE], artifacts=DirectoryStore(path=self._directory / "checkpoints")
            )
            daemon = await self._start_daemon(servers)
            drained = False
            try:
                await self._wait_for_training(daemon)
                trimmer = await self._trimmer(stack, servers, manifests)
                async with _beside(self._trim_now_and_then(trimmer)):
                    await self._write_and_show(daemon, client, flights(table))
                    await self._catch_up(daemon)
            finally:
                self._reporter.step("stopping: the last checkpoint is written")
                drained = await daemon.stop()
            if not drained:
                raise WorkerError("the daemon did not stop in order", hint=daemon.child.log_tail())
            return self._summary(await manifests.head(JOB))

    async def _start_daemon(self, servers: Servers) -> Daemon:
        self._reporter.step("starting streamtrain, whose workers load TensorFlow")
        addresses = Addresses(mongo=servers.mongo, kafka=servers.kafka, admin=f"127.0.0.1:{free_ports(1)[0]}")
        config = self._directory / "streamtrain.yaml"
        text = configuration(
            addresses=addresses, artifacts=self._directory / "checkpoints", workers=self._options.workers
        )
        config.write_text(text, encoding="utf-8")
        return await Daemon.start(config=config, admin=addresses.admin, log=self._directory / "daemon.log")

    async def _wait_for_training(self, daemon: Daemon) -> None:
        began = self._clock.monotonic()
        while (job := await daemon.job()).phase not in ("training", "saving"):
            cancelling.raise_if_lost()
            waited = self._clock.monotonic() - began
            if waited > TRAINING_DEADLINE_S:
                raise WorkerError(
                    f"the job is not training after {TRAINING_DEADLINE_S:.0f} s, it is {job.phase}: {job.reason}",
                    hint=f"run it again with --keep and see daemon.log\n{daemon.child.log_tail()}",
                )
            self._reporter.step(f"starting streamtrain: {_starting(job)}", waited=waited)
            await self._clock.sleep(_POLL_S)
        self._job = job

    async def _trimmer(self, stack: AsyncExitStack, servers: Servers, manifests: ManifestStore) -> trim.Trimmer:
        admin = AIOKafkaAdminClient(bootstrap_servers=servers.kafka)
        stack.push_async_callback(admin.close)
        await admin.start()
        return trim.Trimmer(admin=admin, manifests=manifests, job=JOB)

    async def _trim_now_and_then(self, trimmer: trim.Trimmer) -> None:
        while True:
            await self._clock.sleep(trim.EVERY_S)
            with suppress(AioKafkaError, MongoError):  # it is tried again; nothing depends on this time
                await trimmer.trim()

    async def _write_and_show(
        self, daemon: Daemon, client: AsyncMongoClient[dict[str, Any]], events: Iterator[FlightEvent]
    ) -> None:
        writing = stream_flights(
            client[DATABASE][COLLECTION],
            rate=self._options.rate,
            duration=self._options.duration,
            stop=asyncio.Event(),
            clock=self._clock,
            written=self._written,
            events=events,
        )
        try:
            async with _beside(writing) as task:
                while not task.done():
                    await self._look(daemon, stage=f"{self._options.rate:,.0f} writes a second")
                    await self._clock.sleep(_POLL_S)
                await task
        except PyMongoError as error:
            raise MongoError(f"the embedded MongoDB does not take writes: {error}") from error

    async def _catch_up(self, daemon: Daemon) -> None:
        """Waits until all that was written is learned, for a bounded time."""
        began = self._clock.monotonic()
        while self._clock.monotonic() - began < CATCH_UP_DEADLINE_S:
            await self._look(daemon, stage="nothing more is written; learning what is left")
            if self._job.learned >= self._written.labelled and self._job.backlog == 0:
                self._caught_up_s = self._clock.monotonic() - began
                return
            await self._clock.sleep(_POLL_S)

    async def _look(self, daemon: Daemon, *, stage: str) -> None:
        cancelling.raise_if_lost()
        self._job = await daemon.job()
        now = self._clock.monotonic()
        if self._first_learned_s is None and self._job.learned:
            self._first_learned_s = now - self._began
        self._baselines.written(self._written.labels)
        self._written.labels.clear()
        self._comparison = self._baselines.compare(self._job)
        if self._after_5000 is None and self._comparison.labels >= _EARLY_LABELS:
            self._after_5000 = self._comparison
        self._reporter.show(self._view(now, stage), now=now)

    def _view(self, now: float, stage: str) -> LiveView:
        written = self._written
        return LiveView(
            elapsed=written.seconds,
            duration=self._options.duration,
            stage=stage,
            inserts=written.inserts,
            updates=written.updates,
            deletes=written.deletes,
            flight_time_ms=written.flight_time_ms,
            write_rate=self._write_rate.at(now, written.events),
            learn_rate=self._learn_rate.at(now, self._job.learned),
            write_history=tuple(self._write_rate.history),
            learn_history=tuple(self._learn_rate.history),
            job=self._job,
            comparison=self._comparison,
        )

    def _summary(self, head: Manifest | None) -> Summary:
        """The last manifest has the last word: what a failed generation had learned since its own is not in the
        weights, and was learned again."""
        written = self._written
        if head is not None and LABEL in head.scores:
            scores = head.scores[LABEL]
            self._job = replace(
                self._job,
                rounds=head.rounds,
                learned=head.rows_learned,
                scored=scores.rows,
                absolute_error=scores.sums["absolute_error"],
            )
            self._comparison = self._baselines.compare(self._job)
        kept = str(self._directory) if self._options.keep else None
        keras = head.artifacts.get("keras") if head is not None and kept else None
        return Summary(
            rate=self._options.rate,
            inserts=written.inserts,
            updates=written.updates,
            deletes=written.deletes,
            writing_s=written.seconds,
            job=self._job,
            comparison=self._comparison,
            after_5000=self._after_5000,
            first_learned_s=self._first_learned_s,
            caught_up_s=self._caught_up_s,
            kept=kept,
            checkpoint=str(self._directory / "checkpoints" / keras.name) if keras is not None else None,
        )


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Runs `work` beside the block and ends it with the block; if it failed, so does a block that did not."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await cancelling.end(task)
        failure = None if task.cancelled() else task.exception()
    if failure is not None:
        raise failure


def _starting(job: JobView) -> str:
    """The phase in words."""
    return {
        "starting": "connecting to MongoDB and Kafka",
        "idle": "following the collection",
        "forming": "the workers load TensorFlow",
        "backoff": f"trying again, {job.reason}",
    }.get(job.phase, job.phase)

"""The composition root: the one place where the stages meet. It starts the parts, watches them, and drains them
in order; what a part does, it does not know.

    lease -> per source: publisher, change stream, offsets -> per job: controller -> workers
    admin endpoint from the first moment to the last

Drain (SIGTERM or SIGINT): the sources stop after the transaction in hand -> the jobs finish their rounds, save and
commit a manifest -> the lease is given back -> the admin endpoint closes -> exit 0. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from pymongo import AsyncMongoClient

from streamtrain import __version__, cancelling, logs, metrics
from streamtrain.artifacts import open_store
from streamtrain.clock import Clock, SystemClock
from streamtrain.control.lease import Lease, LeaseState
from streamtrain.control.retrains import Wish
from streamtrain.daemon import connections, overview, state_store, work_dir
from streamtrain.daemon.job_part import JobPart
from streamtrain.daemon.source_part import SourcePart
from streamtrain.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    ConfigError,
    DependencyError,
    FencedError,
    ForeignPositionError,
    ModelError,
    StreamtrainError,
)
from streamtrain.observe.admin import Admin
from streamtrain.observe.retrain_request import RetrainRequest
from streamtrain.registry.retrains import RetrainStore
from streamtrain.registry.store import ManifestStore
from streamtrain.settings import settings_file
from streamtrain.settings.settings_file import Loaded
from streamtrain.source.status import SourceStatus

# Together below the 90 s after which systemd kills by default. SOURCE_STOP_S: the transaction in hand. JOB_DRAIN_S:
# rounds in flight, a save and its commit.
SOURCE_STOP_S = 20.0
JOB_DRAIN_S = 60.0
# A part that was cancelled kills its workers, or lets go of its connections.
PART_END_S = 15.0
_TICK_S = 1.0
_EXPORT_S = 2.0

log = structlog.get_logger()


def run(loaded: Loaded) -> int:
    """Runs the daemon in this process until it is drained; the exit code. Raises StreamtrainError when it cannot
    start or may not go on."""
    section = loaded.settings.log
    logs.configure(level=section.level, format=section.format, mask=loaded.mask)
    return asyncio.run(Daemon(loaded=loaded, clock=SystemClock()).run())


class Daemon:
    """One deployment's process. `run` it once."""

    def __init__(self, *, loaded: Loaded, clock: Clock) -> None:
        self._loaded = loaded
        self._settings = loaded.settings
        self._clock = clock
        self._began = clock.monotonic()
        self._ticked = self._began
        self._waiting = "starting"
        self._stop = asyncio.Event()
        self._error: StreamtrainError | None = None
        self._lease: Lease | None = None
        self._sources: dict[str, SourcePart] = {}
        self._jobs = {job.name: JobPart(job=job, clock=clock) for job in self._settings.jobs}
        self._crashes: dict[str, str] = {}

    async def run(self) -> int:
        """Until a signal, or until a part says that the daemon may not go on: then its error is raised, after
        the others were drained."""
        metrics.BUILD.info({"version": __version__})
        section = self._settings.admin
        admin = Admin(
            subject=self,
            listen=section.listen,
            token=section.token.get_secret_value() if section.token else None,
            mask=self._loaded.mask,
        )
        log.info("serving the admin endpoint", address=admin.address)
        work = asyncio.create_task(self._work())
        self._handle_signals(work)
        scheduler = self._schedule()
        serving = asyncio.create_task(admin.run())
        serving.add_done_callback(self._admin_ended)
        try:
            await work
        except asyncio.CancelledError:
            log.warning("ended at once; what was not saved is learned again")
            return EXIT_INTERRUPTED
        finally:
            scheduler.shutdown(wait=False)
            admin.stop()
            await serving
        if self._error is not None:
            raise self._error
        log.info("drained")
        return EXIT_OK

    async def _work(self) -> None:
        with work_dir.made() as folder:
            await self._work_in(folder)

    async def _work_in(self, folder: Path) -> None:
        client = state_store.connect(self._settings)
        try:
            if not await self._unless_stopped(connections.check(self._settings)):
                return
            self._lease = lease = Lease(
                database=client[self._settings.state.database],
                holder=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
                clock=self._clock,
            )
            self._waiting = "waits for the lease"
            if not await self._unless_stopped(lease.acquire()):
                return
            self._waiting = ""
            renewing = asyncio.create_task(self._renew(lease))
            try:
                await self._run_parts(lease, client, folder)
            finally:
                await cancelling.end(renewing)
                await lease.release()
        except StreamtrainError as error:
            self._fail(error)
        finally:
            await client.close()

    async def _run_parts(self, lease: Lease, client: AsyncMongoClient[Any], folder: Path) -> None:
        """Starts sources and jobs, waits for the end, and drains them: sources first."""
        settings = self._settings
        artifacts = state_store.artifact_options(settings)
        store = open_store(artifacts)
        manifests = ManifestStore(database=client[settings.state.database], artifacts=store)
        await manifests.prepare()
        retrains = RetrainStore(manifests)
        for spec in settings.sources:
            self._sources[spec.name] = SourcePart(spec=spec, kafka=settings.kafka, lease=lease, clock=self._clock)
        sources = [
            asyncio.create_task(
                self._guard(f"source {name}", part.source.run(), started=partial(getattr, part, "started"))
            )
            for name, part in self._sources.items()
        ]
        jobs = [
            asyncio.create_task(
                self._guard(
                    f"job {name}",
                    part.run(
                        source=self._sources[part.job.source],
                        kafka=settings.kafka,
                        manifests=manifests,
                        retrains=retrains,
                        lease=lease,
                        artifacts=artifacts,
                        work_dir=folder,
                    ),
                    started=partial(getattr, part, "started"),
                )
            )
            for name, part in self._jobs.items()
        ]
        try:
            await self._stop.wait()
            self._waiting = "draining"
            await self._drain(sources, jobs)
        finally:
            await cancelling.end(*sources, *jobs, again_s=PART_END_S)
            for part in self._sources.values():
                await part.close()
            store.close()

    async def _drain(self, sources: Sequence[asyncio.Task[None]], jobs: Sequence[asyncio.Task[None]]) -> None:
        log.info("draining", sources=len(sources), jobs=len(jobs))
        for part in self._sources.values():
            part.source.stop()
        if sources:
            _done, late = await asyncio.wait(sources, timeout=SOURCE_STOP_S)
            if late:
                log.warning("sources did not stop in time; what they had in hand is read again", sources=len(late))
        for job, task in zip(self._jobs.values(), jobs, strict=True):
            if not job.started:
                task.cancel()
            elif isinstance(self._error, FencedError):
                job.halt()
            else:
                job.drain()
        if jobs:
            _done, late = await asyncio.wait(jobs, timeout=JOB_DRAIN_S)
            if late:
                log.error("jobs did not drain in time; what was not saved is learned again", jobs=len(late))
                self._error = self._error or DependencyError("jobs did not save and end in time")

    # ------------------------------------------------------------------ what goes wrong

    async def _guard(self, part: str, work: Coroutine[Any, Any, None], *, started: Callable[[], bool]) -> None:
        """Runs a part. Its failure is a state that is shown, unless the daemon may not, or cannot, go on."""
        try:
            await work
        except FencedError as error:
            self._fail(error)
        except StreamtrainError as error:
            if not started() and isinstance(error, (DependencyError, ConfigError, ForeignPositionError)):
                self._fail(error)
            elif self._stop.is_set() and isinstance(error, DependencyError):
                log.error("a part was not drained well", part=part, reason=error.message, hint=error.hint or None)
                self._error = self._error or error
            else:
                log.error("a part has stopped", part=part, reason=error.message, hint=error.hint or None)
                self._crashes[part] = error.message
        except Exception as error:
            log.exception("a part has crashed", part=part)
            self._crashes[part] = f"internal error: {type(error).__name__}"

    async def _renew(self, lease: Lease) -> None:
        """Without its lease the daemon can do nothing: whatever ends the renewal ends the daemon."""
        try:
            await lease.run()
        except StreamtrainError as error:
            self._fail(error)
        except Exception as error:
            log.exception("the lease's renewal has crashed")
            self._fail(StreamtrainError(f"internal: {type(error).__name__} while renewing the lease"))

    def _admin_ended(self, serving: asyncio.Task[None]) -> None:
        if not self._stop.is_set() and not serving.cancelled():
            log.error("the admin endpoint has ended", exc_info=serving.exception())
            self._fail(StreamtrainError("the admin endpoint has ended"))

    def _fail(self, error: StreamtrainError) -> None:
        """Ends the daemon with the first such error; what still works is drained."""
        if self._error is None and not self._stop.is_set():
            self._error = error
            log.error("the daemon cannot go on", reason=error.message, hint=error.hint or None)
        self._stop.set()

    async def _unless_stopped(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Whether `work` was done before a signal came."""
        task, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return False
            task.result()
            return True
        finally:
            await cancelling.end(task, stopped)

    # ------------------------------------------------------------------ signals, timers

    def _handle_signals(self, work: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()

        def end() -> None:
            if self._stop.is_set():
                work.cancel()
            else:
                self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _reload(self) -> None:
        """SIGHUP: what can change in a running daemon does, the rest is named."""
        try:
            loaded = settings_file.load(self._loaded.path, flags=self._loaded.flags)
        except StreamtrainError as error:
            log.error("the settings were not reloaded", reason=error.message)
            return
        section = loaded.settings.log
        logs.configure(level=section.level, format=section.format, mask=loaded.mask)
        before = self._settings.model_copy(update={"log": section})
        changed = [
            name for name in type(before).model_fields if getattr(before, name) != getattr(loaded.settings, name)
        ]
        log.info("the settings were reloaded", level=section.level, need_a_restart=changed or None)

    def _schedule(self) -> AsyncIOScheduler:
        scheduler = AsyncIOScheduler(timezone="UTC")
        scheduler.add_job(self._tick, "interval", seconds=_TICK_S, max_instances=1, misfire_grace_time=None)
        scheduler.add_job(self._export, "interval", seconds=_EXPORT_S, max_instances=1, misfire_grace_time=None)
        scheduler.start()
        return scheduler

    async def _tick(self) -> None:
        now = self._clock.monotonic()
        metrics.LOOP_LAG.set(max(0.0, now - self._ticked - _TICK_S))
        self._ticked = now

    async def _export(self) -> None:
        """Gauges of what nobody reports: they are read off the parts."""
        unready = self.not_ready()
        for part in ("daemon", "lease", *(f"source {n}" for n in self._sources), *(f"job {n}" for n in self._jobs)):
            metrics.READY.labels(part).set(part not in unready)
        for job in self._jobs.values():
            job.export()
        self._end_without_models()

    def _end_without_models(self) -> None:
        """Without a single model that can be built there is nothing to go on for."""
        broken = [error for job in self._jobs.values() if (error := job.model_error) is not None]
        if broken and len(broken) == len(self._jobs):
            self._fail(ModelError(broken[0].message, hint=broken[0].hint))

    # ------------------------------------------------------------------ the admin endpoint's subject

    def status(self) -> Mapping[str, Any]:
        return overview.document(
            self._process(), self._source_states(), self._job_views(), now_ms=int(self._clock.time() * 1000)
        )

    def jobs(self) -> Sequence[str]:
        return tuple(self._jobs)

    def not_ready(self) -> Mapping[str, str]:
        return overview.not_ready(self._process(), self._source_states(), self._job_views())

    def stuck(self) -> Mapping[str, str]:
        return overview.stuck(self._process(), self._job_views())

    async def pause(self, job: str) -> None:
        self._jobs[job].pause()

    async def resume(self, job: str) -> None:
        self._jobs[job].resume()

    def retrains(self, job: str) -> Sequence[Mapping[str, Any]]:
        return overview.retrains(self._jobs[job].view(crash=None))

    async def retrain(self, job: str, *, asked: RetrainRequest) -> Mapping[str, Any]:
        now_s = self._clock.time()
        wish = Wish(
            start=asked.start,
            since_ms=asked.since_ms(now_s),
            until_ms=asked.until_ms(now_s),
            hyper=asked.hyper,
            workers=asked.workers,
            promote=asked.promote,
        )
        begun = await self._jobs[job].retrain(wish)
        return {"job": job, "lineage": begun.lineage, "from": begun.base or "scratch", "records": begun.records}

    async def cancel_retrain(self, job: str, lineage: str) -> None:
        await self._jobs[job].cancel(lineage)

    async def promote_retrain(self, job: str, lineage: str) -> None:
        await self._jobs[job].promote(lineage)

    def _process(self) -> overview.Process:
        lease, now = self._lease, self._clock.monotonic()
        return overview.Process(
            pid=os.getpid(),
            uptime_s=now - self._began,
            lease_held=lease is not None and lease.held(),
            lease_epoch=lease.epoch if lease is not None else 0,
            waiting=f"{self._waiting}, which {lease.seen_holder} holds"
            if lease is not None and lease.state is LeaseState.STANDBY and lease.seen_holder
            else self._waiting,
            loop_tick_age_s=now - self._ticked,
        )

    def _source_states(self) -> dict[str, SourceStatus]:
        return {name: part.status(crash=self._crashes.get(f"source {name}")) for name, part in self._sources.items()}

    def _job_views(self) -> dict[str, overview.JobView]:
        return {name: part.view(crash=self._crashes.get(f"job {name}")) for name, part in self._jobs.items()}

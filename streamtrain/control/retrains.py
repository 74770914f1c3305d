"""The lineages that are learned beside one job: begins them, takes them up again after a restart, and passes on what
the operator wants. Nothing that happens to one of them reaches the job, but for its promotion."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from streamtrain import cancelling, config
from streamtrain.clock import Clock
from streamtrain.control.controller import Controller
from streamtrain.control.course import check_schema
from streamtrain.control.forming import new_lineage
from streamtrain.control.retrain_status import RetrainStatus
from streamtrain.control.retraining import RETRY_S, Build, Retraining
from streamtrain.errors import FencedError, StreamtrainError, SupersededError, UsageError
from streamtrain.ports import LeasePort, ManifestPort, OffsetsPort, RetrainPort
from streamtrain.types import Learned, Manifest, Retrain, RetrainState

SCRATCH, WEIGHTS = "scratch", "weights"
MOST_AT_ONCE = 8

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. start: `scratch`, `weights` (the job's newest manifest) or the id of a manifest. since_ms,
    until_ms: times of arrival in Kafka, UTC; None: from the window's begin, through what is published now. workers:
    None: as many as the job has. promote: take the job's place as soon as the range is learned."""

    start: str = WEIGHTS
    since_ms: int | None = None
    until_ms: int | None = None
    hyper: Mapping[str, Any] = field(default_factory=dict)
    workers: int | None = None
    promote: bool = False


class Retrains:
    """`run` is the work; commands may come as soon as it has begun. running: the job's controller."""

    def __init__(
        self,
        *,
        job: config.Job,
        running: Controller,
        build: Build,
        retrains: RetrainPort,
        manifests: ManifestPort,
        offsets: OffsetsPort,
        lease: LeasePort,
        clock: Clock,
    ) -> None:
        self._job = job
        self._store = retrains
        self._manifests = manifests
        self._offsets = offsets
        self._lease = lease
        self._clock = clock
        self._log = _log.bind(job=job.name)
        self._new = partial(
            Retraining,
            job=job,
            running=running,
            build=build,
            retrains=retrains,
            manifests=manifests,
            offsets=offsets,
            lease=lease,
            clock=clock,
        )
        self._all: dict[str, Retraining] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loaded = False
        self._draining = False
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ----------------------------------------------------------------------- the work

    async def run(self) -> None:
        """Until cancelled, or drained; no worker is left behind. Raises FencedError once a newer daemon has taken
        over."""
        try:
            await self._load()
            while not self._draining or self._tasks:
                await asyncio.wait({self._failed, *self._tasks.values()}, timeout=RETRY_S / 4)
                if self._failed.done():
                    self._failed.result()
        finally:
            await cancelling.end(*self._tasks.values())
            self._failed.cancel()

    async def _load(self) -> None:
        """Takes up what earlier daemons had begun."""
        trouble = ""
        while not self._draining:
            try:
                for retrain in await self._store.running(self._job.name, epoch=self._lease.epoch):
                    self._start(retrain)
                self._loaded = True
                return
            except FencedError:
                raise
            except StreamtrainError as error:
                if error.message != trouble:
                    self._log.warning("retrains cannot be read yet", reason=error.message)
                trouble = error.message
                await self._clock.sleep(RETRY_S)

    def _start(self, retrain: Retrain) -> None:
        retraining = self._all[retrain.lineage] = self._new(retrain=retrain)
        task = asyncio.create_task(self._guard(retraining))
        self._tasks[retrain.lineage] = task
        task.add_done_callback(lambda _: self._tasks.pop(retrain.lineage, None))

    async def _guard(self, retraining: Retraining) -> None:
        lineage = retraining.retrain.lineage
        try:
            if await retraining.run():
                del self._all[lineage]
        except FencedError as error:
            if not self._failed.done():
                self._failed.set_exception(error)
        except SupersededError:
            self._log.warning("a retrain is stored no more", retrain=lineage)
            self._all.pop(lineage, None)
        except Exception as error:  # noqa: BLE001 - a bug in one of them ends neither the job nor the others
            self._log.exception("a retrain has crashed", retrain=lineage)
            retraining.crashed(f"internal error: {type(error).__name__}")

    def drain(self) -> None:
        """They save and end; the next daemon goes on with them."""
        self._draining = True
        for retraining in self._all.values():
            retraining.drain()

    def halt(self) -> None:
        self._draining = True
        for retraining in self._all.values():
            retraining.halt()

    # ----------------------------------------------------------------------- commands

    async def begin(self, wish: Wish) -> Retrain:
        """Raises UsageError or ConfigError for what cannot be, StreamtrainError for what cannot be now."""
        self._check_open()
        if len(self._all) >= MOST_AT_ONCE:
            raise StreamtrainError(f"job {self._job.name} has {MOST_AT_ONCE} retrains", hint="cancel one first")
        base = await self._base(wish.start)
        if base is not None:
            check_schema(base, self._job)
        begins, end, watermark, forget_through = await self._range(wish)
        workers = wish.workers or self._job.workers.min
        if workers > len(begins):
            raise UsageError(f"there are only {len(begins)} partitions, and a partition belongs to one worker")
        now = self._clock.time()
        retrain = Retrain(
            job=self._job.name,
            lineage=new_lineage(now),
            state=RetrainState.LEARNING,
            topic=(await self._offsets.frontier()).topic,
            base=None if base is None else base.id,
            hyper={**(base.hyper if base is not None else {}), **wish.hyper},
            workers=workers,
            begins=begins,
            end=end,
            watermark=watermark,
            forget_through=forget_through,
            promote=wish.promote,
            created_ms=int(now * 1000),
            since_ms=wish.since_ms,
            until_ms=wish.until_ms,
        )
        await self._store.begin(retrain, epoch=self._lease.epoch)
        self._check_open()
        self._start(retrain)
        self._log.info("a retrain has begun", retrain=retrain.lineage, start=wish.start, records=retrain.records)
        return retrain

    async def cancel(self, lineage: str) -> None:
        """Ends its workers and removes what it has saved."""
        self._check_open()
        self._find(lineage)
        if (task := self._tasks.get(lineage)) is not None:
            await cancelling.end(task)
        if lineage not in self._all:
            raise UsageError(f"{lineage} has just taken the place of job {self._job.name}")
        await self._store.cancel(self._job.name, lineage, epoch=self._lease.epoch)
        del self._all[lineage]
        self._log.info("a retrain was cancelled", retrain=lineage)

    async def promote(self, lineage: str) -> None:
        """Lets it take the job's place, now or as soon as it has learned its range."""
        self._check_open()
        await self._find(lineage).promote()

    def status(self) -> tuple[RetrainStatus, ...]:
        return tuple(retraining.status() for retraining in self._all.values())

    def _find(self, lineage: str) -> Retraining:
        if (found := self._all.get(lineage)) is None:
            there = f"there are: {', '.join(self._all)}" if self._all else "there are none"
            raise UsageError(f"job {self._job.name} has no retrain {lineage!r}; {there}")
        return found

    def _check_open(self) -> None:
        if self._draining:
            raise StreamtrainError(f"job {self._job.name} is draining", hint="wait for the next start")
        if not self._loaded:
            raise StreamtrainError(f"the retrains of job {self._job.name} are not read yet", hint="try again")

    # ----------------------------------------------------------------------- what is asked for

    async def _base(self, start: str) -> Manifest | None:
        job = self._job.name
        if start == SCRATCH:
            return None
        if start == WEIGHTS:
            head = await self._manifests.claim(job, epoch=self._lease.epoch)
            if head is None:
                raise StreamtrainError(f"job {job} has not saved any weights yet", hint="retrain it from scratch")
            return head
        manifest = await self._store.read(start)
        if manifest is None or manifest.job != job:
            raise UsageError(f"job {job} has no manifest {start!r}", hint=f"streamtrain models list {job} shows them")
        return manifest

    async def _range(self, wish: Wish) -> tuple[tuple[Learned, ...], tuple[Learned, ...], int, tuple[int, ...]]:
        """Begins, end, watermark, and the ends of all that is published now."""
        window = self._job.window
        if wish.since_ms is not None and wish.until_ms is not None and wish.since_ms >= wish.until_ms:
            raise UsageError("since is not before until")
        if wish.since_ms is None:
            offsets = await self._offsets.window_begins(window.duration, window.max_records)
        else:
            offsets = await self._offsets.at_time(wish.since_ms)
        begins = await self._offsets.locate(offsets)
        until = None if wish.until_ms is None else await self._offsets.at_time(wish.until_ms)
        frontier = await self._offsets.frontier()
        published = []
        for number, part in enumerate(frontier.partitions):
            if part.published is None:
                raise StreamtrainError(f"the records of partition {number} are not counted yet", hint="try again")
            published.append(Learned(part.end, part.published))
        end, watermark = tuple(published), frontier.watermark
        if until is not None:
            found = await self._offsets.locate(until)
            end = tuple(min(pair, key=lambda place: place.count) for pair in zip(found, end, strict=True))
            watermark = 0
        end = tuple(max(pair, key=lambda place: place.count) for pair in zip(end, begins, strict=True))
        if all(to.count == begin.count for to, begin in zip(end, begins, strict=True)):
            raise UsageError(
                "no record lies in this range",
                hint="times are those of arrival in Kafka; without --since it begins with the window",
            )
        return begins, end, watermark, tuple(place.offset for place in published)

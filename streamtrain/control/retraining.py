"""One retrain from its begin until it has taken the job's place: a lineage beside the running job, driven by a
controller of its own. It reconciles what is stored with what it sees, so that a restart goes on anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

import structlog

from streamtrain import cancelling, config
from streamtrain.clock import Clock
from streamtrain.control.controller import PAUSED_BY_OPERATOR, Controller
from streamtrain.control.course import Course, RetrainCourse
from streamtrain.control.end import End, Post
from streamtrain.control.machine import Phase
from streamtrain.control.pace import Pace
from streamtrain.control.progress import Progress, of_manifest, reached, remaining
from streamtrain.control.promotion import CLOSE_S, gap_end, promoted
from streamtrain.control.retrain_status import RetrainStatus, retrain_status
from streamtrain.control.retrain_table import RetrainEvent, next_state
from streamtrain.errors import FencedError, StreamtrainError, SupersededError
from streamtrain.ports import LeasePort, ManifestPort, OffsetsPort, RetrainPort
from streamtrain.types import Manifest, Retrain, RetrainState

TICK_S = 0.1
RETRY_S = 2.0  # after MongoDB did not answer
HOLD_S = 60.0  # the longest that the job stands still while the lineage learns the last of the gap

_log = structlog.get_logger()


class Build(Protocol):
    """Makes a controller of the same job, topic and launcher as the running one."""

    def __call__(self, *, job: config.Job, manifests: ManifestPort, course: Course, post: Post) -> Controller: ...


class _StoppedError(Exception):
    """The lineage's controller has ended: the daemon drains."""


class Retraining:
    """`run` is the work. running: the job's own controller. manifests: the job's own."""

    def __init__(
        self,
        *,
        retrain: Retrain,
        job: config.Job,
        running: Controller,
        build: Build,
        retrains: RetrainPort,
        manifests: ManifestPort,
        offsets: OffsetsPort,
        lease: LeasePort,
        clock: Clock,
    ) -> None:
        self.retrain = retrain
        workers = job.workers.model_copy(update={"min": retrain.workers})
        self._job = job.model_copy(update={"workers": workers})
        self._running = running
        self._build = build
        self._retrains = retrains
        self._manifests = manifests
        self._offsets = offsets
        self._lease = lease
        self._clock = clock
        self._log = _log.bind(job=job.name, retrain=retrain.lineage)
        self._pace = Pace(clock=clock)
        self._controller: Controller | None = None
        self._seen: Progress | None = None
        self._end = End(retrain.end, retrain.watermark)
        self._asked = asyncio.Event()
        self._draining = False
        self._reason = ""

    # ----------------------------------------------------------------------- commands

    async def promote(self) -> None:
        """Lets it take the job's place as soon as it is at its end; one that had failed is tried again."""
        state = next_state(self.retrain.state, RetrainEvent.PROMOTE, promote=True)
        await self._change(replace(self.retrain, state=state, promote=True))
        self._asked.set()
        controller = self._controller
        if controller is not None and controller.status().phase is Phase.PAUSED:
            controller.resume()

    def drain(self) -> None:
        self._draining = True
        self._asked.set()
        if self._controller is not None:
            self._controller.drain()

    def halt(self) -> None:
        self._draining = True
        self._asked.set()
        if self._controller is not None:
            self._controller.halt()

    def crashed(self, reason: str) -> None:
        self._reason = reason

    # ----------------------------------------------------------------------- the work

    async def run(self) -> bool:
        """Whether it has taken the job's place; False: the daemon drains. Raises FencedError, and SupersededError when
        it is stored no more."""
        while not self._draining:
            try:
                if await self._go_on():
                    return True
                self._reason = ""
            except (FencedError, SupersededError):
                raise
            except _StoppedError:
                return False
            except StreamtrainError as error:  # what a controller met itself is in its status
                if error.message != self._reason:
                    self._log.warning("the retrain waits", reason=error.message)
                self._reason = error.message
                await self._clock.sleep(RETRY_S)
        return False

    async def _go_on(self) -> bool:
        """One state further; whether it has taken the job's place."""
        await self._remember_head()
        if self.retrain.state is RetrainState.READY:
            await self._asked.wait()
            return False
        post = Post(self._end)
        async with self._learning(post) as (controller, run):
            if self.retrain.state is RetrainState.LEARNING:
                await self._learn(controller, run, post)
            while self.retrain.state is RetrainState.PROMOTING:
                await self._catch_up(controller, run, post)
                if await self._take_over(controller, run, post):
                    return True
                await self._clock.sleep(RETRY_S)  # the job learns meanwhile
        return False

    async def _learn(self, controller: Controller, run: asyncio.Task[None], post: Post) -> None:
        """Its range. One that is to be promoted keeps its workers then."""

        def ended() -> bool:
            promote, progress = self.retrain.promote, controller.progress
            post.move(replace(self._end, last=not promote))
            return controller.at_end or (
                promote and progress is not None and reached(progress.learned, self._end.places)
            )

        await self._until(run, ended)
        self._log.info("the retrain has learned its range", records=self.retrain.records)
        state = next_state(self.retrain.state, RetrainEvent.ENDED, promote=self.retrain.promote)
        await self._change(replace(self.retrain, state=state))

    @asynccontextmanager
    async def _learning(self, post: Post) -> AsyncIterator[tuple[Controller, asyncio.Task[None]]]:
        """A controller of the lineage, which has ended afterwards."""
        base = None if self.retrain.base is None else await self._retrains.read(self.retrain.base)
        manifests = self._retrains.manifests(self.retrain.lineage)
        course = RetrainCourse(
            job=self._job, retrain=self.retrain, offsets=self._offsets, manifests=manifests, base=base
        )
        controller = self._build(job=self._job, manifests=manifests, course=course, post=post)
        run = asyncio.create_task(controller.run())
        self._controller = controller
        try:
            yield controller, run
            controller.drain()
            await run
        finally:
            self._seen, self._controller = controller.progress or self._seen, None
            await cancelling.end(run)

    async def _until(
        self, run: asyncio.Task[None], condition: Callable[[], bool], *, limit_s: float | None = None
    ) -> bool:
        """Waits for the condition; False once `limit_s` have passed. Raises _StoppedError when the controller has
        ended, or what it ended with."""
        began = self._clock.monotonic()
        while not condition():
            if run.done():
                run.result()
                raise _StoppedError
            if limit_s is not None and self._clock.monotonic() - began > limit_s:
                return False
            self._look()
            await self._clock.sleep(TICK_S)
        return True

    def _look(self) -> None:
        """Lets it go on where it rests before its end: the end has moved, or it could not save there."""
        controller = self._controller
        if controller is None:
            return
        if (progress := controller.progress) is not None:
            self._pace.at(sum(place.count for place in progress.learned))
        status = controller.status()
        if status.phase is Phase.PAUSED and not status.gave_up and not controller.at_end and self._lease.held():
            controller.resume()

    async def _remember_head(self) -> None:
        if self._seen is None and self.retrain.head is not None:
            head = await self._retrains.read(self.retrain.head)
            self._seen = None if head is None else of_manifest(head)

    async def _change(self, retrain: Retrain) -> None:
        await self._retrains.change(retrain, epoch=self._lease.epoch)
        self.retrain = retrain

    # ----------------------------------------------------------------------- promotion

    async def _catch_up(self, controller: Controller, run: asyncio.Task[None], post: Post) -> None:
        """Until little is left to learn, while the job goes on."""
        while True:
            self._end = await self._gap_end(controller, last=False)
            post.move(self._end)
            progress = controller.progress
            if progress is not None and controller.status().phase in (Phase.TRAINING, Phase.SAVING):
                a_moment = CLOSE_S * (self._pace.per_s() or 0.0)
                if remaining(progress.learned, self._end.places) <= max(self._job.round.batch_size, a_moment):
                    return
            await self._until(run, lambda: False, limit_s=TICK_S)

    async def _take_over(self, controller: Controller, run: asyncio.Task[None], post: Post) -> bool:
        """The job finishes its round and saves; the lineage learns exactly as much, and becomes its head. False: not
        in good time, and the job goes on as it was."""
        running, lineage = self._running, self.retrain.lineage
        rested = running.status().phase is Phase.PAUSED
        taken_over = False
        if not rested:
            running.pause(f"the retrained lineage {lineage} takes over")
        try:
            if not await self._until(run, lambda: running.status().phase is Phase.PAUSED, limit_s=HOLD_S):
                return False
            head = await self._manifests.claim(self._job.name, epoch=self._lease.epoch)
            self._end = await self._gap_end(controller, last=True, head=head)
            post.move(self._end)
            await self._until(run, lambda: controller.at_end or _failed(controller), limit_s=HOLD_S)
            newest = controller.head
            if not controller.at_end or newest is None or running.status().phase is not Phase.PAUSED:
                return False
            manifest = promoted(newest, head=head, epoch=self._lease.epoch, created_ms=int(self._clock.time() * 1000))
            await self._retrains.promote(manifest, epoch=self._lease.epoch)
            self._log.info("the retrained lineage has taken over", head=manifest.id)
            taken_over = True
            return True
        finally:
            # A job that had given up would only do so again, unless it goes on from another head.
            asked = running.status().reason != PAUSED_BY_OPERATOR and (taken_over or not rested)
            if asked and running.status().phase is not Phase.STOPPED:
                running.resume()

    async def _gap_end(self, controller: Controller, *, last: bool, head: Manifest | None = None) -> End:
        """Through what the job has learned: now, or by its head."""
        head = head or self._running.head or await self._manifests.claim(self._job.name, epoch=self._lease.epoch)
        job = (None if last else self._running.progress) or (None if head is None else of_manifest(head))
        learned = controller.progress.learned if controller.progress is not None else self.retrain.end
        if head is not None and head.topic != self.retrain.topic:
            job = None  # its offsets are those of other records
        return gap_end(job, learned=learned, frontier=await self._offsets.frontier(), last=last)

    # ----------------------------------------------------------------------- status

    def status(self) -> RetrainStatus:
        controller = self._controller
        return retrain_status(
            self.retrain,
            progress=(controller.progress if controller else None) or self._seen,
            controller=controller.status() if controller else None,
            end=self._end.places,
            pace=self._pace,
            reason=self._reason,
        )


def _failed(controller: Controller) -> bool:
    """Whether the generation is lost that was learning."""
    status = controller.status()
    return status.gave_up or status.phase in (Phase.BACKOFF, Phase.FORMING)

"""Drives one job: asks the machine what an event means and does it. It decides nothing that the machine, the
planner or the group decides, and trusts a report only from the generation it formed itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from streamtrain import cancelling, config, metrics
from streamtrain.clock import Clock
from streamtrain.control import machine
from streamtrain.control.caution import Caution
from streamtrain.control.checkpoint import Checkpointer
from streamtrain.control.forming import Retrain, find_start, new_lineage, revealed
from streamtrain.control.group import DEADLINES, Deadlines, Group
from streamtrain.control.launcher.port import Launcher
from streamtrain.control.machine import Action, Event, Phase, State
from streamtrain.control.observer import Observer
from streamtrain.control.progress import learned_more, of_manifest
from streamtrain.control.rounds import Rounds
from streamtrain.control.status import JobStatus, checkpoint_status, retrain_status
from streamtrain.errors import ConfigError, FencedError, StreamtrainError, WorkerFailedError
from streamtrain.ports import Action as ReportAction
from streamtrain.ports import LeasePort, ManifestPort, OffsetsPort, Planner
from streamtrain.protocol import Form
from streamtrain.types import Manifest, RoundCounts

_log = structlog.get_logger()


class Controller:
    """Constructed once the lease is held and the source's topic is known.

    plan: `window.planner.plan`. artifacts: what workers open their artifact store with (`artifacts.open_store`).
    actions: called with the job's name and every merged report. work_dir: for the workers' temporary files.
    """

    def __init__(
        self,
        *,
        job: config.Job,
        kafka: config.Kafka,
        topic: str,
        topic_epoch: int,
        partitions: int,
        dead_letter_topic: str,
        offsets: OffsetsPort,
        plan: Planner,
        manifests: ManifestPort,
        lease: LeasePort,
        launcher: Launcher,
        artifacts: Mapping[str, Any],
        work_dir: Path,
        clock: Clock,
        actions: Sequence[ReportAction] = (),
        deadlines: Deadlines = DEADLINES,
    ) -> None:
        self._job = job
        self._kafka = kafka
        self._topic, self._topic_epoch, self._partitions = topic, topic_epoch, partitions
        self._dead_letter_topic = dead_letter_topic
        self._offsets = offsets
        self._plan = plan
        self._manifests = manifests
        self._lease = lease
        self._launcher = launcher
        self._artifacts = artifacts
        self._work_dir = work_dir
        self._clock = clock
        self._actions = tuple(actions)
        self._deadlines = deadlines
        self._log = _log.bind(job=job.name)
        self._observer = Observer(job=job, offsets=offsets, clock=clock)
        self._checkpointer = Checkpointer(
            job=job,
            topic=topic,
            topic_epoch=topic_epoch,
            manifests=manifests,
            lease=lease,
            clock=clock,
        )

        self._state = State()
        self._commands: asyncio.Queue[Event] = asyncio.Queue()
        self._activity: asyncio.Task[Event] | None = None
        self._group: Group | None = None
        self._generation = 0
        self._head: Manifest | None = None
        self._rounds: Rounds | None = None
        self._model_fingerprint = ""
        self._first_lineage = new_lineage(clock.time())
        self._retrain: Retrain | None = None
        self._error: StreamtrainError | None = None
        self._caution = Caution(clock=clock)
        self._reason = self._hint = ""

    # ----------------------------------------------------------------------- commands

    def pause(self, reason: str = "paused by the operator") -> None:
        """Saves, and gives the workers back, until `resume`."""
        self._command(Event.PAUSE)
        self._reason = reason

    def resume(self) -> None:
        self._command(Event.RESUME)

    def retrain(self, *, from_scratch: bool) -> str:
        """Learns the window again, in a new lineage whose id is returned. Resumes a paused job."""
        asked = Retrain(new_lineage(self._clock.time()), from_scratch)
        self._command(Event.RETRAIN)
        self._retrain = asked
        return asked.lineage

    def drain(self) -> None:
        """Finishes the rounds in flight, saves, stops; `run` then returns."""
        self._commands.put_nowait(Event.DRAIN)

    def halt(self) -> None:
        """Ends the workers at once; what is not in a manifest is learned again by the next daemon."""
        self._commands.put_nowait(Event.HALT)

    def _command(self, event: Event) -> None:
        if self._state.phase in (Phase.DRAINING, Phase.STOPPED):
            raise StreamtrainError(f"job {self._job.name} is {self._state.phase}", hint="wait for the next start")
        self._commands.put_nowait(event)

    # ----------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Until the job is drained or halted. Raises FencedError once a newer daemon has taken over; whatever
        else is raised here is a bug. Leaves no worker behind in any case."""
        observing = asyncio.create_task(self._observer.run())
        self._commands.put_nowait(Event.START)
        try:
            while self._state.phase is not Phase.STOPPED:
                await self._apply(await self._next_event())
            if isinstance(self._error, FencedError):
                raise self._error
        finally:
            await cancelling.end(observing)
            try:
                await self._end_activity()
            finally:
                await self._kill_group()
                await self._checkpointer.close()

    async def _next_event(self) -> Event:
        command = asyncio.create_task(self._commands.get())
        waits: set[asyncio.Task[Event]] = {command}
        if self._activity is not None:
            waits.add(self._activity)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not command.done():
                command.cancel()
                await asyncio.gather(command, return_exceptions=True)
        if not command.cancelled():
            return command.result()
        assert self._activity is not None
        activity, self._activity = self._activity, None
        try:
            return activity.result()
        except StreamtrainError as error:
            return self._failed(error)

    def _failed(self, error: StreamtrainError) -> Event:
        self._error = error
        self._reason, self._hint = error.message, error.hint
        kind = error.kind if isinstance(error, WorkerFailedError) else type(error).__name__
        metrics.WORKER_FAILURES.labels(self._job.name, kind).inc()
        if self._rounds is not None:
            self._caution.failed(kind, self._rounds.planned)
        if isinstance(error, FencedError):
            return Event.HALT
        return Event.FATAL if error.fatal else Event.FAILED

    async def _apply(self, event: Event) -> None:
        before = self._state
        self._state, actions = machine.transition(before, event)
        if self._state.phase is not before.phase:
            self._announce(before.phase, event)
        for action in actions:
            match action:
                case Action.KILL:
                    await self._end_activity()
                    await self._kill_group()
                case Action.REVERT:
                    self._rounds = None
                case Action.FORM:
                    await self._begin(self._form())
                case Action.TRAIN:
                    await self._begin(self._train())
                case Action.SAVE:
                    await self._begin(self._save())
                case Action.STOP:
                    await self._begin(self._stop())
                case Action.WAIT:
                    await self._begin(self._back_off())

    def _announce(self, before: Phase, event: Event) -> None:
        phase = self._state.phase
        quiet = event in (Event.CHECKPOINT_DUE, Event.SAVED)
        if event in (Event.FAILED, Event.FATAL, Event.HALT) and self._reason:
            self._log.error("job " + phase, was=str(before), reason=self._reason, hint=self._hint or None)
        elif not quiet:
            self._log.info("job " + phase, was=str(before), after=str(event))
        if phase is Phase.TRAINING and event is Event.FORMED:
            self._reason = self._hint = ""
        for each in Phase:
            metrics.PHASE.labels(self._job.name, each.value).set(each is phase)

    async def _begin(self, work: Coroutine[Any, Any, Event]) -> None:
        await self._end_activity()
        self._activity = asyncio.create_task(work)

    async def _end_activity(self) -> None:
        activity, self._activity = self._activity, None
        if activity is not None:
            await cancelling.end(activity)
            error = None if activity.cancelled() else activity.exception()
            if error is not None and not isinstance(error, StreamtrainError):
                raise error

    async def _kill_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            await group.kill()
        metrics.WORKERS.labels(self._job.name).set(0)

    # ----------------------------------------------------------------------- activities

    async def _back_off(self) -> Event:
        await self._clock.sleep(machine.backoff_s(self._state.failures))
        return Event.BACKOFF_OVER

    async def _form(self) -> Event:
        job = self._job
        start = await find_start(
            job=job,
            offsets=self._offsets,
            manifests=self._manifests,
            retrain=self._retrain,
            lineage=self._retrain.lineage if self._retrain else self._first_lineage,
            epoch=self._lease.epoch,
        )
        self._head, progress = start.head, start.progress
        self._generation = max(self._generation, start.head.generation if start.head else 0) + 1
        self._group = Group(
            job=job.name,
            generation=self._generation,
            world=job.workers.min,
            launcher=self._launcher,
            clock=self._clock,
            deadlines=self._deadlines.relaxed(self._state.failures),
        )
        formed = await self._group.form(
            Form(
                generation=self._generation,
                epoch=self._lease.epoch,
                rank=0,
                world=job.workers.min,
                tf_config="",
                job=revealed(job),
                kafka=revealed(self._kafka),
                artifacts=self._artifacts,
                topic=self._topic,
                topic_epoch=self._topic_epoch,
                partitions=self._partitions,
                dead_letter_topic=self._dead_letter_topic,
                learned=progress.learned,
                window_begins=progress.window_begins,
                manifest=start.restore,
                restore_weights=start.restore is not None,
                lineage=progress.lineage,
                work_dir=str(self._work_dir),
                careful_until=self._caution.until(self._partitions),
                careful_s=self._caution.seconds(),
                forget_through=tuple(place.offset for place in progress.retrain_until or ()),
            )
        )
        if start.restore is not None and start.restore.model_fingerprint != formed.model_fingerprint:
            raise ConfigError(
                f"the model of job {job.name} is not the one that its checkpoint holds the weights of",
                hint=f"restore it, or learn anew: streamtrain retrain {job.name} --from scratch",
            )
        self._model_fingerprint = formed.model_fingerprint
        self._observer.begin(progress.learned, progress.window_begins)
        self._rounds = Rounds(
            job=job,
            group=self._group,
            progress=progress,
            offsets=self._offsets,
            plan=self._plan,
            observer=self._observer,
            clock=self._clock,
            actions=self._actions,
            next_absent=formed.next_absent,
        )
        self._checkpointer.restarted()
        metrics.GENERATIONS.labels(job.name).inc()
        metrics.WORKERS.labels(job.name).set(job.workers.min)
        self._log.info("group formed", generation=self._generation, workers=job.workers.min, timings=formed.timings)
        return Event.FORMED

    async def _train(self) -> Event:
        assert self._rounds is not None
        await self._rounds.train(
            lambda progress, now: self._checkpointer.due(learned_more=learned_more(progress, self._head), now=now)
        )
        return Event.CHECKPOINT_DUE

    async def _save(self) -> Event:
        assert self._group is not None
        assert self._rounds is not None
        await self._rounds.finish()
        if learned_more(self._rounds.progress, self._head):
            self._head = await self._checkpointer.save(
                self._group, self._rounds.progress, parent=self._head, model_fingerprint=self._model_fingerprint
            )
        return Event.SAVED

    async def _stop(self) -> Event:
        if self._group is not None:
            await self._group.stop()
        await self._kill_group()
        self._rounds = None
        return Event.GROUP_STOPPED

    # ----------------------------------------------------------------------- status

    @property
    def error(self) -> StreamtrainError | None:
        """What the last generation failed with."""
        return self._error

    def status(self) -> JobStatus:
        head, observer = self._head, self._observer
        progress = self._rounds.progress if self._rounds else of_manifest(head) if head else None
        return JobStatus(
            job=self._job.name,
            phase=self._state.phase,
            reason=self._reason,
            hint=self._hint,
            generation=self._generation,
            workers=self._group.pids if self._group else (),
            lineage=progress.lineage if progress else None,
            rounds=progress.rounds if progress else 0,
            steps=progress.steps if progress else 0,
            rows_learned=progress.rows_learned if progress else 0,
            counts=progress.counts if progress else RoundCounts(),
            scores=progress.scores if progress else {},
            learned=progress.learned if progress else (),
            window_begins=progress.window_begins if progress else (),
            backlog=observer.backlog,
            oldest_untrained_s=observer.oldest_untrained_s,
            retention=observer.retention,
            retrain=retrain_status(progress, self._retrain) if progress else None,
            checkpoint=None if head is None else checkpoint_status(head),
            failures=self._state.failures,
            last_error=self._error.message if self._error else "",
            tick_age_s=observer.tick_age_s,
        )

"""Drives one job: asks the machine what an event means and does it. It decides nothing that the machine, the
planner or the group decides, and trusts a report only from the generation it formed itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from streamtrain import cancelling, config
from streamtrain.clock import Clock
from streamtrain.control import machine
from streamtrain.control.caution import Caution
from streamtrain.control.checkpoint import Checkpointer
from streamtrain.control.course import Course, JobCourse
from streamtrain.control.end import Post
from streamtrain.control.forming import new_lineage, revealed
from streamtrain.control.group import DEADLINES, Deadlines, Group
from streamtrain.control.launcher.port import Launcher
from streamtrain.control.machine import Action, Event, Phase, State
from streamtrain.control.meter import Meter
from streamtrain.control.observer import Observer
from streamtrain.control.progress import Progress, learned_more, of_manifest, reached
from streamtrain.control.redrive import Redrive
from streamtrain.control.rounds import Rounds
from streamtrain.control.status import JobStatus, checkpoint_status
from streamtrain.errors import ConfigError, DependencyError, FencedError, StreamtrainError, WorkerFailedError
from streamtrain.ports import Action as ReportAction
from streamtrain.ports import LeasePort, ManifestPort, OffsetsPort, Planner
from streamtrain.protocol import Form
from streamtrain.types import Manifest, RoundCounts

PAUSED_BY_OPERATOR = "paused by the operator"

_log = structlog.get_logger()


class Controller:
    """Constructed once the lease is held and the source's topic is known.

    plan: `window.planner.plan`. artifacts: what workers open their artifact store with (`artifacts.open_store`).
    actions: called with the job's name and every merged report. work_dir: for the workers' temporary files.
    course: what is learned: the job from its head on, if nothing else is said. post: where that ends. replay: the job's
    replay topic.
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
        course: Course | None = None,
        post: Post | None = None,
        replay: OffsetsPort | None = None,
    ) -> None:
        self._course: Course = course or JobCourse(
            job=job, offsets=offsets, manifests=manifests, lineage=new_lineage(clock.time())
        )
        self.post = post or Post()
        self._redrive = (
            None
            if replay is None
            else Redrive(offsets=replay, limit=job.round.max_records, holds=self._course.beside is not None)
        )
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
        self._log = _log.bind(job=job.name, **({"retrain": self._course.beside} if self._course.beside else {}))
        self._meter = Meter(None if self._course.beside else job.name)
        self._observer = Observer(job=job.name, course=self._course, offsets=offsets, clock=clock)
        self._checkpointer = Checkpointer(
            job=job,
            topic=topic,
            topic_epoch=topic_epoch,
            manifests=manifests,
            lease=lease,
            clock=clock,
            meter=self._meter,
        )

        self._state = State()
        self._commands: asyncio.Queue[Event] = asyncio.Queue()
        self._activity: asyncio.Task[Event] | None = None
        self._group: Group | None = None
        self._generation = 0
        self._head: Manifest | None = None
        self._rounds: Rounds | None = None
        self._model_fingerprint = ""
        self._error: StreamtrainError | None = None
        self._caution = Caution(clock=clock)
        self._gave_up = False
        self._reason = self._hint = ""

    # ----------------------------------------------------------------------- commands

    def pause(self, reason: str = PAUSED_BY_OPERATOR) -> None:
        """Saves, and gives the workers back, until `resume`."""
        self._command(Event.PAUSE)
        self._reason, self._hint = reason, ""

    def resume(self) -> None:
        self._command(Event.RESUME)

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
        """Until the job is drained or halted. Raises FencedError once a newer daemon has taken over, DependencyError
        when a drain could not save what was learned; whatever else is raised here is a bug. Leaves no worker behind in
        any case."""
        observing = asyncio.create_task(self._observer.run())
        self._commands.put_nowait(Event.START)
        try:
            while self._state.phase is not Phase.STOPPED:
                drains = self._state.phase is Phase.DRAINING
                event = await self._next_event()
                await self._apply(event)
            if isinstance(self._error, FencedError):
                raise self._error
            if drains and event is not Event.HALT:
                self._check_saved(event)
        finally:
            await cancelling.end(observing)
            try:
                await self._end_activity()
            finally:
                await self._kill_group()
                await self._checkpointer.close()

    def _check_saved(self, event: Event) -> None:
        """Raises DependencyError when what was learned is in no manifest."""
        rounds = self._rounds
        if rounds is not None and (rounds.busy or learned_more(rounds.progress, self._head)):
            failed = event in (Event.FAILED, Event.FATAL)
            reason = self._reason if failed else "the lease could not be renewed"
            raise DependencyError(
                f"job {self._job.name} was drained, but what it learned last could not be saved: {reason}",
                hint="the next start learns it again, from the newest manifest on",
            )

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
        self._meter.failed(kind)
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
        self._gave_up = phase is Phase.PAUSED and event is Event.FATAL
        quiet = event in (Event.CHECKPOINT_DUE, Event.SAVED)
        if event in (Event.FAILED, Event.FATAL, Event.HALT) and self._reason:
            self._log.error("job " + phase, was=str(before), reason=self._reason, hint=self._hint or None)
        elif not quiet:
            self._log.info("job " + phase, was=str(before), after=str(event))
        if phase is Phase.TRAINING and event is Event.FORMED:
            self._reason = self._hint = ""
        self._meter.phase(phase)

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
        self._meter.workers(0)

    # ----------------------------------------------------------------------- activities

    async def _back_off(self) -> Event:
        await self._clock.sleep(machine.backoff_s(self._state.failures))
        return Event.BACKOFF_OVER

    async def _form(self) -> Event:
        start = await self._course.start(self._lease.epoch)
        self._head, progress = start.head, start.progress
        if self._redrive is not None:
            progress = await self._redrive.begin(progress, fresh=start.head is None)
        job = self._job.with_hyper(progress.hyper)
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
                forget_through=start.forget_through,
                replay_topic="" if self._redrive is None else await self._redrive.topic(),
                redriven=progress.redriven,
                begins=progress.begins,
            )
        )
        if start.restore is not None and start.restore.model_fingerprint != formed.model_fingerprint:
            raise ConfigError(
                f"the model of job {job.name} is not the one that its checkpoint holds the weights of",
                hint=f"restore it, or learn anew: streamtrain retrain {job.name} --from scratch --promote",
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
            post=self.post,
            next_absent=formed.next_absent,
            redrive=self._redrive,
        )
        self._checkpointer.restarted()
        self._meter.formed(job.workers.min)
        self._log.info("group formed", generation=self._generation, workers=job.workers.min, timings=formed.timings)
        return Event.FORMED

    async def _train(self) -> Event:
        assert self._rounds is not None
        ended = await self._rounds.train(
            lambda progress, now: self._checkpointer.due(learned_more=learned_more(progress, self._head), now=now)
        )
        return Event.ENDED if ended else Event.CHECKPOINT_DUE

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
        if self._state.phase is not Phase.DRAINING:
            self._rounds = None
        return Event.GROUP_STOPPED

    # ----------------------------------------------------------------------- status

    @property
    def error(self) -> StreamtrainError | None:
        """What the last generation failed with."""
        return self._error

    @property
    def head(self) -> Manifest | None:
        """The newest manifest that this controller has seen."""
        return self._head

    @property
    def progress(self) -> Progress | None:
        return self._rounds.progress if self._rounds else of_manifest(self._head) if self._head else None

    @property
    def at_end(self) -> bool:
        """Whether all that it had to learn is in its head, and its workers are gone."""
        end, head = self.post.end, self._head
        resting = self._state.phase is Phase.PAUSED
        return resting and end is not None and end.last and head is not None and reached(head.learned, end.places)

    def status(self) -> JobStatus:
        head, observer, progress = self._head, self._observer, self.progress
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
            hyper=progress.hyper if progress else {},
            gave_up=self._gave_up,
            checkpoint=None if head is None else checkpoint_status(head),
            failures=self._state.failures,
            last_error=self._error.message if self._error else "",
            tick_age_s=observer.tick_age_s,
        )

"""One generation of workers: forms it, hands it rounds, and notices at once when one of them is gone, frozen or
failed. It serves until its first failure or its end, and leaves no process behind; a new group is a new object."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import deque
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from streamtrain.clock import Clock
from streamtrain.control.launcher.port import Launcher, WorkerProcess
from streamtrain.control.member import Member
from streamtrain.control.merge import merge_reports
from streamtrain.control.rendezvous import Rendezvous
from streamtrain.control.startup import Startup
from streamtrain.control.stopped import Stopped
from streamtrain.errors import EXIT_INTERNAL, StreamtrainError, WorkerError, WorkerFailedError
from streamtrain.protocol import (
    LOST_PEER,
    Failed,
    Form,
    Formed,
    Message,
    Progress,
    RoundReported,
    Save,
    Saved,
    StartRound,
    Stop,
    read_message,
)
from streamtrain.types import Round, RoundReport

MAX_ROUNDS_IN_FLIGHT = 2
_SETTLE_S = 0.1  # for the other ranks' reasons to arrive: the first is often only a lost connection
_EXIT_AFTER_EOF_S = 1.0

T = TypeVar("T")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The longest that a group waits for anything, in seconds.

    ready: from launching to every worker's Ready, which imports TensorFlow. form, round, save: each answer.
    progress: without any message from a worker that owes an answer, and, before Ready, without any processor time
    taken. stopped: standing stopped by a signal. stop: from Stop to the processes' end.
    terminate: from SIGTERM to SIGKILL. reap: from SIGKILL to the end.
    """

    ready: float = 120.0
    form: float = 600.0
    round: float = 600.0
    save: float = 120.0
    progress: float = 15.0
    stopped: float = 4.0
    stop: float = 10.0
    terminate: float = 0.5
    reap: float = 10.0

    def relaxed(self, failures: int) -> Deadlines:
        """After failures, more time for what a slow machine may not manage in time: else it never would."""
        factor = float(min(2**failures, 8))
        return replace(self, ready=self.ready * factor, progress=self.progress * factor)


DEADLINES = Deadlines()


class Group:
    """Every wait raises the group's failure as soon as there is one; `stop` or `kill` must then be called."""

    def __init__(
        self,
        *,
        job: str,
        generation: int,
        world: int,
        launcher: Launcher,
        clock: Clock,
        deadlines: Deadlines = DEADLINES,
    ) -> None:
        self.generation = generation
        self.world = world
        self._launcher = launcher
        self._clock = clock
        self._deadlines = deadlines
        self._log = _log.bind(job=job, generation=generation)
        self._rendezvous = Rendezvous()
        self._processes: list[WorkerProcess] = []
        self._members: list[Member] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._failed = asyncio.Event()
        self._failures: list[StreamtrainError] = []
        self._ending = False
        self._formed: asyncio.Queue[Formed] = asyncio.Queue()
        self._saved: asyncio.Queue[Saved] = asyncio.Queue()
        self._reports: dict[int, dict[int, RoundReport]] = {}  # round -> rank -> report
        self._merged: deque[RoundReport] = deque()
        self._reported = asyncio.Event()
        self.in_flight = 0

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    # ----------------------------------------------------------------------- life

    async def form(self, template: Form) -> Formed:
        """Launches the workers and makes them a group. Rank, world, generation and TF_CONFIG are filled into
        the template. Raises WorkerError, or what a worker said that it failed with."""
        control = await self._rendezvous.open()
        for index in range(self.world):
            process = await self._launcher.launch(
                control=control, token=self._rendezvous.token, generation=self.generation, index=index
            )
            self._processes.append(process)
            self._start(self._watch_exit(index, process))
        self._start(self._watch_startup())
        self._start(self._watch_stopped())
        await self._wait(self._gather_members())
        await self._rendezvous.close()
        self._start(self._watch_deadlines())
        addresses = [member.address for member in self._members]
        for member in self._members:
            self._start(self._listen(member))
            self._send(
                member,
                replace(
                    template,
                    generation=self.generation,
                    rank=member.rank,
                    world=self.world,
                    tf_config=_tf_config(addresses, member.rank),
                ),
                self._deadlines.form,
            )
        formed = [await self._wait(self._formed.get()) for _ in self._members]
        fingerprints = {answer.model_fingerprint for answer in formed}
        if len(fingerprints) > 1:
            raise WorkerError("the workers built different models", hint="a model function must be deterministic")
        stages = dict.fromkeys(stage for answer in formed for stage in answer.timings)
        slowest = {stage: max(answer.timings.get(stage, 0.0) for answer in formed) for stage in stages}
        next_absent = min((each.next_absent for each in formed if each.next_absent is not None), default=None)
        return Formed(self.generation, fingerprints.pop(), slowest, next_absent)

    async def stop(self) -> None:
        """Ends the workers in order; those that do not end in time are killed."""
        self._ending = True
        for member in self._members:
            self._send(member, Stop(self.generation), self._deadlines.stop)
        await self._exited(self._deadlines.stop)
        await self.kill()

    async def kill(self) -> None:
        """Ends the workers now, whatever state they are in. Idempotent; returns once they are reaped."""
        self._ending = True
        await self._rendezvous.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for member in self._members:
            member.close()
        for process in self._processes:
            process.kill() if process.stopped() else process.terminate()  # a stopped one takes no SIGTERM
        if not await self._exited(self._deadlines.terminate):
            for process in self._processes:
                process.kill()
            if not await self._exited(self._deadlines.reap):
                self._log.error("workers survive SIGKILL", pids=self.pids)

    async def _exited(self, limit_s: float) -> bool:
        if not self._processes:
            return True
        exits = asyncio.gather(*(process.wait() for process in self._processes))
        return await self._within(exits, limit_s)

    # ----------------------------------------------------------------------- rounds

    def start_round(self, round: Round) -> None:
        """Hands a round to every worker; returns at once. At most MAX_ROUNDS_IN_FLIGHT may be without report."""
        if self.in_flight >= MAX_ROUNDS_IN_FLIGHT:
            raise WorkerError(f"round {round.number} would be the third in flight")
        self.in_flight += 1
        for member in self._members:
            self._send(member, StartRound(self.generation, round), self._deadlines.round)

    async def reported(self) -> None:
        """Returns once `take_report` has one."""
        await self._wait(self._reported.wait())

    def take_report(self) -> RoundReport | None:
        """The merged report of the oldest round in flight. Nothing is awaited: no report can be lost here."""
        if not self._merged:
            return None
        report = self._merged.popleft()
        if not self._merged:
            self._reported.clear()
        self.in_flight -= 1
        return report

    async def save(self, prefix: str) -> Saved:
        """Saves the state after the last round that was started. Only with no round in flight."""
        for member in self._members:
            self._send(member, Save(self.generation, prefix), self._deadlines.save)
        answers = [await self._wait(self._saved.get()) for _ in self._members]
        if len({answer.rounds for answer in answers}) > 1:
            raise WorkerError("the workers saved after different rounds")
        artifacts = {role: ref for answer in answers for role, ref in answer.artifacts.items()}
        return replace(answers[0], artifacts=artifacts, seconds=max(answer.seconds for answer in answers))

    # ----------------------------------------------------------------------- watching

    async def _gather_members(self) -> None:
        while len(self._members) < self.world:
            arrival = await self._rendezvous.arrivals.get()
            self._members.append(
                Member(
                    rank=len(self._members),
                    ready=arrival.ready,
                    reader=arrival.reader,
                    writer=arrival.writer,
                    now=self._clock.monotonic(),
                )
            )

    async def _watch_startup(self) -> None:
        now = self._clock.monotonic()
        startups = [Startup(process, index=index, now=now) for index, process in enumerate(self._processes)]
        while len(self._members) < self.world:
            await self._clock.sleep(min(1.0, self._deadlines.progress / 4))
            here = {member.pid for member in self._members}
            for startup in startups:
                if startup.process.pid in here:
                    continue
                overdue = startup.overdue(
                    self._clock.monotonic(), ready_s=self._deadlines.ready, progress_s=self._deadlines.progress
                )
                if overdue is not None:
                    self._fail(WorkerError(overdue))

    async def _watch_stopped(self) -> None:
        watched = [Stopped(process, index=index) for index, process in enumerate(self._processes)]
        while True:
            for each in watched:
                overdue = each.overdue(self._clock.monotonic(), self._deadlines.stopped)
                if overdue is not None:
                    self._fail(WorkerError(overdue))
            await self._clock.sleep(min(1.0, self._deadlines.stopped / 4))

    async def _listen(self, member: Member) -> None:
        try:
            while (message := await read_message(member.reader)) is not None:
                self._receive(member, message)
        except StreamtrainError as error:
            self._fail(error)
            return
        # The exit status says more than the lost connection, and is there in a moment.
        await self._clock.sleep(_EXIT_AFTER_EOF_S)
        self._fail(WorkerError(f"rank {member.rank} (pid {member.pid}) closed its control connection"))

    def _receive(self, member: Member, message: Message) -> None:
        if message.generation != self.generation:
            return
        now = self._clock.monotonic()
        if isinstance(message, Failed):
            self._fail(_failure(message, member))
        elif isinstance(message, Progress):
            member.heard(now, message.stage)
        elif isinstance(message, Formed):
            member.settle(message, now=now)
            self._formed.put_nowait(message)
        elif isinstance(message, Saved):
            member.settle(message, now=now)
            self._saved.put_nowait(message)
        elif isinstance(message, RoundReported):
            member.settle(message, now=now)
            by_rank = self._reports.setdefault(message.report.round, {})
            by_rank[member.rank] = message.report
            if len(by_rank) == self.world:
                del self._reports[message.report.round]
                self._merged.append(merge_reports([by_rank[rank] for rank in range(self.world)]))
                self._reported.set()

    async def _watch_exit(self, index: int, process: WorkerProcess) -> None:
        status = await process.wait()
        if status == EXIT_INTERNAL:
            await self._clock.sleep(2 * _SETTLE_S)  # what it says itself comes first
        self._fail(WorkerError(f"worker {index} (pid {process.pid}) {_ended(status)}", hint=f"its log: {process.log}"))

    async def _watch_deadlines(self) -> None:
        while True:
            await self._clock.sleep(min(1.0, self._deadlines.progress / 4))
            for member in self._members:
                overdue = member.overdue(self._clock.monotonic(), self._deadlines.progress)
                if overdue is not None:
                    self._fail(WorkerError(overdue))

    def _fail(self, error: StreamtrainError) -> None:
        if not self._ending:
            self._failures.append(error)
            self._failed.set()

    def _send(self, member: Member, message: Message, limit_s: float) -> None:
        member.send(message, now=self._clock.monotonic(), limit_s=limit_s)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended_with)
        self._tasks.append(task)

    def _ended_with(self, task: asyncio.Task[None]) -> None:
        """An error in a watcher is the group's, never lost."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("a group's watcher failed", exc_info=error)
            self._fail(WorkerError(f"internal: {type(error).__name__} while watching the workers"))

    async def _wait(self, work: Awaitable[T]) -> T:
        """The result of `work`; raises the group's failure. What is late fails the group (`_watch_...`)."""
        task = asyncio.ensure_future(work)
        failed = asyncio.ensure_future(self._failed.wait())
        waits: set[asyncio.Future[Any]] = {task, failed}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            await self._clock.sleep(_SETTLE_S)
            raise _most_telling(self._failures)
        finally:
            await _cancel(waits)

    async def _within(self, work: asyncio.Future[Any], limit_s: float) -> bool:
        limit = asyncio.ensure_future(self._clock.sleep(limit_s))
        waits: set[asyncio.Future[Any]] = {work, limit}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return work.done()
        finally:
            await _cancel(waits)


async def _cancel(waits: set[asyncio.Future[Any]]) -> None:
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


def _tf_config(addresses: list[str], rank: int) -> str:
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})


def _failure(failed: Failed, member: Member) -> WorkerFailedError:
    return WorkerFailedError(
        f"{failed.message} ({failed.kind}, rank {member.rank}, pid {member.pid})",
        hint=failed.hint,
        kind=failed.kind,
        fatal=failed.fatal,
    )


def _most_telling(failures: list[StreamtrainError]) -> StreamtrainError:
    """A fatal reason before any other; what a worker said before what was seen of it from outside; and that before
    another worker's complaint that it has lost a peer."""
    return min(failures, key=_telling)


def _telling(error: StreamtrainError) -> int:
    if error.fatal:
        return 0
    if isinstance(error, WorkerFailedError):
        return 3 if error.kind in LOST_PEER else 1
    return 2


def _ended(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"exited with status {status}"

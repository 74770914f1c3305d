"""The inner loop of a generation: cuts rounds as data comes, keeps one queued while one runs, and counts as
learned what the reports say, never what was planned."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.control.end import End, Post
from streamtrain.control.forming import check_retention
from streamtrain.control.group import MAX_ROUNDS_IN_FLIGHT, Group
from streamtrain.control.observer import Observer
from streamtrain.control.progress import Progress, capped, reached, skip_removed
from streamtrain.control.redrive import Redrive
from streamtrain.control.watermark import Watermark
from streamtrain.ports import Action, OffsetsPort, Planner
from streamtrain.types import Frontier, Learned, OffsetRange, Planned, PlanRequest, PlanSettings, RetentionState


class Rounds:
    """Lives as long as its group. All methods may be cancelled and called again: no report is lost."""

    def __init__(
        self,
        *,
        job: config.Job,
        group: Group,
        progress: Progress,
        offsets: OffsetsPort,
        plan: Planner,
        observer: Observer,
        clock: Clock,
        actions: Sequence[Action],
        post: Post,
        next_absent: int | None = None,
        redrive: Redrive | None = None,
    ) -> None:
        """post: where to stop. next_absent: the first cluster time at which a label is absent, as the group has
        formed."""
        self.progress = progress
        self._job = job
        self._group = group
        self._offsets = offsets
        self._plan = plan
        self._observer = observer
        self._clock = clock
        self._actions = actions
        self._post = post
        self._settings = PlanSettings(
            max_wait_s=job.round.max_wait,
            max_records=job.round.max_records,
            batch_size=job.round.batch_size,
            replay_ratio=job.round.replay_ratio,
            seed=job.seed,
        )
        self._in_flight: deque[Planned] = deque()
        self._planned = progress.learned
        self._waiting_since: float | None = None
        self._watermark = Watermark(progress.watermark)
        self._next_absent = next_absent
        self._redrive = redrive

    @property
    def planned(self) -> tuple[Learned, ...]:
        """Through where rounds have been cut."""
        return self._planned

    @property
    def busy(self) -> bool:
        """Whether a round is in flight."""
        return bool(self._in_flight)

    async def train(self, checkpoint_due: Callable[[Progress, float], float | None]) -> bool:
        """Until `checkpoint_due`, which says when the next checkpoint is due, if any; or until the end is reached, and
        then it returns True. Raises the group's failure, and OffsetError when records are gone that were not
        learned."""
        while True:
            await self._check_retention()
            end = self._post.end
            frontier = await self._visible_frontier(end)
            self._watermark.advance(frontier, self.progress.learned)
            now = self._clock.monotonic()
            due = checkpoint_due(self.progress, now)
            if due is not None and now >= due:
                return False
            until = await self._cut(frontier, now)
            if until is None and self._at_end(end):
                return True
            wakes = [moment for moment in (due, until) if moment is not None]
            await self._wake(frontier, end, min(wakes) - now if wakes else None)
            self._take_reports()

    async def finish(self) -> None:
        """Until no round is in flight."""
        self._take_reports()
        while self._in_flight:
            await self._group.reported()
            self._take_reports()

    async def _check_retention(self) -> None:
        seen = self._observer.retention
        if seen is not None and seen.state in (RetentionState.LOST, RetentionState.AHEAD):
            await check_retention(self._job.name, self._offsets, self.progress.learned)

    async def _visible_frontier(self, end: End | None) -> Frontier:
        """No round goes beyond the end, or holds both rows that are scored and rows that are not."""
        frontier = await self._offsets.frontier()
        if end is not None:
            frontier = capped(frontier, end.places, watermark=end.watermark)
        until = self.progress.retrain_until
        return frontier if until is None else capped(frontier, until)

    def _at_end(self, end: End | None) -> bool:
        return end is not None and end.last and not self._in_flight and reached(self.progress.learned, end.places)

    async def _cut(self, frontier: Frontier, now: float) -> float | None:
        """Starts what rounds can be started; returns when to look again, None until something happens."""
        while True:
            await self._skip_removed(frontier)
            decision = self._plan(self._request(frontier, now, await self._redriven()))
            if not isinstance(decision, Planned):
                self._waiting_since = None if decision.until is None else self._waiting_since or now
                return decision.until
            if len(self._in_flight) >= MAX_ROUNDS_IN_FLIGHT:
                self._waiting_since = self._waiting_since or now
                return None
            self._group.start_round(decision.round)
            if self._redrive is not None:
                self._redrive.took(decision.round)
            self._in_flight.append(decision)
            self._planned = decision.planned
            if all(place.offset >= part.end for place, part in zip(self._planned, frontier.partitions, strict=True)):
                self._waiting_since = None

    async def _redriven(self) -> tuple[OffsetRange, ...]:
        """Dead letters that were replayed; none while rows are learned again that were scored before."""
        ranges = () if self._redrive is None else await self._redrive.ranges()
        return ranges if self.progress.retrain_until is None else ()

    def _request(self, frontier: Frontier, now: float, redriven: tuple[OffsetRange, ...]) -> PlanRequest:
        return PlanRequest(
            number=self.progress.rounds + len(self._in_flight),
            planned=self._planned,
            frontier=frontier,
            window_begins=self._observer.window_begins,
            settings=self._settings,
            waiting_since=self._waiting_since,
            now=now,
            scored=self.progress.retrain_until is None,
            watermark=self._watermark.value,
            next_absent=None if self._in_flight else self._next_absent,
            redriven=redriven,
        )

    async def _skip_removed(self, frontier: Frontier) -> None:
        """Past offsets that Kafka has removed, if all that was in them is planned; else raises OffsetError."""
        if any(part.begin > place.offset for part, place in zip(frontier.partitions, self._planned, strict=True)):
            await check_retention(self._job.name, self._offsets, self._planned)
            self._planned = skip_removed(self._planned, frontier)

    async def _wake(self, frontier: Frontier, end: End | None, wait_s: float | None) -> None:
        """Until a report is there, more is published, the end has moved, or `wait_s` have passed; raises the group's
        failure."""
        waits = {
            asyncio.ensure_future(self._group.reported()),
            asyncio.ensure_future(self._offsets.changed(frontier)),
            asyncio.ensure_future(self._post.moved(end)),
        }
        if wait_s is not None:
            waits.add(asyncio.ensure_future(self._clock.sleep(wait_s)))
        if self._redrive is not None:
            waits.add(asyncio.ensure_future(self._redrive.changed()))
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _take_reports(self) -> None:
        while (report := self._group.take_report()) is not None:
            asked = self._in_flight.popleft()
            self.progress = self.progress.after(asked.round, report)
            self._next_absent = report.next_absent
            self._correct_plan(asked)
            self._observer.follow(self.progress.learned)
            for action in self._actions:
                action(self._job.name, report)

    def _correct_plan(self, done: Planned) -> None:
        """Plans hold estimated counts where a round ended inside what was published; reports hold true ones."""
        if not self._in_flight:
            self._planned = self.progress.learned
            return
        self._planned = tuple(
            Learned(ahead.offset, ahead.count + learned.count - planned.count)
            for ahead, learned, planned in zip(self._planned, self.progress.learned, done.planned, strict=True)
        )

"""Looks at a job's topic every second, whatever phase the job is in: its backlog, its lateness, how far
retention is, where the window begins. It shows; only the controller acts."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from streamtrain.clock import Clock
from streamtrain.control.course import Course
from streamtrain.errors import StreamtrainError
from streamtrain.ports import OffsetsPort
from streamtrain.types import Learned, Retention, RetentionState

OBSERVE_S = 1.0
LATENESS_S = 2.0  # between looks at the oldest untrained record: after a restart that asks Kafka
WINDOW_S = 5.0  # between looks at where the window begins

_log = structlog.get_logger()


class Observer:
    def __init__(self, *, job: str, course: Course, offsets: OffsetsPort, clock: Clock) -> None:
        self._course = course
        self._offsets = offsets
        self._clock = clock
        self._log = _log.bind(job=job)
        self._learned: tuple[Learned, ...] = ()
        self._window_begins: tuple[int, ...] = ()
        self._window_at: float | None = None
        self._lateness_at: float | None = None
        self._observed_at = clock.monotonic()
        self._trouble = ""
        self.backlog: int | None = None
        self.oldest_untrained_s: float | None = None
        self.retention: Retention | None = None

    @property
    def window_begins(self) -> tuple[int, ...]:
        """Never goes back within a generation."""
        return self._window_begins

    @property
    def tick_age_s(self) -> float:
        return self._clock.monotonic() - self._observed_at

    def begin(self, learned: Sequence[Learned], window_begins: Sequence[int]) -> None:
        """A generation starts from here, perhaps in another lineage."""
        self._learned, self._window_begins = tuple(learned), tuple(window_begins)
        self._window_at = self._lateness_at = None
        self.retention = None

    def follow(self, learned: Sequence[Learned]) -> None:
        self._learned = tuple(learned)

    async def run(self) -> None:
        while True:
            try:
                await self._observe()
            except StreamtrainError as error:
                self.backlog = self.oldest_untrained_s = None
                if error.message != self._trouble:
                    self._log.warning("the topic cannot be looked at", reason=error.message)
                self._trouble = error.message
            else:
                self._trouble = ""
            self._observed_at = self._clock.monotonic()
            await self._clock.sleep(OBSERVE_S)

    async def _observe(self) -> None:
        learned = self._learned
        if not learned:
            return
        frontier = await self._offsets.frontier()
        self.backlog = frontier.backlog(learned)
        now = self._clock.monotonic()
        if self._lateness_at is None or now - self._lateness_at >= LATENESS_S:
            if self._course.beside is None:  # else it has much to catch up with, and each look would ask Kafka
                self.oldest_untrained_s = await self._offsets.oldest_untrained_s(learned)
            self._note(await self._offsets.retention(learned, self.oldest_untrained_s))
            self._lateness_at = now
        if self._window_at is None or now - self._window_at >= WINDOW_S:
            window = await self._course.window(learned)
            self._window_begins = tuple(map(max, window, self._window_begins))
            self._window_at = now

    def _note(self, retention: Retention) -> None:
        before, self.retention = self.retention, retention
        if retention.state is RetentionState.NEAR and (before is None or before.state is not RetentionState.NEAR):
            self._log.warning(
                "untrained records will expire soon", partitions=retention.partitions, in_s=retention.headroom_s
            )

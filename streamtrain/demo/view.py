"""What the demo shows, as values: taken from the daemon's status and from what the demo itself has written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamtrain.demo.baselines import MeanBaseline, ShiftBaseline

_RATE_SECONDS = 3.0
_HISTORY = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The job, as the daemon's status says. generation: 1 for the first group of workers. rounds, learned: what
    the weights contain. backlog: None while it is not known. absolute_error: summed over the `scored` flights.
    freshness: seconds from the write in MongoDB to the gradient, None before there are any."""

    phase: str = "starting"
    reason: str = ""
    workers: int = 0
    generation: int = 0
    rounds: int = 0
    learned: int = 0
    scored: int = 0
    absolute_error: float = 0.0
    backlog: int | None = None
    dead_letters: int = 0
    freshness_p50_s: float | None = None
    freshness_p99_s: float | None = None

    @property
    def mae(self) -> float | None:
        return self.absolute_error / self.scored if self.scored else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Mean absolute errors in minutes over the same first `labels` flights; improvement: by how much the model
    is below the better baseline, as a fraction of it (negative when it is above)."""

    labels: int = 0
    model: float | None = None
    shift: float | None = None
    mean: float | None = None

    @property
    def better_baseline(self) -> float | None:
        known = [mae for mae in (self.shift, self.mean) if mae is not None]
        return min(known) if known else None

    @property
    def improvement(self) -> float | None:
        better = self.better_baseline
        return None if self.model is None or not better else 1 - self.model / better


class Baselines:
    """Both baselines, each tested and taught in the order of writing, and only through the flight up to which
    the model was scored: so all three are means over equally many of the same labels."""

    def __init__(self) -> None:
        self._mean = MeanBaseline()
        self._shift = ShiftBaseline()
        self._ahead: deque[tuple[int, int]] = deque()

    def written(self, labels: Sequence[tuple[int, int]]) -> None:
        """labels: pairs of (dep_delay, arr_delay)."""
        self._ahead.extend(labels)

    def compare(self, job: JobView) -> Comparison:
        while self._ahead and self._mean.labels < job.scored:
            departure, arrival = self._ahead.popleft()
            self._mean.score_then_learn(arrival)
            self._shift.score_then_learn(departure, arrival)
        return Comparison(labels=self._mean.labels, model=job.mae, shift=self._shift.mae, mean=self._mean.mae)


@dataclass(slots=True)
class Rate:
    """Events a second over the last few seconds, and its history for a sparkline; 0 where the total went back."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)
    history: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))

    def at(self, now: float, total: int) -> float:
        """total: events so far, at clock second `now`."""
        self.samples.append((now, total))
        while len(self.samples) > 2 and now - self.samples[1][0] >= _RATE_SECONDS:
            self.samples.popleft()
        began, before = self.samples[0]
        rate = max(0, total - before) / (now - began) if now > began else 0.0
        self.history.append(rate)
        return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """One moment of the demo. elapsed: seconds of writing so far. flight_time_ms: how far the year has come."""

    elapsed: float
    duration: float
    stage: str
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    flight_time_ms: int = 0
    write_rate: float = 0.0
    learn_rate: float = 0.0
    write_history: tuple[float, ...] = ()
    learn_history: tuple[float, ...] = ()
    job: JobView = JobView()
    comparison: Comparison = Comparison()

    @property
    def written(self) -> int:
        return self.inserts + self.updates + self.deletes

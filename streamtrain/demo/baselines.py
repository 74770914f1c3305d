"""What the demo's model must beat: two predictors that cost nothing, tested on each label before they learn it,
as the model is. Whole minutes in, so their running median is exact."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class MeanBaseline:
    """Predicts the mean of all labels so far; 0 before the first."""

    labels: int = 0
    total: int = 0
    absolute_error: float = 0.0

    def score_then_learn(self, label: int) -> None:
        prediction = self.total / self.labels if self.labels else 0.0
        self.absolute_error += abs(label - prediction)
        self.labels += 1
        self.total += label

    @property
    def mae(self) -> float | None:
        return self.absolute_error / self.labels if self.labels else None


@dataclass(slots=True)
class RunningMedian:
    """The median of the integers so far, by counting: exact, and a step moves it by at most one place.

    With an even count it is the mean of the two middle values.
    """

    counts: dict[int, int] = field(default_factory=dict)
    size: int = 0
    _low: int = 0  # the lower middle value
    _below: int = 0  # how many values are smaller than it

    def add(self, value: int) -> None:
        self.counts[value] = self.counts.get(value, 0) + 1
        self.size += 1
        if self.size == 1:
            self._low = value
            return
        if value < self._low:
            self._below += 1
        target = (self.size - 1) // 2  # the lower middle's place among the sorted values
        while self._below > target:
            self._low = self._next(self._low, -1)
            self._below -= self.counts[self._low]
        while self._below + self.counts[self._low] <= target:
            self._below += self.counts[self._low]
            self._low = self._next(self._low, 1)

    @property
    def value(self) -> float:
        """0 before the first value."""
        if self.size % 2 or not self.size or self._below + self.counts[self._low] > self.size // 2:
            return float(self._low)
        return (self._low + self._next(self._low, 1)) / 2

    def _next(self, value: int, step: int) -> int:
        value += step
        while value not in self.counts:
            value += step
        return value


@dataclass(slots=True)
class ShiftBaseline:
    """Predicts that a flight arrives as late as it left, plus the median of how that went so far."""

    shift: RunningMedian = field(default_factory=RunningMedian)
    absolute_error: float = 0.0

    def score_then_learn(self, departure_delay: int, label: int) -> None:
        self.absolute_error += abs(label - (departure_delay + self.shift.value))
        self.shift.add(label - departure_delay)

    @property
    def mae(self) -> float | None:
        return self.absolute_error / self.shift.size if self.shift.size else None

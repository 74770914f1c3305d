"""How fast a lineage learns its range, and how long that will still take. Pure but for the clock."""

from __future__ import annotations

from collections import deque

from streamtrain.clock import Clock

RECENT_S = 60.0
LEAST_S = 1.0  # between the samples that are kept, and before anything is told


class Pace:
    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()

    def at(self, done: int) -> None:
        """done: records learned in all. What goes back (a generation failed) begins anew."""
        now = self._clock.monotonic()
        if self._samples and done < self._samples[-1][1]:
            self._samples.clear()
        if not self._samples or now - self._samples[-1][0] >= LEAST_S:
            self._samples.append((now, done))
        while now - self._samples[0][0] > RECENT_S:
            self._samples.popleft()

    def per_s(self) -> float | None:
        """Records a second, recently; None while that is not known."""
        if len(self._samples) < 2:
            return None
        (first, before), (last, after) = self._samples[0], self._samples[-1]
        return (after - before) / (last - first)

    def eta_s(self, left: int) -> float | None:
        """None while it cannot be told."""
        if left <= 0:
            return 0.0
        rate = self.per_s()
        return left / rate if rate else None

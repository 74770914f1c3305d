"""When the records of a partition were published, by their count: bounded, and coarser the older. Pure."""

from __future__ import annotations

from bisect import bisect_right


class Ages:
    """Knows the records from `base` on. `add` is told of every transaction, in order."""

    def __init__(self, *, base: int, capacity: int) -> None:
        self._base = base
        self._capacity = max(2, capacity)
        self._counts: list[int] = []  # records published after each remembered transaction
        self._times: list[float] = []

    def add(self, count: int, at: float) -> None:
        """count: records ever published after a transaction that was committed at `at`."""
        self._counts.append(count)
        self._times.append(at)
        if len(self._counts) > self._capacity:
            # Two neighbours become one that is as old as the older: an age is never told too low.
            self._counts = self._counts[1::2] + ([] if len(self._counts) % 2 == 0 else self._counts[-1:])
            self._times = self._times[::2]

    def knows(self, count: int) -> bool:
        """Whether the time of the record with sequence `count` is known, or that there is none yet."""
        return count >= self._base

    def published_at(self, count: int) -> float | None:
        """When the record with sequence `count` was published; None when it has not been."""
        index = bisect_right(self._counts, count)
        return self._times[index] if index < len(self._times) else None

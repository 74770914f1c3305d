"""How careful the next generation must be after the model has refused a row: it tries each row by itself until it has
passed the place, and longer the more often that has happened. Pure but for the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from streamtrain.clock import Clock
from streamtrain.errors import RefusedRowError
from streamtrain.types import Learned

REFUSED = RefusedRowError.__name__
LONGER_S = 60.0
"""Of care beyond the place, after the second refusal within `REMEMBERED_S`; doubles with each further one."""

REMEMBERED_S = 3600.0


class Caution:
    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._refused: deque[float] = deque()
        self._until: tuple[int, ...] = ()

    def failed(self, kind: str, planned: Sequence[Learned]) -> None:
        """kind: of a generation's failure. planned: through where its rounds had been cut."""
        if kind != REFUSED:
            return
        now = self._clock.monotonic()
        self._refused.append(now)
        while now - self._refused[0] > REMEMBERED_S:
            self._refused.popleft()
        ends = tuple(place.offset for place in planned)
        same = len(ends) == len(self._until)
        self._until = tuple(map(max, ends, self._until)) if same else ends

    def until(self, partitions: int) -> tuple[int, ...]:
        """Offsets through which to be careful, per partition; empty where there is no reason to be."""
        return self._until if len(self._until) == partitions else ()

    def seconds(self) -> float:
        """How much longer than that."""
        if len(self._refused) < 2:
            return 0.0
        longer = min(LONGER_S * 2.0 ** (len(self._refused) - 2), REMEMBERED_S)
        return max(0.0, self._refused[-1] + longer - self._clock.monotonic())

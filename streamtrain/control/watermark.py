"""Up to what cluster time a job has learned every change: what was published by then, and is learned now. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from streamtrain.types import Frontier, Learned

_MARKS = 64  # of what was published when, that is not learned yet


class Watermark:
    """It never goes back."""

    def __init__(self, value: int) -> None:
        self.value = value
        self._marks: deque[tuple[tuple[int | None, ...], int]] = deque()

    def advance(self, frontier: Frontier, learned: Sequence[Learned]) -> None:
        """To the latest cluster time by which no more was published than is learned."""
        mark = (tuple(part.published for part in frontier.partitions), frontier.watermark)
        if frontier.watermark > self.value and (not self._marks or self._marks[-1] != mark):
            if len(self._marks) == _MARKS:
                self._marks.pop()  # the newest: an older one may be reached soon
            self._marks.append(mark)
        while self._marks and _covers(learned, self._marks[0][0]):
            self.value = max(self.value, self._marks.popleft()[1])


def _covers(learned: Sequence[Learned], published: Sequence[int | None]) -> bool:
    return all(count is not None and place.count >= count for place, count in zip(learned, published, strict=True))

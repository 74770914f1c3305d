"""Where a lineage beside the job stops learning: the end of its range, or what the job has learned so far."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from streamtrain.types import Learned


@dataclass(frozen=True, slots=True)
class End:
    """places: nothing beyond is learned. watermark: a cluster time before which every change lies before the places
    (0: not known). last: once they are reached the lineage is done; else it waits there, for they move on."""

    places: tuple[Learned, ...]
    watermark: int = 0
    last: bool = True


class Post:
    """An end that can be moved while a group learns towards it; None: there is none, as for the job itself."""

    def __init__(self, end: End | None = None) -> None:
        self._end = end
        self._moved = asyncio.Event()

    @property
    def end(self) -> End | None:
        return self._end

    def move(self, end: End) -> None:
        if end != self._end:
            self._end = end
            self._moved.set()
            self._moved = asyncio.Event()

    async def moved(self, since: End | None) -> None:
        """Returns once the end is another than `since`."""
        while self._end == since:
            await self._moved.wait()

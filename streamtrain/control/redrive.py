"""Which dead letters the next round learns after all: the job's replay topic, as far as rounds have been cut from it.
It never looks at what lies there: workers know which letters are theirs."""

from __future__ import annotations

from dataclasses import replace

from streamtrain.control.progress import Progress
from streamtrain.ports import OffsetsPort
from streamtrain.types import Frontier, OffsetRange, Round


class Redrive:
    """offsets: of the job's replay topic. limit: records of it in one round. A lineage that is learned beside the job
    (`holds`) leaves them for the time when it has taken the job's place."""

    def __init__(self, *, offsets: OffsetsPort, limit: int, holds: bool = False) -> None:
        self._offsets = offsets
        self._limit = limit
        self._holds = holds
        self._planned: tuple[int, ...] = ()
        self._first: tuple[int, ...] = ()
        self._seen: Frontier | None = None

    async def begin(self, progress: Progress, *, fresh: bool) -> Progress:
        """Where a generation goes on. A lineage that begins (fresh) has to do with what is replayed from now on; what
        it will have read of the source's topic by itself, its begin says."""
        frontier = await self._offsets.frontier()
        begins, redriven = progress.begins, progress.redriven
        if fresh:
            begins = tuple(place.offset for place in progress.learned)
        if len(redriven) != len(frontier.partitions):
            redriven = self._first = self._first or tuple(part.end for part in frontier.partitions)
        # Letters that have expired before a worker saw them are still dead letters, or have expired there as well.
        self._planned = tuple(
            max(offset, part.begin) for offset, part in zip(redriven, frontier.partitions, strict=True)
        )
        return replace(progress, begins=begins, redriven=self._planned)

    async def topic(self) -> str:
        return (await self._offsets.frontier()).topic

    async def ranges(self) -> tuple[OffsetRange, ...]:
        """What there is beyond the rounds so far, up to the limit; empty when there is nothing."""
        frontier = self._seen = await self._offsets.frontier()
        if self._holds:
            return ()
        left = self._limit
        ranges = []
        for number, (planned, part) in enumerate(zip(self._planned, frontier.partitions, strict=True)):
            end = max(planned, min(part.end, planned + left))
            left -= end - planned
            ranges.append(OffsetRange(frontier.topic, frontier.epoch, number, planned, end))
        return tuple(ranges) if left < self._limit else ()

    def took(self, round_: Round) -> None:
        """The round was started."""
        if round_.redriven:
            self._planned = tuple(part.end for part in round_.redriven)

    async def changed(self) -> None:
        """Returns once more may be there than `ranges` has shown."""
        if self._seen is not None:
            await self._offsets.changed(self._seen)

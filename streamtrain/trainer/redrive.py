"""Dead letters that somebody had replayed: read from the job's replay topic, and learned once unless this lineage has
learned their records by itself. They never enter the memory: of their documents there may be newer versions in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.errors import EnvelopeError
from streamtrain.trainer.reader import Reader
from streamtrain.trainer.records import Records
from streamtrain.types import Learned, OffsetRange


class Redrive:
    """Of some partitions. Connects with the first range that holds anything. All methods belong to one event loop.

    learned: where each partition of the replay topic is read on from. lineage: whose letters it has not learned.
    begins: where the lineage began to read the source's topic; of what lies before it nothing was learned.
    """

    def __init__(
        self,
        *,
        kafka: config.Kafka,
        topic: str,
        learned: Mapping[int, Learned],
        lineage: str,
        begins: Mapping[int, int],
        clock: Clock,
    ) -> None:
        self._topic = topic
        self._learned = dict(learned)
        self._lineage = lineage.encode()
        self._begins = begins
        self._reader = Reader(kafka=kafka, topic=topic, partitions=tuple(sorted(learned)), clock=clock)
        self._started = False

    async def stop(self) -> None:
        if self._started:
            await self._reader.stop()

    async def read(self, ranges: Mapping[int, OffsetRange]) -> AsyncIterator[tuple[Records, npt.NDArray[np.bool_]]]:
        """The records of the ranges, with the offsets at which they lie in the source's topic, and which of them are
        to be learned. Raises what `Reader.read` does, and EnvelopeError for a record that is no replayed letter."""
        if not self._started:
            await self._reader.start()
            self._started = True
            here = {number: place.offset for number, place in self._learned.items()}
            await self._reader.locate(learned=self._learned, window_begins=here)
        ends = {number: part.end for number, part in ranges.items() if part.span}
        async for chunk in self._reader.read(ends):
            for records in chunk:
                yield self._of_letters(records)
        counts = self._reader.counts()
        for number, end in ends.items():
            count = counts[number]
            self._learned[number] = Learned(end, self._learned[number].count if count is None else count)

    def learned(self, ranges: Mapping[int, OffsetRange]) -> dict[int, Learned]:
        """Where those partitions stand of which a round has read something."""
        return {number: self._learned[number] for number, part in ranges.items() if part.span}

    def _of_letters(self, records: Records) -> tuple[Records, npt.NDArray[np.bool_]]:
        offsets = np.zeros(len(records), np.int64)
        due = np.zeros(len(records), np.bool_)
        try:
            for place, headers in enumerate(records.others or ()):
                offsets[place] = int(headers["origin"].rpartition(b"/")[2])
                own = headers["lineage"] == self._lineage
                first = int(headers["attempt"]) == 1
                due[place] = own or (first and offsets[place] < self._begins.get(records.partition, 0))
            if len(records) and not records.others:
                raise KeyError("origin")
        except (KeyError, ValueError) as error:
            raise EnvelopeError(
                f"{self._topic}/{records.partition} holds what is no replayed dead letter: {error}",
                hint="use a topic prefix that nothing else writes to",
            ) from error
        return replace(records, offsets=offsets), due

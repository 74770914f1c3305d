"""Dead letters that somebody had replayed: read from the job's replay topic, and learned once unless this lineage has
learned their records by itself. They never enter the memory: of their documents there may be newer versions in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.errors import EnvelopeError, OffsetError, WorkerError
from streamtrain.trainer.reader import Reader
from streamtrain.trainer.records import Records
from streamtrain.trainer.selection import Selection
from streamtrain.trainer.taking import FORGOTTEN, SKIPPED
from streamtrain.types import Learned, OffsetRange


class Redrive:
    """Of some partitions. Connects with the first range that holds anything. All methods belong to one event loop.

    offsets: from which each partition of the replay topic is read on. lineage: whose letters it has not learned.
    begins: where the lineage began to read the source's topic; of what lies before it nothing was learned.
    """

    def __init__(
        self,
        *,
        job: config.Job,
        kafka: config.Kafka,
        topic: str,
        source_topic: str,
        offsets: Mapping[int, int],
        lineage: str,
        begins: Mapping[int, int],
        clock: Clock,
    ) -> None:
        self._kafka = kafka
        self._topic = topic
        self._source_topic = source_topic
        self._offsets = dict(offsets)
        self._lineage = lineage.encode()
        self._begins = begins
        self._clock = clock
        self._selection = Selection.of(job)
        self._reader = Reader(kafka=kafka, topic=topic, partitions=tuple(sorted(offsets)), clock=clock)
        self._started = False
        self._foreseen: dict[int, tuple[int, int]] = {}  # by partition, between which offsets deletes are known

    async def stop(self) -> None:
        if self._started:
            await self._reader.stop()

    async def read(
        self, ranges: Mapping[int, OffsetRange], learned: Mapping[int, Learned]
    ) -> AsyncIterator[tuple[Records, npt.NDArray[np.uint8]]]:
        """The records of the ranges, none of which is empty, with the offsets at which they lie in the source's topic,
        and what is to become of them, as `Selection.outcomes` says. learned: where the source's topic is read on.

        Raises WorkerError for a range that does not go on where the last one ended, EnvelopeError for a record that is
        no replayed letter, and what `Reader.read` does.
        """
        for number, part in ranges.items():
            if part.topic != self._topic or part.begin != self._offsets[number]:
                raise WorkerError(f"{part} was to be read, but {self._topic} was learned up to {self._offsets[number]}")
        if not self._started:
            await self._reader.start()
            self._started = True
        # Records may have expired since the last range: how many there were is not known from their numbers.
        places = {number: Learned(offset, -1) for number, offset in self._offsets.items()}
        await self._reader.locate(learned=places, window_begins=self._offsets)
        async for chunk in self._reader.read({number: part.end for number, part in ranges.items()}):
            for records in chunk:
                found, due, through = self._of_letters(records)
                if due.any() and self._selection.foresees:
                    due &= await self._foresee(records.partition, through, learned[records.partition].offset)
                outcomes = self._selection.outcomes(found)
                outcomes[~due & (outcomes != FORGOTTEN)] = SKIPPED
                yield found, outcomes
        self._offsets |= {number: part.end for number, part in ranges.items()}

    def _of_letters(self, records: Records) -> tuple[Records, npt.NDArray[np.bool_], int]:
        """The records as they lie in the source's topic, which of them are to be learned, and through where those
        that replayed them have looked for deletes of their documents."""
        offsets = np.zeros(len(records), np.int64)
        due = np.zeros(len(records), np.bool_)
        through: list[int] = []
        try:
            for place, headers in enumerate(records.others or ({},) * len(records)):
                offsets[place] = int(headers["origin"].rpartition(b"/")[2])
                through.append(int(headers["through"]))
                own = headers["lineage"] == self._lineage
                first = int(headers["attempt"]) == 1
                due[place] = own or (first and offsets[place] < self._begins.get(records.partition, 0))
        except (KeyError, ValueError) as error:
            raise EnvelopeError(
                f"{self._topic}/{records.partition} holds what is no replayed dead letter: {error}",
                hint="use a topic prefix that nothing else writes to",
            ) from error
        return replace(records, offsets=offsets), due, min(through)

    async def _foresee(self, number: int, begin: int, end: int) -> bool:
        """Looks for what has been deleted since the letters were replayed. False where that cannot be known."""
        low, high = self._foreseen.get(number, (begin, begin))
        try:
            for part in ((begin, low), (high, end)):  # once, however many chunks of letters there are
                await foresee(
                    kafka=self._kafka,
                    topic=self._source_topic,
                    ranges={number: part},
                    selection=self._selection,
                    clock=self._clock,
                )
        except OffsetError:
            return False
        self._foreseen[number] = min(begin, low), max(high, end)
        return True


async def foresee(
    *,
    kafka: config.Kafka,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    selection: Selection,
    clock: Clock,
) -> None:
    """Shows the selection which documents end within these ranges (by partition, end exclusive) of a source's topic.
    Raises OffsetError where records of them are gone, KafkaError."""
    wanted = {number: (begin, end) for number, (begin, end) in ranges.items() if begin < end}
    if not wanted:
        return
    reader = Reader(kafka=kafka, topic=topic, partitions=tuple(wanted), clock=clock)
    try:
        await reader.start()
        begins = {number: begin for number, (begin, _) in wanted.items()}
        await reader.locate(
            learned={number: Learned(begin, -1) for number, begin in begins.items()}, window_begins=begins
        )
        async for chunk in reader.read({number: end for number, (_, end) in wanted.items()}):
            for records in chunk:
                selection.foresee(records)
    finally:
        await reader.stop()

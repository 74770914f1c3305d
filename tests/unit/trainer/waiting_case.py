"""A topic in memory and a trainer of one partition that can be restarted: what the feed does with Kafka, by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import bson
import numpy as np

from streamtrain.clock import FakeClock
from streamtrain.trainer.assemble import Intake, Refused, RoundBuilder
from streamtrain.trainer.decode import Decoder
from streamtrain.trainer.memory import PartitionMemory
from streamtrain.trainer.records import Records
from streamtrain.trainer.reread import chosen
from streamtrain.trainer.rows import RoundRows
from streamtrain.trainer.waiting import Waiting
from streamtrain.trainer.waiting_file import WaitingFiles, read
from streamtrain.types import DType, Feature, Label, OffsetRange, Round, Schema, Task

PATIENCE = 10  # seconds

SCHEMA = Schema(
    features=(Feature("x", DType.FLOAT64),),
    labels=(Label("y", DType.FLOAT64, Task.REGRESSION, absent_after=float(PATIENCE), absent_value=-1.0),),
)


@dataclass(frozen=True)
class Change:
    """A record. second: of its cluster time. x, y: the document's, None where there is none; an x of -1 is refused."""

    offset: int
    operation: str
    number: int
    second: int
    x: float | None = None
    y: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)


def records_of(changes: Sequence[Change]) -> Records:
    keys = [bson.encode({"_id": change.number}) for change in changes]
    return Records(
        partition=0,
        sequence=np.arange(len(changes)),
        offsets=np.array([change.offset for change in changes], np.int64),
        operations="".join(change.operation for change in changes).encode(),
        namespaces=[b"d.c"] * len(changes),
        keys=keys,
        document_keys=keys,
        cluster_times=np.array([change.second << 32 for change in changes], np.int64),
        wall_times_ms=np.zeros(len(changes), np.int64),
        values=[b"" if change.operation == "d" else bson.encode(document(change)) for change in changes],
    )


def document(change: Change) -> dict[str, Any]:
    values: dict[str, Any] = {"_id": change.number, "x": "?" if change.x == -1 else change.x}
    return {**values, **({} if change.y is None else {"y": change.y}), **change.others}


class Trainer:
    """Of one partition. first: `features_as_of: first`. removed: offsets that the topic holds no more."""

    def __init__(self, topic: Sequence[Change], *, schema: Schema = SCHEMA, first: bool = False) -> None:
        self.topic = topic
        self.removed = 0
        self.at = 0
        self.begin = 0
        self.refused: list[Refused] = []
        self._schema = schema
        self._first = first
        self._decoder = Decoder(schema)
        self._rounds = 0
        self._start()

    def _start(self) -> None:
        self.memory = PartitionMemory(schema=self._schema, partition=0, half_life=100.0, first=self._first)
        self._files = WaitingFiles({0: self.memory})

    def read(self, begin: int, end: int) -> Records:
        return records_of([change for change in self.topic if begin <= change.offset < end])

    def again(self, offsets: Any) -> Records:
        records = self.read(self.removed, 2**40)
        return chosen(records, np.flatnonzero(np.isin(records.offsets, offsets))) or Records.none(0)

    def learn(self, end: int, *, watermark: int = 0, begin: int = 0, replay: int = 0, most: int = 1000) -> RoundRows:
        """A round up to the offset `end`. watermark: seconds."""
        self.begin = max(self.begin, min(begin, self.at))
        round_ = Round(
            number=self._rounds,
            fresh=(OffsetRange("t", 0, 0, self.at, end),),
            window_begins=(self.begin,),
            replay=(replay,),
            seed=self._rounds,
            batch_size=8,
            watermark=watermark << 32,
        )
        builder = RoundBuilder(
            round_=round_,
            decoder=self._decoder,
            memories={0: self.memory},
            clock=FakeClock(),
            most_absent=most,
            first_features=self._first,
        )
        records = self.read(self.at, end)
        for place in range(0, len(records), 3):  # as brokers return them: in chunks
            self.refused += builder.take([records.part(0, slice(place, place + 3))])
        for number, offsets in builder.due().items():
            self.refused += builder.settle(number, self.again(offsets))
        self.at = end
        self._rounds += 1
        return builder.finish(learned={}, read_seconds=0.0)

    def save(self) -> bytes:
        return self._files.content()

    def restart(self, content: bytes) -> int:
        """From a checkpoint after the last round; returns how many documents that waited are lost."""
        saved: Waiting = read(content)[0]
        self._start()
        memory = self.memory
        memory.begin_refill()
        memory.evict(self.begin)
        intake = Intake(decoder=self._decoder, memories={0: memory}, clock=FakeClock())
        intake.take([self.read(self.begin, self.at)])
        labelled = memory.forget_waiting().labelled_before()
        memory.wait_again(self.again(saved.firsts), saved)
        memory.waiting.note_labelled(labelled)
        lost = len(saved.firsts) - len(memory.waiting)
        lost += memory.recall(intake.again(self.again(saved.again()), features=self._first), saved)
        memory.end_refill()
        return lost

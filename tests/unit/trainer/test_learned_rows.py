"""Which rows a round learns, holds out, counts and replays, against a dictionary of documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import bson
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtrain import config
from streamtrain.clock import FakeClock
from streamtrain.trainer.assemble import RoundBuilder
from streamtrain.trainer.decode import Decoded, Decoder
from streamtrain.trainer.log import ABSENT_BITS, VersionLog
from streamtrain.trainer.memory import PartitionMemory
from streamtrain.trainer.records import Records
from streamtrain.trainer.rows import RoundRows
from streamtrain.trainer.selection import Selection
from streamtrain.types import DType, Feature, Label, OffsetRange, Round, RoundCounts, Schema, Task

HELD_OUT = 6  # the only of the few documents that `holdout: 10%` holds out
NOWHERE = 9.0  # the value of x that the filter turns away


def job_of(**changes: Any) -> config.Job:
    return config.Job.model_validate(
        {
            "name": "rows",
            "source": "numbers",
            "features": [{"field": "x", "dtype": "float64", "missing": -1}, {"field": "s", "dtype": "string"}],
            "labels": [{"field": "y", "dtype": "int32", "task": "classification"}],
            "weight": {"field": "w", "classes": {1: 2.0}},
            "filter": {"x": {"$ne": NOWHERE}},
            "holdout": "10%",
            **changes,
        }
    )


@dataclass(frozen=True)
class Write:
    """What happens to document `number`; document: its new version, None for a delete."""

    number: int
    operation: str
    document: Mapping[str, Any] | None

    def record(self, offset: int) -> Records:
        key = bson.encode({"_id": self.number})
        return Records(
            partition=0,
            sequence=np.array([offset]),
            offsets=np.array([offset]),
            operations=self.operation.encode(),
            namespaces=[b"d.c"],
            keys=[key],
            document_keys=[key],
            cluster_times=np.array([offset << 32]),
            wall_times_ms=np.array([1000 + offset]),
            values=[b"" if self.document is None else bson.encode(self.document)],
        )


def joined(records: Sequence[Records]) -> Records:
    return Records(
        partition=0,
        sequence=np.concatenate([r.sequence for r in records]),
        offsets=np.concatenate([r.offsets for r in records]),
        operations=b"".join(r.operations for r in records),
        namespaces=[r.namespaces[0] for r in records],
        keys=[r.keys[0] for r in records],
        document_keys=[r.document_keys[0] for r in records],
        cluster_times=np.concatenate([r.cluster_times for r in records]),
        wall_times_ms=np.concatenate([r.wall_times_ms for r in records]),
        values=[r.values[0] for r in records],
    )


class Worker:
    """One partition's rounds, one after the other."""

    def __init__(self, job: config.Job) -> None:
        schema = job.schema_()
        self.decoder = Decoder.of(job)
        self.selection = Selection.of(job)
        self.memory = PartitionMemory(
            schema=schema, partition=0, half_life=60.0, keep_deleted=job.on_delete == "keep", weighted=True
        )
        self.rounds = 0

    def run(self, writes: Sequence[Write], begin: int, *, window: int = 0, scored: bool = True) -> RoundRows:
        """The writes at offsets from `begin` on, with everything that can be replayed."""
        round_ = Round(
            number=self.rounds,
            fresh=(OffsetRange("t", 0, 0, begin, begin + len(writes)),),
            window_begins=(window,),
            replay=(10_000,),
            seed=self.rounds,
            batch_size=8,
            scored=scored,
        )
        self.rounds += 1
        builder = RoundBuilder(
            round_=round_,
            decoder=self.decoder,
            memories={0: self.memory},
            clock=FakeClock(),
            selection=self.selection,
        )
        if writes:
            builder.take([joined([write.record(begin + at) for at, write in enumerate(writes)])])
        builder.due()
        return builder.finish(learned={}, read_seconds=0.0)


Row = tuple[int, float, bytes, int, float]  # offset, x, s, y, weight


class Books:
    """What each document is now: its version's offset and values, or that it waits."""

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.known: dict[int, tuple[int, tuple[float, str, int, float] | None, int]] = {}
        self.counts: Counter[str] = Counter()

    def take(self, offset: int, write: Write) -> tuple[Row, bool, bool] | None:
        """(row, held, scored) if the write is learned or held out."""
        before = self.known.get(write.number)
        if write.document is None:
            self.counts["deletes"] += 1
            if not self.keep:
                self.known.pop(write.number, None)
            return None
        if write.document.get("x") == NOWHERE:
            self.counts["filtered"] += 1
            self.known.pop(write.number, None)
            return None
        x, y = write.document.get("x", -1.0), write.document.get("y")
        x = -1.0 if x != x else x
        if y is None:
            last = -1 if before is None else before[0] if before[1] is not None else before[2]
            self.counts["waiting"] += 1
            self.known[write.number] = (offset, None, last)
            return None
        values = (x, write.document["s"], y, write.document.get("w", 1.0))
        self.known[write.number] = (offset, values, -1)
        if before is not None and before[1] == values:
            self.counts["unchanged"] += 1
            return None
        waited = before is not None and before[1] is None
        self.counts["late_labels"] += waited
        held = write.number == HELD_OUT
        self.counts["held_out" if held else "learned"] += 1
        first = write.operation == "i" if before is None else waited and before[2] < 0
        return self.row(offset, values), held, first

    def replayable(self) -> dict[int, Row]:
        return {
            offset: self.row(offset, values)
            for number, (offset, values, _) in self.known.items()
            if values is not None and number != HELD_OUT
        }

    @staticmethod
    def row(offset: int, values: tuple[float, str, int, float]) -> Row:
        x, s, y, weight = values
        return (offset, x, s.encode(), y, weight * (2.0 if y == 1 else 1.0))


DOCUMENTS = st.fixed_dictionaries(
    {"s": st.sampled_from(["a", "b"])},
    optional={
        "x": st.sampled_from([0.0, 0.0, 1.0, float("nan"), NOWHERE]),
        "y": st.sampled_from([None, 0, 1, 1]),
        "w": st.sampled_from([1.0, 0.0, 3.0]),
        "views": st.integers(0, 5),
    },
)
NUMBERS = st.sampled_from([1, 2, 3, 4, HELD_OUT])
WRITES = st.lists(
    st.one_of(
        st.builds(Write, NUMBERS, st.sampled_from("iuur"), DOCUMENTS),
        st.builds(Write, NUMBERS, st.just("d"), st.none()),
    ),
    max_size=40,
)


def rows_of(taken: RoundRows) -> list[tuple[Row, bool, bool, bool]]:
    """(row, held, scored, replayed)."""
    (rows,) = taken.rows
    held = np.zeros(len(rows), np.bool_) if rows.held is None else rows.held
    assert rows.offsets is not None
    assert rows.replayed is not None
    assert not rows.wall_time_ms[held | rows.replayed].any()
    values = zip(
        rows.offsets.tolist(), rows.columns["x"].tolist(), rows.columns["s"].tolist(), rows.labels["y"].tolist(),
        rows.weights.tolist(), strict=True,
    )  # fmt: skip
    return list(zip(values, held.tolist(), rows.scored.tolist(), rows.replayed.tolist(), strict=True))


@given(WRITES, st.booleans(), st.data())
@settings(deadline=None, max_examples=150)
def test_a_round_s_rows_are_those_of_a_dictionary_of_documents(
    writes: list[Write], keep: bool, data: st.DataObject
) -> None:
    worker = Worker(job_of(on_delete="keep" if keep else "forget"))
    books = Books(keep=keep)
    total = RoundCounts()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(writes)), max_size=4)))
    for begin, end in pairwise([0, *cuts, len(writes)]):
        taken = worker.run(writes[begin:end], begin)
        fresh = [found for at in range(begin, end) if (found := books.take(at, writes[at])) is not None]
        rows = rows_of(taken)
        expected = sorted((row, held, scored and not held) for row, held, scored in fresh)
        assert sorted((row, held, scored) for row, held, scored, replayed in rows if not replayed) == expected
        replayed = {row[0]: row for row, _, _, again in rows if again}
        assert replayed == {offset: row for offset, row in books.replayable().items() if offset < begin}
        total += taken.counts
    for name in ("learned", "held_out", "unchanged", "filtered", "deletes", "waiting", "late_labels"):
        assert getattr(total, name) == books.counts[name], name
    assert total.learned + total.held_out + total.unchanged + total.filtered + total.deletes + total.waiting == len(
        writes
    )


@given(WRITES, st.booleans(), st.data())
@settings(deadline=None, max_examples=80)
def test_reading_the_window_again_gives_the_rows_that_were_lived_through(
    writes: list[Write], keep: bool, data: st.DataObject
) -> None:
    job = job_of(on_delete="keep" if keep else "forget")
    lived, refilled = Worker(job), Worker(job)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(writes)), max_size=3)))
    for begin, end in pairwise([0, *cuts, len(writes)]):
        lived.run(writes[begin:end], begin)
    window = data.draw(st.integers(0, len(writes)))
    refilled.run(writes[window:], window, window=window)
    after = [Write(number, "u", {"s": "a", "x": 1.0, "y": 1}) for number in (1, 2, HELD_OUT)]
    lived.rounds = refilled.rounds = 7
    ours, theirs = (worker.run(after, len(writes), window=window) for worker in (refilled, lived))
    assert rows_of(ours) == rows_of(theirs)
    assert ours.counts == theirs.counts


def version(x: float, y: int | None = 1, **more: Any) -> dict[str, Any]:
    return {"x": x, "s": "a", "y": y, **more}


@pytest.mark.parametrize(
    ("second", "unchanged"),
    [
        (version(1.0, views=7), True),
        (version(1.0, w=1.0), True),
        (version(1.0, w=2.0), False),
        (version(-0.0), False),
        (version(1.0, 0), False),
        ({**version(1.0), "s": "b"}, False),
    ],
)
def test_a_version_that_says_the_same_is_not_learned_again(second: dict[str, Any], unchanged: bool) -> None:
    worker = Worker(job_of())
    worker.run([Write(1, "i", version(1.0))], 0)
    taken = worker.run([Write(1, "u", second)], 1)
    assert (taken.counts.unchanged, taken.counts.learned) == ((1, 0) if unchanged else (0, 1))
    assert [row[0] for row, *_ in rows_of(worker.run([], 2))] == [1]  # it is the version that is replayed from now on


def test_not_a_number_is_the_same_as_not_a_number_but_zero_is_not_minus_zero() -> None:
    schema = Schema((Feature("x", DType.FLOAT32, length=2),), (Label("y", DType.FLOAT64, Task.REGRESSION),))
    log = VersionLog(schema)
    nan = float("nan")
    columns = {"x": np.array([[nan, 1], [nan, 1], [nan, 2], [0.0, 1], [-0.0, 1]], np.float32)}
    decoded = Decoded(columns, {"y": np.array([nan, nan, nan, 0, 0])}, np.zeros(5, np.uint8), {})
    records = joined([Write(at, "i", version(1.0)).record(at) for at in range(5)])
    log.append(records, np.arange(5), decoded, np.arange(5))
    some, others = np.array([0, 0, 3]) << ABSENT_BITS, np.array([1, 2, 4]) << ABSENT_BITS
    assert log.alike(some, others).tolist() == [True, False, False]


def test_what_has_left_the_window_is_learned_again_though_it_says_the_same() -> None:
    worker = Worker(job_of())
    worker.run([Write(1, "i", version(1.0))], 0)
    taken = worker.run([Write(1, "u", version(1.0))], 1, window=1)
    assert (taken.counts.unchanged, taken.counts.learned) == (0, 1)


def test_held_out_rows_are_there_in_a_retrain_too_and_never_count_as_scored() -> None:
    worker = Worker(job_of())
    taken = worker.run([Write(n, "i", version(1.0)) for n in range(2, 7)], 0, scored=False)
    assert [(row[0], held, scored) for row, held, scored, _ in rows_of(taken) if held] == [(4, True, False)]
    assert (taken.counts.learned, taken.counts.held_out, taken.counts.replayed) == (4, 1, 0)


def test_a_kept_delete_leaves_a_document_that_moved_to_another_shard_once() -> None:
    worker = Worker(job_of(on_delete="keep", holdout=0))
    keys = [bson.encode({"shard": shard, "_id": 1}) for shard in (1, 2)]
    writes = [Write(1, "i", version(1.0)), Write(1, "i", version(2.0)), Write(1, "d", None)]
    records = joined([write.record(at) for at, write in enumerate(writes)])
    moved = Records(
        partition=0,
        sequence=records.sequence,
        offsets=records.offsets,
        operations=records.operations,
        namespaces=records.namespaces,
        keys=records.keys,
        document_keys=[keys[0], keys[1], keys[0]],
        cluster_times=records.cluster_times,
        wall_times_ms=records.wall_times_ms,
        values=records.values,
    )
    round_ = Round(0, (OffsetRange("t", 0, 0, 0, 3),), (0,), (0,), 0, 8)
    builder = RoundBuilder(
        round_=round_,
        decoder=worker.decoder,
        memories={0: worker.memory},
        clock=FakeClock(),
        selection=worker.selection,
    )
    builder.take([moved])
    builder.due()
    builder.finish(learned={}, read_seconds=0.0)
    worker.rounds = 1
    assert [row[:2] for row, *_ in rows_of(worker.run([], 3))] == [(1, 2.0)]

"""A round's rows: what is fresh, what is replayed, in which order."""

from __future__ import annotations

from collections.abc import Sequence

import bson
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.clock import FakeClock
from streamtrain.trainer.assemble import Refused, RoundBuilder, spread
from streamtrain.trainer.decode import Decoder
from streamtrain.trainer.memory import PartitionMemory
from streamtrain.trainer.records import Records
from streamtrain.trainer.rows import RoundRows
from streamtrain.types import DType, Feature, Label, OffsetRange, Round, Schema, Task

SCHEMA = Schema((Feature("x", DType.FLOAT32),), (Label("y", DType.FLOAT32, Task.REGRESSION),))


def records_of(partition: int, begin: int, documents: Sequence[bytes], *, wall_time: int = 0) -> Records:
    n = len(documents)
    offsets = np.arange(begin, begin + n)
    keys = [bson.encode({"_id": int(offset)}) for offset in offsets]
    return Records(
        partition=partition,
        sequence=offsets,
        offsets=offsets,
        operations=b"i" * n,
        namespaces=[b"d.c"] * n,
        keys=keys,
        document_keys=keys,
        cluster_times=(1_700_000_000 + offsets) << 32,
        wall_times_ms=np.full(n, wall_time, np.int64),
        values=list(documents),
    )


def document(x: float) -> bytes:
    return bson.encode({"x": x, "y": 2 * x})


class Rounds:
    """Rounds over two partitions, one memory."""

    def __init__(self) -> None:
        self.memories = {p: PartitionMemory(schema=SCHEMA, partition=p, half_life=60.0) for p in (0, 1)}

    def run(
        self,
        chunks: Sequence[Sequence[Records]],
        *,
        begin: int,
        end: int,
        replay: int = 0,
        window: int = 0,
        **changes: bool,
    ) -> tuple[RoundRows, list[Refused]]:
        round_ = Round(
            number=0,
            fresh=tuple(OffsetRange("t", 0, partition, begin, end) for partition in (0, 1)),
            window_begins=(window, window),
            replay=(replay, replay),
            seed=5,
            batch_size=8,
            **changes,
        )
        builder = RoundBuilder(round_=round_, decoder=Decoder(SCHEMA), memories=self.memories, clock=FakeClock())
        refused = [bad for chunk in chunks for bad in builder.take(chunk)]
        assert not builder.due()
        return builder.finish(learned={}, read_seconds=1.0), refused


def test_chunks_of_a_round_become_rows_in_order_of_offset() -> None:
    first = [records_of(0, 0, [document(0), document(1)]), records_of(1, 0, [document(10)])]
    second = [records_of(0, 2, [document(2)]), records_of(1, 1, [document(11), document(12)])]
    rows, _ = Rounds().run([first, second], begin=0, end=3)
    assert [part.columns["x"].tolist() for part in rows.rows] == [[0, 1, 2], [10, 11, 12]]
    assert [part.labels["y"].tolist() for part in rows.rows] == [[0, 2, 4], [20, 22, 24]]
    assert (rows.counts.learned, rows.counts.replayed, rows.timings["read"]) == (6, 0, 1.0)


def test_one_bad_document_is_handed_back_and_its_neighbours_are_rows() -> None:
    documents = [document(0), bson.encode({"x": "?", "y": 1.0}), document(2)]
    rows, refused = Rounds().run([[records_of(1, 7, documents)]], begin=7, end=10)
    assert [part.columns["x"].tolist() for part in rows.rows] == [[], [0, 2]]
    assert [(bad.records.partition, bad.place, bad.reason) for bad in refused] == [(1, 1, "type:x")]
    assert dict(rows.dead_letter_reasons) == {"type:x": 1}


def test_a_round_without_records_still_replays() -> None:
    rounds = Rounds()
    rounds.run([[records_of(0, 0, [document(x) for x in range(20)])]], begin=0, end=20)
    rows, _ = rounds.run([], begin=20, end=20, replay=8)
    assert [len(part) for part in rows.rows] == [8, 0]
    assert rows.counts.replayed == 8
    assert not rows.rows[0].scored.any()
    assert not rows.rows[0].wall_time_ms.any()


def test_rows_below_the_window_are_not_replayed() -> None:
    rounds = Rounds()
    rounds.run([[records_of(0, 0, [document(x) for x in range(20)])]], begin=0, end=20)
    rows, _ = rounds.run([], begin=20, end=20, replay=99, window=15)
    assert sorted(rows.rows[0].columns["x"].tolist()) == [15, 16, 17, 18, 19]
    assert rows.memory_rows == 5


def test_rows_of_a_retrain_are_neither_scored_again_nor_fresh() -> None:
    rows, _ = Rounds().run([[records_of(0, 0, [document(1)])]], begin=0, end=1, scored=False)
    assert rows.rows[0].scored.tolist() == [False]
    assert rows.rows[0].wall_time_ms.tolist() == [0]


@pytest.mark.parametrize(("wall_time", "expected"), [(123, 123), (0, 1_700_000_004_000)])
def test_a_write_without_wall_time_is_dated_by_its_cluster_time(wall_time: int, expected: int) -> None:
    rows, _ = Rounds().run([[records_of(0, 4, [document(1)], wall_time=wall_time)]], begin=4, end=5)
    assert rows.rows[0].wall_time_ms.tolist() == [expected]


@given(st.integers(1, 300), st.integers(1, 300))
def test_any_stretch_of_rows_holds_its_share_of_replayed_ones(fresh: int, replayed: int) -> None:
    order = spread(fresh, replayed)
    assert sorted(order.tolist()) == list(range(fresh + replayed))
    assert order[order < fresh].tolist() == list(range(fresh))
    seen = np.cumsum(order >= fresh)
    assert np.abs(seen - np.arange(1, len(order) + 1) * replayed / (fresh + replayed)).max() <= 1.0 + 1e-9

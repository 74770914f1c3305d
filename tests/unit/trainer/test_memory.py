"""The memory against a model that keeps every record and looks through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import bson
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtrain.source.envelope import key_of
from streamtrain.trainer.decode import BAD, LABELLED, WAITING, Decoded
from streamtrain.trainer.memory import Fresh, PartitionMemory
from streamtrain.trainer.records import Records
from streamtrain.trainer.taking import DELETED, SKIPPED
from streamtrain.types import DType, Feature, Label, Schema, Task

SCHEMA = Schema(
    features=(Feature("x", DType.FLOAT64), Feature("s", DType.STRING), Feature("v", DType.FLOAT32, length=2)),
    labels=(Label("y", DType.FLOAT64, Task.REGRESSION),),
)


@dataclass(frozen=True)
class Change:
    """A record as the tests write it. outcome: of decoding."""

    offset: int
    operation: str
    outcome: int
    document_key: bytes
    namespace: bytes = b"db.c"


def records_of(changes: Sequence[Change]) -> Records:
    n = len(changes)
    return Records(
        partition=3,
        sequence=np.arange(n),
        offsets=np.array([change.offset for change in changes], np.int64),
        operations="".join(change.operation for change in changes).encode(),
        namespaces=[change.namespace for change in changes],
        keys=[key_of(change.document_key) for change in changes],
        document_keys=[change.document_key for change in changes],
        cluster_times=np.array([change.offset << 32 for change in changes], np.int64),
        wall_times_ms=np.zeros(n, np.int64),
        values=[b""] * n,
    )


def apply(memory: PartitionMemory, changes: Sequence[Change]) -> Fresh:
    """Every value is made of the record's offset, so that a row tells which version it is."""
    offsets = np.array([change.offset for change in changes], np.float64)
    strings = np.empty(len(changes), np.object_)
    strings[:] = [b"%d" % change.offset for change in changes]
    decoded = Decoded(
        columns={"x": offsets, "s": strings, "v": np.stack([offsets, -offsets], axis=1).astype(np.float32)},
        labels={"y": offsets * 2},
        outcome=np.zeros(0, np.uint8),
        reasons={},
    )
    outcomes = np.array([change.outcome for change in changes], np.uint8)
    return memory.apply(records_of(changes), outcomes, decoded, np.arange(len(changes)))


def new_memory(half_life: float = 100.0) -> PartitionMemory:
    return PartitionMemory(schema=SCHEMA, partition=3, half_life=half_life)


def versions(memory: PartitionMemory, below: int = 2**62) -> list[int]:
    """The offsets of all versions that could be replayed, checked to be whole."""
    places = memory.replay(count=2**40, seed=1, below=below)
    columns, labels = memory.take(places)
    offsets = [int(x) for x in columns["x"]]
    assert columns["s"].tolist() == [b"%d" % offset for offset in offsets]
    assert columns["v"].tolist() == [[offset, -offset] for offset in offsets]
    assert labels["y"].tolist() == [2 * offset for offset in offsets]
    return sorted(offsets)


class Model:
    """A list of what is known, searched from end to end."""

    def __init__(self) -> None:
        self.known: list[dict[str, Any]] = []
        self.begin = 0

    def evict(self, begin: int) -> None:
        self.begin = begin
        self.known = [version for version in self.known if version["offset"] >= begin]

    def find(self, change: Change) -> dict[str, Any] | None:
        ours = bson.decode(change.document_key)
        same = []
        for version in self.known:
            theirs = bson.decode(version["key"])
            if version["namespace"] != change.namespace or theirs["_id"] != ours["_id"]:
                continue
            if version["key"] == change.document_key:
                return version
            if all(theirs.get(name, value) == value for name, value in ours.items()):
                same.append(version)
        return max(same, key=lambda version: version["offset"], default=None)

    def apply(self, changes: Sequence[Change]) -> tuple[list[int], list[bool], int]:
        fresh, scored, late = [], [], 0
        for change in changes:
            if change.outcome == SKIPPED:
                continue
            found = self.find(change)
            if found is not None:
                self.known.remove(found)
            if change.outcome in (BAD, DELETED):
                continue
            waited = found is not None and not found["labelled"]
            last = -1 if found is None else found["offset"] if found["labelled"] else found["last"]
            labelled = change.outcome == LABELLED
            if labelled:
                fresh.append(change.offset)
                late += waited
                scored.append(change.operation == "i" if found is None else waited and last < self.begin)
            self.known.append(
                {
                    "offset": change.offset,
                    "key": change.document_key,
                    "namespace": change.namespace,
                    "labelled": labelled,
                    "last": -1 if labelled else last,
                }
            )
        return fresh, scored, late

    def contents(self) -> tuple[dict[tuple[bytes, bytes], int], dict[int, int]]:
        """Offsets of labelled versions by identity; of waiting ones, with that of a labelled one inside the window."""
        return (
            {(v["namespace"], v["key"]): v["offset"] for v in self.known if v["labelled"]},
            {v["offset"]: v["last"] if v["last"] >= self.begin else -1 for v in self.known if not v["labelled"]},
        )


def contents(memory: PartitionMemory, begin: int) -> tuple[dict[tuple[bytes, bytes], int], dict[int, int]]:
    """As Model.contents."""
    waiting = memory.waiting
    last = {waiting.latest(row): waiting.labelled(row) for row in waiting.rows().tolist()}
    return (
        {identity: offset for identity, (offset, _) in memory.contents().items()},
        {offset: labelled if labelled >= begin else -1 for offset, labelled in last.items()},
    )


def document_key(number: int, shape: int, value: int) -> bytes:
    """A documentKey as the collection has it in its stages: not sharded, sharded by `a`, refined by `b`, resharded."""
    shard = [{}, {"a": value}, {"a": value, "b": 1}, {"c": value}][shape]
    return bson.encode({**shard, "_id": number})


OUTCOMES = [
    ("i", LABELLED), ("i", WAITING), ("u", LABELLED), ("u", LABELLED), ("u", WAITING), ("r", LABELLED),
    ("i", BAD), ("u", BAD), ("u", SKIPPED), ("d", DELETED),
]  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    changes: list[Change] = []
    offset = shape = 0
    for _ in range(draw(st.integers(0, 60))):
        offset += draw(st.sampled_from([1, 1, 1, 2, 5]))
        shape = min(3, shape + draw(st.sampled_from([0] * 15 + [1])))
        operation, outcome = draw(st.sampled_from(OUTCOMES))
        key = document_key(draw(st.integers(0, 7)), shape, draw(st.sampled_from([5, 5, 5, 6])))
        changes.append(Change(offset, operation, int(outcome), key, draw(st.sampled_from([b"d.c"] * 5 + [b"d.e"]))))
    return changes


def cut(changes: Sequence[Change], data: st.DataObject) -> list[list[Change]]:
    """The changes in rounds of any size."""
    places = sorted(data.draw(st.lists(st.integers(0, len(changes)), max_size=6)))
    bounds = [0, *places, len(changes)]
    return [list(changes[a:b]) for a, b in pairwise(bounds)]


@given(histories(), st.data())
@settings(deadline=None, max_examples=120)
def test_memory_holds_what_a_plain_search_through_all_records_finds(history: list[Change], data: st.DataObject) -> None:
    memory, model = new_memory(), Model()
    begin = 0
    for changes in cut(history, data):
        begin = max(begin, data.draw(st.integers(0, changes[0].offset if changes else begin)))
        memory.evict(begin)
        model.evict(begin)
        fresh = apply(memory, changes)
        expected, scored, late = model.apply(changes)
        assert [changes[place].offset for place in fresh.records] == expected
        assert fresh.scored.tolist() == scored
        assert fresh.late == late
        assert contents(memory, begin) == model.contents()
        assert memory.rows == len(model.known)
        assert versions(memory) == sorted(v["offset"] for v in model.known if v["labelled"])


@given(histories(), st.data())
@settings(deadline=None, max_examples=120)
def test_refilling_from_the_window_s_begin_gives_the_memory_that_lived_through_it(
    history: list[Change], data: st.DataObject
) -> None:
    lived, begin = new_memory(), 0
    for changes in cut(history, data):
        begin = max(begin, data.draw(st.integers(0, changes[0].offset if changes else begin)))
        lived.evict(begin)
        apply(lived, changes)
    end = history[-1].offset + 1 if history else 1
    begin = data.draw(st.integers(begin, end))
    lived.evict(begin)
    refilled = new_memory()
    refilled.evict(begin)
    for changes in cut([change for change in history if change.offset >= begin], data):
        apply(refilled, changes)
    assert contents(refilled, begin) == contents(lived, begin)
    assert versions(refilled) == versions(lived)
    assert refilled.rows == lived.rows
    for seed in range(3):
        drawn = [memory.take(memory.replay(count=4, seed=seed, below=end))[0]["x"] for memory in (lived, refilled)]
        np.testing.assert_array_equal(*drawn)


@given(histories(), st.data())
@settings(deadline=None, max_examples=60)
def test_every_labelled_version_is_fresh_once_however_rounds_are_cut(
    history: list[Change], data: st.DataObject
) -> None:
    memory = new_memory()
    learned = []
    for changes in cut(history, data):
        fresh = apply(memory, changes)
        learned += [changes[place].offset for place in fresh.records]
    assert learned == [change.offset for change in history if change.outcome == LABELLED]


def labelled(count: int, first: int = 0) -> list[Change]:
    return [Change(offset, "i", int(LABELLED), bson.encode({"_id": offset})) for offset in range(first, first + count)]


def test_the_late_label_of_a_waiting_document_is_scored_and_counted() -> None:
    memory = new_memory()
    key = bson.encode({"_id": 1})
    apply(memory, [Change(0, "i", int(WAITING), key)])
    fresh = apply(memory, [Change(1, "u", int(LABELLED), key), Change(2, "u", int(LABELLED), key)])
    assert (fresh.records.tolist(), fresh.scored.tolist(), fresh.late) == ([0, 1], [True, False], 1)


@pytest.mark.parametrize(("window_begin", "scored"), [(0, False), (1, True)])
def test_a_label_that_comes_back_is_scored_only_once_its_first_has_left_the_window(
    window_begin: int, scored: bool
) -> None:
    memory = new_memory()
    key = bson.encode({"_id": 1})
    apply(memory, [Change(0, "i", int(LABELLED), key), Change(1, "u", int(WAITING), key)])
    memory.evict(window_begin)
    assert apply(memory, [Change(2, "u", int(LABELLED), key)]).scored.tolist() == [scored]


def test_an_update_of_an_unknown_document_is_learned_but_not_scored() -> None:
    assert apply(new_memory(), [Change(0, "u", int(LABELLED), bson.encode({"_id": 1}))]).scored.tolist() == [False]


def test_a_shard_key_change_leaves_the_live_document() -> None:
    memory = new_memory()
    apply(memory, [Change(0, "i", int(LABELLED), document_key(1, 1, 5))])
    apply(memory, [Change(1, "i", int(LABELLED), document_key(1, 1, 6)), Change(2, "d", 3, document_key(1, 1, 5))])
    assert versions(memory) == [1]


def test_a_version_that_is_no_longer_the_latest_is_not_replayed() -> None:
    memory = new_memory()
    apply(memory, labelled(5))
    key = [bson.encode({"_id": number}) for number in range(5)]
    apply(memory, [Change(5, "u", int(LABELLED), key[0]), Change(6, "u", 1, key[1]), Change(7, "u", 2, key[2])])
    assert versions(memory, below=5) == [3, 4]


def test_replay_draws_distinct_versions_and_depends_on_the_seed_alone() -> None:
    memory, grown = new_memory(), new_memory()
    apply(memory, labelled(1000))
    for first in range(0, 1000, 50):
        apply(grown, labelled(50, first))
    draws = []
    for seed in range(20):
        drawn = [m.take(m.replay(count=100, seed=seed, below=900))[0]["x"].tolist() for m in (memory, grown)]
        assert drawn[0] == drawn[1]
        assert len(set(drawn[0])) == 100
        assert max(drawn[0]) < 900
        draws.append(tuple(drawn[0]))
    assert len(set(draws)) == 20


def test_replay_prefers_recent_versions_by_the_half_life() -> None:
    memory = new_memory(half_life=100.0)  # offsets are seconds here
    apply(memory, labelled(401))
    drawn = np.concatenate([memory.take(memory.replay(count=5, seed=seed, below=401))[0]["x"] for seed in range(4000)])
    quarters = np.histogram(drawn, bins=[1, 101, 201, 301, 401])[0]
    ratios = quarters[1:] / quarters[:-1]
    assert ratios == pytest.approx([2.0, 2.0, 2.0], rel=0.15)


def test_replay_is_in_no_order_of_time() -> None:
    memory = new_memory(half_life=1e9)
    apply(memory, labelled(1000))
    drawn = memory.take(memory.replay(count=1000, seed=4, below=1000))[0]["x"]
    assert abs(np.corrcoef(drawn, np.arange(1000))[0, 1]) < 0.15


def test_a_window_that_slides_for_long_takes_no_more_memory() -> None:
    memory = new_memory()
    sizes = []
    for first in range(0, 40_000, 100):
        memory.evict(max(0, first - 500))
        apply(memory, labelled(100, first))
        sizes.append((memory.rows, memory.nbytes))
    assert {rows for rows, _ in sizes[10:]} == {600}
    assert max(size for _, size in sizes[200:]) <= max(size for _, size in sizes[10:200])

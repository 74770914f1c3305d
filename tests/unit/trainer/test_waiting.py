"""Labels that come late or never, against a model that looks at one record after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtrain.trainer.rows import RoundRows
from streamtrain.types import LABEL_LATENCY_BUCKETS_S, DType, Feature, Label, RoundCounts, Schema, Task
from tests.unit.trainer.waiting_case import PATIENCE, Change, Trainer

ABSENT = -1.0


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    """Every x and y tells its record's offset."""
    changes: list[Change] = []
    offset = second = 0
    for _ in range(draw(st.integers(0, 40))):
        offset += draw(st.sampled_from([1, 1, 2]))
        second += draw(st.sampled_from([0, 1, 1, 3, 7]))
        kind = draw(st.sampled_from(["waits", "waits", "waits", "label", "label", "delete", "bad"]))
        number = draw(st.integers(0, 6))
        if kind == "delete":
            changes.append(Change(offset, "d", number, second))
        else:
            x = -1.0 if kind == "bad" else float(offset)
            y = float(1000 + offset) if kind in ("label", "bad") else None
            changes.append(Change(offset, draw(st.sampled_from("iu")), number, second, x, y))
    return changes


@dataclass
class Model:
    """One document after the other, one record after the other."""

    first: bool
    state: dict[int, tuple[str, Change, Change]] = field(default_factory=dict)  # kind, first, latest version
    learned: list[tuple[float, float]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def pass_by(self, second: int) -> None:
        """The watermark comes to a cluster time."""
        for number, (kind, first, latest) in list(self.state.items()):
            if kind == "waits" and first.second + PATIENCE < second:
                self.learn((first if self.first else latest), ABSENT)
                self.counts["absent_labels"] += 1
                self.state[number] = ("absent", first, latest)

    def learn(self, features: Change, y: float) -> None:
        assert features.x is not None
        self.learned.append((features.x, y))

    def take(self, change: Change) -> None:
        self.pass_by(change.second)
        kind, first, _ = self.state.get(change.number, ("", change, change))
        if change.operation == "d" or change.x == -1:
            self.state.pop(change.number, None)
        elif change.y is None:
            if kind in ("", "labelled"):
                self.state[change.number] = ("waits", change, change)
            elif kind == "waits":
                self.state[change.number] = ("waits", first, change)
        else:
            self.learn(first if self.first else change, change.y)
            self.counts["late_labels"] += kind == "waits"
            self.counts["labels_after_absent"] += kind == "absent"
            self.state[change.number] = ("labelled", first, change)


def fresh_rows(rounds: Sequence[RoundRows]) -> list[tuple[float, float]]:
    return [
        (float(x), float(y))
        for round_ in rounds
        for rows in round_.rows
        for x, y, replayed in zip(rows.columns["x"], rows.labels["y"], rows.replayed, strict=True)
        if not replayed
    ]


def total(rounds: Sequence[RoundRows]) -> RoundCounts:
    return sum((round_.counts for round_ in rounds), RoundCounts())


@given(histories(), st.booleans(), st.data())
@settings(deadline=None, max_examples=150)
def test_each_label_and_each_absence_is_learned_once_however_rounds_are_cut_and_whenever_it_restarts(
    history: list[Change], first: bool, data: st.DataObject
) -> None:
    end = history[-1].offset + 1 if history else 1
    latest = history[-1].second if history else 0
    model = Model(first=first)
    for change in history:
        model.take(change)
    watermark = latest + data.draw(st.sampled_from([0, 1, PATIENCE, 2 * PATIENCE]))
    model.pass_by(watermark)

    trainer = Trainer(history, first=first)
    rounds: list[RoundRows] = []
    for cut in sorted(data.draw(st.lists(st.integers(0, end), max_size=5))):
        most = data.draw(st.sampled_from([1, 1000]))
        rounds.append(trainer.learn(max(cut, trainer.at), most=most))
        if data.draw(st.booleans()):
            assert trainer.restart(trainer.save()) == 0
    rounds.append(trainer.learn(end, watermark=watermark))

    assert sorted(fresh_rows(rounds)) == sorted(model.learned)
    counts = total(rounds)
    assert counts.absent_labels == model.counts["absent_labels"]
    assert counts.late_labels == model.counts["late_labels"]
    assert counts.labels_after_absent == model.counts["labels_after_absent"]
    assert counts.learned + counts.absent_labels == len(model.learned)
    assert counts.lost_waiting == 0
    waiting = {latest.offset for kind, _, latest in model.state.values() if kind == "waits"}
    index = trainer.memory.waiting
    assert {index.latest(row) for row in index.rows().tolist()} == waiting
    assert rounds[-1].waiting == len(waiting)


@given(histories(), st.booleans(), st.data())
@settings(deadline=None, max_examples=150)
def test_a_trainer_that_restarts_learns_and_replays_what_one_that_lives_on_does(
    history: list[Change], first: bool, data: st.DataObject
) -> None:
    end = history[-1].offset + 1 if history else 1
    latest = history[-1].second if history else 0
    lived, restarted = Trainer(history, first=first), Trainer(history, first=first)
    for cut in [*sorted(data.draw(st.lists(st.integers(0, end), max_size=5))), end, end]:
        cut = max(cut, lived.at)
        plan = {
            "watermark": data.draw(st.sampled_from([0, latest + 5, latest + 30])) if cut == end else 0,
            "begin": data.draw(st.integers(0, end)),
            "replay": data.draw(st.integers(0, 6)),
            "most": data.draw(st.sampled_from([1, 1000])),
        }
        expected, found = lived.learn(cut, **plan), restarted.learn(cut, **plan)
        assert found.counts == expected.counts
        assert found.next_absent == expected.next_absent
        assert found.waiting == expected.waiting
        assert found.memory_rows == expected.memory_rows
        for ours, theirs in zip(found.rows, expected.rows, strict=True):
            for name in ("scored", "offsets", "replayed", "weights"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            np.testing.assert_array_equal(ours.columns["x"], theirs.columns["x"])
            np.testing.assert_array_equal(ours.labels["y"], theirs.labels["y"])
        saved = restarted.save()
        if data.draw(st.booleans()):
            assert restarted.restart(saved) == 0


def x_and_y(round_: RoundRows) -> list[tuple[float, float]]:
    return fresh_rows([round_])


def test_a_label_that_never_comes_is_absent_once_its_time_is_over_and_is_scored() -> None:
    trainer = Trainer([Change(0, "i", 1, 100, x=7.0)])
    assert x_and_y(trainer.learn(1, watermark=100)) == []
    assert x_and_y(trainer.learn(1, watermark=100 + PATIENCE)) == []  # another change of that time may still come
    round_ = trainer.learn(1, watermark=100 + PATIENCE + 1)
    assert x_and_y(round_) == [(7.0, ABSENT)]
    assert round_.rows[0].scored.tolist() == [True]
    assert round_.rows[0].offsets is not None
    assert round_.rows[0].offsets.tolist() == [0]
    assert (round_.counts.absent_labels, round_.counts.learned, round_.waiting, round_.next_absent) == (1, 0, 0, None)


@pytest.mark.parametrize(("second", "expected"), [(110, [(1.0, 3.0)]), (111, [(1.0, 3.0), (0.0, ABSENT)])])
def test_whether_a_label_is_late_or_after_its_absence_is_decided_by_cluster_time_alone(
    second: int, expected: list[tuple[float, float]]
) -> None:
    trainer = Trainer([Change(0, "i", 1, 100, x=0.0), Change(1, "u", 1, second, x=1.0, y=3.0)])
    round_ = trainer.learn(2)  # the record after its time is in the same round
    assert x_and_y(round_) == expected
    scored = dict(zip(round_.rows[0].labels["y"].tolist(), round_.rows[0].scored.tolist(), strict=True))
    assert scored == ({3.0: True} if len(expected) == 1 else {3.0: False, ABSENT: True})
    assert round_.counts.labels_after_absent == len(expected) - 1


def test_a_document_that_is_deleted_in_time_is_never_learned() -> None:
    trainer = Trainer([Change(0, "i", 1, 100, x=0.0), Change(1, "d", 1, 110)])
    assert x_and_y(trainer.learn(2, watermark=1000)) == []


def test_a_document_whose_label_was_absent_is_replayed_until_the_window_has_passed_the_time_it_was_learned() -> None:
    topic = [Change(0, "i", 1, 100, x=7.0), *(Change(n, "i", n + 1, 100, x=float(n), y=0.0) for n in range(1, 6))]
    trainer = Trainer(topic)
    trainer.learn(3)
    trainer.learn(4, watermark=1000)
    for begin, there in ((0, True), (3, True), (4, False)):
        round_ = trainer.learn(4, begin=begin, replay=10)
        replayed = round_.rows[0].labels["y"].tolist()
        assert (ABSENT in replayed) is there
    assert trainer.learn(6).memory_rows == 2


def test_a_label_that_was_removed_and_stays_away_is_scored_only_beyond_the_window() -> None:
    topic = [Change(0, "i", 1, 100, x=0.0, y=1.0), Change(1, "u", 1, 101, x=1.0)]
    for begin, scored in ((0, False), (1, True)):
        trainer = Trainer(topic)
        trainer.learn(2)
        assert trainer.restart(trainer.save()) == 0
        round_ = trainer.learn(2, begin=begin, watermark=1000)
        assert x_and_y(round_) == [(1.0, ABSENT)]
        assert round_.rows[0].scored.tolist() == [scored]


def test_what_falls_due_together_is_learned_in_several_rounds() -> None:
    trainer = Trainer([Change(n, "i", n, 100 + n, x=float(n)) for n in range(10)])
    rounds = [trainer.learn(10, watermark=1000, most=4) for _ in range(3)]
    assert [round_.counts.absent_labels for round_ in rounds] == [4, 4, 2]
    assert [round_.next_absent for round_ in rounds[:2]] == [(104 + PATIENCE) << 32, (108 + PATIENCE) << 32]
    assert sorted(x_and_y(rounds[0])) == [(float(n), ABSENT) for n in range(4)]


def test_a_document_that_cannot_be_trained_on_is_a_dead_letter_once_its_label_is_absent() -> None:
    trainer = Trainer([Change(0, "i", 1, 100, x=-1.0), Change(1, "i", 2, 100, x=2.0)])
    round_ = trainer.learn(2, watermark=1000)
    assert x_and_y(round_) == [(2.0, ABSENT)]
    assert [(bad.reason, int(bad.records.offsets[bad.place])) for bad in trainer.refused] == [("type:x", 0)]
    assert round_.dead_letter_reasons == {"type:x": 1}


def test_the_features_of_a_first_version_that_cannot_be_trained_on_keep_its_label_from_being_learned() -> None:
    topic = [
        Change(0, "i", 1, 100, x=-1.0),
        Change(1, "i", 2, 100, x=2.0),
        Change(2, "u", 1, 101, x=3.0, y=4.0),
        Change(3, "u", 2, 101, x=5.0, y=6.0),
    ]
    trainer = Trainer(topic, first=True)
    round_ = trainer.learn(4, watermark=1000)
    assert x_and_y(round_) == [(2.0, 6.0)]
    assert [(bad.reason, int(bad.records.offsets[bad.place])) for bad in trainer.refused] == [("type:x", 0)]
    assert (round_.counts.learned, round_.counts.dead_letters, round_.counts.waiting) == (1, 1, 2)
    assert {row for row, _ in trainer.learn(4, replay=9).rows[0].labels.items()} == {"y"}
    assert trainer.learn(4, replay=9).rows[0].columns["x"].tolist() == [2.0]


def test_versions_that_follow_have_the_features_of_the_first_also_after_two_restarts() -> None:
    topic = [
        Change(0, "i", 1, 100, x=7.0),
        Change(1, "u", 1, 101, x=1.0, y=2.0),
        Change(2, "u", 1, 102, x=3.0, y=4.0),
        Change(3, "u", 1, 103, x=5.0, y=4.0),  # says the same: its own x is no feature of it
        Change(4, "u", 1, 104, x=6.0, y=8.0),
    ]
    trainer = Trainer(topic, first=True)
    found = []
    for end in range(1, 6):
        round_ = trainer.learn(end, begin=max(0, end - 2))  # where the version before lies
        found += x_and_y(round_)
        assert trainer.restart(trainer.save()) == 0
    assert found == [(7.0, 2.0), (7.0, 4.0), (7.0, 8.0)]


def test_versions_that_fell_due_in_another_order_than_they_were_written_are_recalled_as_they_were() -> None:
    topic = [
        *(Change(n, "i", n, 100, x=float(n)) for n in range(4)),
        Change(4, "u", 2, 150, x=4.0),  # of a document whose label is absent: it is learned before an older one
    ]
    trainer = Trainer(topic)
    trainer.learn(4, watermark=150, most=1)
    for _ in range(2):
        trainer.learn(5, most=1)
    (expected,) = trainer.learn(5, replay=9).rows
    assert trainer.restart(trainer.save()) == 0
    (rows,) = trainer.learn(5, replay=9).rows
    assert rows.offsets is not None
    assert rows.offsets.tolist() == [int(x) for x in rows.columns["x"]]
    assert sorted(rows.columns["x"]) == sorted(expected.columns["x"]) == [0.0, 1.0, 2.0, 3.0]


def test_what_the_log_holds_no_more_is_counted_and_lost_without_a_crash() -> None:
    topic = [Change(0, "i", 1, 100, x=1.0), Change(1, "i", 2, 101, x=2.0), Change(2, "i", 3, 102, x=3.0, y=3.0)]
    lived, restarted = Trainer(topic), Trainer(topic)
    for trainer in (lived, restarted):
        trainer.learn(3)
        trainer.removed = 1
    assert restarted.restart(restarted.save()) == 1
    round_ = lived.learn(3, watermark=1000)
    assert x_and_y(round_) == x_and_y(restarted.learn(3, watermark=1000)) == [(2.0, ABSENT)]
    assert round_.counts.lost_waiting == 1


def test_a_first_version_that_the_log_holds_no_more_leaves_the_label_its_own_features() -> None:
    trainer = Trainer([Change(0, "i", 1, 100, x=1.0), Change(1, "u", 1, 101, x=2.0, y=3.0)], first=True)
    trainer.removed = 1
    round_ = trainer.learn(2)
    assert x_and_y(round_) == [(2.0, 3.0)]
    assert round_.counts.lost_waiting == 1


def test_how_long_labels_take_is_counted_by_cluster_time() -> None:
    topic = [Change(0, "i", 1, 100, x=1.0), Change(1, "i", 2, 100, x=1.0), Change(2, "u", 1, 109, x=2.0, y=3.0)]
    trainer = Trainer(topic)
    assert trainer.learn(2).label_latency == ()
    found = trainer.learn(3).label_latency
    place = sum(bound < 9 for bound in LABEL_LATENCY_BUCKETS_S)
    assert (sum(found), found[place]) == (1, 1)


TWO_LABELS = Schema(
    features=(Feature("x", DType.FLOAT64),),
    labels=(
        Label("y", DType.FLOAT64, Task.REGRESSION, absent_after=10.0, absent_value=ABSENT),
        Label("z", DType.FLOAT64, Task.REGRESSION, absent_after=30.0, absent_value=-2.0),
        Label("w", DType.FLOAT64, Task.REGRESSION),
    ),
)


@pytest.mark.parametrize(
    ("known", "due", "labels"),
    [
        ({"w": 1.0}, 130, (ABSENT, -2.0, 1.0)),
        ({"w": 1.0, "z": 5.0}, 110, (ABSENT, 5.0, 1.0)),
        ({"w": 1.0, "y": 5.0}, 130, (5.0, -2.0, 1.0)),
        ({"y": 5.0, "z": 5.0}, None, None),
    ],
)
def test_several_labels_are_waited_for_until_the_last_of_them_is_absent(
    known: dict[str, float], due: int | None, labels: tuple[float, ...] | None
) -> None:
    trainer = Trainer([Change(0, "i", 1, 100, x=7.0, others=known)], schema=TWO_LABELS)
    trainer.learn(1)
    assert trainer.restart(trainer.save()) == 0
    if due is None:
        assert trainer.learn(1, watermark=10_000).waiting == 1
        return
    assert len(trainer.learn(1, watermark=due).rows[0]) == 0
    (rows,) = trainer.learn(1, watermark=due + 1).rows
    assert tuple(rows.labels[name].tolist() for name in "yzw") == tuple([label] for label in labels or ())


def test_a_label_that_may_not_be_absent_is_waited_for_inside_the_window_only() -> None:
    topic = [Change(0, "i", 1, 100, x=7.0, others={"y": 1.0}), Change(1, "i", 2, 200, x=7.0, others={"y": 1.0})]
    trainer = Trainer(topic, schema=TWO_LABELS)
    assert trainer.learn(2).waiting == 2
    assert trainer.learn(2, begin=1).waiting == 1

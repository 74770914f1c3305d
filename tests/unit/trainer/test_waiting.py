"""Labels that come late or never, against a model that looks at one record after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtrain.trainer.rows import RoundRows
from streamtrain.types import RoundCounts
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
@settings(deadline=None, max_examples=200)
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
    rounds = []
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
        if data.draw(st.booleans()):
            assert restarted.restart(restarted.save()) == 0

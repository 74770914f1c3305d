"""What is said of a model, given what its trials have shown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from streamtrain.checking.states import Difference
from streamtrain.checking.trial_run import Answer
from streamtrain.checking.verdicts import Evidence, State, Verdict, tolerance, verdicts

SAME = Difference(0.0, (), 2.0)
FOUND: dict[str, dict[str, Any]] = {
    "build": {
        "layers": 3,
        "weights": 10,
        "batch_norms": [],
        "own_losses": 0,
        "lambdas": [],
        "unused_features": [],
        "other_state": {"weight/2": "counting/seen"},
    },
    "decode": {"documents": 10, "filtered": 0, "labelled": 10, "waiting": 0, "reasons": {}},
    "train": {"steps": 10, "losses": {"y": [2.0, 1.0]}, "refused": 0, "unmoved": [], "random": []},
    "order": {"orders": []},
    "restore": {"same_start": True, "bit_for_bit": True},
    "keras": {},
    "export": {},
}
GOOD = Evidence(
    dtype="float32",
    alone=Answer(FOUND, {}),
    together=(Answer({}, {}), Answer({}, {})),
    replicas=SAME,
    counts=Difference(1e-7, ("weight/0",), 2.0),
    orders=Difference(2e-7, ("weight/0",), 2.0),
    went_on=SAME,
)


def evidence(stage: str = "build", **changes: Any) -> Evidence:
    found = {**FOUND, stage: {**FOUND[stage], **changes}}
    return dataclasses.replace(GOOD, alone=Answer(found, {}))


def worst(given: Evidence) -> list[Verdict]:
    return [each for each in verdicts(given) if each.state is not State.OK]


def test_a_sound_model_is_well_in_every_stage() -> None:
    found = verdicts(GOOD)
    assert [each.state for each in found] == [State.OK] * 7
    assert not any(each.advice for each in found)


@pytest.mark.parametrize(
    ("given", "state", "message", "advice"),
    [
        (evidence(unused_features=["z"]), State.CARE, "no input 'z'", "drop the feature"),
        (evidence(lambdas=["double"]), State.CARE, "double is a Lambda", "get_config()"),
        (evidence("decode", reasons={"type:x": 4}), State.CARE, "4 would be dead letters: type:x 4", "another dtype"),
        (evidence("decode", labelled=0, filtered=10), State.FAILED, "10 are turned away", "does the filter"),
        (evidence("decode", labelled=0, waiting=9), State.FAILED, "9 wait for a label", "do labels come later"),
        (evidence("decode", labelled=0, reasons={"type:x": 9}), State.FAILED, "type:x 9", "with a document"),
        (evidence("train", losses={"y": [1.0, float("nan")]}), State.FAILED, "1 to nan", "learning rate"),
        (evidence("train", refused=3), State.CARE, "3 rows were refused", "take every value"),
        (evidence("train", unmoved=["dense/bias"]), State.CARE, "dense/bias did not move", "trainable=False"),
        (evidence("restore", bit_for_bit=False), State.FAILED, "not what was saved", "build()"),
        (evidence("restore", same_start=False), State.CARE, "different first weights", "default_rng"),
        (evidence("train", random=["seed"]), State.CARE, "random masks", "nothing to do"),
        (evidence(batch_norms=["norm"]), State.CARE, "norm normalises", "LayerNormalization"),
        (
            dataclasses.replace(GOOD, replicas=Difference(0.1, ("weight/2",), 2.0)),
            State.FAILED,
            "different values of counting/seen",
            "in call()",
        ),
        (
            dataclasses.replace(GOOD, counts=Difference(0.1, ("weight/0",), 2.0)),
            State.FAILED,
            "differ by 0.1 after ten steps",
            "each row speak for itself",
        ),
        (
            dataclasses.replace(GOOD, went_on=Difference(0.1, ("weight/0",), 2.0)),
            State.FAILED,
            "goes on differently",
            "SeedGenerator",
        ),
        (
            dataclasses.replace(GOOD, together=(Answer({}, {}), Answer({}, {}, "ended with status -9"))),
            State.FAILED,
            "process of worker 1 ended with status -9",
            "docs/models.md",
        ),
    ],
)
def test_what_needs_care_or_fails_is_said_with_advice(given: Evidence, state: State, message: str, advice: str) -> None:
    found = next(each for each in worst(given) if each.state is not State.SKIPPED)
    assert found.state is state
    assert message in found.message
    assert advice in found.advice


def test_what_comes_behind_a_failure_is_skipped() -> None:
    error = {"kind": "ModelError", "message": "no", "hint": "yes"}
    found = verdicts(Evidence(dtype="float32", alone=Answer({}, {"build": error})))
    assert found[0] == Verdict("builds, and fits the schema", State.FAILED, "no", "yes")
    assert {each.state for each in found[1:]} == {State.SKIPPED}


def test_a_process_that_ends_is_said_where_it_ended() -> None:
    alone = Answer({name: FOUND[name] for name in ("build", "decode")}, {}, "ended with status 3")
    found = verdicts(Evidence(dtype="float32", alone=alone))
    assert [each.state for each in found] == [State.OK, State.OK, State.FAILED, *[State.SKIPPED] * 4]
    assert "status 3" in found[2].message


def test_a_file_that_cannot_be_written_fails_nothing_else() -> None:
    error = {"kind": "ModelError", "message": "no", "hint": ""}
    found = {name: FOUND[name] for name in FOUND if name != "keras"}
    (keras,) = worst(dataclasses.replace(GOOD, alone=Answer(found, {"keras": error})))
    assert keras.state is State.CARE
    assert "get_config()" in keras.advice


def test_two_workers_may_differ_by_what_the_order_of_rows_does() -> None:
    assert tolerance(dataclasses.replace(GOOD, orders=Difference(0.5, (), 2.0))) == 1.5
    assert tolerance(GOOD) == 2e-6  # rounding of the largest weight
    assert tolerance(dataclasses.replace(GOOD, moved=Difference(0.5, (), 2.0))) == 0.001  # of the way that they went
    assert tolerance(dataclasses.replace(GOOD, dtype="float64", orders=SAME)) == 1e-10

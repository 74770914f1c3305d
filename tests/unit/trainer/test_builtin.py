"""The built-in model learns quickly, takes whatever a schema may hold, and survives what streams throw at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtrain import scores
from streamtrain.errors import ModelError
from streamtrain.trainer.decode import LARGEST_TARGET
from tests.unit.trainer.loop_case import BINARY, LoopCase

pytestmark = pytest.mark.tensorflow

MIXED = (
    {"field": "x", "dtype": "float32"},
    {"field": "n", "dtype": "int64"},
    {"field": "flag", "dtype": "bool"},
    {"field": "deep.word", "dtype": "string"},
    {"field": "city", "dtype": "string", "buckets": 7},
    {"field": "at", "dtype": "datetime"},
    {"field": "v", "dtype": "float32", "length": 3},
)
DAY_MS = 86_400_000


def mixed(rng: np.random.Generator, n: int) -> dict[str, Any]:
    return {
        "x": (1000 + 50 * rng.normal(size=n)).astype(np.float32),
        "n": rng.integers(-5, 5, n),
        "flag": rng.random(n) < 0.5,
        "deep.word": np.array([b"a", b"b", "ü".encode()], object)[rng.integers(0, 3, n)],
        "city": np.array([b"Bern", b"Rome"], object)[rng.integers(0, 2, n)],
        "at": rng.integers(0, 3 * 365, n) * DAY_MS + rng.integers(0, DAY_MS, n),
        "v": rng.normal(size=(n, 3)).astype(np.float32),
    }


def test_linear_dependence_is_learned_within_the_first_rounds_whatever_the_scale(strategy: Any) -> None:
    case = LoopCase(strategy, features=[{"field": "x", "dtype": "float32"}])
    rng = np.random.default_rng(0)
    for number in range(4):
        x = (1e5 + 1e4 * rng.normal(size=64)).astype(np.float32)
        report = case.learn({"x": x}, 3 * x + 7, batch_size=64)
        if number:  # the first rows are predicted before anything is known
            assert (scores.mae(report.scores["y"]) or 0) < 0.05 * 3e4


def test_every_kind_of_feature_contributes(strategy: Any) -> None:
    case = LoopCase(strategy, features=MIXED, hyper={"learning_rate": 0.02})
    rng = np.random.default_rng(0)
    for _ in range(60):
        c = mixed(rng, 256)
        y = (
            (c["x"] - 1000) / 25 + c["n"] + 2 * c["flag"] + 3 * (c["deep.word"] == b"b") - 4 * (c["city"] == b"Bern")
            + 5 * np.sin(2 * np.pi * (c["at"] % DAY_MS) / DAY_MS) + c["v"] @ [1.0, -1.0, 2.0]
        )  # fmt: skip
        report = case.learn(c, y, batch_size=64)
    assert (scores.mae(report.scores["y"]) or 0) < 0.15 * np.abs(y - np.median(y)).mean()


def test_a_classifier_learns_and_gives_logits(strategy: Any) -> None:
    case = LoopCase(strategy, features=MIXED, labels=[BINARY])
    rng = np.random.default_rng(0)
    for _ in range(30):
        c = mixed(rng, 128)
        report = case.learn(c, ((c["n"] > 0) ^ (c["deep.word"] == b"a")).astype(np.int32), batch_size=32)
    assert (scores.accuracy(report.scores["y"]) or 0) > 0.85


def test_several_labels_have_a_head_each_and_are_all_learned(strategy: Any) -> None:
    labels = [
        {"field": "late", "dtype": "float32", "task": "regression"},
        {"field": "kind", "dtype": "int32", "task": "classification", "classes": 3},
        {"field": "yes", "dtype": "bool", "task": "classification"},
    ]
    case = LoopCase(strategy, features=MIXED, labels=labels)
    rng = np.random.default_rng(0)
    for _ in range(40):
        c = mixed(rng, 128)
        y = {"late": 3 * c["x"] + 5 * (c["deep.word"] == b"b"), "kind": np.digitize(c["v"][:, 0], [-0.5, 0.5])}
        report = case.learn(c, {**y, "yes": c["n"] + 4 * (c["deep.word"] == b"a") > 0}, batch_size=32)
    assert (scores.mae(report.scores["late"]) or 0) < 0.1 * np.abs(y["late"] - np.median(y["late"])).mean()
    assert (scores.accuracy(report.scores["kind"]) or 0) > 0.85
    assert (scores.accuracy(report.scores["yes"]) or 0) > 0.85


def test_several_classes_have_an_output_each(strategy: Any) -> None:
    case = LoopCase(strategy, labels=[{**BINARY, "classes": 3}])
    rng = np.random.default_rng(0)
    for _ in range(40):
        x = rng.normal(size=(128, 2)).astype(np.float32)
        report = case.learn({"x": x}, np.digitize(x[:, 0], [-0.5, 0.5]).astype(np.int32), batch_size=32)
    assert (scores.accuracy(report.scores["y"]) or 0) > 0.85


def test_strings_alone_are_enough(strategy: Any) -> None:
    case = LoopCase(strategy, features=[{"field": "s", "dtype": "string"}], hyper={"learning_rate": 0.05})
    rng = np.random.default_rng(0)
    for _ in range(40):
        word = rng.integers(0, 4, 128)
        words = np.array([b"a", b"b", b"c", b"d"], object)[word]
        report = case.learn({"s": words}, word * 10.0, batch_size=32)
    assert (scores.mae(report.scores["y"]) or 0) < 2.0


def test_wide_vectors_are_standardised_without_a_fit(strategy: Any) -> None:
    case = LoopCase(strategy, features=[{"field": "x", "dtype": "float32", "length": 200}])
    assert not case.model.statistics[0].fitted
    rng = np.random.default_rng(0)
    for _ in range(60):
        x = (100 * rng.normal(size=(256, 200)) + 7).astype(np.float32)
        report = case.learn({"x": x}, x[:, 0] / 10, batch_size=64)
    assert (scores.mae(report.scores["y"]) or 0) < 0.5 * 8.0


def test_extreme_and_constant_values_neither_stop_nor_blind_it(strategy: Any) -> None:
    case = LoopCase(strategy)
    rng = np.random.default_rng(0)
    for number in range(40):
        x = rng.normal(size=(64, 2)).astype(np.float32)
        x[:, 1] = 5.0
        y = 10 * x[:, 0]
        if number == 10:
            x[3] = [np.inf, -3e38]
            x[4] = [np.nan, 1e30]
        report = case.learn({"x": x}, y, batch_size=32)
    assert (scores.mae(report.scores["y"]) or 0) < 2.0


def test_the_first_rows_are_scored_before_their_label_is_known(strategy: Any) -> None:
    case = LoopCase(strategy)
    report = case.learn({"x": np.ones((8, 2), np.float32)}, np.full(8, 100.0), batch_size=8)
    assert report.scores["y"].rows == 8
    assert scores.mae(report.scores["y"]) == 100.0


def test_a_rehearsal_leaves_no_trace(strategy: Any) -> None:
    case = LoopCase(strategy, features=MIXED)
    variables = (*case.model.keras.weights, *case.model.optimizer.variables)
    before = [np.array(variable.numpy()) for variable in variables]
    case.loop.prepare()
    for one, variable in zip(before, variables, strict=True):
        np.testing.assert_array_equal(one, variable.numpy())
    assert not case.model.statistics[0].primed()


def test_after_a_restore_the_first_rows_are_scored_by_what_was_restored(strategy: Any, tmp_path: Path) -> None:
    from streamtrain.trainer.checkpoint import restore_state, state_bytes

    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    first, second = LoopCase(strategy), LoopCase(strategy)
    first.learn({"x": x}, 100 + x[:, 0], batch_size=64)
    (tmp_path / "state.npz").write_bytes(state_bytes(first.model, rank=0))
    restore_state(second.model, tmp_path / "state.npz", rank=0)
    report = second.learn({"x": x}, 100 + x[:, 0], batch_size=64)
    assert report.scores["y"].rows == 64
    assert (scores.mae(report.scores["y"]) or 100) < 2.0


def test_statistics_follow_a_stream_that_moves(strategy: Any) -> None:
    case = LoopCase(strategy, hyper={"memory": 2000})
    rng = np.random.default_rng(0)
    for offset in [0.0] * 20 + [1000.0] * 80:
        x = (rng.normal(size=(128, 2)) + offset).astype(np.float32)
        report = case.learn({"x": x}, x[:, 0] + x[:, 1], batch_size=64)
    assert case.model.statistics[0].mean.numpy()[0] > 950
    assert (scores.mae(report.scores["y"]) or 0) < 1.0


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")  # Keras' own
@pytest.mark.parametrize("loss", ["mae", "mse", "huber"])
def test_each_loss_can_be_saved_as_keras_and_answers_alike(strategy: Any, tmp_path: Path, loss: str) -> None:
    import keras

    from streamtrain.trainer.checkpoint import write_keras

    case = LoopCase(strategy, hyper={"loss": loss})
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    for _ in range(4):
        case.learn({"x": x}, x[:, 0])
    write_keras(case.model, tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded({"x": x}), case.model.keras({"x": x}))


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")  # Keras' own
@pytest.mark.parametrize("classes", [2, 3])
def test_a_classifier_can_be_saved_as_keras_and_answers_alike(strategy: Any, tmp_path: Path, classes: int) -> None:
    import keras

    from streamtrain.trainer.checkpoint import write_keras

    case = LoopCase(strategy, labels=[{**BINARY, "classes": classes}])
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    for _ in range(3):
        case.learn({"x": x}, np.digitize(x[:, 0], [-0.5, 0.5][: classes - 1]).astype(np.int32))
    write_keras(case.model, tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded({"x": x}), case.model.keras({"x": x}))


@pytest.mark.parametrize("dtype", ["string", "datetime"])
def test_vectors_that_are_no_numbers_are_refused_by_name(strategy: Any, dtype: str) -> None:
    with pytest.raises(ModelError, match=f"feature 'tags': the built-in model takes no vectors of {dtype}s"):
        LoopCase(strategy, features=[{"field": "tags", "dtype": dtype, "length": 2}])


@pytest.mark.parametrize(
    ("hyper", "message", "hint"),
    [
        ({"hiden": [3]}, "no hyper-parameter 'hiden'", "hidden"),
        ({"hidden": 3}, "hyper: ", "lists of numbers"),
        ({"hidden": [0]}, "greater than 0", ""),
        ({"learning_rate": "fast"}, "hyper: ", "numbers"),
        ({"loss": "log"}, "hyper.loss is 'log'", "huber"),
        ({"recent": ["day"]}, "hyper: ", "lists of numbers"),
        ({"recent": [0]}, "greater than 0", ""),
        ({"waves": -1}, "hyper.waves must be a whole number", ""),
    ],
)
def test_wrong_hyper_parameters_are_named(strategy: Any, hyper: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(ModelError) as raised:
        LoopCase(strategy, hyper=hyper)
    assert message in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize("at", [0, 20])
def test_the_largest_values_that_are_decoded_do_not_stop_it(strategy: Any, at: int) -> None:
    case = LoopCase(strategy, features=[{"field": "x", "dtype": "float32"}, {"field": "n", "dtype": "int64"}])
    rng = np.random.default_rng(0)
    for number in range(120):
        x = rng.normal(size=128).astype(np.float32)
        n = rng.integers(-5, 5, 128)
        y = (3 * x + n).astype(np.float64)
        if number == at:
            x[:3], n[:3], y[:4] = 3.4e38, 2**63 - 1, (-LARGEST_TARGET, *[LARGEST_TARGET] * 3)
        report = case.learn({"x": x, "n": n}, y, batch_size=64)
    assert (scores.mae(report.scores["y"]) or 0) < 1.0

"""Rows that a model cannot learn from are found exactly, and leave no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamtrain import scores
from streamtrain.errors import RefusedRowError, TrainingError
from streamtrain.trainer.refusals import find
from streamtrain.types import Schema
from tests.unit.trainer.loop_case import REGRESSION, LoopCase

pytestmark = pytest.mark.tensorflow

SGD = {"class_name": "sgd", "learning_rate": 0.1}
ADAM = {"class_name": "adam", "learning_rate": 0.1}
POISONS = (float("nan"), float("inf"), -float("inf"), 1e38, -3e38)


def linear(schema: Schema, hyper: dict[str, Any]) -> Any:
    import keras

    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="linear")


def dropping(schema: Schema, hyper: dict[str, Any]) -> Any:
    import keras

    return keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )


def root(schema: Schema, hyper: dict[str, Any]) -> Any:
    """Its loss is finite where its gradient is not."""
    import keras

    x = keras.Input((2,))
    return keras.Model(x, keras.layers.Dense(1)(keras.ops.sqrt(keras.layers.Dense(2, use_bias=False)(x) ** 2)))


def embedding(schema: Schema, hyper: dict[str, Any]) -> Any:
    import keras

    return keras.Sequential([keras.Input((), dtype="int32"), keras.layers.Embedding(10, 4), keras.layers.Dense(1)])


def numbers(n: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)).astype(np.float32)
    return x, (x[:, 0] - x[:, 1]).astype(np.float32)


def same(one: LoopCase, other: LoopCase) -> None:
    for ours, theirs in zip(one.state(), other.state(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@given(st.lists(st.booleans(), max_size=40))
def test_halving_finds_what_is_bad(bad: list[bool]) -> None:
    found = find(range(len(bad)), lambda some: any(bad[i] for i in some))
    assert found == [i for i, each in enumerate(bad) if each]


@pytest.fixture(scope="module", params=["linear", "dropping", "builtin"])
def pair(request: pytest.FixtureRequest, strategy: Any) -> tuple[LoopCase, LoopCase]:
    """Two of a kind: what happens to one must not be seen beside the other."""
    builder = {"linear": linear, "dropping": dropping, "builtin": None}[request.param]
    options = {} if builder is None else {"optimizer": ADAM}
    return LoopCase(strategy, builder=builder, **options), LoopCase(strategy, builder=builder, **options)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    poisoned=st.dictionaries(st.integers(0, 22), st.sampled_from(POISONS), max_size=23),
    seed=st.integers(0, 1000),
    in_label=st.booleans(),
)
def test_any_poisoned_rows_are_found_and_the_rest_is_learned_as_if_their_weights_were_zero(
    pair: tuple[LoopCase, LoopCase], poisoned: dict[int, float], seed: int, in_label: bool
) -> None:
    case, reference = pair
    in_label = in_label or case.model.keras.name != "linear"  # the others squash or clip what is wild in a feature
    case.refusals.clear()
    reference.model.keras.set_weights(case.model.keras.get_weights())
    x, y = numbers(23, seed)
    weights = np.ones(23)
    weights[list(poisoned)] = 0.0
    expected = reference.learn({"x": x}, y, weights=weights, batch_size=8)
    bad_x, bad_y = x.copy(), y.copy()
    for row, value in poisoned.items():
        (bad_y if in_label else bad_x[:, 0])[row] = value
    report = case.learn({"x": bad_x}, bad_y, batch_size=8)
    assert {refusal.offset - 100 for refusal in case.refusals} == set(poisoned)
    same(case, reference)
    assert report.scores == expected.scores
    assert report.steps == expected.steps
    assert report.counts.dead_letters == sum(report.dead_letter_reasons.values()) == len(poisoned)
    assert report.counts.learned == 23 - len(poisoned)


def test_a_row_whose_gradient_alone_is_not_finite_is_named_for_it(strategy: Any) -> None:
    case, reference = (LoopCase(strategy, builder=root, optimizer=SGD) for _ in range(2))
    x, y = numbers(8)
    x[3] = 0.0  # sqrt has no slope at 0
    report = case.learn({"x": x}, y, batch_size=8)
    assert [(refusal.offset, refusal.reason) for refusal in case.refusals] == [(103, "non-finite-gradient")]
    assert report.dead_letter_reasons == {"non-finite-gradient": 1}
    reference.learn({"x": x}, y, weights=np.arange(8) != 3, batch_size=8)
    same(case, reference)


def test_the_label_whose_loss_is_not_finite_is_named(strategy: Any) -> None:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        x = keras.Input((2,))
        return keras.Model(x, {"y": keras.layers.Dense(1)(x), "z": keras.layers.Dense(1)(x)})

    other = {"field": "z", "dtype": "float32", "task": "regression"}
    case = LoopCase(strategy, builder=build, labels=[REGRESSION, other], optimizer=SGD)
    x, y = numbers(8)
    z = y.copy()
    z[5] = np.nan
    report = case.learn({"x": x}, {"y": y, "z": z}, batch_size=8)
    assert report.dead_letter_reasons == {"non-finite-loss:z": 1}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_rows_that_only_together_are_too_large_are_left_out(strategy: Any, reduction: str) -> None:
    case, reference = (LoopCase(strategy, builder=linear, optimizer=SGD, loss_reduction=reduction) for _ in range(2))
    x, y = numbers(40)
    large = y.copy()
    large[::2] = 5e18  # its square is a float32, and so is its gradient; the sum of twenty squares is none
    report = case.learn({"x": x}, large, batch_size=40)
    assert {refusal.offset - 100 for refusal in case.refusals} == set(range(0, 40, 2))
    assert report.counts.dead_letters == 20
    reference.learn({"x": x}, y, weights=np.arange(40) % 2, batch_size=40)
    same(case, reference)


def test_a_row_of_the_very_first_step_is_in_no_running_statistic(strategy: Any) -> None:
    case, reference = (LoopCase(strategy) for _ in range(2))
    x, y = numbers(20)
    bad_x, bad_y = x.copy(), y.copy()
    bad_x[2], bad_y[2] = 1e6, np.nan  # the moments would take its numbers as they are
    report = case.learn({"x": bad_x}, bad_y, batch_size=8)
    expected = reference.learn({"x": x}, y, weights=np.arange(20) != 2, batch_size=8)
    assert [refusal.offset for refusal in case.refusals] == [102]
    assert report.scores == expected.scores
    same(case, reference)


def test_a_first_step_without_a_good_row_primes_nothing(strategy: Any) -> None:
    case, reference = (LoopCase(strategy) for _ in range(2))
    x, y = numbers(8)
    case.learn({"x": x}, np.full(8, np.nan, np.float32), batch_size=8)
    assert len(case.refusals) == 8
    assert not case.model.statistics[0].primed()
    for each in (case, reference):
        each.learn({"x": x}, y, batch_size=8)
    same(case, reference)


def test_a_round_of_nothing_but_poison_does_not_end_training(strategy: Any) -> None:
    case = LoopCase(strategy, builder=linear, optimizer=SGD)
    x, y = numbers(8)
    case.learn({"x": x}, y)
    before = case.state()
    report = case.learn({"x": x * np.float32(1e38)}, y)
    assert report.counts.dead_letters == 8
    assert report.steps == 0
    for ours, theirs in zip(case.state(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_model_that_never_gives_a_number_is_to_blame_itself(strategy: Any) -> None:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        x = keras.Input((2,))
        return keras.Model(x, keras.ops.log(-keras.ops.abs(keras.layers.Dense(1)(x)) - 1.0))

    case = LoopCase(strategy, builder=build, optimizer=SGD)
    x, y = numbers(8)
    with pytest.raises(TrainingError, match="no rows of it are to blame"):
        case.learn({"x": x}, y)
    assert not case.refusals


def test_a_replayed_row_leaves_the_memory_and_is_no_dead_letter(strategy: Any) -> None:
    case = LoopCase(strategy, builder=linear, optimizer=SGD)
    x, y = numbers(8)
    y[[1, 4]] = np.nan
    report = case.learn({"x": x}, y, replayed=[False, True] * 4)
    assert {(refusal.offset, refusal.replayed) for refusal in case.refusals} == {(101, True), (104, False)}
    assert report.expelled == {0: (101, 104)}
    counts = report.counts
    assert (counts.learned, counts.dead_letters, counts.replayed, counts.expelled) == (3, 1, 3, 1)
    assert report.dead_letter_reasons == {"non-finite-loss:y": 1}


def test_most_replayed_rows_that_were_good_before_speak_against_the_weights(strategy: Any) -> None:
    case = LoopCase(strategy, builder=linear, optimizer=SGD)
    x, y = numbers(8)
    with pytest.raises(TrainingError, match="no rows of it are to blame"):
        case.learn({"x": x * np.float32(1e38)}, y, replayed=[False, True] * 4)


def test_a_row_that_was_left_out_is_no_sample_of_freshness(strategy: Any) -> None:
    case = LoopCase(strategy, builder=linear, optimizer=SGD)
    x, y = numbers(4)
    y[0] = np.nan
    report = case.learn({"x": x}, y, wall_time_ms=[999_000] * 4)
    assert sum(report.freshness_ms) == 3


def test_a_refused_row_ends_the_generation_unless_it_is_careful(strategy: Any) -> None:
    case = LoopCase(strategy, builder=embedding, features=[{"field": "n", "dtype": "int32"}], optimizer=ADAM)
    reference = LoopCase(strategy, builder=embedding, features=[{"field": "n", "dtype": "int32"}], optimizer=ADAM)
    n, y = np.arange(10, dtype=np.int32), np.ones(10, np.float32)
    with pytest.raises(RefusedRowError, match="round 0") as raised:
        case.learn({"n": np.where(n == 7, 10, n).astype(np.int32)}, y)
    assert not raised.value.fatal
    case = LoopCase(strategy, builder=embedding, features=[{"field": "n", "dtype": "int32"}], optimizer=ADAM)
    bad = np.where(np.isin(n, (3, 7)), 10**6, n).astype(np.int32)
    report = case.learn({"n": bad}, y, careful=True)
    assert [(refusal.offset, refusal.reason) for refusal in case.refusals] == [
        (103, "model-refuses"),
        (107, "model-refuses"),
    ]
    expected = reference.learn({"n": n}, y, weights=~np.isin(n, (3, 7)))
    assert report.scores == expected.scores
    same(case, reference)


def test_a_model_that_refuses_every_row_is_to_blame_itself(strategy: Any) -> None:
    case = LoopCase(strategy, builder=embedding, features=[{"field": "n", "dtype": "int32"}])
    with pytest.raises(TrainingError, match="refuses each of the first"):
        case.learn({"n": np.full(64, 99, np.int32)}, np.ones(64, np.float32), careful=True)


def test_what_a_row_of_weight_zero_holds_is_not_felt(strategy: Any) -> None:
    case, reference = (LoopCase(strategy, builder=root, optimizer=SGD) for _ in range(2))
    x, y = numbers(8)
    weights = np.arange(8) != 3
    reference.learn({"x": x}, y, weights=weights, batch_size=8)
    x[3] = 0.0  # where its gradient is no number even at weight zero
    case.learn({"x": x}, y, weights=weights, batch_size=8)
    assert not case.refusals
    same(case, reference)


def test_held_rows_are_scored_by_themselves_and_never_learned(strategy: Any) -> None:
    case, reference = (LoopCase(strategy, builder=dropping, optimizer=ADAM) for _ in range(2))
    x, y = numbers(30)
    held = np.arange(30) % 3 == 0
    inputs = np.array(case.model.keras(x[held], training=False))[:, 0]
    report = case.learn({"x": x}, y, held=held.tolist(), batch_size=8)
    reference.learn({"x": x[~held]}, y[~held], batch_size=8)
    same(case, reference)
    assert report.scores["y"].rows == 20
    assert report.holdout["y"].rows == 10
    assert scores.mae(report.holdout["y"]) == pytest.approx(float(np.abs(inputs - y[held]).mean()), rel=1e-5)


def test_a_held_row_that_cannot_be_scored_is_a_dead_letter(strategy: Any) -> None:
    case = LoopCase(strategy, builder=linear, optimizer=SGD)
    x, y = numbers(9)
    y[3] = np.nan
    report = case.learn({"x": x}, y, held=(np.arange(9) % 3 == 0).tolist())
    assert report.holdout["y"].rows == 2
    assert np.isfinite(report.holdout["y"].loss)
    assert (report.counts.held_out, report.counts.dead_letters, report.counts.learned) == (2, 1, 6)
    assert report.dead_letter_reasons == {"non-finite-loss:y": 1}


def test_norms_are_of_the_mean_gradient_and_of_what_moved(strategy: Any) -> None:
    case = LoopCase(strategy, builder=linear, optimizer=SGD)
    x, y = numbers(32)
    before = np.concatenate([w.ravel() for w in case.weights()])
    gradient = 2 * np.concatenate([x, np.ones((32, 1))], axis=1) * ((x @ before[:2] + before[2]) - y)[:, None]
    report = case.learn({"x": x}, y, batch_size=32)
    moved = np.concatenate([w.ravel() for w in case.weights()]) - before
    assert (report.norms.steps, report.norms.updates) == (1, 1)
    assert report.norms.gradient_max == pytest.approx(float(np.linalg.norm(gradient.mean(axis=0))), rel=1e-4)
    assert report.norms.update_sum == pytest.approx(float(np.linalg.norm(moved)), rel=1e-4)
    report = case.learn({"x": x}, y, batch_size=8)
    assert (report.norms.steps, report.norms.updates) == (4, 1)
    assert report.norms.gradient_sum <= 4 * report.norms.gradient_max


def test_a_row_that_spoils_the_batch_of_its_neighbours_is_found(strategy: Any) -> None:
    """Batch normalisation takes it for its own mean: by itself it would be learned from."""

    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        return keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])

    case = LoopCase(strategy, builder=build, optimizer=SGD)
    x, y = numbers(16)
    x[5, 0] = 1e38
    case.learn({"x": x}, y, batch_size=16)
    assert [refusal.offset for refusal in case.refusals] == [105]
    assert all(np.isfinite(value).all() for value in case.state())

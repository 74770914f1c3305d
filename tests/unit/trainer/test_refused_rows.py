"""Rows that a model cannot learn from are found exactly, and leave no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamtrain.trainer.refusals import find
from streamtrain.types import Schema
from tests.unit.trainer.loop_case import LoopCase

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

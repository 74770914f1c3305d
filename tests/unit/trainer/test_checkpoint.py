"""What is saved comes back bit for bit, and nothing else is let in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtrain.errors import ArtifactError, ModelError, StateMismatchError, TrainingError
from streamtrain.types import Schema
from tests.unit.trainer.loop_case import LoopCase

pytestmark = pytest.mark.tensorflow

ADAM = {"class_name": "adam", "learning_rate": 0.01}


def net(schema: Schema, hyper: dict[str, Any]) -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(hyper.get("units", 4), "relu", dtype=hyper.get("policy", "float32")),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )


def trained(strategy: Any, **options: Any) -> LoopCase:
    case = LoopCase(strategy, builder=net, optimizer=ADAM, **options)
    rng = np.random.default_rng(5)
    for _ in range(3):
        x = rng.normal(size=(20, 2)).astype(np.float32)
        case.learn({"x": x}, x.sum(axis=1))
    return case


def state(case: LoopCase) -> list[Any]:
    variables = (*case.model.keras.variables, *case.model.optimizer.variables)
    return [np.array(variable.numpy()) for variable in variables]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_weights_optimizer_statistics_and_generators_come_back_bit_for_bit(
    strategy: Any, tmp_path: Path, policy: str
) -> None:
    from streamtrain.trainer.checkpoint import restore_state, state_bytes

    first = trained(strategy, hyper={"policy": policy})
    second = LoopCase(strategy, builder=net, optimizer=ADAM, hyper={"policy": policy})
    path = tmp_path / "state.npz"
    path.write_bytes(state_bytes(first.model, rank=0))
    restore_state(second.model, path, rank=0)
    for one, other in zip(state(first), state(second), strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
    batch = np.ones((8, 2), np.float32)
    assert first.learn({"x": batch}, np.ones(8)).scores == second.learn({"x": batch}, np.ones(8)).scores
    for one, other in zip(state(first), state(second), strict=True):
        assert one.tobytes() == other.tobytes()  # dropout drew the same masks


def test_the_learning_rate_is_the_one_that_is_configured_now(strategy: Any, tmp_path: Path) -> None:
    from streamtrain.trainer.checkpoint import restore_state, state_bytes

    path = tmp_path / "state.npz"
    path.write_bytes(state_bytes(trained(strategy).model, rank=0))
    again = LoopCase(strategy, builder=net, optimizer={**ADAM, "learning_rate": 0.5})
    restore_state(again.model, path, rank=0)
    assert float(again.model.optimizer.learning_rate.numpy()) == 0.5


def test_ranks_draw_masks_of_their_own_before_and_after_a_restore(strategy: Any, tmp_path: Path) -> None:
    from streamtrain.trainer.checkpoint import restore_state, state_bytes

    case = trained(strategy)
    seeds = [np.array(seed.numpy()) for seed in case.model.seeds]
    assert seeds
    path = tmp_path / "state.npz"
    path.write_bytes(state_bytes(case.model, rank=0))
    restore_state(case.model, path, rank=2)
    for before, after in zip(seeds, case.model.seeds, strict=True):
        assert (np.array(after.numpy()) - before).tolist() == [2, 0]
    path.write_bytes(state_bytes(case.model, rank=2))
    restore_state(case.model, path, rank=0)
    assert [np.array(seed.numpy()).tolist() for seed in case.model.seeds] == [seed.tolist() for seed in seeds]


def test_dropout_that_was_added_or_removed_does_not_make_the_state_useless(strategy: Any, tmp_path: Path) -> None:
    from streamtrain.trainer.checkpoint import restore_state, state_bytes

    def plain(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        layers = [layer for layer in net(schema, hyper).layers if not isinstance(layer, keras.layers.Dropout)]
        return keras.Sequential([keras.Input((2,)), *layers])

    path = tmp_path / "state.npz"
    with_dropout, without = trained(strategy), LoopCase(strategy, builder=plain, optimizer=ADAM)
    path.write_bytes(state_bytes(with_dropout.model, rank=0))
    restore_state(without.model, path, rank=1)
    path.write_bytes(state_bytes(without.model, rank=1))
    again = LoopCase(strategy, builder=net, optimizer=ADAM)
    restore_state(again.model, path, rank=1)
    for one, other in zip(with_dropout.model.keras.weights, again.model.keras.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hyper": {"units": 5}}, r"has shape \[2, 5\], saved was \[2, 4\]"),
        ({"optimizer": {"class_name": "sgd"}}, "variables, the model has"),
        ({"features": ({"field": "x", "dtype": "float32", "length": 2, "missing": 0.0},)}, "schema"),
    ],
)
def test_the_state_of_another_model_is_refused_with_advice(
    strategy: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    from streamtrain.trainer.checkpoint import restore_state, state_bytes

    path = tmp_path / "state.npz"
    path.write_bytes(state_bytes(trained(strategy).model, rank=0))
    other = LoopCase(strategy, builder=net, **{"optimizer": ADAM, **change})
    with pytest.raises(StateMismatchError, match=message) as raised:
        restore_state(other.model, path, rank=0)
    assert "retrain" in raised.value.hint


def test_weights_that_are_no_numbers_are_never_saved(strategy: Any) -> None:
    from streamtrain.trainer.checkpoint import state_bytes

    case = trained(strategy)
    kernel = case.model.keras.trainable_variables[0]
    kernel.assign(np.full(kernel.shape, np.nan, np.float32))
    with pytest.raises(TrainingError, match=r"training diverged: .*kernel") as raised:
        state_bytes(case.model, rank=0)
    assert "learning rate" in raised.value.hint


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 torn"])
def test_a_file_that_is_no_state_is_an_artifact_error(strategy: Any, tmp_path: Path, content: bytes) -> None:
    from streamtrain.trainer.checkpoint import restore_state

    path = tmp_path / "state.npz"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="not a saved state"):
        restore_state(LoopCase(strategy, builder=net).model, path, rank=0)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")  # Keras' own
def test_the_keras_file_answers_as_the_model_does(strategy: Any, tmp_path: Path) -> None:
    import keras

    from streamtrain.trainer.checkpoint import write_keras

    case = trained(strategy)
    write_keras(case.model, tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x = np.array([[1.0, 2.0], [-1.0, 0.5]], np.float32)
    np.testing.assert_array_equal(loaded(x), case.model.keras(x))


def test_a_model_that_cannot_be_serialised_says_what_it_lacks(strategy: Any, tmp_path: Path) -> None:
    import keras

    from streamtrain.trainer.checkpoint import write_keras

    class Odd(keras.layers.Layer):
        def __init__(self, secret: object) -> None:
            super().__init__()

        def call(self, x: Any) -> Any:
            return x

        def get_config(self) -> dict[str, Any]:
            raise NotImplementedError("no config")

    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        return keras.Sequential([keras.Input((2,)), Odd(object()), keras.layers.Dense(1)])

    with pytest.raises(ModelError, match="cannot be written as") as raised:
        write_keras(LoopCase(strategy, builder=build).model, tmp_path / "model.keras")
    assert "get_config" in raised.value.hint

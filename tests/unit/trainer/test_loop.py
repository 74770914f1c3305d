"""What a round does to the weights, what it reports, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

from streamtrain import scores
from streamtrain.errors import ModelError, TrainingError
from streamtrain.types import FRESHNESS_BUCKETS_MS, Schema
from tests.unit.trainer.loop_case import BINARY, REGRESSION, LoopCase

pytestmark = pytest.mark.tensorflow

SGD = {"class_name": "sgd", "learning_rate": 0.1}


def linear(schema: Schema, hyper: dict[str, Any]) -> Any:
    import keras

    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])


def linear_case(strategy: Any, **options: Any) -> LoopCase:
    return LoopCase(strategy, builder=linear, **{"optimizer": SGD, **options})


def test_a_step_is_the_weighted_mean_over_its_batch(strategy: Any) -> None:
    case = linear_case(strategy)
    report = case.learn({"x": [[1.0, 0.0], [0.0, 1.0]]}, [1.0, 2.0], weights=[1.0, 3.0])
    # gradient of w * (x.k - y)^2 at k = 0, divided by the sum of weights 4
    np.testing.assert_allclose(case.weights()[0][:, 0], [0.1 * 2 * 1 / 4, 0.1 * 2 * 2 * 3 / 4], rtol=1e-6)
    assert report.steps == 1


def test_loss_reduction_sum_does_not_divide(strategy: Any) -> None:
    case = linear_case(strategy, loss_reduction="sum")
    case.learn({"x": [[1.0, 0.0], [1.0, 0.0]]}, [1.0, 1.0])
    np.testing.assert_allclose(case.weights()[0][:, 0], [0.1 * 2 * 2, 0.0], rtol=1e-6)


def test_rows_are_scored_before_they_are_learned(strategy: Any) -> None:
    case = linear_case(strategy)
    report = case.learn({"x": [[1.0, 0.0]] * 8}, [1.0] * 8, batch_size=4)
    # predicted 0 in the first step, 0.2 in the second
    assert report.scores["y"].rows == 8
    assert scores.mae(report.scores["y"]) == pytest.approx((1.0 + 0.8) / 2, rel=1e-6)
    assert scores.loss(report.scores["y"]) == pytest.approx((1.0 + 0.64) / 2, rel=1e-6)


def test_only_scored_rows_count_and_all_rows_are_learned(strategy: Any) -> None:
    case = linear_case(strategy)
    report = case.learn({"x": [[1.0, 0.0], [1.0, 0.0]]}, [1.0, 3.0], scored=[True, False])
    assert report.scores["y"].rows == 1
    assert scores.mae(report.scores["y"]) == 1.0
    np.testing.assert_allclose(case.weights()[0][0, 0], 0.1 * 2 * 2.0, rtol=1e-6)


def test_a_step_whose_weights_sum_to_zero_moves_nothing_not_even_momentum(strategy: Any) -> None:
    case = linear_case(strategy, optimizer={"class_name": "adam", "learning_rate": 0.1})
    case.learn({"x": [[1.0, 0.0]]}, [1.0])
    before = [np.array(v.numpy()) for v in (*case.model.keras.weights, *case.model.optimizer.variables)]
    report = case.learn({"x": [[np.inf, 0.0]] * 5}, [np.nan] * 5, weights=[0.0] * 5)
    after = [np.array(v.numpy()) for v in (*case.model.keras.weights, *case.model.optimizer.variables)]
    assert report.steps == 0
    assert report.scores["y"].rows == 0
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_empty_round_takes_no_step(strategy: Any) -> None:
    report = linear_case(strategy).learn({"x": np.zeros((0, 2), np.float32)}, [])
    assert report.steps == 0
    assert sum(report.freshness_ms) == 0


def test_rounds_of_any_size_use_one_trace(strategy: Any) -> None:
    case = linear_case(strategy)
    for n in (1, 2, 3, 5, 17, 64, 65, 200, 333):
        case.learn({"x": np.ones((n, 2), np.float32)}, np.ones(n), batch_size=16)
    assert case.loop.traces == 1


def test_freshness_is_counted_from_the_write_to_the_end_of_its_steps(strategy: Any) -> None:
    case = linear_case(strategy)
    now_ms = int(case.clock.time() * 1000)
    report = case.learn({"x": np.ones((4, 2))}, np.ones(4), wall_time_ms=[now_ms - 250, now_ms - 250, 0, now_ms + 5000])
    counts = np.array(report.freshness_ms)
    assert len(counts) == len(FRESHNESS_BUCKETS_MS) + 1
    assert counts.sum() == 3  # the row without a wall time is no sample
    place = int(np.searchsorted(FRESHNESS_BUCKETS_MS, 250.0))
    assert counts[place] == 2
    assert FRESHNESS_BUCKETS_MS[place - 1] < 250.0 <= FRESHNESS_BUCKETS_MS[place]
    assert counts[0] == 1  # a clock that is behind gives no negative age


def test_progress_counts_steps(strategy: Any) -> None:
    case = linear_case(strategy)
    case.learn({"x": np.ones((100, 2))}, np.ones(100), batch_size=4)
    assert sum(done for _, done in case.progress) == 25


def test_a_classifier_reports_log_loss_accuracy_and_auc(strategy: Any) -> None:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid")])

    case = LoopCase(strategy, builder=build, labels=[BINARY], optimizer={"class_name": "adam", "learning_rate": 0.05})
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.normal(size=(64, 2)).astype(np.float32)
        report = case.learn({"x": x}, (x[:, 0] > 0).astype(np.int32), batch_size=16)
    found = scores.metrics(case.job.schema_().labels[0], report.scores["y"])
    assert found["accuracy"] > 0.9
    assert found["auc"] > 0.97
    assert found["log_loss"] == pytest.approx(found["loss"], rel=1e-4)


def test_every_label_is_learned_by_its_weight_and_scored_on_its_own(strategy: Any) -> None:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        x = keras.Input((2,), name="x")
        heads = [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name=name)(x) for name in "ab"]
        model = keras.Model(x, heads)
        model.compile(loss=["mse", "mse"], loss_weights={"a": 0.5, "b": 2.0})
        return model

    labels = [{"field": name, "dtype": "float32", "task": "regression"} for name in ("first", "second")]
    case = LoopCase(strategy, builder=build, labels=labels, optimizer=SGD)
    report = case.learn({"x": [[1.0, 0.0]]}, {"first": [1.0], "second": [3.0]})
    np.testing.assert_allclose([w[0, 0] for w in case.weights()], [0.1 * 2 * 0.5, 0.1 * 2 * 3 * 2], rtol=1e-6)
    assert {name: scores.loss(found) for name, found in report.scores.items()} == {"first": 1.0, "second": 9.0}


def test_a_regression_and_a_classification_are_learned_together(strategy: Any) -> None:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        x = keras.Input((2,), name="x")
        return keras.Model(x, {"size": keras.layers.Dense(1)(x), "kind": keras.layers.Dense(1, "sigmoid")(x)})

    labels = [{"field": "kind", "dtype": "bool", "task": "classification"}, {**REGRESSION, "field": "size"}]
    case = LoopCase(strategy, builder=build, labels=labels, optimizer={"class_name": "adam", "learning_rate": 0.05})
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.normal(size=(64, 2)).astype(np.float32)
        report = case.learn({"x": x}, {"kind": x[:, 0] > 0, "size": x[:, 1]}, batch_size=16)
    kind, size = case.job.schema_().labels
    assert scores.metrics(kind, report.scores["kind"])["auc"] > 0.97
    assert scores.metrics(size, report.scores["size"])["mae"] < 0.4


def test_scores_come_from_inference_where_a_layer_behaves_differently_in_training(strategy: Any) -> None:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        return keras.Sequential(
            [keras.Input((2,)), keras.layers.Dropout(0.9), keras.layers.Dense(1, kernel_initializer="ones")]
        )

    case = LoopCase(strategy, builder=build, optimizer={"class_name": "sgd", "learning_rate": 0.0})
    assert case.model.differs_in_training
    report = case.learn({"x": [[1.0, 1.0]] * 16}, [2.0] * 16)
    assert scores.mae(report.scores["y"]) == 0.0


def test_what_cannot_differ_in_training_is_scored_with_the_training_pass(strategy: Any) -> None:
    assert not linear_case(strategy).model.differs_in_training


def test_plain_batch_normalisation_moves_its_statistics_with_the_steps(strategy: Any) -> None:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        normal = keras.layers.BatchNormalization(momentum=0.5)
        return keras.Sequential([keras.Input((2,)), normal, keras.layers.Dense(1)])

    case = LoopCase(strategy, builder=build, optimizer=SGD)
    case.learn({"x": [[4.0, 0.0]] * 8}, [0.0] * 8, batch_size=8)
    moving_mean = case.model.batch_norms[0].moving_mean.numpy()
    np.testing.assert_allclose(moving_mean, [2.0, 0.0])
    case.learn({"x": [[9.0, 9.0]] * 8}, [0.0] * 8, weights=[0.0] * 8, batch_size=8)
    np.testing.assert_allclose(case.model.batch_norms[0].moving_mean.numpy(), [2.0, 0.0])


def test_a_regularizer_counts_once_per_step_and_is_not_divided_by_the_batch(strategy: Any) -> None:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", kernel_regularizer="l2")
        return keras.Sequential([keras.Input((2,)), layer])

    case = LoopCase(strategy, builder=build, optimizer=SGD)
    case.learn({"x": [[0.0, 0.0]] * 3}, [0.0] * 3)
    np.testing.assert_allclose(case.weights()[0], 1 - 0.1 * 2 * 0.01, rtol=1e-6)  # keras' l2 is 0.01


def test_weights_that_have_diverged_end_training_with_advice(strategy: Any) -> None:
    case = linear_case(strategy, optimizer={"class_name": "sgd", "learning_rate": 1e3})
    with pytest.raises(TrainingError, match="training diverged") as raised:
        case.learn({"x": [[1.0, 0.5]] * 400}, [1.0] * 400)
    assert "learning rate" in raised.value.hint
    assert not case.refusals  # the rows are not to blame


@pytest.mark.slow
def test_memory_stays_flat_over_a_thousand_rounds(strategy: Any) -> None:
    strings = {"field": "s", "dtype": "string"}
    case = LoopCase(strategy, features=[{"field": "x", "dtype": "float32", "length": 2}, strings])
    rng = np.random.default_rng(0)
    resident = []
    for number in range(1200):
        n = int(rng.integers(1, 200))
        words = np.array([b"%d" % word for word in rng.integers(0, 10**9, n)], object)
        case.learn({"x": rng.normal(size=(n, 2)).astype(np.float32), "s": words}, np.ones(n), batch_size=64)
        case.progress.clear()
        if number in (200, 1199):
            resident.append(psutil.Process().memory_info().rss)
    assert resident[1] - resident[0] < 8 * 1024**2


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Lamb", "Nadam", "Adagrad"])
def test_keras_still_reduces_gradients_through_the_hook_that_the_loop_takes_over(strategy: Any, name: str) -> None:
    """Fails on a Keras that has changed it: then gradients would be reduced twice."""
    import keras
    import tensorflow as tf

    from streamtrain.trainer.reduction import take_over_reduction

    with strategy.scope():
        variable = keras.Variable([1.0])
        optimizer = getattr(keras.optimizers, name)(0.5)
        optimizer.build([variable])
    take_over_reduction(optimizer)
    passed: list[Any] = []
    identity = optimizer._all_reduce_sum_gradients
    object.__setattr__(optimizer, "_all_reduce_sum_gradients", lambda pairs: passed.append(pairs) or identity(pairs))
    strategy.run(lambda: optimizer.apply([tf.constant([2.0])], [variable]))
    assert len(passed) == 1
    assert variable.numpy()[0] < 1.0


def test_an_optimizer_without_the_hook_is_refused(strategy: Any) -> None:
    from streamtrain.trainer.reduction import take_over_reduction

    with pytest.raises(ModelError, match="summed twice"):
        take_over_reduction(object())


def test_a_loss_scaling_optimizer_moves_the_weights_as_its_inner_one(strategy: Any) -> None:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        model = linear(schema, hyper)
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
        model.compile(optimizer=optimizer, loss="mse")
        return model

    scaled, plain = LoopCase(strategy, builder=build), linear_case(strategy)
    for case in (scaled, plain):
        case.learn({"x": [[1.0, 2.0]] * 8}, [1.0] * 8)
    np.testing.assert_allclose(scaled.weights()[0], plain.weights()[0], rtol=1e-5)

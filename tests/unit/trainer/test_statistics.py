"""What the built-in model fits by sums is what numpy finds in closed form, and no wild value takes it over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamtrain import scores
from tests.unit.trainer.loop_case import BINARY, LoopCase

pytestmark = pytest.mark.tensorflow

TWO = ({"field": "x", "dtype": "float64", "length": 2},)
LABEL = {"field": "y", "dtype": "float64", "task": "regression"}


def moments(**options: Any) -> Any:
    from streamtrain.trainer.model import set_precision
    from streamtrain.trainer.moments import Moments
    from streamtrain.types import DType, Feature

    set_precision("float64")
    layer = Moments(
        features=[Feature("x", DType.FLOAT64, length=2)],
        **{"label": "y", "targets": 1, "memory": 1e12, "waves": 0, "indicators": False, **options},
    )
    layer.build(None)
    return layer


def recent(**options: Any) -> Any:
    from streamtrain.trainer.model import set_precision
    from streamtrain.trainer.recent import Recent
    from streamtrain.types import DType, Feature

    set_precision("float64")
    layer = Recent(
        features=[Feature("x", DType.FLOAT64, length=2)], **{"label": "y", "memories": [100.0, 1e12], **options}
    )
    layer.build(None)
    return layer


def absorb(layer: Any, x: Any, y: Any, *, afresh: bool) -> None:
    layer.absorb(layer.sums({"x": x}, {"y": y}, np.ones(len(x))), afresh=afresh)


def prime(layer: Any, x: Any, y: Any) -> None:
    from streamtrain.trainer.model import PRIMING_PASSES

    for _ in range(PRIMING_PASSES):
        absorb(layer, x, y, afresh=True)


def follow(layer: Any, x: Any, y: Any, said: Any, weights: Any = None) -> None:
    weights = np.ones(len(x)) if weights is None else weights
    layer.absorb(layer.follow({"x": x}, {"y": y}, {"y": said}, weights), afresh=False)


def test_the_fit_is_the_ridge_regression_of_all_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)) * [1.0, 50.0] + [3.0, -7.0]
    y = 2 * x[:, 0] - 0.1 * x[:, 1] + rng.normal(size=300)
    layer = moments()
    prime(layer, x[:100], y[:100])
    for first in (100, 200):
        absorb(layer, x[first : first + 100], y[first : first + 100], afresh=False)
    z = (x - x.mean(0)) / x.std(0)
    expected = np.linalg.solve(z.T @ z / 300 + (1e-3 + 8 / 300) * np.eye(2), z.T @ (y - y.mean()) / 300)
    np.testing.assert_allclose(layer.mean.numpy(), [*x.mean(0), y.mean()], rtol=1e-10)
    np.testing.assert_allclose(layer.slope.numpy()[:, 0], expected, rtol=1e-9)
    z_found, base, _ = layer([x])
    np.testing.assert_allclose(z_found, z, rtol=1e-9)
    np.testing.assert_allclose(np.array(base)[:, 0], y.mean() + z @ expected, rtol=1e-9)


def test_waves_are_fitted_beside_the_numbers() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 2))
    inside = (np.square(x).sum(axis=1) < 1.4).astype(float)
    layer = moments(waves=64, indicators=True, memory=1e6)
    prime(layer, x[:500], inside[:500])
    for first in range(500, 3000, 500):
        absorb(layer, x[first : first + 500], inside[first : first + 500], afresh=False)
    _, base, _ = layer([x[3000:]])
    assert ((np.array(base)[:, 0] > 0.5) == inside[3000:]).mean() > 0.93
    assert layer.sums_size == 1 + 67 + 67 * 67 + 2


@pytest.mark.parametrize("wild", [1e9, 3e38])
def test_wild_values_among_the_very_first_rows_do_not_decide_the_scale(wild: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 2)) * [1.0, 50.0] + [0.0, 1000.0]
    y = x[:, 0] + 10
    x[:3, 0], y[5:9] = wild, -wild
    layer = moments()
    prime(layer, x, y)
    deviation = np.sqrt(np.diag(layer.square.numpy()))
    assert 0.5 < deviation[0] < 2
    assert 30 < deviation[1] < 70
    assert abs(layer.mean.numpy()[2] - 10) < 2


def test_a_first_step_of_zero_weight_leaves_statistics_unprimed() -> None:
    for layer in (moments(), recent()):
        layer.absorb(layer.sums({"x": np.ones((4, 2))}, {"y": np.ones(4)}, np.zeros(4)), afresh=True)
        assert not layer.primed()
        assert layer.primings.numpy() == 0


def test_recent_errors_are_fitted_by_forgetful_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    x, error = rng.normal(size=(40, 10, 2)), np.zeros((40, 10))
    layer = recent()
    prime(layer, x[0], error[0])
    weight, rows = np.zeros(0), np.zeros((0, 3))
    for number in range(40):
        error[number] = 0.5 + x[number, :, 0] + 0.1 * rng.normal(size=10)
        follow(layer, x[number], error[number], np.zeros(10))
        if number:  # the first rows tell only how large errors are
            weight = np.concatenate([weight * np.exp(-10 / 100), np.ones(10)])
            rows = np.concatenate([rows, np.column_stack([x[number], error[number]])])
    mean = np.average(rows, axis=0, weights=weight)
    square = np.average((rows - mean)[:, :, None] * (rows - mean)[:, None, :], axis=0, weights=weight)
    np.testing.assert_allclose(layer.weight.numpy()[0], weight.sum(), rtol=1e-10)
    np.testing.assert_allclose(layer.mean.numpy()[0], mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(layer.square.numpy()[0], square, rtol=1e-8, atol=1e-10)
    scale = np.sqrt(np.diag(square))[:2]
    system = square[:2, :2] / np.outer(scale, scale) + (1e-3 + 30 / weight.sum()) * np.eye(2)
    np.testing.assert_allclose(layer.slope.numpy()[0], np.linalg.solve(system, square[:2, 2] / scale), rtol=1e-8)


def test_only_rows_with_weight_are_followed_and_two_halves_are_a_whole() -> None:
    rng = np.random.default_rng(0)
    one, halves = recent(), recent()
    x, y = rng.normal(size=(5, 8, 2)), rng.normal(size=(5, 8))
    first, second = np.repeat([1.0, 0.0], 4), np.repeat([0.0, 1.0], 4)
    prime(one, x[0], y[0])
    prime(halves, x[0], y[0])
    for number in range(5):
        follow(one, x[number], y[number], np.zeros(8))
        vectors = [
            np.array(halves.follow({"x": x[number]}, {"y": y[number]}, {"y": np.zeros(8)}, weights))
            for weights in (first, second)
        ]
        halves.absorb(sum(vectors), afresh=False)
        follow(halves, 1e6 * x[number], y[number], np.zeros(8), weights=np.zeros(8))
    for ours, theirs in zip(one.variables, halves.variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-10, atol=1e-12)


def test_what_says_nothing_about_errors_is_not_believed_and_in_training_nothing_is_said() -> None:
    rng = np.random.default_rng(0)
    layer = recent(memories=[20.0])
    x = rng.normal(size=(100, 20, 2))
    prime(layer, x[0], np.zeros(20))
    for part in x:
        follow(layer, part, rng.normal(size=20), np.zeros(20))
    said = np.array(layer([x[0], np.zeros((20, 1))]))
    assert np.abs(said).max() < 0.1
    for part in x:
        follow(layer, part, 3 + rng.normal(size=20), np.zeros(20))
    assert np.abs(np.array(layer([x[0], np.zeros((20, 1))])) - 3).max() < 2
    np.testing.assert_array_equal(layer([x[0], np.zeros((20, 1))], training=True), np.zeros((20, 1)))


def test_wild_errors_and_numbers_do_not_bend_what_is_said() -> None:
    rng = np.random.default_rng(0)
    layer = recent()
    x, y = rng.normal(size=(60, 16, 2)), 1 + 0.1 * rng.normal(size=(60, 16))
    x[0, :1], x[2, :1], y[0, 1], y[3, 1] = 3e38, -1e30, 1e30, -1e30
    prime(layer, x[0], y[0])
    for one, other in zip(x, y, strict=True):
        follow(layer, one, other, np.zeros(16))
    assert np.abs(np.array(layer([x[-1], np.zeros((16, 1))])) - 1).max() < 0.3


def test_a_level_that_keeps_moving_is_followed_better_than_without(strategy: Any) -> None:
    found = []
    for memories in ([], [32.0, 128.0]):
        case = LoopCase(strategy, hyper={"recent": memories})
        rng, total, level = np.random.default_rng(0), 0.0, 0.0
        for _ in range(120):
            level += 2 * rng.normal()
            x = rng.normal(size=(16, 2)).astype(np.float32)
            report = case.learn({"x": x}, x[:, 0] + level + 0.1 * rng.normal(size=16), batch_size=16)
            total += scores.mae(report.scores["y"]) or 0
        found.append(total)
    assert found[1] < 0.7 * found[0]


def test_classes_that_no_line_divides_are_told_apart_within_the_first_thousand_rows(strategy: Any) -> None:
    case = LoopCase(strategy, labels=[BINARY])
    rng = np.random.default_rng(0)
    for _ in range(40):
        x = rng.normal(size=(32, 2)).astype(np.float32)
        report = case.learn({"x": x}, (np.square(x).sum(axis=1) < 1.4).astype(np.int32), batch_size=32)
    for _ in range(5):
        x = rng.normal(size=(200, 2)).astype(np.float32)
        report = case.learn({"x": x}, (np.square(x).sum(axis=1) < 1.4).astype(np.int32), batch_size=200)
    assert (scores.accuracy(report.scores["y"]) or 0) > 0.92

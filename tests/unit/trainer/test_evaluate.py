"""The sums that become scores, against the same numbers in plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamtrain import scores
from streamtrain.types import DType, Label, Scores, Task

pytestmark = pytest.mark.tensorflow

REGRESSION = Label("y", DType.FLOAT32, Task.REGRESSION)
BINARY = Label("y", DType.INT32, Task.CLASSIFICATION)
THREE = Label("y", DType.INT32, Task.CLASSIFICATION, classes=3)


def summed(label: Label, outputs: Any, targets: Any, *, logits: bool = True, **options: Any) -> Scores:
    import tensorflow as tf

    from streamtrain.trainer.evaluate import ScoreLayout, score_sums

    n = len(targets)
    vector = score_sums(
        labels=[label],
        outputs={"y": tf.constant(outputs, tf.float64)},
        targets={"y": tf.constant(targets, tf.float64)},
        row_losses={"y": tf.constant(options.get("losses", np.arange(n)), tf.float64)},
        weights=tf.constant(options.get("weights", np.ones(n)), tf.float64),
        scored=tf.constant(options.get("scored", np.ones(n)), tf.float64),
        logits={"y": logits},
        real=tf.float64,
    )
    layout = ScoreLayout((label,))
    assert vector.shape == (layout.size,)
    return layout.unpack(vector.numpy())["y"]


def test_a_regression_sums_weighted_errors() -> None:
    found = summed(REGRESSION, [1.0, 2.0, 9.0], [3.0, 2.0, 0.0], weights=[2.0, 1.0, 0.0], losses=[1.0, 5.0, 7.0])
    assert (found.rows, found.weight, found.loss) == (2, 3.0, 7.0)
    assert found.sums == {"absolute_error": 4.0, "squared_error": 8.0}


def test_rows_that_do_not_count_add_nothing_even_if_they_are_no_numbers() -> None:
    found = summed(
        REGRESSION, [np.nan, 1.0, np.inf], [0.0, 0.0, np.nan], scored=[0.0, 1.0, 1.0], weights=[1.0, 1.0, 0.0]
    )
    assert (found.rows, found.sums["absolute_error"]) == (1, 1.0)


@pytest.mark.parametrize("form", ["logit", "probability", "two logits", "two probabilities"])
def test_every_form_of_a_binary_output_scores_alike(form: str) -> None:
    rng = np.random.default_rng(1)
    logit = rng.normal(size=500)
    truth = (rng.random(500) < 1 / (1 + np.exp(-logit))).astype(float)
    probability = 1 / (1 + np.exp(-logit))
    outputs: Any = {
        "logit": logit,
        "probability": probability,
        "two logits": np.stack([-logit / 2, logit / 2], axis=1),
        "two probabilities": np.stack([1 - probability, probability], axis=1),
    }[form]
    found = summed(BINARY, outputs, truth, logits="logit" in form)
    chosen = np.where(truth > 0, probability, 1 - probability)
    assert scores.log_loss(found) == pytest.approx(-np.log(chosen).mean(), rel=1e-6)
    assert scores.accuracy(found) == ((logit > 0) == truth).mean()
    pairs = logit[truth > 0][:, None] - logit[truth == 0][None, :]
    assert scores.auc(found) == pytest.approx((pairs > 0).mean(), abs=2e-3)
    assert sum(found.positives) == truth.sum()
    assert sum(found.negatives) == (1 - truth).sum()


def test_several_classes_have_log_loss_and_accuracy_but_no_auc() -> None:
    found = summed(THREE, np.log([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]), [0.0, 1.0])
    assert scores.accuracy(found) == 0.5
    assert scores.log_loss(found) == pytest.approx(-(np.log(0.7) + np.log(0.2)) / 2)
    assert (found.positives, scores.auc(found)) == ((), None)


def test_a_certain_and_wrong_probability_costs_much_but_not_everything() -> None:
    assert np.isfinite(scores.log_loss(summed(BINARY, [1.0, 0.0], [0.0, 1.0], logits=False)) or np.nan)

"""What the sums say once they are divided, and that parts add up to the whole."""

from __future__ import annotations

import math

import pytest

from streamtrain import scores
from streamtrain.types import DType, Label, Scores, Task

REGRESSION = Label("y", DType.FLOAT32, Task.REGRESSION)
BINARY = Label("y", DType.INT32, Task.CLASSIFICATION)


def test_errors_are_divided_by_the_weight_and_not_by_the_rows() -> None:
    found = Scores(rows=3, weight=4.0, loss=2.0, sums={"absolute_error": 8.0, "squared_error": 36.0})
    assert scores.metrics(REGRESSION, found) == {"loss": 0.5, "mae": 2.0, "rmse": 3.0}


def test_there_is_no_metric_before_the_first_row() -> None:
    assert scores.metrics(REGRESSION, Scores()) == {}
    assert scores.metrics(BINARY, Scores(rows=0, positives=(0.0,), negatives=(0.0,))) == {}
    assert scores.mae(Scores()) is None


def test_a_classification_has_log_loss_accuracy_and_auc() -> None:
    found = Scores(2, 2.0, 1.0, {"log_loss": 1.0, "correct": 2.0}, positives=(0.0, 1.0), negatives=(1.0, 0.0))
    assert scores.metrics(BINARY, found) == {"loss": 0.5, "log_loss": 0.5, "accuracy": 1.0, "auc": 1.0}


@pytest.mark.parametrize(
    ("positives", "negatives", "auc"),
    [
        ((0, 0, 2), (3, 0, 0), 1.0),
        ((2, 0, 0), (0, 0, 3), 0.0),
        ((0, 4, 0), (0, 4, 0), 0.5),
        ((1, 0, 1), (0, 2, 0), 0.5),
        ((0, 1, 1), (1, 1, 0), (2 + 1.5) / 4),
    ],
)
def test_auc_is_the_chance_that_a_positive_ranks_above_a_negative(
    positives: tuple[float, ...], negatives: tuple[float, ...], auc: float
) -> None:
    assert scores.auc(Scores(positives=positives, negatives=negatives)) == pytest.approx(auc)


def test_there_is_no_auc_with_one_class_only() -> None:
    assert scores.auc(Scores(positives=(1.0, 2.0), negatives=(0.0, 0.0))) is None


def test_merging_adds_and_an_empty_score_changes_nothing() -> None:
    one = Scores(1, 1.0, 0.5, {"absolute_error": 1.0}, (1.0, 0.0), (0.0, 2.0))
    two = Scores(2, 3.0, 1.5, {"absolute_error": 2.0, "squared_error": 4.0}, (0.5, 0.5), (1.0, 0.0))
    both = scores.merge(one, two)
    assert both == scores.merge(two, one)
    assert (both.rows, both.weight, both.loss) == (3, 4.0, 2.0)
    assert both.sums == {"absolute_error": 3.0, "squared_error": 4.0}
    assert (both.positives, both.negatives) == ((1.5, 0.5), (1.0, 2.0))
    assert scores.merge(one, Scores()) == one == scores.merge(Scores(), one)
    assert scores.rmse(two) == pytest.approx(math.sqrt(4 / 3))

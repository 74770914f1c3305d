"""What prequential sums (`types.Scores`) say: addition and the metrics computed from them. A leaf without
TensorFlow, so that the daemon finishes with the same functions what the workers summed up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from streamtrain.types import Label, Scores, Task

AUC_BINS = 128
AUC_LOGIT_RANGE = 8.0
"""Scores of class 1 are counted by their logit, clipped to +-8, in 128 bins: as fine at 0.001 as at 0.5."""


def merge(first: Scores, second: Scores) -> Scores:
    """The sums over the rows of both; the neutral element is `Scores()`."""
    return Scores(
        rows=first.rows + second.rows,
        weight=first.weight + second.weight,
        loss=first.loss + second.loss,
        sums={
            key: first.sums.get(key, 0.0) + second.sums.get(key, 0.0)
            for key in dict.fromkeys([*first.sums, *second.sums])
        },
        positives=_add(first.positives, second.positives),
        negatives=_add(first.negatives, second.negatives),
    )


def merge_by_label(first: Mapping[str, Scores], second: Mapping[str, Scores]) -> dict[str, Scores]:
    return {
        label: merge(first.get(label, Scores()), second.get(label, Scores()))
        for label in dict.fromkeys([*first, *second])
    }


def _add(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[float, ...]:
    if not first or not second:
        return tuple(first or second)
    return tuple(a + b for a, b in zip(first, second, strict=True))


def loss(scores: Scores) -> float | None:
    """The mean of the model's own loss; None, as for all metrics, while there is nothing to divide by."""
    return _mean(scores, scores.loss)


def mae(scores: Scores) -> float | None:
    return _mean(scores, scores.sums.get("absolute_error"))


def rmse(scores: Scores) -> float | None:
    mean = _mean(scores, scores.sums.get("squared_error"))
    return None if mean is None else math.sqrt(mean)


def log_loss(scores: Scores) -> float | None:
    return _mean(scores, scores.sums.get("log_loss"))


def accuracy(scores: Scores) -> float | None:
    return _mean(scores, scores.sums.get("correct"))


def auc(scores: Scores) -> float | None:
    """Area under the ROC curve: P(score of a positive > of a negative), ties (same bin) counted half."""
    positives, negatives = np.asarray(scores.positives), np.asarray(scores.negatives)
    pairs = float(positives.sum() * negatives.sum())
    if pairs <= 0:
        return None
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum()) / pairs


def _mean(scores: Scores, total: float | None) -> float | None:
    return None if total is None or scores.weight <= 0 else total / scores.weight


_METRICS: Mapping[Task, Mapping[str, Callable[[Scores], float | None]]] = {
    Task.REGRESSION: {"mae": mae, "rmse": rmse},
    Task.CLASSIFICATION: {"log_loss": log_loss, "accuracy": accuracy, "auc": auc},
}


def metrics(label: Label, scores: Scores) -> dict[str, float]:
    """Every metric of the label's task that can be told, and the mean `loss`."""
    found = {"loss": loss(scores)} | {name: finish(scores) for name, finish in _METRICS[label.task].items()}
    return {name: value for name, value in found.items() if value is not None}

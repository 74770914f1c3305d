"""Per-row losses and prequential sums of a batch, as TensorFlow sees them: a flat vector that travels in the
step's all-reduce and becomes `Scores`. Never divides: only sums can be merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamtrain.scores import AUC_BINS, AUC_LOGIT_RANGE
from streamtrain.types import Label, Scores, Task

Tensor = Any

_PROBABILITY_FLOOR = 1e-7
_HEAD = ("rows", "weight", "loss")
_SUMS = {
    Task.REGRESSION: ("absolute_error", "squared_error"),
    Task.CLASSIFICATION: ("log_loss", "correct"),
}


@dataclass(frozen=True, slots=True)
class ScoreLayout:
    """Where the sums of each label stand in the flat vector."""

    labels: tuple[Label, ...]

    @property
    def size(self) -> int:
        return sum(_size(label) for label in self.labels)

    def parts(self, vector: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
        """The sums of each label."""
        return np.split(vector, np.cumsum([_size(label) for label in self.labels])[:-1])

    def unpack(self, vector: npt.NDArray[np.float64]) -> dict[str, Scores]:
        """The Scores of each label field."""
        found: dict[str, Scores] = {}
        for label, part in zip(self.labels, self.parts(vector), strict=True):
            names = _SUMS[label.task]
            bins = part[len(_HEAD) + len(names) :]
            found[label.field] = Scores(
                rows=round(float(part[0])),
                weight=float(part[1]),
                loss=float(part[2]),
                sums={name: float(value) for name, value in zip(names, part[len(_HEAD) :], strict=False)},
                positives=tuple(bins[:AUC_BINS].tolist()) if _binary(label) else (),
                negatives=tuple(bins[AUC_BINS:].tolist()) if _binary(label) else (),
            )
        return found


def _binary(label: Label) -> bool:
    return label.task is Task.CLASSIFICATION and label.classes == 2


def _size(label: Label) -> int:
    return len(_HEAD) + len(_SUMS[label.task]) + (2 * AUC_BINS if _binary(label) else 0)


def score_sums(
    *,
    labels: Sequence[Label],
    outputs: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    row_losses: Mapping[str, Tensor],
    weights: Tensor,
    scored: Tensor,
    logits: Mapping[str, bool],
    real: tf.DType,
) -> Tensor:
    """The flat vector of `ScoreLayout(labels)`. outputs: per label [B] or [B, classes]; targets, row_losses:
    per label [B]; logits: per label, whether its output is one; weights, scored: [B]. A row of weight zero or
    unscored adds nothing, whatever its values."""
    counts = tf.cast((weights > 0) & (scored > 0), real)
    weight = weights * counts
    parts: list[Tensor] = []
    for label in labels:
        if label.task is Task.REGRESSION:
            error = tf.cast(outputs[label.field], real) - targets[label.field]
            values = [tf.abs(error), tf.square(error)]
            bins: list[Tensor] = []
        else:
            output, target = outputs[label.field], targets[label.field]
            values, bins = _classification(label, output, target, weight, logits[label.field], real)
        rows = tf.stack([row_losses[label.field], *values])
        sums = tf.reduce_sum(tf.where(weight > 0, rows * weight, tf.zeros_like(rows)), axis=1)
        parts += [tf.stack([tf.reduce_sum(counts), tf.reduce_sum(weight)]), sums, *bins]
    return tf.concat(parts, axis=0)


def _classification(
    label: Label, output: Tensor, target: Tensor, weight: Tensor, logits: bool, real: tf.DType
) -> tuple[list[Tensor], list[Tensor]]:
    truth = tf.cast(target, tf.int32)
    output = tf.cast(output, real)
    if output.shape.rank == 1:  # one score: of class 1
        positive = output if logits else _logit(output)
        scores = tf.stack([tf.zeros_like(positive), positive], axis=1)
    else:
        scores = output if logits else tf.math.log(tf.maximum(output, _PROBABILITY_FLOOR))
        positive = scores[:, 1] - scores[:, 0]
    log_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=truth, logits=scores)
    correct = tf.cast(tf.equal(tf.argmax(scores, axis=1, output_type=tf.int32), truth), real)
    if not _binary(label):
        return [log_loss, correct], []
    unit = (tf.clip_by_value(positive, -AUC_LOGIT_RANGE, AUC_LOGIT_RANGE) / AUC_LOGIT_RANGE + 1) / 2
    place = tf.minimum(tf.cast(unit * AUC_BINS, tf.int32), AUC_BINS - 1)
    histogram = tf.math.unsorted_segment_sum(weight, place + truth * AUC_BINS, 2 * AUC_BINS)
    return [log_loss, correct], [histogram[AUC_BINS:], histogram[:AUC_BINS]]


def _logit(probability: Tensor) -> Tensor:
    probability = tf.clip_by_value(probability, _PROBABILITY_FLOOR, 1 - _PROBABILITY_FLOOR)
    return tf.math.log(probability) - tf.math.log1p(-probability)

"""What the rows of the last minutes say beyond the model: small least-squares fits of its errors that forget quickly,
each believed as far as it has lately been right. Fitted by sums over all ranks' new rows, never by gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import keras
import tensorflow as tf

from streamtrain.trainer.moments import feature_of, numbers, width_of
from streamtrain.types import Feature

Tensor = Any

_RIDGE = 1e-3
_RIDGE_ROWS = 30.0
_MAX_Z = 10.0
_MAX_ERROR = 6.0
"""Errors are clipped to so many mean absolute errors: one wild label must not bend what is predicted next."""
_SETTLED_ROWS = 100.0
_JUDGED_ROWS = 1000.0
_TRUST = 0.25
"""How much a judgement of the fits counts beside a likelihood, whose choice would be all or nothing."""
_TINY = 1e-12


@keras.saving.register_keras_serializable(package="streamtrain")
class Recent(keras.layers.Layer):  # type: ignore[misc]
    """[columns..., prediction [B, 1]] in; out comes the prediction plus what recent errors make of these numbers. In
    training it passes the prediction on: the network learns what lasts, from new and replayed rows alike.

    memories: after how many rows each fit has forgotten. Only rows that are scored are followed: those are new,
    and each was predicted before it was learned. The fits are ridge regressions of the error on the numbers; beside
    them stands the fit that says nothing; each counts by exp(-n * relative excess of its mean absolute error).
    """

    same_in_training = False

    def __init__(
        self,
        *,
        features: Sequence[Feature | Mapping[str, Any]],
        label: str,
        memories: Sequence[float],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.features = tuple(feature_of(each) for each in features)
        self.label = label
        self.memories = tuple(float(memory) for memory in memories)
        self.width = sum(width_of(feature) for feature in self.features)
        size, fits = self.width + 1, len(self.memories)
        self.sums_size = 1 + size + size * size + 1 + fits
        self.weight = self._state("weight", (fits,), 0.0)
        self.mean = self._state("mean", (fits, size), 0.0)
        self.square = self._state("square", (fits, size, size), 0.0)
        self.slope = self._state("slope", (fits, self.width), 0.0)
        self.judged = self._state("judged", (), 0.0)
        self.errors = self._state("errors", (1 + fits,), 0.0)

    def _state(self, name: str, shape: tuple[int, ...], value: float) -> Any:
        return self.add_weight(
            name=name, shape=shape, initializer=keras.initializers.Constant(value), trainable=False, autocast=False
        )

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, inputs: Sequence[Tensor], training: bool = False) -> Tensor:
        *columns, prediction = inputs
        if training:
            return prediction
        x = numbers(self.features, columns, tf.shape(prediction)[0], self.variable_dtype)
        said = tf.linalg.matvec(self._said(x), self._trust()[1:])
        return prediction + tf.cast(said, prediction.dtype)[:, None]

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[-1]

    def _said(self, x: Tensor) -> Tensor:
        """[B, fits]: what each fit says of the error at these numbers."""
        apart = self._apart(x)
        return tf.convert_to_tensor(self.mean)[:, -1] + tf.einsum("bfd,fd->bf", apart, tf.convert_to_tensor(self.slope))

    def _apart(self, x: Tensor) -> Tensor:
        """[B, fits, D]: the numbers as each fit standardises them."""
        mean = tf.convert_to_tensor(self.mean)
        z = (x[:, None, :] - mean[None, :, :-1]) / self._deviation()[None, :, :-1]
        bound = tf.minimum(tf.sqrt(tf.convert_to_tensor(self.weight)), _MAX_Z)[None, :, None]
        return tf.clip_by_value(z, -bound, bound)

    def _deviation(self) -> Tensor:
        deviation = tf.sqrt(tf.maximum(tf.linalg.diag_part(tf.convert_to_tensor(self.square)), 0.0))
        deviation = tf.maximum(deviation, 1e-3 * tf.abs(self.mean) + 1e-6)
        return tf.where(self.weight[:, None] > 0, deviation, tf.ones_like(deviation))

    def _trust(self) -> Tensor:
        """[1 + fits], adding up to 1: first of saying nothing."""
        errors = tf.convert_to_tensor(self.errors)
        best = tf.maximum(tf.reduce_min(errors), _TINY)
        return tf.nn.softmax(-_TRUST * self.judged * (errors - best) / best)

    # ------------------------------------------------------------------ running statistics

    def primed(self) -> bool:
        return True

    def sums(self, inputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], weights: Tensor) -> Tensor:
        """Nothing: before the first step there are no predictions to follow."""
        return tf.zeros(self.sums_size, self.variable_dtype)

    def follow(
        self,
        inputs: Mapping[str, Tensor],
        targets: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        weights: Tensor,
    ) -> Tensor:
        """outputs: what the model says of these rows in training. weights: zero for all that is not to be followed.
        [sum of weights, deviations from the slowest fit's mean, their products, absolute errors without and with
        each fit]."""
        dtype = self.variable_dtype
        weights = tf.cast(weights, dtype)
        x = numbers(self.features, [inputs[f.field] for f in self.features], tf.shape(weights)[0], dtype)
        error = tf.cast(targets[self.label], dtype) - tf.cast(outputs[self.label], dtype)
        settled = 1.0 + _SETTLED_ROWS / tf.maximum(self.judged, 1.0)
        usual = tf.where(self.judged > 0, _MAX_ERROR * settled * self.errors[0], tf.reduce_max(tf.abs(error)) + 1.0)
        error = tf.clip_by_value(error, -usual, usual)
        said = self._said(x)
        joined = tf.concat([x, error[:, None]], axis=1)
        bound = tf.where(self.weight[-1] > 0, 10 * _MAX_Z * settled * self._deviation()[-1], joined.dtype.max)
        apart = tf.clip_by_value(joined - self.mean[-1], -bound, bound)
        weighed = weights[:, None] * apart
        missed = tf.abs(error[:, None] - tf.concat([tf.zeros_like(error)[:, None], said], axis=1))
        return tf.concat(
            [
                tf.reduce_sum(weights)[None],
                tf.reduce_sum(weighed, axis=0),
                tf.reshape(tf.linalg.matmul(weighed, apart, transpose_a=True), [-1]),
                tf.reduce_sum(weights[:, None] * missed, axis=0),
            ],
            axis=0,
        )

    def absorb(self, reduced: Tensor, *, afresh: bool) -> None:
        if afresh:
            return
        size, fits = self.width + 1, len(self.memories)
        reduced = tf.cast(reduced, self.variable_dtype)
        count, first, second, missed = tf.split(reduced, [1, size, size * size, 1 + fits])
        rows = tf.maximum(count[0], _TINY)
        there = first / rows
        mean = tf.convert_to_tensor(self.mean)
        square = tf.reshape(second, (size, size)) / rows - there[:, None] * there[None, :]
        before = self.weight * tf.exp(-count[0] / tf.constant(self.memories, self.variable_dtype))
        total = tf.maximum(before + count[0], _TINY)
        share = (count[0] / total)[:, None]
        shift = (self.mean[-1] + there)[None, :] - mean
        kept = (1 - share)[:, :, None]
        crossed = shift[:, :, None] * shift[:, None, :]
        self.square.assign(kept * self.square + share[:, :, None] * (square[None] + kept * crossed))
        self.mean.assign(mean + share * shift)
        self.weight.assign(before + count[0])
        judged = self.judged * tf.exp(-count[0] / _JUDGED_ROWS)
        self.errors.assign((judged * self.errors + missed) / tf.maximum(judged + count[0], _TINY))
        self.judged.assign(judged + count[0])
        self.slope.assign(self._solved())

    def _solved(self) -> Tensor:
        """[fits, D]: ridge regression on standardised numbers."""
        square = tf.cast(self.square, tf.float64)
        scale = tf.cast(self._deviation(), tf.float64)[:, :-1]
        correlation = square[:, :-1, :-1] / (scale[:, :, None] * scale[:, None, :])
        ridge = _RIDGE + _RIDGE_ROWS / tf.maximum(tf.cast(self.weight, tf.float64), 1.0)
        system = correlation + ridge[:, None, None] * tf.eye(self.width, dtype=tf.float64)
        slopes = tf.linalg.solve(system, (square[:, :-1, -1] / scale)[:, :, None])
        return tf.cast(slopes[:, :, 0], self.variable_dtype)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        return config | {
            "features": [asdict(feature) for feature in self.features],
            "label": self.label,
            "memories": list(self.memories),
        }

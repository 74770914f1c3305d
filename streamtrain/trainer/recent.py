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
_UNSURE_ROWS = 10.0
_SETTLED_ROWS = 100.0
_JUDGED_ROWS = 1000.0
_TRUST = 0.25
"""How much a judgement of the fits counts beside a likelihood, whose choice would be all or nothing."""
_WILD = 1000.0
_FAR = 1e12
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
        self.primings = self._state("primings", (), 0.0)
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

    def _numbers(self, inputs: Mapping[str, Tensor], weights: Tensor) -> Tensor:
        columns = [inputs[feature.field] for feature in self.features]
        return numbers(self.features, columns, tf.shape(weights)[0], self.variable_dtype)

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
        return tf.where(self.primings > 1, deviation, tf.ones_like(deviation))

    def _trust(self) -> Tensor:
        """[1 + fits], adding up to 1: first of saying nothing."""
        errors = tf.convert_to_tensor(self.errors)
        best = tf.maximum(tf.reduce_min(errors), _TINY)
        return tf.nn.softmax(-_TRUST * self.judged * (errors - best) / best)

    # ------------------------------------------------------------------ running statistics

    def primed(self) -> bool:
        return bool(self.primings.numpy() > 1)

    def sums(self, inputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], weights: Tensor) -> Tensor:
        """Of the very first rows, which nothing has predicted yet, only where the numbers are (as areas of hyperbolic
        sines), and then how far they are from there (as logarithms): wild values among them hardly move either."""
        weights = tf.cast(weights, self.variable_dtype)
        x = self._numbers(inputs, weights)
        mean = self.mean[-1, :-1]
        far = tf.math.log(tf.abs(x - mean) + 1e-6 * tf.abs(mean) + 1e-6)
        summed = tf.reduce_sum(weights[:, None] * tf.where(self.primings < 1, tf.asinh(x), far), axis=0)
        rest = tf.zeros(self.sums_size - 1 - self.width, self.variable_dtype)
        return tf.concat([tf.reduce_sum(weights)[None], summed, rest], axis=0)

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
        x = self._numbers(inputs, weights)
        error = tf.cast(targets[self.label], dtype) - tf.cast(outputs[self.label], dtype)
        settled = 1.0 + _SETTLED_ROWS / tf.maximum(self.judged, 1.0)
        unsure = 1.0 + _UNSURE_ROWS / tf.maximum(self.judged, 1.0)
        most = tf.where(self.judged > 0, _MAX_ERROR * unsure * self.errors[0], _FAR)
        error = tf.clip_by_value(error, -most, most)
        said = self._said(x)
        joined = tf.concat([x, error[:, None]], axis=1)
        wild = tf.where(self.weight[-1] > 0, 10 * _MAX_Z * settled, _WILD) * self._deviation()[-1]
        bound = tf.concat([wild[:-1], most[None]], axis=0)
        apart = tf.clip_by_value(joined - self.mean[-1], -bound, bound)
        weighed = weights[:, None] * apart
        missed = tf.abs(error[:, None] - tf.concat([tf.zeros_like(error)[:, None], said], axis=1))
        missed = tf.where(self.judged > 0, missed, tf.math.log(missed + _TINY))
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
        size, fits = self.width + 1, len(self.memories)
        reduced = tf.cast(reduced, self.variable_dtype)
        count, first, second, missed = tf.split(reduced, [1, size, size * size, 1 + fits])
        rows = tf.maximum(count[0], _TINY)
        there = first / rows
        if afresh:
            self._settle(there, count[0])
            return
        mean = tf.convert_to_tensor(self.mean)
        square = tf.reshape(second, (size, size)) / rows - there[:, None] * there[None, :]
        judged = self.judged * tf.exp(-count[0] / _JUDGED_ROWS)
        usual = (judged * self.errors + missed) / tf.maximum(judged + count[0], _TINY)
        known = self.judged > 0
        self.errors.assign(tf.where(known | (count[0] <= 0), usual, tf.exp(missed / rows)))
        self.judged.assign(tf.where(known, judged + count[0], tf.minimum(count[0], 1.0)))
        count *= tf.cast(known, count.dtype)  # the first rows tell only how large errors are
        before = self.weight * tf.exp(-count[0] / tf.constant(self.memories, self.variable_dtype))
        total = tf.maximum(before + count[0], _TINY)
        share = (count[0] / total)[:, None]
        shift = (self.mean[-1] + there)[None, :] - mean
        kept = (1 - share)[:, :, None]
        crossed = shift[:, :, None] * shift[:, None, :]
        self.square.assign(kept * self.square + share[:, :, None] * (square[None] + kept * crossed))
        self.mean.assign(mean + share * shift)
        self.weight.assign(before + count[0])
        self.slope.assign(self._solved())

    def _settle(self, average: Tensor, count: Tensor) -> None:
        """Takes what a pass over the very first rows found, in its two kinds (`sums`)."""
        done = tf.where(count > 0, self.primings, 2.0)
        place = tf.concat([tf.sinh(average[:-1]), tf.zeros(1, average.dtype)], axis=0)
        self.mean.assign(tf.where(done < 1, tf.tile(place[None], (len(self.memories), 1)), self.mean))
        far = tf.linalg.diag(tf.exp(2 * average) + tf.zeros((len(self.memories), 1), average.dtype))
        self.square.assign(tf.where((done > 0) & (done < 2), far, self.square))
        self.primings.assign_add(tf.cast(count > 0, self.primings.dtype))

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

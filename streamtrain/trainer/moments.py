"""Running moments of a model's numbers and its label, and the least squares they give in closed form: what the
built-in model standardises with and predicts from before its network has learned anything. Fitted by sums over
all ranks' rows (`model.RunningStatistics`), never by gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from streamtrain.trainer.model import PRIMING_PASSES
from streamtrain.types import DType, Feature

Tensor = Any

MAX_FITTED_NUMBERS = 96
"""More numbers than this are standardised only: a fit costs the square of them in every all-reduce."""

_DAY_MS = 86_400_000.0
_EPOCH_WEEKDAY_MS = 3 * _DAY_MS  # 1970-01-01 was a Thursday; weeks begin on Monday
_CYCLES_MS = (_DAY_MS, 7 * _DAY_MS, 365.2425 * _DAY_MS)
_TIME_NUMBERS = 2 * len(_CYCLES_MS)
_FAR = 1e12  # beyond it a number is clipped: its square must fit a float32
_MAX_Z = 100.0
_SETTLED_ROWS = 1000.0
_RIDGE = 1e-3
_RIDGE_ROWS = 8.0
_MIN_SPREAD = 1e-6
_WILD = 1000.0
_SLOWEST, _FASTEST = 0.7, 2.0  # of waves, over all numbers together, per standard deviation
_MAX_WAVE_Z = 5.0
_WAVE_RIDGE = 0.5
"""Waves can follow anything, and rows that are replayed look like more rows than there are: this holds them back,
whatever the number of rows (Phishing's 1,250 rows: accuracy 0.88 with 0.01, 0.90 with 0.5)."""


def width_of(feature: Feature) -> int:
    """How many numbers a feature gives: none for a string, sine and cosine of day, week and year for a time."""
    if feature.dtype is DType.STRING:
        return 0
    if feature.dtype is DType.DATETIME:
        return _TIME_NUMBERS
    return feature.length or 1


def numbers(features: Sequence[Feature], columns: Sequence[Tensor], batch: Tensor, dtype: Any) -> Tensor:
    """[B, sum of widths]: the features' numbers, finite and clipped. batch: B."""
    parts = [tf.zeros((batch, 0), dtype)]
    for feature, column in zip(features, columns, strict=False):
        if feature.dtype is DType.DATETIME:
            column = _cycles(tf.cast(column, tf.float64))  # milliseconds since 1970 are no float32
        else:
            column = tf.cast(column, dtype)
            column = column if column.shape.rank == 2 else column[:, None]
        parts.append(tf.cast(column, dtype))
    joined = tf.concat(parts, axis=1)
    return tf.clip_by_value(tf.where(tf.math.is_finite(joined), joined, tf.zeros_like(joined)), -_FAR, _FAR)


def _cycles(milliseconds: Tensor) -> Tensor:
    milliseconds = tf.reshape(milliseconds, (-1,)) + _EPOCH_WEEKDAY_MS
    angles = [tf.math.floormod(milliseconds, cycle) * (2 * math.pi / cycle) for cycle in _CYCLES_MS]
    return tf.stack([part for angle in angles for part in (tf.sin(angle), tf.cos(angle))], axis=1)


@keras.saving.register_keras_serializable(package="streamtrain")
class Moments(keras.layers.Layer):  # type: ignore[misc]
    """Columns in; out come (standardised numbers [B, D], linear prediction of the targets [B, T], the mean absolute
    residual of that prediction [B, T]). Without numbers the prediction is the mean.

    targets: 1 for a regression (whose value is predicted) or two classes (whose indicator is), else the number
    of classes. memory: rows after which what was seen counts 1/e. Least squares, not least absolute
    errors: reweighting online gave the first rows' errors too long a life (flights: MAE 15.5 for 11.5 after 5,000).
    """

    same_in_training = True

    def __init__(
        self,
        *,
        features: Sequence[Feature | Mapping[str, Any]],
        label: str,
        targets: int,
        memory: float,
        waves: int = 0,
        indicators: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.features = tuple(feature_of(f) for f in features)
        self.label = label
        self.targets = targets
        self.memory = memory
        self.indicators = indicators
        self.inputs_width = sum(width_of(feature) for feature in self.features)
        self.fitted = 0 < self.inputs_width <= MAX_FITTED_NUMBERS
        self.waves = waves if self.fitted else 0
        self.fit_width = self.inputs_width + self.waves
        size = self.fit_width + targets
        self.sums_size = 1 + size + (size * size if self.fitted else size) + 2 * targets
        self.primings = self._state("primings", (), 0.0)
        self.weight = self._state("weight", (), 0.0)
        self.mean = self._state("mean", (size,), 0.0)
        self.square = self._state("square", (size, size) if self.fitted else (size,), 0.0)
        self.slope = self._state("slope", (self.fit_width, targets), 0.0)
        self.spread = self._state("spread", (targets,), 1.0)
        if self.waves:
            self.direction, self.phase = self._drawn()

    def _drawn(self) -> tuple[Any, Any]:
        """Directions [D, F] and phases [F] of the waves: drawn once, the same for every model of this shape."""
        rng = np.random.default_rng(self.inputs_width)
        lengths = np.exp(rng.uniform(math.log(_SLOWEST), math.log(_FASTEST), self.waves)) / math.sqrt(self.inputs_width)
        return rng.normal(size=(self.inputs_width, self.waves)) * lengths, rng.uniform(0, 2 * np.pi, self.waves)

    def _design(self, values: Tensor) -> Tensor:
        """What the fit sees of the numbers: themselves, and random waves of them when standardised."""
        if not self.waves:
            return values
        z = tf.clip_by_value(self._standardised(values), -_MAX_WAVE_Z, _MAX_WAVE_Z)
        angles = tf.linalg.matmul(z, tf.constant(self.direction, z.dtype)) + tf.constant(self.phase, z.dtype)
        return tf.concat([values, tf.cos(angles)], axis=1)

    def _state(self, name: str, shape: tuple[int, ...], value: float) -> Any:
        return self.add_weight(
            name=name, shape=shape, initializer=keras.initializers.Constant(value), trainable=False, autocast=False
        )

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, columns: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """columns: of the features, in their order; any one column where there are none."""
        batch = tf.shape(columns[0])[0]
        z, base = self._predict(numbers(self.features, columns, batch, self.variable_dtype))
        return z, base, tf.tile(self.spread[None, :], (batch, 1))

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch = input_shape[0][0]
        return (batch, self.inputs_width), (batch, self.targets), (batch, self.targets)

    def _predict(self, values: Tensor) -> tuple[Tensor, Tensor]:
        z = self._standardised(values)
        design = self._design(values)
        fitted = z
        if self.waves:
            width = self.fit_width
            apart = (design - self.mean[:width]) / self._deviation()[:width]
            fitted = tf.concat([z, apart[:, self.inputs_width :]], axis=1)
        return z, self.mean[self.fit_width :] + tf.linalg.matmul(fitted, tf.convert_to_tensor(self.slope))

    def primed(self) -> bool:
        return bool(self.weight.numpy() > 0)

    def _deviation(self) -> Tensor:
        diagonal = tf.linalg.diag_part(self.square) if self.fitted else tf.convert_to_tensor(self.square)
        deviation = tf.sqrt(tf.maximum(diagonal, 0.0))
        # A number that never varied stays 0 when standardised, and one that then varies does not explode.
        floor = 1e-3 * tf.abs(self.mean) + _MIN_SPREAD
        return tf.where(self.primings > 1, tf.maximum(deviation, floor), tf.ones_like(deviation))

    def _standardised(self, values: Tensor) -> Tensor:
        width = self.inputs_width
        z = (values - self.mean[:width]) / self._deviation()[:width]
        # Among W rows none is further than sqrt(W) deviations from their mean: beyond it a fit only guesses.
        bound = tf.minimum(tf.sqrt(tf.convert_to_tensor(self.weight)), _MAX_Z)
        return tf.clip_by_value(z, -bound, bound)

    # ------------------------------------------------------------------ running statistics

    def sums(self, inputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], weights: Tensor) -> Tensor:
        """[sum of weights, deviations from the present mean, their products, absolute residuals and their weight]."""
        dtype = self.variable_dtype
        weights = tf.cast(weights, dtype)
        x = numbers(self.features, [inputs[f.field] for f in self.features], tf.shape(weights)[0], dtype)
        y = self._targets(targets[self.label])
        joined = tf.concat([self._design(x), y], axis=1)
        apart = joined - self.mean
        # A wild value must not take over the moments, but the first rows know little of what is wild.
        settled = 1.0 + _SETTLED_ROWS / tf.maximum(self.weight, 1.0)
        bound = tf.where(self.weight > 0, _MAX_Z * settled * self._deviation(), _FAR * tf.ones_like(self.mean))
        clipped = tf.clip_by_value(apart, -bound, bound)
        apart = tf.cond(self.primings < PRIMING_PASSES, lambda: self._robust(joined, apart), lambda: clipped)
        residual = tf.minimum(tf.abs(y - self._predict(x)[1]), bound[self.fit_width :])
        weighed = weights[:, None] * apart
        products = (
            tf.linalg.matmul(weighed, apart, transpose_a=True) if self.fitted else tf.reduce_sum(weighed * apart, 0)
        )
        return tf.concat(
            [
                tf.reduce_sum(weights)[None],
                tf.reduce_sum(weighed, axis=0),
                tf.reshape(products, [-1]),
                tf.reduce_sum(weights[:, None] * residual, axis=0),
                tf.fill((self.targets,), tf.reduce_sum(weights)),
            ],
            axis=0,
        )

    def _robust(self, joined: Tensor, apart: Tensor) -> Tensor:
        """What the passes over the very first rows sum up: where the numbers are (as areas of hyperbolic sines), how
        far they are from there (as logarithms), and then their deviations without those of wild values."""
        magnitude = tf.math.log(tf.abs(apart) + 1e-6 * tf.abs(self.mean) + _MIN_SPREAD)
        tame = tf.where(tf.abs(apart) > _WILD * self._deviation(), tf.zeros_like(apart), apart)
        boundless = [True] * self.inputs_width + [False] * self.waves + [not self.indicators] * self.targets
        tame = tf.where(tf.constant(boundless), tame, apart)
        return tf.case(
            [(self.primings < 1, lambda: tf.asinh(joined)), (self.primings < 2, lambda: magnitude)], lambda: tame
        )

    def _targets(self, label: Tensor) -> Tensor:
        if self.targets == 1:
            return tf.clip_by_value(tf.cast(label, self.variable_dtype), -_FAR, _FAR)[:, None]
        return tf.one_hot(tf.cast(label, tf.int32), self.targets, dtype=self.variable_dtype)

    def absorb(self, reduced: Tensor, *, afresh: bool) -> None:
        """afresh: forget the spread and the fit so far, and keep only the mean, as what deviations were taken from."""
        size = self.fit_width + self.targets
        reduced = tf.cast(reduced, self.variable_dtype)
        products = size * size if self.fitted else size
        count, first, second, residual, rows = tf.split(reduced, [1, size, products, self.targets, self.targets])
        kept = tf.zeros_like(self.weight) if afresh else tf.convert_to_tensor(self.weight)
        before = kept * tf.exp(-rows[0] / self.memory)
        total = tf.maximum(before + count[0], _MIN_SPREAD)
        shift = first / total
        crossed = tf.tensordot(shift, shift, 0) if self.fitted else tf.square(shift)
        square = (before * self.square + tf.reshape(second, self.square.shape)) / total - crossed
        mean, weight = self.mean + shift, before + count[0]
        share = rows / tf.maximum(rows + tf.minimum(kept, self.memory), _MIN_SPREAD)
        spread = (1 - share) * self.spread + share * residual / tf.maximum(rows, _MIN_SPREAD)
        if afresh:
            done = tf.convert_to_tensor(self.primings)
            far = tf.exp(2 * shift)
            far = tf.linalg.diag(far) if self.fitted else far
            square = tf.where(done < 1, self.square, tf.where(done < 2, far, square))
            mean = tf.where(done < 1, tf.sinh(shift), tf.where(done < 2, self.mean, mean))
            weight = tf.where(done < 2, tf.zeros_like(weight), weight)
            self.primings.assign_add(tf.cast(count[0] > 0, self.primings.dtype))
        self.mean.assign(mean)
        self.square.assign(square)
        self.weight.assign(weight)
        self.spread.assign(tf.maximum(spread, _MIN_SPREAD))
        if self.fitted:
            self.slope.assign(self._solved())

    def _solved(self) -> Tensor:
        """Ridge regression on standardised numbers: slopes [D, T], more cautious while few rows were seen."""
        width = self.fit_width
        deviation = self._deviation()[:width]
        square = tf.cast(self.square, tf.float64)
        scale = tf.cast(deviation, tf.float64)
        correlation = square[:width, :width] / (scale[:, None] * scale[None, :])
        ridge = _RIDGE + _RIDGE_ROWS / tf.cast(tf.maximum(self.weight, 1.0), tf.float64)
        rough = tf.constant([0.0] * self.inputs_width + [_WAVE_RIDGE] * self.waves, tf.float64)
        slopes = tf.linalg.solve(correlation + tf.linalg.diag(ridge + rough), square[:width, width:] / scale[:, None])
        return tf.cast(slopes, self.variable_dtype)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        return config | {
            "features": [asdict(feature) for feature in self.features],
            "label": self.label,
            "targets": self.targets,
            "memory": self.memory,
            "waves": self.waves,
            "indicators": self.indicators,
        }


def feature_of(value: Feature | Mapping[str, Any]) -> Feature:
    return value if isinstance(value, Feature) else Feature(**{**value, "dtype": DType(value["dtype"])})

"""The built-in model: a linear fit in closed form, plus a wide and deep network for what the fit leaves over.
Handles numbers, booleans, hashed categories, times and vectors as they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from streamtrain.errors import ModelError
from streamtrain.trainer.moments import Moments, width_of
from streamtrain.types import DType, Feature, Schema, Task

Tensor = Any

_LOSSES = ("huber", "mae", "mse")


@dataclass(frozen=True, slots=True)
class Hyper:
    """What `hyper:` may hold.

    hidden: units of the hidden layers. learning_rate: of Adam. buckets: hash buckets of a string feature without
    `buckets` of its own. embedding: dimensions of a category's embedding. loss: of a regression. memory: about
    how many rows the linear part remembers.
    """

    hidden: tuple[int, ...] = (64, 32)
    learning_rate: float = 5e-3
    buckets: int = 512
    embedding: int = 8
    loss: str = "huber"
    memory: float = 20_000.0


def hyper_of(options: Mapping[str, Any]) -> Hyper:
    """Raises ModelError for what the model does not know."""
    known = tuple(Hyper.__dataclass_fields__)
    for name in options:
        if name not in known:
            raise ModelError(f"the built-in model has no hyper-parameter {name!r}", hint=f"it has {', '.join(known)}")
    values = dict(options)
    try:
        if "hidden" in values:
            values["hidden"] = tuple(int(units) for units in values["hidden"])
        hyper = Hyper(**values)
        positive = all(value > 0 for value in (*hyper.hidden, hyper.learning_rate, hyper.buckets, hyper.embedding))
        valid = positive and hyper.memory > 0
    except TypeError as error:
        raise ModelError(f"hyper: {error}", hint="hidden is a list of numbers, the others are numbers") from error
    if not valid:
        raise ModelError("hyper: numbers must be greater than 0")
    if hyper.loss not in _LOSSES:
        raise ModelError(f"hyper.loss is {hyper.loss!r}", hint=f"one of {', '.join(_LOSSES)}")
    return hyper


def build(schema: Schema, options: dict[str, Any]) -> keras.Model:
    """One output: [batch, 1] of a regression, or logits [batch, 1] of two classes or [batch, classes] of more."""
    hyper = hyper_of(options)
    for feature in schema.features:
        if feature.length is not None and feature.dtype in (DType.STRING, DType.DATETIME):
            raise ModelError(
                f"feature {feature.field!r}: the built-in model takes no vectors of {feature.dtype.value}s",
                hint="leave it out, or write a model of your own (docs/models.md)",
            )
    label = schema.labels[0]
    regression = label.task is Task.REGRESSION
    outputs = 1 if regression or label.classes == 2 else label.classes
    inputs = {feature.field: _input(feature) for feature in schema.features}
    numeric = [feature for feature in schema.features if width_of(feature)]
    categories = [feature for feature in schema.features if feature.dtype is DType.STRING]
    moments = Moments(
        features=numeric,
        label=label.field,
        targets=outputs,
        memory=hyper.memory,
        name="moments",
    )
    z, base, spread = moments([inputs[feature.field] for feature in numeric or schema.features[:1]])
    deep, wide = [Squash(name="squash")(z)], []
    for index, feature in enumerate(categories):
        place = inputs[feature.field]
        if feature.buckets is None:
            place = keras.layers.Hashing(hyper.buckets, name=f"hash_{index}")(place)
        size = feature.buckets or hyper.buckets
        deep.append(keras.layers.Embedding(size, hyper.embedding, name=f"embedding_{index}")(place))
        wide.append(keras.layers.Embedding(size, outputs, embeddings_initializer="zeros", name=f"wide_{index}")(place))
    hidden = keras.layers.Concatenate(name="features")(deep) if len(deep) > 1 else deep[0]
    for index, units in enumerate(hyper.hidden):
        hidden = keras.layers.Dense(units, "relu", name=f"hidden_{index}")(hidden)
    wide.append(keras.layers.Dense(outputs, kernel_initializer="zeros", name="deep")(hidden))
    if not moments.fitted or not regression:
        wide.append(keras.layers.Dense(outputs, kernel_initializer="zeros", use_bias=False, name="linear")(z))
    network = keras.layers.Add(name="network")(wide) if len(wide) > 1 else wide[0]
    prediction = Residual(name="prediction")([base, network, spread]) if regression else network
    model = keras.Model(inputs, prediction, name="builtin")
    model.compile(
        optimizer=keras.optimizers.Adam(hyper.learning_rate),
        loss=_regression_loss(hyper, moments) if regression else _cross_entropy(outputs),
    )
    return model


def _input(feature: Feature) -> Any:
    shape = () if feature.length is None else (feature.length,)
    if feature.dtype is DType.STRING:
        dtype = "string" if feature.buckets is None else "int64"
    else:
        dtype = "int64" if feature.dtype is DType.DATETIME else feature.dtype.value
    return keras.Input(shape, name=feature.field, dtype=dtype)


def _regression_loss(hyper: Hyper, moments: Moments) -> keras.losses.Loss:
    if hyper.loss == "huber":
        return SpreadHuber(moments)
    return keras.losses.get("mean_absolute_error" if hyper.loss == "mae" else "mean_squared_error")


def _cross_entropy(outputs: int) -> keras.losses.Loss:
    if outputs == 1:
        return keras.losses.BinaryCrossentropy(from_logits=True)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@keras.saving.register_keras_serializable(package="streamtrain")
class Squash(keras.layers.Layer):  # type: ignore[misc]
    """Standardised numbers with their tails drawn in (like a logarithm), as a network wants them."""

    same_in_training = True

    def call(self, z: Tensor) -> Tensor:
        return tf.asinh(z)


@keras.saving.register_keras_serializable(package="streamtrain")
class Residual(keras.layers.Layer):  # type: ignore[misc]
    """[linear prediction, network, spread] -> prediction: the network answers in units of the spread."""

    same_in_training = True

    def call(self, parts: list[Tensor]) -> Tensor:
        base, network, spread = parts
        return base + spread * network


@keras.saving.register_keras_serializable(package="streamtrain")
class SpreadHuber(keras.losses.Loss):  # type: ignore[misc]
    """Huber's loss whose quadratic part reaches as far as `DELTA` spreads: nearly the absolute error, in the
    label's units, but smooth where it counts. Loaded from a file it knows no spread and takes 1."""

    DELTA = 0.5

    def __init__(self, moments: Moments | None = None, name: str = "spread_huber", **options: Any) -> None:
        super().__init__(name=name, **options)
        self._moments = moments

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        error = tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred)
        spread = 1.0 if self._moments is None else tf.cast(self._moments.spread, error.dtype)
        delta = self.DELTA * spread
        near = tf.square(error) / (2 * delta)
        return tf.reduce_mean(tf.where(error < delta, near, error - delta / 2), axis=-1)

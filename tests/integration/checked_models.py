"""Models that `check-model` is shown, each with one thing to be said about it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from streamtrain.types import Schema


def _inputs() -> tuple[Any, Any]:
    return keras.Input((3,), name="x"), keras.Input((), name="count")


def _model(hidden: Any, inputs: Any) -> keras.Model:
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def sound(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    x, count = _inputs()
    joined = keras.layers.Concatenate()([x, keras.layers.Reshape((1,))(count)])
    return _model(keras.layers.Dense(8, "relu", kernel_regularizer="l2")(joined), [x, count])


def normalised(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    x, count = _inputs()
    hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(x))
    return _model(hidden + keras.layers.Reshape((1,))(count), [x, count])


class Counting(keras.layers.Layer):  # type: ignore[misc]
    """Moves a weight of its own by the rows that it sees."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x: Any) -> Any:
        self.seen.assign_add(tf.reduce_sum(x))
        return x


def counting(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    x, _ = _inputs()
    return _model(Counting()(x), x)


def mixing(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    """Subtracts the mean over the batch."""
    x, _ = _inputs()
    return _model(x - keras.ops.mean(x, axis=0, keepdims=True), x)


class Activity(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        self.add_loss(10 * tf.square(tf.reduce_sum(x)))
        return x


def active(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    x, _ = _inputs()
    return _model(Activity()(keras.layers.Dense(4)(x)), x)


def accumulating(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    x, _ = _inputs()
    model = _model(x, x)
    model.compile(keras.optimizers.SGD(0.01, gradient_accumulation_steps=4), loss="mse")
    return model


_OUTSIDE = keras.layers.Dense(1)
_OUTSIDE.build((None, 3))


def outside(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    x, _ = _inputs()
    return keras.Model(x, _OUTSIDE(x))


def with_lambda(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    x, _ = _inputs()
    return _model(keras.layers.Lambda(lambda v: v * 2)(x), x)


class Nameless(keras.layers.Layer):  # type: ignore[misc]
    """Cannot be written: it says nothing of its arguments."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def call(self, x: Any) -> Any:
        return x * self.factor


def nameless(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    x, _ = _inputs()
    return _model(Nameless(2.0)(x), x)


def wrong_type(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    """Takes numbers where the job has strings."""
    x, _ = _inputs()
    word = keras.Input((), name="word", dtype="float32")
    return _model(keras.layers.Concatenate()([x, keras.layers.Reshape((1,))(word * 2.0)]), [x, word])


def unseeded(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    x, _ = _inputs()
    first = np.random.default_rng().normal(size=(3, 4))
    return _model(keras.layers.Dense(4, kernel_initializer=keras.initializers.Constant(first))(x), x)


class Noisy(keras.layers.Layer):  # type: ignore[misc]
    """Random numbers that no saved state holds."""

    def call(self, x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x))


def noisy(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    x, _ = _inputs()
    return _model(Noisy()(x), x)


_SHARED: list[keras.Model] = []


def shared(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    if not _SHARED:
        _SHARED.append(sound(schema, hyper))
    return _SHARED[0]


def ended(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    raise SystemExit(3)

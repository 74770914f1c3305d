"""Models that `check-model` is shown, each with one thing to be said about it."""

from __future__ import annotations

from typing import Any

import keras
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


class Counting(keras.layers.Layer):  # type: ignore[misc]
    """Moves a weight of its own by the rows that it sees."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x: Any) -> Any:
        self.seen.assign_add(tf.reduce_sum(x))
        return x


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


def wrong_type(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    """Takes numbers where the job has strings."""
    x, _ = _inputs()
    word = keras.Input((), name="word", dtype="float32")
    return _model(keras.layers.Concatenate()([x, keras.layers.Reshape((1,))(word * 2.0)]), [x, word])


class Noisy(keras.layers.Layer):  # type: ignore[misc]
    """Random numbers that no saved state holds."""

    def call(self, x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x))


def restless(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    x, _ = _inputs()
    return _model(Noisy()(Counting()(x)), x)


def ended(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    raise SystemExit(3)

"""Models of the tests that train groups of workers."""

from __future__ import annotations

from typing import Any

import keras

from streamtrain.types import Schema


def mlp(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    """A small net over three of the features, with an embedding (sparse gradients) and a regularizer."""
    x, count, word = (
        keras.Input((6,), name="x"),
        keras.Input((), name="count"),
        keras.Input((), name="word", dtype="string"),
    )
    place = keras.layers.Hashing(8)(word)
    embedded = keras.layers.Flatten()(keras.layers.Embedding(8, 3)(keras.layers.Reshape((1,))(place)))
    joined = keras.layers.Concatenate()([x, keras.layers.Reshape((1,))(count), embedded])
    hidden = keras.layers.Dense(16, "tanh", kernel_regularizer=keras.regularizers.L2(1e-3))(joined)
    return keras.Model([x, count, word], keras.layers.Dense(1)(hidden))


def directed(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    """Divides by the length of a vector, which is no number where there is none."""
    x = keras.Input((6,), name="x")
    return keras.Model(x, keras.layers.Dense(1)(x / keras.ops.norm(x, axis=-1, keepdims=True)))


def noisy(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    """Layers that behave differently in training: plain batch normalisation, and dropout with masks of its own."""
    x = keras.Input((6,), name="x")
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(16, "relu")(x))
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Dropout(0.3)(hidden)))


def table(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    """Looks `n` up among ten rows, which refuses any other number, and is no number where `x` is large."""
    x, n = keras.Input((1,), name="x"), keras.Input((), name="n", dtype="int32")
    return keras.Model([x, n], keras.layers.Add()([keras.layers.Dense(1)(x), keras.layers.Embedding(10, 1)(n)]))


def synchronized(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    """Batch normalisation over all workers' rows: no worker can take its training pass alone."""
    x = keras.Input((6,), name="x")
    hidden = keras.layers.BatchNormalization(synchronized=True)(keras.layers.Dense(16, "relu")(x))
    return keras.Model(x, keras.layers.Dense(1)(hidden))

"""Ragged sequences to attention: which items of a basket matter is asked by what the customer looks for. Padding is
masked by a value that no element has (`pad: -1`)."""

from __future__ import annotations

import random
from typing import Any

import keras
from training import Document, Example, main

SETTINGS = """\
kafka: {bootstrap_servers: "127.0.0.1:19092"}
sources:
  - name: baskets
    uri: "mongodb://127.0.0.1:27117/?replicaSet=rs0"
    database: examples
    collection: baskets
    partitions: 4
jobs:
  - name: basket-attention
    source: baskets
    features:
      - {field: wanted, dtype: int32}
      - {field: kinds, dtype: int32, max_length: 10, pad: -1}
      - {field: prices, dtype: float32, max_length: 10}
    labels:
      - {field: spent, dtype: float32, task: regression}
    model: basket_attention:build
    optimizer: {class_name: Adam, learning_rate: 0.01}
    round: {batch_size: 64}
"""
_KINDS, _WIDTH = 5, 16


def build(schema: Any, hyper: dict[str, Any]) -> keras.Model:
    wanted = keras.Input((1,), name="wanted", dtype="int32")
    kinds = keras.Input((10,), name="kinds", dtype="int32")
    prices = keras.Input((10,), name="prices")
    embedding = keras.layers.Embedding(
        _KINDS, _WIDTH, embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0)
    )
    there = kinds >= 0
    keys = embedding(keras.ops.maximum(kinds, 0))
    price = keras.layers.Dense(_WIDTH)(keras.ops.expand_dims(prices, -1))
    attended = keras.layers.MultiHeadAttention(num_heads=2, key_dim=_WIDTH)(
        query=embedding(wanted), key=keys, value=price + keys, attention_mask=keras.ops.expand_dims(there, 1)
    )
    count = keras.ops.sum(keras.ops.cast(there, "float32"), axis=1, keepdims=True)
    joined = keras.layers.Concatenate()([keras.layers.Flatten()(attended), count / 10.0])
    hidden = keras.layers.Dense(32, "relu")(keras.layers.LayerNormalization()(joined))
    return keras.Model([wanted, kinds, prices], keras.layers.Dense(1)(hidden))


def document(generator: random.Random, number: int) -> Document:
    """Spends the mean price of what was wanted, and nothing when there is none."""
    wanted, length = generator.randrange(_KINDS), generator.randint(1, 10)
    kinds = [generator.randrange(_KINDS) for _ in range(length)]
    prices = [generator.uniform(0, 4) for _ in kinds]
    chosen = [price for kind, price in zip(kinds, prices, strict=True) if kind == wanted]
    return {
        "wanted": wanted,
        "kinds": kinds,
        "prices": prices,
        "spent": sum(chosen) / len(chosen) if chosen else 0.0,
    }


EXAMPLE = Example(SETTINGS, document, documents=12000)

if __name__ == "__main__":
    main(EXAMPLE)

"""Ragged sequences to a GRU: the last clicks of a session, as a list of strings and a list of numbers of any length.
Strings are hashed; 0 is the padding and nothing else, so an embedding can mask it."""

from __future__ import annotations

import random
from typing import Any

import keras
from training import Document, Example, main

SETTINGS = """\
kafka: {bootstrap_servers: "127.0.0.1:19092"}
sources:
  - name: sessions
    uri: "mongodb://127.0.0.1:27117/?replicaSet=rs0"
    database: examples
    collection: sessions
    partitions: 4
jobs:
  - name: session-gru
    source: sessions
    features:
      - {field: actions, dtype: string, max_length: 12, buckets: 64, missing: ""}
      - {field: seconds, dtype: float32, max_length: 12, missing: 0}
    labels:
      - {field: buys, dtype: bool, task: classification}
    model: session_gru:build
    optimizer: {class_name: Adam, learning_rate: 0.01}
    round: {batch_size: 64}
"""


def build(schema: Any, hyper: dict[str, Any]) -> keras.Model:
    actions = keras.Input((12,), name="actions", dtype="int64")
    seconds = keras.Input((12,), name="seconds")
    embedded = keras.layers.Embedding(64, 8)(actions)
    steps = keras.layers.Concatenate()([embedded, keras.ops.expand_dims(keras.ops.log1p(seconds), -1)])
    state = keras.layers.GRU(16)(steps, mask=keras.ops.not_equal(actions, 0))
    return keras.Model([actions, seconds], keras.layers.Dense(1)(state))


def document(generator: random.Random, number: int) -> Document:
    """Whoever put something into the cart, and did not take it out again, buys. Order matters, so does the length."""
    length = generator.randint(0, 16)
    actions = [generator.choice(["look", "search", "put", "take-out", "help"]) for _ in range(length)]
    last = [action for action in actions if action in ("put", "take-out")][-1:]
    found: Document = {"buys": last == ["put"]}
    if actions or generator.random() < 0.5:  # an absent list is an empty one
        found |= {"actions": actions, "seconds": [generator.uniform(1, 60) for _ in actions]}
    return found


EXAMPLE = Example(SETTINGS, document, documents=9000)

if __name__ == "__main__":
    main(EXAMPLE)

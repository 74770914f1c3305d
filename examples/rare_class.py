"""Class imbalance: one document in fifty is a fraud. Class weights make a missed one cost as much as fifty false
alarms; the scores, which take the same weights, then say how well the two classes are told apart, not how rare one
is."""

from __future__ import annotations

import random
from typing import Any

import keras
from training import Document, Example, main

SETTINGS = """\
kafka: {bootstrap_servers: "127.0.0.1:19092"}
sources:
  - name: payments
    uri: "mongodb://127.0.0.1:27117/?replicaSet=rs0"
    database: examples
    collection: payments
    partitions: 4
jobs:
  - name: rare-class
    source: payments
    features:
      - {field: amount, dtype: float32}
      - {field: hour, dtype: int32}
      - {field: abroad, dtype: bool}
    labels:
      - {field: fraud, dtype: bool, task: classification}
    weight: {classes: {0: 1.0, 1: 50.0}}
    model: rare_class:build
    optimizer: {class_name: Adam, learning_rate: 0.01}
    round: {batch_size: 128}
"""


def build(schema: Any, hyper: dict[str, Any]) -> keras.Model:
    amount, hour, abroad = (
        keras.Input((1,), name=name, dtype=dtype)
        for name, dtype in (("amount", "float32"), ("hour", "int32"), ("abroad", "bool"))
    )
    numbers = [keras.ops.log1p(amount), keras.ops.cast(hour, "float32") / 24.0, keras.ops.cast(abroad, "float32")]
    hidden = keras.layers.Dense(16, "relu")(keras.layers.Concatenate()(numbers))
    return keras.Model([amount, hour, abroad], keras.layers.Dense(1)(hidden))


def document(generator: random.Random, number: int) -> Document:
    fraud = generator.random() < 0.02
    return {
        "amount": generator.lognormvariate(5.5 if fraud else 3.5, 1.0),
        "hour": generator.choice([0, 1, 2, 3, 4, 23])
        if fraud and generator.random() < 0.7
        else generator.randrange(24),
        "abroad": generator.random() < (0.7 if fraud else 0.1),
        "fraud": fraud,
    }


EXAMPLE = Example(SETTINGS, document, documents=12000)

if __name__ == "__main__":
    main(EXAMPLE)

"""Wide & deep on mixed columns: numbers that are standardised, times, categories that are embedded, and a crossed
category for what two of them say only together."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import keras
from training import Document, Example, main

SETTINGS = """\
kafka: {bootstrap_servers: "127.0.0.1:19092"}
sources:
  - name: visits
    uri: "mongodb://127.0.0.1:27117/?replicaSet=rs0"
    database: examples
    collection: visits
    partitions: 4
jobs:
  - name: wide-and-deep
    source: visits
    features:
      - {field: age, dtype: float32, missing: 40}
      - {field: pages, dtype: int32}
      - {field: at, dtype: datetime}
      - {field: member, dtype: bool, missing: false}
      - {field: device.kind, dtype: string}
      - {field: country, dtype: string, missing: "?"}
    labels:
      - {field: bought, dtype: bool, task: classification}
    model: wide_and_deep:build
    hyper: {hidden: [32, 16]}
    optimizer: {class_name: Adam, learning_rate: 0.01}
    round: {batch_size: 64}
"""
_DAY_MS = 86_400_000.0


def build(schema: Any, hyper: dict[str, Any]) -> keras.Model:
    age, pages, at, member, device, country = (
        keras.Input((1,), name=name, dtype=dtype)
        for name, dtype in (
            ("age", "float32"),
            ("pages", "int32"),
            ("at", "int64"),
            ("member", "bool"),
            ("device.kind", "string"),
            ("country", "string"),
        )
    )
    # Milliseconds since 1970 are no float32: the time of day is taken from a float64.
    angle = keras.ops.mod(keras.ops.cast(at, "float64"), _DAY_MS) * (2 * math.pi / _DAY_MS)
    numbers = keras.layers.Concatenate()(
        [
            (age - 40.0) / 20.0,
            keras.ops.log1p(keras.ops.cast(pages, "float32")),
            keras.ops.cast(keras.ops.sin(angle), "float32"),
            keras.ops.cast(keras.ops.cos(angle), "float32"),
            keras.ops.cast(member, "float32"),
        ]
    )
    wide, deep = [], [numbers]
    for column, buckets in ((device, 16), (country, 256)):
        place = keras.layers.Hashing(buckets)(column)
        wide.append(keras.layers.Flatten()(keras.layers.Embedding(buckets, 1, embeddings_initializer="zeros")(place)))
        deep.append(keras.layers.Flatten()(keras.layers.Embedding(buckets, 4)(place)))
    crossed = keras.layers.HashedCrossing(1024)((device, country))
    wide.append(keras.layers.Flatten()(keras.layers.Embedding(1024, 1, embeddings_initializer="zeros")(crossed)))
    hidden = keras.layers.Concatenate()(deep)
    for units in hyper.get("hidden", [32, 16]):
        hidden = keras.layers.Dense(units, "relu")(hidden)
    logit = keras.layers.Add()([*wide, keras.layers.Dense(1)(hidden)])
    return keras.Model([age, pages, at, member, device, country], logit)


def document(generator: random.Random, number: int) -> Document:
    """Phones buy in the evening, tablets in some countries only."""
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=7 * number)
    device = generator.choice(["phone", "tablet", "desktop"])
    country = generator.choice(["CH", "FR", "DE", "IT"])
    pages = generator.randint(1, 30)
    likes = 0.1 * (pages - 15) + (2 if device == "phone" and at.hour >= 17 else 0)
    likes += 3 if (device, country) in {("tablet", "CH"), ("tablet", "IT")} else -1
    found: Document = {
        "pages": pages,
        "at": at,
        "member": generator.random() < 0.3,
        "device": {"kind": device},
        "country": country,
        "bought": likes + generator.gauss(0, 0.7) > 0,
    }
    if generator.random() < 0.8:
        found["age"] = generator.uniform(18, 80)
    return found


EXAMPLE = Example(SETTINGS, document)

if __name__ == "__main__":
    main(EXAMPLE)

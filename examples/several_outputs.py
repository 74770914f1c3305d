"""Several labels, an output each: a regression, two classes and five classes share their hidden layers. A document is
learned when all its labels are there."""

from __future__ import annotations

import random
from typing import Any

import keras
from training import Document, Example, main

SETTINGS = """\
kafka: {bootstrap_servers: "127.0.0.1:19092"}
sources:
  - name: rides
    uri: "mongodb://127.0.0.1:27117/?replicaSet=rs0"
    database: examples
    collection: rides
    partitions: 4
jobs:
  - name: several-outputs
    source: rides
    features:
      - {field: km, dtype: float32}
      - {field: rain, dtype: bool}
      - {field: hour, dtype: int32}
    labels:
      - {field: minutes, dtype: float32, task: regression}
      - {field: tipped, dtype: bool, task: classification}
      - {field: stars, dtype: int32, task: classification, classes: 5}
    model: several_outputs:build
    round: {batch_size: 64}
"""


def build(schema: Any, hyper: dict[str, Any]) -> keras.Model:
    km, rain, hour = (
        keras.Input((1,), name=name, dtype=dtype)
        for name, dtype in (("km", "float32"), ("rain", "bool"), ("hour", "int32"))
    )
    joined = keras.layers.Concatenate()(
        [km / 10.0, keras.ops.cast(rain, "float32"), keras.ops.one_hot(keras.ops.squeeze(hour, 1), 24)]
    )
    hidden = keras.layers.Dense(32, "relu")(keras.layers.Dense(32, "relu")(joined))
    outputs = {
        "minutes": keras.layers.Dense(1)(hidden),
        "tipped": keras.layers.Dense(1, "sigmoid")(hidden),  # a probability; the next one gives logits
        "stars": keras.layers.Dense(5)(hidden),
    }
    model = keras.Model([km, rain, hour], outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss={"minutes": "mae"},  # of the others the cross-entropy
        loss_weights={"minutes": 0.2, "tipped": 1.0, "stars": 1.0},  # minutes are large numbers
    )
    return model


def document(generator: random.Random, number: int) -> Document:
    km, rain, hour = generator.uniform(1, 20), generator.random() < 0.3, generator.randrange(24)
    rush = 7 <= hour < 10 or 16 <= hour < 19
    minutes = km * (4 if rush else 2) * (1.3 if rain else 1) + generator.gauss(5, 2)
    stars = 4 - int(rush) - int(rain) - int(generator.random() < 0.2)
    return {
        "km": km,
        "rain": rain,
        "hour": hour,
        "minutes": minutes,
        "tipped": km + 8 * rain + generator.gauss(0, 2) > 12,
        "stars": stars,
    }


EXAMPLE = Example(SETTINGS, document)

if __name__ == "__main__":
    main(EXAMPLE)

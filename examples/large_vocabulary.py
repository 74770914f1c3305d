"""Embeddings of large vocabularies: users and articles, hashed, so that new ones need no new table, and a score that
is the product of their vectors. The gradient of a table is made dense before it is reduced over the workers: a step
costs what the whole table costs (examples/README.md says how much), however few of its rows a batch touches."""

from __future__ import annotations

import random
from typing import Any

import keras
from training import Document, Example, main

SETTINGS = """\
kafka: {bootstrap_servers: "127.0.0.1:19092"}
sources:
  - name: reads
    uri: "mongodb://127.0.0.1:27117/?replicaSet=rs0"
    database: examples
    collection: reads
    partitions: 4
jobs:
  - name: large-vocabulary
    source: reads
    features:
      - {field: user, dtype: string, buckets: 20000}
      - {field: article, dtype: string, buckets: 20000}
    labels:
      - {field: liked, dtype: bool, task: classification}
    model: large_vocabulary:build
    hyper: {dimensions: 8}
    optimizer: {class_name: Adam, learning_rate: 0.02}
    round: {batch_size: 128}
"""


def build(schema: Any, hyper: dict[str, Any]) -> keras.Model:
    places, vectors, biases = {}, [], []
    for feature in schema.features:
        places[feature.field] = keras.Input((), name=feature.field, dtype="int64")
        vectors.append(keras.layers.Embedding(feature.buckets, hyper.get("dimensions", 8))(places[feature.field]))
        bias = keras.layers.Embedding(feature.buckets, 1, embeddings_initializer="zeros")
        biases.append(bias(places[feature.field]))
    product = keras.ops.sum(vectors[0] * vectors[1], axis=1, keepdims=True)
    return keras.Model(places, keras.layers.Add()([product, *biases]))


def document(generator: random.Random, number: int) -> Document:
    """300 users and 200 articles whose names say nothing; each has a taste."""
    user, article = generator.randrange(300), generator.randrange(200)
    likes = (3 if user % 2 == article % 2 else -3) + (article % 5 - 2)
    return {"user": f"u-{user}", "article": f"a-{article}", "liked": likes + generator.gauss(0, 1) > 0}


EXAMPLE = Example(SETTINGS, document, documents=20000)

if __name__ == "__main__":
    main(EXAMPLE)

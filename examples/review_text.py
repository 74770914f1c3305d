"""Text with a `TextVectorization` layer: the model gets the text as it stands in the document and splits it itself, so
that what is exported takes raw text too. The vocabulary comes from `hyper`; it must be the same at every build, or a
checkpoint would speak of other words."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import keras
from training import Document, Example, main

SETTINGS = """\
kafka: {bootstrap_servers: "127.0.0.1:19092"}
sources:
  - name: reviews
    uri: "mongodb://127.0.0.1:27117/?replicaSet=rs0"
    database: examples
    collection: reviews
    partitions: 4
jobs:
  - name: review-text
    source: reviews
    features:
      - {field: text, dtype: string, missing: ""}
    labels:
      - {field: happy, dtype: bool, task: classification}
    model: review_text:build
    hyper:
      vocabulary: [the, food, service, was, not, good, bad, awful, great, and, room, very]   # or vocabulary_file
      words: 24
    optimizer: {class_name: Adam, learning_rate: 0.01}
    round: {batch_size: 64}
"""


def build(schema: Any, hyper: dict[str, Any]) -> keras.Model:
    vocabulary = hyper.get("vocabulary") or Path(hyper["vocabulary_file"]).read_text().split()
    text = keras.Input((), name="text", dtype="string")
    words = keras.layers.TextVectorization(output_sequence_length=hyper.get("words", 24), vocabulary=vocabulary)(text)
    embedded = keras.layers.Embedding(len(vocabulary) + 2, 12)(words)  # 0 is the padding, 1 a word that is not known
    pairs = keras.layers.Conv1D(16, 2, activation="relu")(embedded)  # "not good"
    return keras.Model(text, keras.layers.Dense(1)(keras.layers.GlobalMaxPooling1D()(pairs)))


def document(generator: random.Random, number: int) -> Document:
    good, negated = generator.random() < 0.5, generator.random() < 0.5
    word = generator.choice(["good", "great"] if good else ["bad", "awful"])
    said = f"The {generator.choice(['food', 'service', 'room'])} was {'not ' if negated else ''}{word}"
    before = " ".join(generator.choice(["and", "very", "the", "zzz"]) for _ in range(generator.randint(0, 6)))
    return {"text": f"{before}, {said}!", "happy": good is not negated}


EXAMPLE = Example(SETTINGS, document)

if __name__ == "__main__":
    main(EXAMPLE)

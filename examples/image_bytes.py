"""Image bytes to a small convnet: documents hold PNG files as binary data, and the model decodes them. A value may be
empty (rows that pad a batch are), so the model puts a blank picture in its place."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import keras
import tensorflow as tf
from training import Document, Example, main

SETTINGS = """\
kafka: {bootstrap_servers: "127.0.0.1:19092"}
sources:
  - name: parts
    uri: "mongodb://127.0.0.1:27117/?replicaSet=rs0"
    database: examples
    collection: parts
    partitions: 4
jobs:
  - name: image-bytes
    source: parts
    features:
      - {field: photo.png, dtype: bytes}
    labels:
      - {field: kind, dtype: int32, task: classification, classes: 3}
    model: image_bytes:build
    optimizer: {class_name: Adam, learning_rate: 0.01}
    round: {batch_size: 32}
"""
_SIDE = 12


@keras.saving.register_keras_serializable(package="examples")
class DecodePng(keras.layers.Layer):
    """PNG files [B] -> [B, side, side, 1] between 0 and 1."""

    def __init__(self, side: int, **options: Any) -> None:
        super().__init__(**{"dtype": "float32", **options})
        self.side = side
        self.same_in_training = True
        self.blank = png([[0] * side] * side)

    def call(self, files: Any) -> Any:
        files = tf.where(tf.strings.length(files) > 0, files, self.blank)
        pixels = tf.map_fn(self._decoded, files, fn_output_signature=tf.uint8)
        return tf.cast(tf.ensure_shape(pixels, (None, self.side, self.side, 1)), tf.float32) / 255.0

    def _decoded(self, file: Any) -> Any:
        return tf.ensure_shape(tf.io.decode_png(file, channels=1), (self.side, self.side, 1))

    def compute_output_shape(self, shape: Any) -> Any:
        return (shape[0], self.side, self.side, 1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "side": self.side}


def build(schema: Any, hyper: dict[str, Any]) -> keras.Model:
    files = keras.Input((), name="photo.png", dtype="string")
    hidden = DecodePng(_SIDE)(files)
    for filters in (8, 16):
        hidden = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
        hidden = keras.layers.MaxPooling2D()(hidden)
    return keras.Model(files, keras.layers.Dense(3)(keras.layers.Flatten()(hidden)))


def png(rows: list[list[int]]) -> bytes:
    """A grey picture, as a camera's software would write it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    pixels = b"".join(b"\0" + bytes(row) for row in rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def document(generator: random.Random, number: int) -> Document:
    """A bar that lies, stands or leans, at a random place, in noise."""
    kind, place = generator.randrange(3), generator.randrange(2, _SIDE - 2)

    def bright(y: int, x: int) -> bool:
        return (y, x, (x - y) % _SIDE)[kind] == place

    rows = [[min(255, generator.randrange(60) + 180 * bright(y, x)) for x in range(_SIDE)] for y in range(_SIDE)]
    return {"photo": {"png": png(rows)}, "kind": kind}


EXAMPLE = Example(SETTINGS, document, documents=3000)

if __name__ == "__main__":
    main(EXAMPLE)

"""What the log of versions holds, whatever its columns are."""

from __future__ import annotations

import bson
import numpy as np

from streamtrain.trainer.decode import Decoder
from streamtrain.trainer.log import VersionLog
from streamtrain.types import DType, Feature, Label, Schema, Task
from tests.unit.trainer.test_assemble import records_of

SCHEMA = Schema(
    (Feature("image", DType.BYTES), Feature("tags", DType.STRING, max_length=3), Feature("x", DType.FLOAT32)),
    (Label("y", DType.FLOAT32, Task.REGRESSION),),
)


def filled(count: int, *, image: int) -> VersionLog:
    documents = [
        bson.encode({"image": bytes([n % 256]) * image, "tags": ["a"] * (n % 5), "x": 1.0, "y": float(n)})
        for n in range(count)
    ]
    log = VersionLog(SCHEMA)
    places = np.arange(count)
    log.append(records_of(0, 0, documents), places, Decoder(SCHEMA).decode(documents), places)
    return log


def test_lists_and_binary_data_are_kept_and_compared() -> None:
    log = filled(300, image=10)
    columns, labels = log.take(log.replayable(300)[[4, 299]])
    assert columns["image"].tolist() == [bytes([4]) * 10, bytes([299 % 256]) * 10]
    assert columns["tags"].tolist() == [[b"a"] * 3, [b"a"] * 3]
    assert labels["y"].tolist() == [4.0, 299.0]
    codes = log.codes_of(np.array([0, 5, 256]))
    assert log.alike(codes[:1], codes[1:2]).tolist() == [False]  # other images
    assert log.alike(codes[:1], codes[2:]).tolist() == [False]  # the same image, another label
    assert log.alike(codes[1:2], codes[1:2]).tolist() == [True]


def test_the_bytes_of_images_count() -> None:
    small, large = filled(300, image=10).nbytes, filled(300, image=10_010).nbytes
    assert 0.9 * 300 * 10_000 < large - small < 1.1 * 300 * 10_000

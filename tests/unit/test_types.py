"""Shared values whose form outlives a release."""

from __future__ import annotations

import dataclasses

from streamtrain.types import DType, Feature, Label, Schema, Task

SCHEMA = Schema(
    features=(
        Feature("dep_delay", DType.FLOAT32),
        Feature("carrier", DType.STRING, buckets=64),
        Feature("weather.wind", DType.FLOAT32, missing=0.0),
        Feature("embedding", DType.FLOAT32, length=4, encoding="binary"),
    ),
    labels=(Label("arr_delay", DType.FLOAT32, Task.REGRESSION), Label("late", DType.BOOL, Task.CLASSIFICATION)),
)


def test_the_fingerprint_of_a_schema_of_the_first_release_is_what_its_checkpoints_hold() -> None:
    assert SCHEMA.fingerprint() == "a3bc7085947c9851f702fe868dae41eaf74f2eaa563affa6db9e661f67de9334"


def test_every_difference_of_a_schema_shows_in_its_fingerprint() -> None:
    first = SCHEMA.features[0]
    others = [
        dataclasses.replace(SCHEMA, features=SCHEMA.features[1:]),
        dataclasses.replace(SCHEMA, features=(dataclasses.replace(first, length=1), *SCHEMA.features[1:])),
        dataclasses.replace(SCHEMA, features=(dataclasses.replace(first, missing=0.0), *SCHEMA.features[1:])),
        dataclasses.replace(SCHEMA, labels=SCHEMA.labels[:1]),
        dataclasses.replace(SCHEMA, labels=SCHEMA.labels[::-1]),
    ]
    assert len({SCHEMA.fingerprint(), *(other.fingerprint() for other in others)}) == len(others) + 1

"""The filter that finds a document by its documentKey, and nothing else."""

from __future__ import annotations

import bson
from bson import Decimal128, Int64, ObjectId, Regex

from streamtrain.source.lookup import exactly


def test_each_value_of_the_key_must_be_equal_whatever_its_type() -> None:
    key = {"region": Regex("^x"), "a.b": None, "_id": {"x": [1, Int64(2)], "y": Decimal128("1.0"), "z": ObjectId()}}
    raw = b"".join(bson.encode({name: value})[4:-1] for name, value in key.items())
    raw = (len(raw) + 5).to_bytes(4, "little") + raw + b"\x00"
    assert bson.decode(exactly(raw)) == {name: {"$eq": value} for name, value in key.items()}

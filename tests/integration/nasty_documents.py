"""Documents that nobody would call tidy: many types in one field, names that need quoting, lists of documents,
hundreds of fields, names that are data. What there is to learn: `label` follows from `x`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

ODD_NAMES = (
    "a b", "$money", "ünïcode", "true", "null", "123", "quote\"'", "tab\tnew\nline", "hash # it", "a: b", "- z", "{x",
)  # fmt: skip


def nasty(count: int, *, first: int = 0) -> Iterator[dict[str, Any]]:
    random = Random(first)
    for number in range(first, first + count):
        x = random.gauss(0, 1)
        document: dict[str, Any] = {
            "_id": number,
            "label": int(x > -1) + int(x > 1),
            "x": x,
            "mixed": random.choice([1, "a", True, None]),
            "a.b": 3,
            "": 4,
            "slash/name": random.random(),
            "deep": {"er": {"and": {"er": {"v": random.random(), "w": random.choice([None, 1.5, 2.5])}}}},
            "documents": [{"a": 1, "b": [1, 2]} for _ in range(random.randint(0, 4))],
            "vector": [random.random() for _ in range(5)],
            "ragged": [random.random() for _ in range(random.randint(0, 5))],
            "embedding": Binary(struct.pack("<4f", *(random.random() for _ in range(4)))),
            "blob": Binary(random.randbytes(13)),
            "decimal": Decimal128(f"{random.random():.6f}"),
            "big": Int64(2**53 + 1 + number),
            "object_id": ObjectId(),
            "others": [Timestamp(number, 1), Regex("a"), MinKey(), MaxKey(), Code("x")],
            "when": datetime(2020, 1, 1) + timedelta(days=500 * random.random()),
            "constant": 7,
            "nothing": None,
            "nan": float("nan") if number % 3 else float(number % 90),
            "infinite": float("inf"),
            "empty": {},
            "empty_list": [],
            "flag": random.random() < 0.5,
            "user_id": random.randrange(10**9),
            "text": " ".join(f"word{random.randrange(1000)}" for _ in range(12)),
            "color": random.choice(["red", "green", "blue"]),
            "huge": 1e300 * random.random(),
            "by_user": {f"u{random.randrange(10**6)}": 1 for _ in range(3)},
            "int_or_document": {"k": 1} if number % 5 == 0 else number,
        }
        document |= {name: random.random() for name in ODD_NAMES}
        document |= {f"f{place}": random.random() for place in range(260)}
        if number % 2:
            document["sometimes"] = random.random()
        if number % 50 == 0:
            document["rare"] = 1
        yield document

"""What a sample of documents holds at one path. It grows document by document, and its memory is bounded whatever
they hold; no value of a text is kept in clear."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bson import Binary, Code, DatetimeMS, Decimal128, Int64, ObjectId
from bson.binary import BINARY_SUBTYPE, USER_DEFINED_SUBTYPE, VECTOR_SUBTYPE

NUMBERS = frozenset({"double", "int", "long", "decimal"})
NOTHING = "null"
MOST_DISTINCT = 5000
MOST_NUMBERS = 5000
LARGEST_EXACT = 2**53
LARGEST_FLOAT32 = 3.4e38
_MOST_LENGTHS = 100
_PLAIN_BINARY = (BINARY_SUBTYPE, USER_DEFINED_SUBTYPE)
_FLOAT32_VECTOR = b"\x27\x00"
_PLAUSIBLE = 1e12  # bytes that were never floats give exponents of all sizes
_NUMBER = re.compile(r"^\s*[-+]?\d+([.,]\d+)?\s*$")
_DATE = re.compile(r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d)?")


def type_name(value: Any) -> str:
    """As MongoDB's `$type` calls it."""
    if value is None:
        return NOTHING
    for kinds, name in _NAMES:
        if isinstance(value, kinds):
            return name
    return type(value).__name__.lower()


_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "bool"),
    (Int64, "long"),
    (int, "int"),
    (float, "double"),
    (Decimal128, "decimal"),
    (Code, "javascript"),  # a kind of str, and no text
    (str, "string"),
    (DatetimeMS, "date"),
    (Mapping, "object"),
    ((list, tuple), "array"),
    ((bytes, Binary), "binData"),
    (ObjectId, "objectId"),
)


class Field:
    """types: how often each BSON type was seen. present: documents that hold something other than null here."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.types: Counter[str] = Counter()
        self.low = math.inf
        self.high = -math.inf
        self.numbers: list[float] = []
        self.whole = True
        self.non_finite = 0
        self.inexact = 0  # numbers that are no float64, by their size
        self.lengths: Counter[int] = Counter()  # of arrays, of binary vectors in floats
        self.elements: set[str] = set()
        self.bad_elements = False
        self.texts_like_numbers = 0
        self.texts_like_dates = 0
        self.characters = 0
        self.spaced = 0  # texts of several words
        self.damaged = 0  # bytes that are no UTF-8
        self._distinct: Counter[Any] = Counter()

    # ----------------------------------------------------------------------- what was seen

    def add(self, value: Any) -> None:
        kind = type_name(value)
        self.types[kind] += 1
        if kind in NUMBERS:
            self._number(value)
        elif kind == "bool":
            self._count(value)
        elif kind == "string":
            self._text(value)
        elif kind == "date":
            self._span(float(int(value)))
            self._count(int(value))
        elif kind == "array":
            self._array(value)
        elif kind == "binData":
            self._binary(value)

    def _number(self, value: Any) -> None:
        number = _as_float(value)
        if not math.isfinite(number):
            finite = isinstance(value, Decimal128) and value.to_decimal().is_finite()
            self.non_finite += not finite
            self.inexact += finite
            return
        self.inexact += not _exact(value, number)
        self.whole = self.whole and number == math.trunc(number)
        self._span(number)
        self._count(number)
        if len(self.numbers) < MOST_NUMBERS:
            self.numbers.append(number)

    def _span(self, number: float) -> None:
        self.low, self.high = min(self.low, number), max(self.high, number)

    def _text(self, text: str) -> None:
        self.characters += len(text)
        self.spaced += text.count(" ") >= 3
        self.damaged += "\ufffd" in text
        self.texts_like_numbers += bool(_NUMBER.match(text))
        self.texts_like_dates += bool(_DATE.match(text))
        self._count(hash(text))

    def _count(self, key: Any) -> None:
        if key in self._distinct or len(self._distinct) < MOST_DISTINCT:
            self._distinct[key] += 1

    def _array(self, array: Sequence[Any]) -> None:
        if len(array) in self.lengths or len(self.lengths) < _MOST_LENGTHS:
            self.lengths[len(array)] += 1
        else:
            self.bad_elements = True
        for element in array[:4096]:
            kind = type_name(element)
            self.elements.add("number" if kind in NUMBERS else kind)
            if kind in NUMBERS:
                number = _as_float(element)
                fits = abs(number) <= LARGEST_FLOAT32 and _exact(element, number)
                self.bad_elements = self.bad_elements or not fits

    def _binary(self, data: bytes) -> None:
        """A vector of float32, where it can be one: counted by its length."""
        subtype = getattr(data, "subtype", BINARY_SUBTYPE)
        content = bytes(data)
        if subtype == VECTOR_SUBTYPE and content[:2] == _FLOAT32_VECTOR:
            content = content[2:]
        elif subtype not in _PLAIN_BINARY:
            self.bad_elements = True
            return
        if len(content) % 4 or not content:
            self.bad_elements = True
            return
        floats = np.frombuffer(content, "<f4")
        with np.errstate(invalid="ignore"):
            plausible = np.isfinite(floats) & (np.abs(floats) < _PLAUSIBLE)
        self.bad_elements = self.bad_elements or not bool(plausible.all())
        if len(floats) in self.lengths or len(self.lengths) < _MOST_LENGTHS:
            self.lengths[len(floats)] += 1

    # ----------------------------------------------------------------------- what it comes to

    @property
    def present(self) -> int:
        return self.types.total() - self.types[NOTHING]

    @property
    def families(self) -> dict[str, int]:
        """Types that one dtype reads count as one; null is none."""
        found: Counter[str] = Counter()
        for name, count in self.types.items():
            if name != NOTHING:
                found["number" if name in NUMBERS else name] += count
        return dict(found.most_common())

    @property
    def family(self) -> str:
        """The most frequent one; empty where there was nothing but null."""
        return next(iter(self.families), "")

    @property
    def mixed(self) -> bool:
        return len(self.families) > 1

    @property
    def distinct(self) -> int:
        """Different values among those that were seen, at most MOST_DISTINCT."""
        return len(self._distinct)

    @property
    def singletons(self) -> int:
        return sum(1 for count in self._distinct.values() if count == 1)

    @property
    def estimated_distinct(self) -> int:
        """How many different values the whole collection may hold (Chao's estimator of species: what was seen once
        and twice tells of what was not seen)."""
        once = self.singletons
        twice = sum(1 for count in self._distinct.values() if count == 2)
        return self.distinct + int(once * (once - 1) / (2 * (twice + 1)))

    @property
    def most_common(self) -> Any:
        return self._distinct.most_common(1)[0][0] if self._distinct else None

    @property
    def median(self) -> float:
        return float(np.median(self.numbers)) if self.numbers else 0.0


def _exact(value: Any, number: float) -> bool:
    return not isinstance(value, int) or abs(value) <= LARGEST_EXACT or int(number) == value


def _as_float(value: Any) -> float:
    """Infinite for what no float64 can hold."""
    try:
        return float(value.to_decimal()) if isinstance(value, Decimal128) else float(value)
    except (OverflowError, ValueError):
        return math.nan

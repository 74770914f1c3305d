"""How MongoDB compares values: BSON's types, and the order of values within and between them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from bson import DatetimeMS, DBRef, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.code import Code
from bson.decimal128 import Decimal128
from bson.regex import Regex


class Missing:
    """The value of a field that is not there; distinct from null."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()

TYPES: Final = {
    "double": 1, "string": 2, "object": 3, "array": 4, "binData": 5, "undefined": 6, "objectId": 7, "bool": 8,
    "date": 9, "null": 10, "regex": 11, "dbPointer": 12, "javascript": 13, "symbol": 14, "javascriptWithScope": 15,
    "int": 16, "timestamp": 17, "long": 18, "decimal": 19, "minKey": -1, "maxKey": 127,
}  # fmt: skip

_OF_PYTHON: Final[dict[type, int]] = {
    type(None): 10, bool: 8, Int64: 18, float: 1, str: 2, dict: 3, list: 4, bytes: 5, ObjectId: 7, DatetimeMS: 9,
    Regex: 11, Code: 13, Timestamp: 17, Decimal128: 19, MinKey: -1, MaxKey: 127, DBRef: 3,
}  # fmt: skip
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1

# Values of one rank compare with each other; ranks stand in the order of the values.
_RANKS: Final = {
    -1: 0, 6: 4, 10: 5, 1: 10, 16: 10, 18: 10, 19: 10, 2: 15, 14: 15, 3: 20, 4: 25, 5: 30, 7: 35, 8: 40, 9: 45,
    17: 47, 11: 50, 12: 55, 13: 60, 15: 65, 127: 127,
}  # fmt: skip
MIN_RANK, MAX_RANK = 0, 127


def type_of(value: Any) -> int:
    """The number of the BSON type of a decoded value."""
    number = _OF_PYTHON.get(type(value))
    if number is not None:
        return 15 if number == 13 and value.scope is not None else number
    if isinstance(value, int):
        return 16 if _INT32_MIN <= value <= _INT32_MAX else 18
    for kind, number in _OF_PYTHON.items():
        if isinstance(value, kind):
            return number
    if isinstance(value, Mapping):
        return 3
    raise TypeError(f"no BSON type for {type(value).__name__}")


def rank(value: Any) -> int:
    return _RANKS[type_of(value)]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal128)) and not isinstance(value, bool)


def number_of(value: Any) -> int | float | Decimal:
    """Numbers of all types as what Python compares exactly."""
    return value.to_decimal() if isinstance(value, Decimal128) else value


def is_nan(value: Any) -> bool:
    if isinstance(value, Decimal128):
        return value.to_decimal().is_nan()
    return isinstance(value, float) and value != value


def order_key(value: Any) -> tuple[Any, ...]:
    """A hashable tuple that orders as MongoDB orders the values themselves; equal values have equal keys."""
    place = rank(value)
    if place == 10:
        return (10, 0) if is_nan(value) else (10, 1, number_of(value))
    if place == 20:
        fields = value.as_doc() if isinstance(value, DBRef) else value
        return (20, *((rank(item), name, order_key(item)) for name, item in fields.items()))
    if place == 25:
        return (25, *map(order_key, value))
    if place == 30:
        return (30, len(value), getattr(value, "subtype", 0), bytes(value))
    if place == 35:
        return (35, value.binary)
    if place == 45:
        return (45, int(value))
    if place == 47:
        return (47, value.time, value.inc)
    if place == 50:
        return (50, str(value.pattern), value.flags)
    if place in (60, 65):
        return (place, str(value), () if value.scope is None else order_key(value.scope))
    return (place,) if place in (MIN_RANK, 4, 5, MAX_RANK) else (place, value)

"""How MongoDB orders, compares and finds values: the BSON comparison order and dotted paths through arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from bson import DatetimeMS, DBRef, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.binary import Binary
from bson.code import Code
from bson.decimal128 import Decimal128
from bson.regex import Regex


class Missing:
    """The value of a field that is not there; distinct from null."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

TYPES: Final = {
    "double": 1, "string": 2, "object": 3, "array": 4, "binData": 5, "undefined": 6, "objectId": 7, "bool": 8,
    "date": 9, "null": 10, "regex": 11, "dbPointer": 12, "javascript": 13, "symbol": 14, "javascriptWithScope": 15,
    "int": 16, "timestamp": 17, "long": 18, "decimal": 19, "minKey": -1, "maxKey": 127,
}  # fmt: skip
NAMES: Final = {number: name for name, number in TYPES.items()}


def type_of(value: Any) -> int:
    """The number of the BSON type that `value` is encoded as."""
    if value is None:
        return 10
    if isinstance(value, bool):
        return 8
    if isinstance(value, Int64):
        return 18
    if isinstance(value, int):
        return 16 if INT32_MIN <= value <= INT32_MAX else 18
    for kind, number in _KINDS:
        if isinstance(value, kind):
            return number
    raise TypeError(f"no BSON type for {type(value).__name__}")


_KINDS: Final[tuple[tuple[Any, int], ...]] = (
    (float, 1), (Code, 13), (str, 2), (Mapping, 3), (DBRef, 3), (list, 4), (bytes, 5), (ObjectId, 7), (DatetimeMS, 9),
    (Regex, 11), (Timestamp, 17), (Decimal128, 19), (MinKey, -1), (MaxKey, 127),
)  # fmt: skip

_RANK: Final = {-1: 0, 10: 5, 6: 5, 1: 10, 16: 10, 18: 10, 19: 10, 2: 15, 14: 15, 3: 20, 4: 25, 5: 30, 7: 35, 8: 40,
                9: 45, 17: 47, 11: 50, 12: 55, 13: 60, 15: 65, 127: 127}  # fmt: skip


def rank(value: Any) -> int:
    """The place of the value's type in the comparison order; types of one rank compare with each other."""
    return 5 if value is MISSING else _RANK[type_of(value)]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal128)) and not isinstance(value, bool)


def number_of(value: Any) -> int | float | Decimal:
    return value.to_decimal() if isinstance(value, Decimal128) else value


def sort_key(value: Any) -> tuple[Any, ...]:
    """A hashable tuple that orders as MongoDB orders the values themselves; equal values have equal keys."""
    place = rank(value)
    if place == 10:
        number = number_of(value)
        return (10, 0) if number != number else (10, 1, number)
    if place == 20:
        fields = value.as_doc() if isinstance(value, DBRef) else value
        return (20, *((sort_key(item)[:1], name, sort_key(item)) for name, item in fields.items()))
    if place == 25:
        return (25, *(sort_key(item) for item in value))
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
    return (place,) if place in (0, 5, 127) else (place, value)


def equal(left: Any, right: Any) -> bool:
    return sort_key(left) == sort_key(right)


def identical(left: Any, right: Any) -> bool:
    """Equal and of the same BSON type all the way down: what makes an update a no-op."""
    if left is MISSING or right is MISSING:
        return left is right
    if type_of(left) != type_of(right):
        return False
    if isinstance(left, Mapping):
        return list(left) == list(right) and all(identical(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(identical, left, right))
    return sort_key(left) == sort_key(right)


def get(document: Any, path: str) -> Any:
    """The value at a dotted path as aggregation sees it: through arrays it is the array of what their members have."""
    return _get(document, path.split("."))


def _get(value: Any, parts: list[str]) -> Any:
    for i, part in enumerate(parts):
        if isinstance(value, Mapping):
            value = value.get(part, MISSING)
        elif isinstance(value, list):
            found = (_get(item, parts[i:]) for item in value if isinstance(item, Mapping))
            return [item for item in found if item is not MISSING]
        else:
            return MISSING
    return value


def is_position(part: str) -> bool:
    """Whether a part of a path can name a member of an array."""
    return part.isascii() and part.isdigit()


def leaves(value: Any, parts: list[str]) -> Iterator[Any]:
    """The values at a path as queries see them: arrays are entered, by position and by member; MISSING if none."""
    if not parts:
        yield value
        return
    if isinstance(value, Mapping):
        yield from leaves(value.get(parts[0], MISSING), parts[1:])
    elif isinstance(value, list):
        found = False
        if is_position(parts[0]) and int(parts[0]) < len(value):
            found = True
            yield from leaves(value[int(parts[0])], parts[1:])
        for item in value:
            if isinstance(item, Mapping):
                found = True
                yield from leaves(item, parts)
        if not found:
            yield MISSING
    else:
        yield MISSING


class Entire(list[Any]):
    """An array that queries look at as a whole and do not enter: one that a path names by its position, or a member
    that $elemMatch looks at."""


def found(value: Any, parts: list[str]) -> Iterator[Any]:
    """The values at a path as queries see them: unlike `leaves`, an array without a fitting member leads nowhere, and
    an array that is named by its position is not entered."""
    if not parts:
        yield value
    elif isinstance(value, Mapping):
        yield from found(value.get(parts[0], MISSING), parts[1:])
    elif isinstance(value, list):
        for place, item in enumerate(value):
            if isinstance(item, Mapping):
                yield from found(item, parts)
            if parts[0] == str(place):
                if len(parts) == 1:
                    yield Entire(item) if isinstance(item, list) else item
                elif isinstance(item, Mapping):
                    yield from found(item, parts[1:])
                elif isinstance(item, list):
                    yield from found({str(at): member for at, member in enumerate(item)}, parts[1:])
    else:
        yield MISSING


def as_bson_int(number: int, *, long: bool) -> Any:
    """An integer result in the narrowest type its operands allow: int32 grows to Int64 when it must."""
    if not long and INT32_MIN <= number <= INT32_MAX:
        return number
    return Int64(number)


def binary(value: Any) -> Binary | bytes:
    return value if isinstance(value, Binary) else bytes(value)

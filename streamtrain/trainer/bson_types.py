"""BSON's element types and the sizes of their values (https://bsonspec.org/spec.html), as far as a walk over
documents needs them."""

from __future__ import annotations

DOUBLE = 0x01
STRING = 0x02
DOCUMENT = 0x03
ARRAY = 0x04
BINARY = 0x05
UNDEFINED = 0x06
OBJECT_ID = 0x07
BOOL = 0x08
DATETIME = 0x09
NULL = 0x0A
REGEX = 0x0B
DB_POINTER = 0x0C
CODE = 0x0D
SYMBOL = 0x0E
CODE_WITH_SCOPE = 0x0F
INT32 = 0x10
TIMESTAMP = 0x11
INT64 = 0x12
DECIMAL128 = 0x13
MAX_KEY = 0x7F
MIN_KEY = 0xFF

# Types whose values always take the same number of bytes.
FIXED_SIZES = {
    DOUBLE: 8,
    UNDEFINED: 0,
    OBJECT_ID: 12,
    BOOL: 1,
    DATETIME: 8,
    NULL: 0,
    INT32: 4,
    TIMESTAMP: 8,
    INT64: 8,
    DECIMAL128: 16,
    MAX_KEY: 0,
    MIN_KEY: 0,
}

# Types whose values begin with an int32 length: how many bytes they take beyond that number, and the least that
# it may be.
LENGTH_PREFIXED = {
    STRING: (4, 1),
    DOCUMENT: (0, 5),
    ARRAY: (0, 5),
    BINARY: (5, 0),
    DB_POINTER: (16, 1),
    CODE: (4, 1),
    SYMBOL: (4, 1),
    CODE_WITH_SCOPE: (0, 14),
}

# Of those, the ones that must hold a zero byte at their end, or this many bytes before it.
TERMINATED = {STRING: 0, DOCUMENT: 0, ARRAY: 0, DB_POINTER: 12, CODE: 0, SYMBOL: 0}


def value_size(data: bytes, kind: int, at: int, last: int) -> int | None:
    """Bytes of the value of type `kind` at `at`; None when there is no such type, or the value does not fit
    before `last` or is not closed."""
    fixed = FIXED_SIZES.get(kind)
    if fixed is not None:
        return fixed if at + fixed <= last else None
    if kind == REGEX:
        pattern = data.find(0, at, last)
        options = -1 if pattern < 0 else data.find(0, pattern + 1, last)
        return None if options < 0 else options + 1 - at
    prefixed = LENGTH_PREFIXED.get(kind)
    if prefixed is None or at + 4 > last:
        return None
    extra, least = prefixed
    length = int.from_bytes(data[at : at + 4], "little", signed=True)
    size = length + extra
    if length < least or at + size > last:
        return None
    trailing = TERMINATED.get(kind)
    if trailing is not None and data[at + size - 1 - trailing] != 0:
        return None
    return size

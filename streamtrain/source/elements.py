"""The elements of a BSON document as places in its bytes: what lets the source cut documents, keys and tokens
out of a server's reply without decoding them. It must never copy or interpret a value that nobody asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator

INT32 = struct.Struct("<i")

# Bytes of a value by its type, for those whose size does not depend on the value.
_FIXED = {
    0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0,
}  # fmt: skip
# Those that begin with an int32 length: how many bytes the length does not count.
_PREFIXED = {
    0x02: 4, 0x03: 0, 0x04: 0, 0x05: 5, 0x0C: 16, 0x0D: 4, 0x0E: 4, 0x0F: 0,
}  # fmt: skip


def elements(raw: bytes, at: int = 0) -> Iterator[tuple[bytes, int, int]]:
    """Of the document that begins at `at`, in order: (type byte and name, begin of the value, its end).

    Raises ValueError when the bytes are not BSON.
    """
    try:
        end = at + INT32.unpack_from(raw, at)[0] - 1
        if at + 4 > end or raw[end]:
            raise ValueError("not a BSON document")
        position = at + 4
        while position < end:
            kind = raw[position]
            name_end = raw.index(0, position + 1)
            begin = name_end + 1
            size = _FIXED.get(kind)
            if size is None:
                if kind == 0x0B:  # a regular expression: two C strings
                    size = raw.index(0, raw.index(0, begin) + 1) + 1 - begin
                else:
                    size = INT32.unpack_from(raw, begin)[0] + _PREFIXED[kind]
            value_end = begin + size
            if size < 0 or value_end > end:
                raise ValueError("a BSON value reaches past its document")
            yield raw[position:name_end], begin, value_end
            position = value_end
    except (IndexError, KeyError, struct.error) as error:
        raise ValueError(f"not BSON: {type(error).__name__} {error}") from error

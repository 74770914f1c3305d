"""Raw BSON: elements found, cut out and joined as bytes, so that stored documents keep the types they came with."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import bson
from bson import CodecOptions
from bson.binary import UuidRepresentation
from bson.codec_options import DatetimeConversion
from bson.decimal128 import Decimal128

OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(
    document_class=dict,
    tz_aware=False,
    uuid_representation=UuidRepresentation.UNSPECIFIED,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
)
"""Decoding that loses nothing: Int64, Decimal128, Binary subtypes and dates outside datetime's range stay so."""

INT32 = struct.Struct("<i")
INT64 = struct.Struct("<q")
UINT64 = struct.Struct("<Q")
DOUBLE = struct.Struct("<d")

_FIXED = {1: 8, 6: 0, 7: 12, 8: 1, 9: 8, 10: 0, 16: 4, 17: 8, 18: 8, 19: 16, 0x7F: 0, 0xFF: 0}


class Element(NamedTuple):
    """One field of a raw document: `data[begin:end]` is the whole element, its value begins at `value`."""

    kind: int
    name: bytes
    begin: int
    value: int
    end: int


def decode(data: bytes) -> dict[str, Any]:
    return bson.decode(data, OPTIONS)


def encode(document: Any) -> bytes:
    """The fields in the order they stand in: the driver would move `_id` of an outermost document to the front."""
    return bson.encode({"d": document}, codec_options=OPTIONS)[7:-1]


def value_end(data: bytes, kind: int, at: int) -> int:
    """Where the value of BSON type `kind` that begins at `at` ends. Raises ValueError for an unknown type."""
    size = _FIXED.get(kind)
    if size is not None:
        return at + size
    if kind in (2, 13, 14):
        return at + 4 + INT32.unpack_from(data, at)[0]  # type: ignore[no-any-return]
    if kind in (3, 4, 15):
        return at + INT32.unpack_from(data, at)[0]  # type: ignore[no-any-return]
    if kind == 5:
        return at + 5 + INT32.unpack_from(data, at)[0]  # type: ignore[no-any-return]
    if kind == 11:
        return data.index(b"\x00", data.index(b"\x00", at) + 1) + 1
    if kind == 12:
        return at + 4 + INT32.unpack_from(data, at)[0] + 12  # type: ignore[no-any-return]
    raise ValueError(f"unknown BSON type {kind}")


def elements(data: bytes) -> Iterator[Element]:
    at, last = 4, len(data) - 1
    while at < last:
        kind = data[at]
        stop = data.index(b"\x00", at + 1)
        end = value_end(data, kind, stop + 1)
        yield Element(kind, data[at + 1 : stop], at, stop + 1, end)
        at = end


def find(data: bytes, name: bytes) -> Element | None:
    for element in elements(data):
        if element.name == name:
            return element
    return None


def document(*parts: bytes) -> bytes:
    """A document of ready-made elements."""
    body = b"".join(parts)
    return INT32.pack(len(body) + 5) + body + b"\x00"


def embedded(name: bytes, doc: bytes) -> bytes:
    """An element `name` that holds a document."""
    return b"\x03" + name + b"\x00" + doc


def string(name: bytes, text: str) -> bytes:
    data = text.encode()
    return b"\x02" + name + b"\x00" + INT32.pack(len(data) + 1) + data + b"\x00"


def element(name: str, value: Any) -> bytes:
    """One encoded element of a decoded value."""
    return encode({name: value})[4:-1]


_INDEX = [str(i).encode() + b"\x00" for i in range(10_000)]


def array(name: bytes, documents: Iterable[bytes]) -> bytes:
    """An element `name` that holds an array of documents."""
    parts: list[bytes] = []
    size = 5
    known = len(_INDEX)
    for i, doc in enumerate(documents):
        index = _INDEX[i] if i < known else b"%d\x00" % i
        parts += (b"\x03", index, doc)
        size += 1 + len(index) + len(doc)
    return b"".join((b"\x04", name, b"\x00", INT32.pack(size), *parts, b"\x00"))


def split(data: bytes, at: int, end: int) -> list[bytes]:
    """The documents that stand one behind another in `data[at:end]`. Raises ValueError when they do not fit."""
    documents = []
    while at < end:
        size = INT32.unpack_from(data, at)[0]
        if size < 5 or at + size > end:
            raise ValueError("document does not fit its section")
        documents.append(bytes(data[at : at + size]))
        at += size
    return documents


def key_of(data: bytes, kind: int, at: int, end: int) -> Hashable:
    """A dictionary key for a raw value: equal numbers of different types share it, as they do in MongoDB."""
    if kind == 16:
        return INT32.unpack_from(data, at)[0]  # type: ignore[no-any-return]
    if kind == 18:
        return INT64.unpack_from(data, at)[0]  # type: ignore[no-any-return]
    if kind == 1:
        number = DOUBLE.unpack_from(data, at)[0]
        return number if number == number else "NaN"
    if kind == 19:
        decimal = Decimal128.from_bid(bytes(data[at : at + 16])).to_decimal()
        return "NaN" if decimal.is_nan() else decimal
    return bytes((kind,)) + data[at:end]


def key_of_value(value: Any) -> Hashable:
    """`key_of` for a decoded value."""
    data = encode({"": value})
    return key_of(data, data[4], 6, len(data) - 1)


def id_element(data: bytes) -> Element | None:
    """The `_id` of a raw document; cheap when it comes first."""
    if data[5:9] == b"_id\x00":
        kind = data[4]
        return Element(kind, b"_id", 4, 9, 21 if kind == 7 else value_end(data, kind, 9))
    return find(data, b"_id")


def with_fields(data: bytes, changed: dict[str, Any], removed: Iterable[str] = ()) -> bytes:
    """The document with some top-level fields set (new ones at the end) or removed; the others keep their bytes."""
    names = {name.encode(): name for name in changed}
    gone = {name.encode() for name in removed}
    parts = []
    for e in elements(data):
        if e.name in names:
            parts.append(element(names[e.name], changed[names.pop(e.name)]))
        elif e.name not in gone:
            parts.append(data[e.begin : e.end])
    parts.extend(element(name, changed[name]) for name in changed if name.encode() in names)
    return document(*parts)


def with_elements(data: bytes, wanted: Mapping[bytes, bytes]) -> tuple[bytes, list[bytes]]:
    """The document with whole elements set by name, and those that it did not have so before."""
    parts: list[bytes] = []
    changed: list[bytes] = []
    left = dict(wanted)
    kept = 4
    for e in elements(data):
        new = left.pop(e.name, None)
        if new is not None and new != data[e.begin : e.end]:
            parts += (data[kept : e.begin], new)
            changed.append(new)
            kept = e.end
    parts.append(data[kept:-1])
    added = [wanted[name] for name in left]
    return document(*parts, *added), changed + added

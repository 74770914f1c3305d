"""A change event as a Kafka record and back: key, value and headers (DESIGN 6). Documents and keys are raw
slices of the wire bytes on both sides; nothing is decoded and encoded again here."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from streamtrain.errors import EnvelopeError
from streamtrain.types import ChangeEvent, Operation

VERSION = 1

Headers = list[tuple[str, bytes]]

_INT64 = struct.Struct(">q")
_UINT64 = struct.Struct(">Q")
_INT32_LE = struct.Struct("<i")
_VERSION = bytes([VERSION])
_VERSION_HEADER = ("v", _VERSION)
_OPERATION_HEADERS = {operation: ("op", operation.value.encode()) for operation in Operation}
_OPERATIONS = {operation.value.encode(): operation for operation in Operation}
_ID = b"_id\x00"

# Bytes of a BSON value by its type, for those whose size does not depend on the value.
_FIXED = {
    0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0,
}  # fmt: skip
# Those that begin with an int32 length: how many bytes the length does not count.
_PREFIXED = {
    0x02: 4, 0x03: 0, 0x04: 0, 0x05: 5, 0x0C: 16, 0x0D: 4, 0x0E: 4, 0x0F: 0,
}  # fmt: skip


class Record(NamedTuple):
    """A record of a source topic, decoded. A tuple rather than a dataclass: made once per record.

    n: its sequence number in the partition. document: raw BSON; None for a delete, and for an update whose
    document was gone when it was looked up. document_key: raw BSON. cluster_time: `seconds << 32 | increment`.
    """

    n: int
    operation: Operation
    namespace: str
    document_key: bytes
    document: bytes | None
    cluster_time: int
    wall_time_ms: int | None


def key_of(document_key: bytes) -> bytes:
    """The record key: BSON `{_id: ...}` with the raw bytes of the documentKey's `_id` element, of any BSON type.

    Raises EnvelopeError when there is no `_id` in it.
    """
    end = len(document_key) - 1
    position = 4
    try:
        while position < end:
            kind = document_key[position]
            name_end = document_key.index(0, position + 1) + 1
            value_end = name_end + _size(kind, document_key, name_end)
            if not name_end <= value_end <= end:
                raise ValueError
            if document_key[position + 1 : name_end] == _ID:
                if position == 4 and value_end == end:  # an unsharded collection: the key is the documentKey
                    return document_key
                element = document_key[position:value_end]
                return _INT32_LE.pack(len(element) + 5) + element + b"\x00"
            position = value_end
    except (IndexError, ValueError, KeyError, struct.error) as error:
        raise EnvelopeError(f"documentKey is not BSON: {type(error).__name__}") from error
    raise EnvelopeError("documentKey has no _id")


def _size(kind: int, raw: bytes, at: int) -> int:
    """Bytes of the BSON value of type `kind` that begins at `at`."""
    size = _FIXED.get(kind)
    if size is not None:
        return size
    if kind == 0x0B:  # a regular expression: two C strings
        return raw.index(0, raw.index(0, at) + 1) + 1 - at
    return int(_INT32_LE.unpack_from(raw, at)[0]) + _PREFIXED[kind]


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record key; `partitions` is the stored count, never the live one."""
    return zlib.crc32(key) % partitions


def encode(event: ChangeEvent, n: int) -> tuple[bytes, bytes, Headers]:
    """Key, value and headers of the record with sequence number `n`."""
    return key_of(event.document_key), event.document or b"", headers_of(event, n)


def headers_of(event: ChangeEvent, n: int) -> Headers:
    headers = [
        _VERSION_HEADER,
        ("n", _INT64.pack(n)),
        _OPERATION_HEADERS[event.operation],
        ("ns", event.namespace.encode()),
        ("dk", event.document_key),
        ("ct", _UINT64.pack(event.cluster_time)),
    ]
    if event.wall_time_ms is not None:
        headers.append(("wt", _INT64.pack(event.wall_time_ms)))
    return headers


def decode(value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> Record:
    """The record that `encode` wrote. Raises EnvelopeError for anything else, and for a newer version."""
    try:
        # Seven headers in the order of `encode`, of this version: nearly every record.
        (v, version), (n, sequence), (op, operation), (ns, namespace), (dk, key), (ct, cluster), (wt, wall) = headers
        if version == _VERSION and (v, n, op, ns, dk, ct, wt) == _ORDER:
            return Record(
                _INT64.unpack(sequence)[0],
                _OPERATIONS[operation],
                namespace.decode(),
                key,
                value or None,
                _UINT64.unpack(cluster)[0],
                _INT64.unpack(wall)[0],
            )
    except (ValueError, TypeError, KeyError, struct.error):
        pass  # another order, no wall time, or not a record at all: the careful path tells
    return _decode_any(value, headers)


_ORDER = ("v", "n", "op", "ns", "dk", "ct", "wt")


def _decode_any(value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> Record:
    found = dict(headers)
    version = found.get("v")
    if version != _VERSION:
        if version is not None and len(version) == 1 and version[0] > VERSION:
            raise EnvelopeError(
                f"the record has envelope version {version[0]}, this streamtrain reads up to {VERSION}",
                hint="upgrade streamtrain: a newer one has written to this topic",
            )
        raise EnvelopeError(
            "the record was not written by streamtrain: it has no envelope version",
            hint="use a topic prefix that nothing else writes to",
        )
    try:
        wall = found.get("wt")
        return Record(
            _INT64.unpack(found["n"])[0],
            _OPERATIONS[found["op"]],
            found["ns"].decode(),
            found["dk"],
            value or None,
            _UINT64.unpack(found["ct"])[0],
            None if wall is None else _INT64.unpack(wall)[0],
        )
    except KeyError as error:
        raise EnvelopeError(f"the record's header {error} is missing or has an unknown value") from error
    except (struct.error, UnicodeDecodeError) as error:
        raise EnvelopeError(f"a header of the record is malformed: {error}") from error

"""A change event as a Kafka record and back: key, value and headers (DESIGN 6). Documents and keys are raw
slices of the wire bytes on both sides; nothing is decoded and encoded again here."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from streamtrain.errors import EnvelopeError
from streamtrain.source.elements import INT32, elements
from streamtrain.types import ChangeEvent, Operation

VERSION = 1

Headers = list[tuple[str, bytes]]

_INT64 = struct.Struct(">q")
_UINT64 = struct.Struct(">Q")
_pack_int64 = _INT64.pack
_pack_uint64 = _UINT64.pack
_VERSION = bytes([VERSION])
_VERSION_HEADER = ("v", _VERSION)
_OPERATION_HEADERS = {operation.value: ("op", operation.value.encode()) for operation in Operation}
_OPERATIONS = {operation.value.encode(): operation for operation in Operation}
_ORDER = ("v", "n", "op", "ns", "dk", "ct", "wt")
_ID = b"_id"

# How a documentKey of nothing but an `_id` of a type of fixed size begins: length, type and name tell all.
ID_ALONE = frozenset(
    INT32.pack(10 + size) + bytes([kind]) + _ID + b"\x00"
    for kind, size in ((0x07, 12), (0x10, 4), (0x12, 8), (0x01, 8), (0x09, 8))
)
ID_ALONE_PREFIX = len(next(iter(ID_ALONE)))


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
    if document_key[:ID_ALONE_PREFIX] in ID_ALONE:
        return document_key
    try:
        for name, begin, end in elements(document_key):
            if name[1:] == _ID:
                element = document_key[begin - len(name) - 1 : end]
                return INT32.pack(len(element) + 5) + element + b"\x00"
    except ValueError as error:
        raise EnvelopeError(f"a documentKey is {error}") from error
    raise EnvelopeError("a documentKey has no _id")


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record key; `partitions` is the stored count, never the live one."""
    return zlib.crc32(key) % partitions


def encode(event: ChangeEvent, n: int) -> tuple[bytes, bytes, Headers]:
    """Key, value and headers of the record with sequence number `n`."""
    return key_of(event.document_key), event.document or b"", headers_of(event, n)


@lru_cache
def _namespace_header(namespace: str) -> tuple[str, bytes]:
    return "ns", namespace.encode()


def headers_of(event: ChangeEvent, n: int) -> Headers:
    _, operation, namespace, document_key, _, cluster_time, wall_time_ms = event
    headers = [
        _VERSION_HEADER,
        ("n", _pack_int64(n)),
        _OPERATION_HEADERS[operation._value_],  # not .value: a Python call per record
        _namespace_header(namespace),
        ("dk", document_key),
        ("ct", _pack_uint64(cluster_time)),
    ]
    if wall_time_ms is not None:
        headers.append(("wt", _pack_int64(wall_time_ms)))
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

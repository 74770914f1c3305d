"""The envelopes of many records at once, as columns. Records whose headers stand in the order of the publisher are
read together; any others one by one, by `source.envelope.decode`."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from streamtrain.errors import KafkaError
from streamtrain.source.envelope import VERSION, decode
from streamtrain.trainer.record_batches import Batches, Places
from streamtrain.trainer.records import Records

# The order in which the publisher writes them; `wt` is absent where the server has no wall times.
_NAMES = (b"v", b"n", b"op", b"ns", b"dk", b"ct", b"wt")
_KNOWN = frozenset(name.decode() for name in _NAMES)
_SIZES = {b"v": 1, b"n": 8, b"op": 1, b"ct": 8, b"wt": 8}
_OPERATIONS = frozenset(b"iurd")
_INT64 = struct.Struct(">q")
_LONGEST_VARINT = 10

# For each record: where a part of it begins and how long it is.
_Span = tuple[Places, Places]


@dataclass(frozen=True, slots=True)
class _Outline:
    """Of each record: its offset, where key and value lie, and where the headers begin (with their number)."""

    offsets: Places
    key: _Span
    value: _Span
    headers: Places


def read_records(batches: Batches) -> list[Records]:
    """The records of each partition that has some, in the order of `batches`. Raises EnvelopeError for a record
    that streamtrain has not written, or a newer version of it has, and KafkaError for a damaged one."""
    if len(batches.begins) == 0:
        return []
    try:
        outline = _outline(batches)
        together = _together(batches, outline) or _one_by_one(batches, outline)
    except (IndexError, struct.error):
        raise KafkaError("a record reaches beyond its batch", hint="check the broker's log") from None
    parts: list[Records] = []
    first = 0
    for partition, amount in batches.amounts.items():
        if amount:
            parts.append(together.part(partition, slice(first, first + amount)))
        first += amount
    return parts


def _outline(batches: Batches) -> _Outline:
    raw = np.frombuffer(batches.data, np.uint8)
    _, at = _varints(raw, batches.begins + 1)  # behind the attributes: the time stamp, which is not used
    deltas, at = _varints(raw, at)
    key_size, key = _varints(raw, at)
    key_size = np.maximum(key_size, 0)  # -1 where there is none
    value_size, value = _varints(raw, key + key_size)
    value_size = np.maximum(value_size, 0)
    return _Outline(
        offsets=batches.base_offsets + deltas,
        key=(key, key_size),
        value=(value, value_size),
        headers=value + value_size,
    )


def _varints(raw: npt.NDArray[np.uint8], at: Places) -> tuple[Places, Places]:
    """The zigzag variable-length integers at `at`, and where they end."""
    byte = raw[at]
    value = (byte & 127).astype(np.int64)
    at = at + 1
    more = np.flatnonzero(byte > 127)
    for count in range(1, _LONGEST_VARINT):
        if len(more) == 0:
            break
        byte = raw[at[more]]
        value[more] |= (byte & 127).astype(np.int64) << (7 * count)
        at[more] += 1
        more = more[byte > 127]
    return (value >> 1) ^ -(value & 1), at


def _together(batches: Batches, outline: _Outline) -> Records | None:
    """None unless all records have the publisher's headers in its order, of this version."""
    raw = np.frombuffer(batches.data, np.uint8)
    amounts = raw[outline.headers]
    count = int(amounts[0]) >> 1
    if (amounts != amounts[0]).any() or count not in (len(_NAMES), len(_NAMES) - 1):
        return None
    at = outline.headers + 1
    spans: dict[bytes, _Span] = {}
    for name in _NAMES[:count]:
        expected = np.frombuffer(bytes([2 * len(name)]) + name, np.uint8)
        if (sliding_window_view(raw, len(expected))[at] != expected).any():
            return None
        size, at = _varints(raw, at + len(expected))
        if (size < 0).any() or (name in _SIZES and (size != _SIZES[name]).any()):
            return None
        spans[name] = (at, size)
        at = at + size
    operations = raw[spans[b"op"][0]].tobytes()
    if (at != batches.ends).any() or (raw[spans[b"v"][0]] != VERSION).any() or not _OPERATIONS.issuperset(operations):
        return None
    numbers = np.ndarray((len(raw) - 7,), ">i8", buffer=batches.data, strides=(1,))
    return Records(
        partition=-1,
        sequence=numbers[spans[b"n"][0]].astype(np.int64),
        offsets=outline.offsets,
        operations=operations,
        namespaces=_alike(batches.data, spans[b"ns"]),
        keys=_slices(batches.data, outline.key),
        document_keys=_slices(batches.data, spans[b"dk"]),
        cluster_times=numbers[spans[b"ct"][0]].astype(np.int64),
        wall_times_ms=numbers[spans[b"wt"][0]].astype(np.int64) if b"wt" in spans else np.zeros_like(outline.offsets),
        values=_slices(batches.data, outline.value),
    )


def _slices(data: bytes, span: _Span) -> list[bytes]:
    begins, sizes = span
    return [data[begin:end] for begin, end in zip(begins.tolist(), (begins + sizes).tolist(), strict=True)]


def _alike(data: bytes, span: _Span) -> list[bytes]:
    """The slices, one object for all that are equal: a namespace is the same for nearly all records."""
    begins, sizes = span
    size = int(sizes[0])
    first = data[int(begins[0]) : int(begins[0]) + size]
    windows = sliding_window_view(np.frombuffer(data, np.uint8), max(1, size))
    if size and (sizes == size).all() and (windows[begins] == np.frombuffer(first, np.uint8)).all():
        return [first] * len(begins)
    seen: dict[bytes, bytes] = {}
    return [seen.setdefault(name, name) for name in _slices(data, span)]


def _one_by_one(batches: Batches, outline: _Outline) -> Records:
    values = _slices(batches.data, outline.value)
    headers = [
        _headers(batches.data, at, end) for at, end in zip(outline.headers.tolist(), batches.ends.tolist(), strict=True)
    ]
    records = [decode(value, found) for value, found in zip(values, headers, strict=True)]
    return Records(
        partition=-1,
        sequence=np.array([record.n for record in records], np.int64),
        offsets=outline.offsets,
        operations="".join(record.operation.value for record in records).encode(),
        namespaces=[record.namespace.encode() for record in records],
        keys=_slices(batches.data, outline.key),
        document_keys=[record.document_key for record in records],
        cluster_times=np.array([record.cluster_time for record in records], np.uint64).astype(np.int64),
        wall_times_ms=np.array([record.wall_time_ms or 0 for record in records], np.int64),
        values=[record.document or b"" for record in records],
        others=[{name: value for name, value in found if name not in _KNOWN} for found in headers],
    )


def _headers(data: bytes, at: int, end: int) -> list[tuple[str, bytes]]:
    """The headers of one record. Raises IndexError when they do not end where the record does."""
    raw = np.frombuffer(data, np.uint8)
    sizes, places = _varints(raw, np.array([at]))
    headers: list[tuple[str, bytes]] = []
    for _ in range(int(sizes[0])):
        parts: list[bytes] = []
        for _ in range(2):
            sizes, places = _varints(raw, places)
            begin = int(places[0])
            places = places + max(0, int(sizes[0]))
            parts.append(data[begin : int(places[0])])
        headers.append((parts[0].decode(errors="replace"), parts[1]))
        if int(places[0]) > end:
            raise IndexError
    if int(places[0]) != end:
        raise IndexError
    return headers


def headers_of(records: Records, place: int) -> list[tuple[str, bytes]]:
    """The headers as the record at `place` carried them."""
    headers = [
        ("v", bytes([VERSION])),
        ("n", _INT64.pack(records.sequence[place])),
        ("op", records.operations[place : place + 1]),
        ("ns", records.namespaces[place]),
        ("dk", records.document_keys[place]),
        ("ct", _INT64.pack(records.cluster_times[place])),
    ]
    if records.wall_times_ms[place]:
        headers.append(("wt", _INT64.pack(records.wall_times_ms[place])))
    return headers

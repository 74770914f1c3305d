"""Change events written straight into a Kafka record batch (format version 2): the bytes that aiokafka's builder
would make of `envelope.encode`'s key, value and headers (a test compares them), in about two thirds of the CPU time.

The format: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import struct
from functools import lru_cache

from aiokafka.record.util import calc_crc32c

from streamtrain.source.envelope import VERSION
from streamtrain.types import ChangeEvent

# base offset, length, leader epoch, magic, checksum
_HEAD = struct.Struct(">qiibI")
# attributes, last offset delta, first and max timestamp, producer id and epoch, base sequence, number of records
_TAIL = struct.Struct(">hiqqqhii")
HEADER_BYTES = _HEAD.size + _TAIL.size
_LENGTH_FROM = 12  # the length counts everything behind itself
_MAGIC = 2
_TRANSACTIONAL = 0x10
_NO_EPOCH = -1


def _varint(number: int) -> bytes:
    """A length or an offset: zigzag, then base 128 with the lowest digits first."""
    number <<= 1
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


_VARINTS = tuple(map(_varint, range(8192)))  # lengths and offsets of nearly all records
_KNOWN = len(_VARINTS)


def _text(name: str) -> bytes:
    return _varint(len(name)) + name.encode()


# Attributes and the timestamp's distance from the batch's first: all records of a batch have one timestamp.
_ATTRIBUTES_AND_TIME = b"\x00\x00"
_INT64_LENGTH = _varint(8)
_UP_TO_N = _text("v") + _varint(1) + bytes([VERSION]) + _text("n") + _INT64_LENGTH
_BEFORE_CT = _text("ct") + _INT64_LENGTH
_CT_AND_WT = struct.Struct(f">{len(_BEFORE_CT)}sQ{len(_BEFORE_CT)}sq")
_CT = struct.Struct(f">{len(_BEFORE_CT)}sQ")
_BEFORE_WT = _text("wt") + _INT64_LENGTH
_WITH_WT = _varint(7) + _UP_TO_N
_WITHOUT_WT = _varint(6) + _UP_TO_N

_pack_n = struct.Struct(">q").pack
_pack_ct = _CT.pack
_pack_ct_and_wt = _CT_AND_WT.pack
_join = b"".join


@lru_cache
def _op_to_dk(operation: str, namespace: str) -> bytes:
    """The headers `op` and `ns`, and the name of `dk`."""
    name = namespace.encode()
    return _text("op") + _text(operation) + _text("ns") + _varint(len(name)) + name + _text("dk")


class RecordBatch:
    """What aiokafka's `send_batch` needs of a batch: its count, its place in the producer's sequence, its bytes."""

    __slots__ = ("_buffer", "_count", "_parts", "_producer", "_timestamp_ms", "bytes")

    def __init__(self, timestamp_ms: int) -> None:
        self.bytes = HEADER_BYTES
        self._count = 0
        self._parts: list[bytes] = []
        self._timestamp_ms = timestamp_ms
        self._producer = (-1, -1, 0)
        self._buffer: bytes | None = None

    def append(self, event: ChangeEvent, key: bytes, n: int) -> None:
        """Adds the event's record. How much a batch may hold is for the caller to know."""
        _, operation, namespace, document_key, value, cluster_time, wall_time_ms = event
        if value is None:
            value = b""
        count, key_size, size, dk_size = self._count, len(key), len(value), len(document_key)
        if wall_time_ms is None:
            start, times = _WITHOUT_WT, _pack_ct(_BEFORE_CT, cluster_time)
        else:
            start, times = _WITH_WT, _pack_ct_and_wt(_BEFORE_CT, cluster_time, _BEFORE_WT, wall_time_ms)
        record = _join(
            (
                _ATTRIBUTES_AND_TIME,
                _VARINTS[count] if count < _KNOWN else _varint(count),
                _VARINTS[key_size] if key_size < _KNOWN else _varint(key_size),
                key,
                _VARINTS[size] if size < _KNOWN else _varint(size),
                value,
                start,
                _pack_n(n),
                _op_to_dk(operation._value_, namespace),  # not .value: a Python call per record
                _VARINTS[dk_size] if dk_size < _KNOWN else _varint(dk_size),
                document_key,
                times,
            )
        )
        size = len(record)
        length = _VARINTS[size] if size < _KNOWN else _varint(size)
        self._parts += (length, record)
        self._count = count + 1
        self.bytes += size + len(length)

    # ------------------------------------------------------------------ what aiokafka asks of a batch builder

    def record_count(self) -> int:
        return self._count

    def size(self) -> int:
        return self.bytes

    def close(self) -> None:
        """Nothing is appended once it has been handed over."""

    def closed(self) -> bool:
        return True

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._producer = (producer_id, producer_epoch, base_sequence)

    def _build(self) -> bytes:
        """The batch as it is sent, and sent again."""
        if self._buffer is None:
            times = (self._timestamp_ms, self._timestamp_ms)
            body = _join(
                (_TAIL.pack(_TRANSACTIONAL, self._count - 1, *times, *self._producer, self._count), *self._parts)
            )
            head = _HEAD.pack(0, self.bytes - _LENGTH_FROM, _NO_EPOCH, _MAGIC, calc_crc32c(body))
            self._buffer = head + body
            self._parts.clear()
        return self._buffer

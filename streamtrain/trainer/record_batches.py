"""Kafka record batches (format version 2) to the places of keys, values and headers, many records at once. It never
interprets what they hold; what does not match its checksum is refused.

The format: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from aiokafka.codec import (
    gzip_decode,
    has_gzip,
    has_lz4,
    has_snappy,
    has_zstd,
    lz4_decode,
    snappy_decode,
    zstd_decode,
)
from aiokafka.record.util import calc_crc32c

from streamtrain.errors import KafkaError

Places = npt.NDArray[np.int64]

# base offset, length, leader epoch, magic, checksum, attributes, last offset delta, first and max timestamp,
# producer id and epoch, base sequence, number of records
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CHECKED_FROM = 21  # the checksum covers everything from the attributes on
_LENGTH_FROM = 12  # the length counts everything behind itself
_MAGIC = 2
_CODEC, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_ABORT = 0
_PADDING = 32  # zero bytes behind the records, so that a damaged length is read as one, not past the end
_CODECS = {
    1: ("gzip", has_gzip, gzip_decode),
    2: ("snappy", has_snappy, snappy_decode),
    3: ("lz4", has_lz4, lz4_decode),
    4: ("zstd", has_zstd, zstd_decode),
}


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a broker returned for one partition. offset: that was asked for. aborted: (producer id, first offset)
    of aborted transactions."""

    partition: int
    offset: int
    data: bytes
    aborted: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Batches:
    """Committed records of several partitions, in the order of `next_offsets`. data: bytes that hold them all.
    begins, ends [n]: where each record lies (behind its length). base_offsets [n]: to which its offset delta is
    added. amounts: records per partition. next_offsets: where to fetch each partition on."""

    data: bytes
    begins: Places
    ends: Places
    base_offsets: Places
    amounts: dict[int, int]
    next_offsets: dict[int, int]


@dataclass(frozen=True, slots=True)
class _Batch:
    base_offset: int
    next_offset: int
    attributes: int
    producer: int
    records: int
    begin: int
    end: int


def committed(fetched: Sequence[Fetched]) -> Batches:
    """The records of `fetched` that are not below the offsets asked for, and not of aborted transactions. Raises
    KafkaError for what is damaged."""
    pieces: list[bytes] = []
    size = 0
    begins: list[Places] = []
    ends: list[Places] = []
    bases: list[int] = []
    repeats: list[int] = []
    amounts: dict[int, int] = {}
    next_offsets: dict[int, int] = {}
    for part in fetched:
        amounts[part.partition], next_offsets[part.partition] = 0, part.offset
        own = size  # where the part's bytes lie: batches that are not compressed are read where they are
        pieces.append(part.data)
        size += len(part.data)
        for batch in _without_aborted(part):
            next_offsets[part.partition] = batch.next_offset
            data, at, end, begin = part.data, batch.begin, batch.end, own
            codec = batch.attributes & _CODEC
            if codec:
                data, begin = _decompressed(part, batch, codec), size
                at, end = 0, len(data)
                pieces.append(data)
                size += len(data)
            record_begins, record_ends = _split(part, data, at, end, batch.records)
            begins.append(np.array(record_begins, np.int64) + begin)
            ends.append(np.array(record_ends, np.int64) + begin)
            bases.append(batch.base_offset)
            repeats.append(batch.records)
            amounts[part.partition] += batch.records
    pieces.append(bytes(_PADDING))
    nothing = np.zeros(0, np.int64)
    return Batches(
        data=b"".join(pieces),
        begins=np.concatenate([nothing, *begins]),
        ends=np.concatenate([nothing, *ends]),
        base_offsets=np.repeat(np.array(bases, np.int64), repeats),
        amounts=amounts,
        next_offsets=next_offsets,
    )


def _without_aborted(part: Fetched) -> Iterator[_Batch]:
    """Batches in order; those that hold no committed records come without any: they move the offset."""
    open_aborts = sorted(part.aborted, key=lambda aborted: aborted[1])
    aborting: set[int] = set()
    for batch in _batches(part):
        while open_aborts and open_aborts[0][1] <= batch.base_offset:
            aborting.add(open_aborts.pop(0)[0])
        hidden = bool(batch.attributes & _TRANSACTIONAL) and batch.producer in aborting
        if batch.attributes & _CONTROL:
            hidden = True
            if _control_type(part.data, batch) == _ABORT:
                aborting.discard(batch.producer)
        yield _empty(batch) if hidden else batch


def _empty(batch: _Batch) -> _Batch:
    return _Batch(batch.base_offset, batch.next_offset, 0, batch.producer, 0, batch.end, batch.end)


def _batches(part: Fetched) -> Iterator[_Batch]:
    data, at = part.data, 0
    while at + _HEADER.size <= len(data):
        base, length, _, magic, checksum, attributes, last, _, _, producer, _, _, records = _HEADER.unpack_from(
            data, at
        )
        end = at + _LENGTH_FROM + length
        if end > len(data):
            return  # cut off by the broker: the rest comes with the next fetch
        if magic != _MAGIC or end < at + _HEADER.size:
            raise _damaged(part, base)
        if calc_crc32c(memoryview(data)[at + _CHECKED_FROM : end]) != checksum:
            raise _damaged(part, base)
        if base + last + 1 > part.offset:
            yield _Batch(base, base + last + 1, attributes, producer, records, at + _HEADER.size, end)
        at = end


def _control_type(data: bytes, batch: _Batch) -> int:
    """The key of a control record is version and type, two int16; everything before it takes one byte each."""
    return int.from_bytes(data[batch.begin + 7 : batch.begin + 9], "big")


def _decompressed(part: Fetched, batch: _Batch, codec: int) -> bytes:
    if codec not in _CODECS:
        raise _damaged(part, batch.base_offset)
    name, available, decompress = _CODECS[codec]
    if not available():
        raise KafkaError(
            f"partition {part.partition}: records are compressed with {name}, which cannot be read here",
            hint="pip install cramjam, or set the topic's compression.type to producer",
        )
    try:
        return bytes(decompress(part.data[batch.begin : batch.end]))
    except Exception as error:  # each codec has errors of its own
        raise _damaged(part, batch.base_offset) from error


def _split(part: Fetched, data: bytes, at: int, end: int, records: int) -> tuple[list[int], list[int]]:
    """Where each of the records in `data[at:end]` begins, behind its length, and ends."""
    begins: list[int] = []
    ends: list[int] = []
    try:
        for _ in range(records):
            length, second = data[at], data[at + 1]
            if length < 128:
                at += 1
            elif second < 128:
                length += (second << 7) - 128
                at += 2
            else:
                length, at = _varint(data, at)
            begins.append(at)
            at += length >> 1  # zigzag: lengths are not negative
            ends.append(at)
    except IndexError:
        at = -1
    if at != end:
        raise _damaged(part, part.offset)
    return begins, ends


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7


def _damaged(part: Fetched, offset: int) -> KafkaError:
    return KafkaError(
        f"partition {part.partition}: the record batch at offset {offset} is damaged or of an old format",
        hint="check the broker's log; streamtrain reads record batches of format 2 (Kafka 0.11 and later)",
    )

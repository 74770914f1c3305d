"""Record batches read together are what aiokafka reads one by one; damage is found."""

from __future__ import annotations

import struct
from typing import Any

import bson
import numpy as np
import pytest
from aiokafka import codec
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtrain.errors import EnvelopeError, KafkaError
from streamtrain.source.envelope import encode
from streamtrain.trainer import record_batches
from streamtrain.trainer.headers import headers_of, read_records
from streamtrain.trainer.record_batches import Fetched, committed
from streamtrain.trainer.records import Records
from streamtrain.types import ChangeEvent, Operation

INSTALLED = [codec.has_gzip, codec.has_snappy, codec.has_lz4, codec.has_zstd]
CODECS = [0, *(number for number, has in enumerate(INSTALLED, 1) if has())]
PRODUCER = 77


def event(number: int, *, size: int = 3, wall_time: int | None = 5, namespace: str = "db.c") -> ChangeEvent:
    key = bson.encode({"_id": number})
    operation = list(Operation)[number % 4]
    document = None if operation is Operation.DELETE else bson.encode({"_id": number, "x": "a" * size})
    return ChangeEvent(b"", operation, namespace, key, document, (100 + number) << 32 | 1, wall_time)


def batch_of(
    records: list[tuple[bytes, bytes, Any]], *, base: int, compression: int = 0, transactional: bool = False
) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=transactional,
        producer_id=PRODUCER if transactional else -1,
        producer_epoch=0 if transactional else -1,
        base_sequence=0 if transactional else -1,
        batch_size=1 << 24,
    )
    for delta, (key, value, headers) in enumerate(records):
        assert builder.append(delta, 1000 + delta * 70, key, value, headers) is not None
    return struct.pack(">q", base) + bytes(builder.build())[8:]  # brokers set the base offset


def marker(*, base: int, commit: bool) -> bytes:
    """A control batch, made of a record batch by setting its flag and checksum anew."""
    raw = bytearray(batch_of([(struct.pack(">hh", 0, int(commit)), b"\0" * 6, [])], base=base, transactional=True))
    raw[22] |= 0x20
    raw[17:21] = struct.pack(">I", calc_crc32c(memoryview(raw)[21:]))
    return bytes(raw)


def read(*fetched: Fetched) -> list[Records]:
    return read_records(committed(fetched))


@given(
    sizes=st.lists(st.lists(st.sampled_from([0, 3, 60, 130, 9000, 70_000]), min_size=1, max_size=5), max_size=5),
    compression=st.sampled_from(CODECS),
    wall_time=st.sampled_from([None, 0, 1_700_000_000_000]),
    begin=st.integers(0, 8),
    cut_off=st.integers(0, 40),
    mixed=st.booleans(),
)
@settings(deadline=None, max_examples=80)
def test_records_are_read_as_aiokafka_reads_them(
    sizes: list[list[int]], compression: int, wall_time: int | None, begin: int, cut_off: int, mixed: bool
) -> None:
    data, offset = b"", 0
    for number, batch in enumerate(sizes):
        namespace = "db.other" if mixed and number % 2 else "db.c"
        records = [
            encode(event(offset + i, size=size, wall_time=wall_time, namespace=namespace), offset + i)
            for i, size in enumerate(batch)
        ]
        data += batch_of(records, base=offset, compression=compression if number % 2 else 0)
        offset += len(batch) + 1
    data = data[: max(0, len(data) - cut_off)]
    expected = []
    plain = MemoryRecords(data)
    next_offset = begin
    while plain.has_next():
        batch = plain.next_batch()
        assert batch is not None
        if batch.next_offset > begin:
            expected += list(batch)
            next_offset = batch.next_offset
    batches = committed([Fetched(4, begin, data, ())])
    assert batches.next_offsets == {4: next_offset}
    parts = read_records(batches)
    assert sum(map(len, parts)) == len(expected)
    for records in parts:
        assert records.partition == 4
        assert records.offsets.tolist() == [record.offset for record in expected]
        assert records.keys == [record.key for record in expected]
        assert records.values == [record.value for record in expected]
        for place, record in enumerate(expected):
            headers = dict(record.headers)
            if not wall_time:
                headers.pop("wt", None)
            assert dict(headers_of(records, place)) == headers


def test_partitions_are_read_together_and_told_apart() -> None:
    first = batch_of([encode(event(i), i) for i in range(3)], base=10)
    second = batch_of([encode(event(i), i) for i in range(2)], base=5, compression=1)
    parts = read(Fetched(1, 10, first, ()), Fetched(2, 0, b"", ()), Fetched(3, 5, second, ()))
    assert [(part.partition, part.offsets.tolist()) for part in parts] == [(1, [10, 11, 12]), (3, [5, 6])]


def test_aborted_records_and_markers_are_passed_over() -> None:
    def transaction(base: int, n: int) -> bytes:
        return batch_of([encode(event(n), n)], base=base, transactional=True)

    data = (
        transaction(0, 0) + marker(base=1, commit=True)
        + transaction(2, 1) + transaction(3, 2) + marker(base=4, commit=False)
        + transaction(5, 1) + marker(base=6, commit=True)
    )  # fmt: skip
    batches = committed([Fetched(0, 0, data, [(PRODUCER, 2)])])
    (part,) = read_records(batches)
    assert part.offsets.tolist() == [0, 5]
    assert part.sequence.tolist() == [0, 1]
    assert batches.next_offsets == {0: 7}


def test_markers_alone_move_the_offset() -> None:
    batches = committed([Fetched(0, 3, marker(base=3, commit=True), ())])
    assert (read_records(batches), batches.next_offsets) == ([], {0: 4})


def test_headers_in_another_order_are_read_too() -> None:
    records = []
    for number in range(4):
        key, value, headers = encode(event(number), number)
        records.append((key, value, headers[::-1] if number == 2 else headers))
    (part,) = read(Fetched(0, 0, batch_of(records, base=0), ()))
    assert part.sequence.tolist() == [0, 1, 2, 3]
    assert part.operations == b"iurd"


def test_a_codec_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = batch_of([encode(event(1), 0)], base=0, compression=1)
    monkeypatch.setitem(record_batches._CODECS, 1, ("gzip", lambda: False, codec.gzip_decode))
    with pytest.raises(KafkaError, match="gzip"):
        read(Fetched(0, 0, data, ()))


def test_a_newer_envelope_says_to_upgrade() -> None:
    key, value, headers = encode(event(1), 0)
    record = (key, value, [("v", b"\x02"), *headers[1:]])
    with pytest.raises(EnvelopeError, match="upgrade"):
        read(Fetched(0, 0, batch_of([record], base=0), ()))


def test_a_record_of_something_else_is_refused() -> None:
    with pytest.raises(EnvelopeError):
        read(Fetched(0, 0, batch_of([(b"k", b"v", [])], base=0), ()))


@given(place=st.integers(0, 400), byte=st.integers(0, 255))
@settings(deadline=None, max_examples=150)
def test_a_damaged_batch_is_refused_or_cut_off_and_never_read_wrongly(place: int, byte: int) -> None:
    good = batch_of([encode(event(i), i) for i in range(4)], base=0)
    bad = bytearray(good)
    bad[place % len(good)] = byte
    try:
        parts = read(Fetched(0, 0, bytes(bad), ()))
    except KafkaError:
        return
    (whole,) = read(Fetched(0, 0, good, ()))
    for part in parts:  # leader epoch and base offset are outside the checksum
        assert part.values == whole.values
        np.testing.assert_array_equal(part.sequence, whole.sequence)

"""The envelopes of many records at once, as columns: the careful reading of one is `source.envelope.decode`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter

import numpy as np
from aiokafka import ConsumerRecord

from streamtrain.source.envelope import VERSION, decode
from streamtrain.trainer.records import Records

# The order in which the publisher writes them; `wt` is absent where the server has no wall times.
_ORDER = ("v", "n", "op", "ns", "dk", "ct", "wt")
_NAME, _VALUE = itemgetter(0), itemgetter(1)
_INT64 = struct.Struct(">q")
_OPERATIONS = frozenset(b"iurd")
_VERSIONS = {bytes([VERSION])}


def read_headers(partition: int, records: Sequence[ConsumerRecord]) -> Records:
    """Raises EnvelopeError for a record that streamtrain has not written, or a newer version of it has."""
    first = tuple(name for name, _ in records[0].headers)
    if first in (_ORDER, _ORDER[:-1]):
        read = _uniform(partition, records, first)
        if read is not None:
            return read
    return _one_by_one(partition, records)


def _uniform(partition: int, records: Sequence[ConsumerRecord], order: tuple[str, ...]) -> Records | None:
    """None unless all records have these headers in this order, of this version."""
    n, width = len(records), len(order)
    flat = list(chain.from_iterable(record.headers for record in records))
    if len(flat) != n * width:
        return None
    values = list(map(_VALUE, flat))
    if list(map(_NAME, flat)) != list(order) * n or set(values[0::width]) != _VERSIONS:
        return None
    operations = b"".join(values[2::width])
    numbers = [values[1::width], values[5::width], *([values[6::width]] if width == len(_ORDER) else [])]
    if len(operations) != n or not _OPERATIONS.issuperset(operations):
        return None
    if any(set(map(len, column)) != {8} for column in numbers):
        return None
    sequence, cluster_times, *wall_times = (np.frombuffer(b"".join(c), ">i8").astype(np.int64) for c in numbers)
    return Records(
        partition=partition,
        sequence=sequence,
        offsets=np.fromiter((record.offset for record in records), np.int64, n),
        operations=operations,
        namespaces=values[3::width],
        keys=[record.key for record in records],
        document_keys=values[4::width],
        cluster_times=cluster_times,
        wall_times_ms=wall_times[0] if wall_times else np.zeros(n, np.int64),
        values=[record.value or b"" for record in records],
    )


def _one_by_one(partition: int, records: Sequence[ConsumerRecord]) -> Records:
    decoded = [decode(record.value, record.headers) for record in records]
    n = len(records)
    return Records(
        partition=partition,
        sequence=np.array([record.n for record in decoded], np.int64),
        offsets=np.fromiter((record.offset for record in records), np.int64, n),
        operations="".join(record.operation.value for record in decoded).encode(),
        namespaces=[record.namespace.encode() for record in decoded],
        keys=[record.key for record in records],
        document_keys=[record.document_key for record in decoded],
        cluster_times=np.array([record.cluster_time for record in decoded], np.uint64).astype(np.int64),
        wall_times_ms=np.array([record.wall_time_ms or 0 for record in decoded], np.int64),
        values=[record.document or b"" for record in decoded],
    )


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

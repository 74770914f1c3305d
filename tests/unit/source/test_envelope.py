import contextlib
import datetime
import re
import uuid
import zlib

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.errors import EnvelopeError
from streamtrain.source import envelope
from streamtrain.types import ChangeEvent, Operation

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(max_size=40),
    st.binary(max_size=40).map(lambda b: Binary(b, 0x80)),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.binary(min_size=16, max_size=16).map(lambda b: Binary.from_uuid(uuid.UUID(bytes=b))),
    st.binary(min_size=16, max_size=16).map(Decimal128.from_bid),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 1, 1)),
    st.sampled_from([MinKey(), MaxKey(), Regex("a.*", "im"), Code("f()"), Code("f()", {"x": 1}), re.compile("x")]),
    st.builds(DBRef, st.just("coll"), st.integers(0, 9)),
)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)


def event(**changes: object) -> ChangeEvent:
    given_ = {
        "token": b"",
        "operation": Operation.INSERT,
        "namespace": "air.flights",
        "document_key": bson.encode({"_id": 1}),
        "document": bson.encode({"_id": 1, "x": 2.5}),
        "cluster_time": 7 << 32 | 1,
        "wall_time_ms": 1_700_000_000_123,
    }
    return ChangeEvent(**{**given_, **changes})  # type: ignore[arg-type]


@given(
    operation=st.sampled_from(Operation),
    namespace=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    identity=values,
    document=st.none() | st.dictionaries(names, values, max_size=4),
    n=st.integers(0, 2**63 - 1),
    cluster_time=st.integers(0, 2**64 - 1),
    wall=st.none() | st.integers(-(2**63), 2**63 - 1),
)
def test_what_is_encoded_is_decoded(operation, namespace, identity, document, n, cluster_time, wall):
    raw = None if document is None else bson.encode(document)
    given_event = event(
        operation=operation,
        namespace=namespace,
        document_key=bson.encode({"_id": identity}),
        document=raw,
        cluster_time=cluster_time,
        wall_time_ms=wall,
    )
    key, value, headers = envelope.encode(given_event, n)
    assert key == given_event.document_key
    expected = envelope.Record(n, operation, namespace, given_event.document_key, raw, cluster_time, wall)
    assert envelope.decode(value, tuple(headers)) == expected
    assert envelope.decode(value, tuple(reversed(headers))) == expected


@given(before=st.dictionaries(names, values, max_size=3), identity=values, after=st.dictionaries(names, values))
def test_the_key_is_the_id_alone_wherever_it_stands_in_the_document_key(before, identity, after):
    before.pop("_id", None)
    shard_key = {**before, "_id": identity, **{k: v for k, v in after.items() if k not in before and k != "_id"}}
    assert envelope.key_of(bson.encode(shard_key)) == bson.encode({"_id": identity})


def test_an_undefined_or_symbol_id_of_an_old_driver_keeps_its_bytes():
    element = b"\x06_id\x00"
    raw = (len(element) + 5).to_bytes(4, "little") + element + b"\x00"
    assert envelope.key_of(raw) == raw
    element = b"\x0e_id\x00\x04\x00\x00\x00abc\x00"
    symbol = (len(element) + 5).to_bytes(4, "little") + element + b"\x00"
    assert envelope.key_of(symbol) == symbol


@pytest.mark.parametrize("raw", [b"", bson.encode({}), bson.encode({"id": 1}), bson.encode({"x": {"_id": 1}})])
def test_a_document_key_without_id_is_refused(raw):
    with pytest.raises(EnvelopeError, match="documentKey"):
        envelope.key_of(raw)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_never_hang_or_crash_the_key(raw):
    with contextlib.suppress(EnvelopeError):
        envelope.key_of(raw)


def test_the_partition_is_crc32_of_the_key_over_the_given_count():
    key = bson.encode({"_id": 1})
    assert envelope.partition_of(key, 24) == zlib.crc32(key) % 24
    # Stored data hangs on it: these may never change.
    assert [envelope.partition_of(bson.encode({"_id": i}), 24) for i in range(6)] == [6, 22, 14, 22, 6, 14]


@given(st.lists(st.integers(0, 10**6), min_size=200, max_size=200, unique=True))
def test_partitions_are_filled_evenly_enough(ids):
    counts = [0] * 4
    for identity in ids:
        counts[envelope.partition_of(bson.encode({"_id": identity}), 4)] += 1
    assert min(counts) > 10


def test_a_delete_and_an_update_without_document_have_an_empty_value_that_is_no_tombstone():
    for operation in (Operation.DELETE, Operation.UPDATE):
        _, value, headers = envelope.encode(event(operation=operation, document=None), 0)
        assert value == b""
        assert envelope.decode(value, headers).document is None


def test_a_newer_version_says_upgrade():
    _, value, headers = envelope.encode(event(), 0)
    with pytest.raises(EnvelopeError, match="upgrade"):
        envelope.decode(value, [("v", b"\x02"), *headers[1:]])


def test_unknown_headers_are_passed_over():
    _, value, headers = envelope.encode(event(), 5)
    assert envelope.decode(value, [*headers, ("traceparent", b"00-ab-cd-01")]).n == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda headers: [],
        lambda headers: headers[1:],
        lambda headers: [h for h in headers if h[0] != "n"],
        lambda headers: [("n", b"\x01") if h[0] == "n" else h for h in headers],
        lambda headers: [("op", b"z") if h[0] == "op" else h for h in headers],
        lambda headers: [("ns", b"\xff\xfe") if h[0] == "ns" else h for h in headers],
        lambda headers: [("v", b"\x00"), *headers[1:]],
        lambda headers: [("v", b""), *headers[1:]],
        lambda headers: [(name, None) for name, _ in headers],
    ],
)
def test_a_record_that_is_not_ours_is_an_error_not_a_crash(change):
    _, value, headers = envelope.encode(event(), 0)
    with pytest.raises(EnvelopeError):
        envelope.decode(value, change(headers))

"""Change events cut from wire bytes: exact slices whatever the order of fields, and what the real server sent."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import CodecOptions, Timestamp
from bson.codec_options import DatetimeConversion
from bson.raw_bson import RawBSONDocument
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtrain.errors import SourceError
from streamtrain.source.elements import elements
from streamtrain.source.events import EventParser, token_time
from streamtrain.types import ChangeEvent, Operation

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
LOSSLESS = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
OPERATIONS = {"insert": Operation.INSERT, "update": Operation.UPDATE, "replace": Operation.REPLACE}
OPERATIONS["delete"] = Operation.DELETE

TIME = Timestamp(1_796_067_646, 97)
TOKEN = "826B0DD13E000000612B022C0100296E5A1004DAEDCE6672DD4319B7B9430A416F2B2E463C5F6964003C616C6C000004"


def event(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "_id": {"_data": TOKEN},
        "operationType": "insert",
        "clusterTime": TIME,
        "wallTime": datetime(2026, 11, 30, 20, 0, 0, 123_000, UTC),
        "fullDocument": {"_id": 7, "b": 2.5},
        "ns": {"db": "air", "coll": "flights.2026"},
        "documentKey": {"_id": 7},
    }
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def parse_one(document: dict[str, Any]) -> ChangeEvent:
    parsed = EventParser().parse(bson.encode(document))
    assert not parsed.others
    (change,) = parsed.changes
    return change


def test_every_field_is_an_exact_slice() -> None:
    assert parse_one(event()) == ChangeEvent(
        token=bson.encode({"_data": TOKEN}),
        operation=Operation.INSERT,
        namespace="air.flights.2026",
        document_key=bson.encode({"_id": 7}),
        document=bson.encode({"_id": 7, "b": 2.5}),
        cluster_time=TIME.time << 32 | TIME.inc,
        wall_time_ms=1_796_068_800_123,
    )


def test_a_server_without_wall_time_works() -> None:
    assert parse_one(event(wallTime=...)).wall_time_ms is None


@pytest.mark.parametrize("absent", [None, ...])
def test_an_update_without_its_document_has_none(absent: Any) -> None:
    change = parse_one(event(operationType="update", fullDocument=absent, updateDescription={"updatedFields": {}}))
    assert (change.operation, change.document) == (Operation.UPDATE, None)


@given(st.permutations(list(event())), st.lists(st.sampled_from(["txnNumber", "lsid", "collectionUUID", "new"])))
def test_neither_order_nor_unknown_fields_matter(order: list[str], unknown: list[str]) -> None:
    fields = event()
    shuffled = {name: fields[name] for name in order}
    for at, name in enumerate(unknown):
        items = list(shuffled.items())
        items.insert(at * 2 % len(items), (name, {"x": [1, "2", None]}))
        shuffled = dict(items)
    assert parse_one(shuffled) == parse_one(fields)


variants = st.fixed_dictionaries(
    {
        "operationType": st.sampled_from(["insert", "insert", "update", "replace", "delete"]),
        "ns": st.sampled_from([{"db": "air", "coll": "a"}, {"db": "air", "coll": "b"}]),
        "documentKey": st.sampled_from([{"_id": 1}, {"_id": "one"}, {"k": 2.0, "_id": {"a": 1}}]),
        "fullDocument": st.sampled_from([..., None, {"_id": 1}, {"_id": 2, "x": "y" * 50}]),
        "wallTime": st.sampled_from([..., datetime(2026, 1, 2, tzinfo=UTC)]),
        "collectionUUID": st.sampled_from([..., bson.Binary(b"0123456789abcdef", 4), bson.Binary(b"short")]),
        "txnNumber": st.sampled_from([..., bson.Int64(3)]),
        "updateDescription": st.sampled_from([..., {"updatedFields": {"x": 1}}]),
        "text": st.sampled_from([..., "a", "longer"]),
    }
)


@given(st.lists(variants, min_size=2, max_size=12), st.randoms())
def test_shapes_learned_from_other_events_change_nothing(rows: list[dict[str, Any]], rng: random.Random) -> None:
    events = []
    for row in rows:
        fields = list(event(**row).items())
        if rng.random() < 0.2:
            rng.shuffle(fields)
        events.append(bson.encode(dict(fields)))
    alone = [change for raw in events for change in EventParser().parse(raw).changes]
    assert EventParser().parse(b"".join(events)).changes == alone


def test_drop_and_invalidate_keep_their_place_among_the_changes() -> None:
    drop = event(operationType="drop", fullDocument=..., documentKey=...)
    invalidate = event(operationType="invalidate", fullDocument=..., documentKey=..., ns=...)
    batch = b"".join(bson.encode(e) for e in (event(), event(operationType="replace"), drop, invalidate))
    parsed = EventParser().parse(batch)
    assert [change.operation for change in parsed.changes] == [Operation.INSERT, Operation.REPLACE]
    assert [(o.operation, o.namespace, o.after) for o in parsed.others] == [
        ("drop", "air.flights.2026", 2),
        ("invalidate", "", 2),
    ]


@pytest.mark.parametrize("field", ["_id", "operationType", "clusterTime", "ns", "documentKey"])
def test_an_event_that_lacks_what_it_must_have_is_an_error(field: str) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        parse_one(event(**{field: ...}))


@given(st.binary(max_size=200))
def test_garbage_is_an_error_and_nothing_else(raw: bytes) -> None:
    try:
        parsed = EventParser().parse(raw)
    except SourceError:
        return
    assert not raw or parsed.changes or parsed.others


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_a_batch_cut_at_any_byte_never_yields_a_wrong_event(seed: int, events: int) -> None:
    rng = random.Random(seed)
    whole = [bson.encode(event(documentKey={"_id": i}, fullDocument={"_id": i, "x": "y" * i})) for i in range(events)]
    batch = b"".join(whole)
    cut = rng.randrange(len(batch))
    expected = EventParser().parse(batch).changes
    try:
        got = EventParser().parse(batch[:cut]).changes
    except SourceError:
        return
    assert got == expected[: len(got)]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text().map(lambda s: s.replace("\0", "")), inner),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.sampled_from(list(OPERATIONS)), values, values), max_size=8))
def test_documents_and_keys_of_any_shape_come_out_byte_for_byte(rows: list[tuple[str, Any, Any]]) -> None:
    raw = []
    for operation, key, value in rows:
        document = {"_id": key, "value": value} if operation != "delete" else ...
        raw.append(event(operationType=operation, documentKey={"_id": key}, fullDocument=document))
    changes = EventParser().parse(b"".join(bson.encode(e) for e in raw)).changes
    assert [(c.operation, c.document_key, c.document) for c in changes] == [
        (
            OPERATIONS[e["operationType"]],
            bson.encode(e["documentKey"]),
            bson.encode(e["fullDocument"]) if "fullDocument" in e else None,
        )
        for e in raw
    ]


def test_the_time_inside_a_token_is_its_cluster_time() -> None:
    assert token_time(bson.encode({"_data": TOKEN})) == TIME.time << 32 | TIME.inc
    assert token_time(bson.encode({"_data": b"4.0 has binary ones"})) is None


def recorded_batches() -> list[tuple[str, bytes, list[dict[str, Any]]]]:
    """(recording, the batch as a stream of documents, the same decoded) of every reply that holds change events."""
    found = []
    for path in sorted(CORPUS.glob("*.bson")):
        for message in bson.decode_all(path.read_bytes(), LOSSLESS):
            cursor = bson.decode(message["body"], LOSSLESS.with_options(document_class=RawBSONDocument)).get("cursor")
            for name in ("firstBatch", "nextBatch"):
                batch = (cursor or {}).get(name) or []
                if message["dir"] == "reply" and batch and "operationType" in batch[0]:
                    raw = b"".join(document.raw for document in batch)
                    found.append((path.stem, raw, bson.decode_all(raw, LOSSLESS)))
    return found


@pytest.mark.skipif(not CORPUS.exists(), reason="the recordings of a real server are not beside the checkout")
def test_every_recorded_event_of_a_real_server_is_cut_exactly() -> None:
    seen = 0
    for recording, raw, decoded in recorded_batches():
        if any(not {"_id", "operationType", "clusterTime", "ns"} <= e.keys() for e in decoded):
            continue  # a pipeline of the recording projected them away
        changes = iter((parsed := EventParser().parse(raw)).changes)
        others = iter(parsed.others)
        for e in decoded:
            if e["operationType"] not in OPERATIONS:
                other = next(others)
                assert (other.operation, other.token) == (e["operationType"], bson.encode(e["_id"])), recording
                continue
            change = next(changes)
            document = e.get("fullDocument")
            assert change.token == bson.encode(e["_id"])
            assert change.operation is OPERATIONS[e["operationType"]]
            assert change.namespace == f"{e['ns']['db']}.{e['ns']['coll']}"
            assert change.document_key == slice_of(raw, e, "documentKey")  # encoding it would move _id to the front
            assert change.document == (None if document is None else slice_of(raw, e, "fullDocument"))
            assert change.cluster_time == e["clusterTime"].time << 32 | e["clusterTime"].inc
            assert token_time(change.token) == change.cluster_time
            seen += 1
        assert next(changes, None) is None
        assert next(others, None) is None
    assert seen > 700


def slice_of(raw: bytes, e: dict[str, Any], field: str) -> bytes:
    """The bytes of a field of the one event in `raw` that has e's token."""
    at = 0
    while True:
        found = {tag[1:].decode(): raw[begin:end] for tag, begin, end in elements(raw, at)}
        if found["_id"] == bson.encode(e["_id"]):
            return found[field]
        at += int.from_bytes(raw[at : at + 4], "little")

"""The pure parts of the MongoDB sandbox: tokens, comparison order, raw BSON, framing."""

from __future__ import annotations

import struct
from typing import Any

import bson
import pytest
from bson import DatetimeMS, Decimal128, Int64, ObjectId
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtrain.clock import FakeClock
from streamtrain.sandbox.mongo import raw, tokens, values, wire
from streamtrain.sandbox.mongo.engine import Engine
from streamtrain.sandbox.mongo.expiry import expire
from streamtrain.sandbox.mongo.expressions import Scope, compile_expression
from streamtrain.sandbox.mongo.failure import CommandError
from streamtrain.sandbox.mongo.updates import apply_operators, difference

NOW = 1_700_000_000_000
SCOPE = Scope(DatetimeMS(NOW), bson.Timestamp(1_700_000_000, 1))
UUID = "AB" * 16

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1).map(Int64),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.integers(-(2**62), 2**62).map(DatetimeMS),
    st.decimals(places=2, min_value=-1000, max_value=1000).map(Decimal128),
)
names = st.text(st.characters(exclude_characters="\x00.$", exclude_categories=["Cs"]), min_size=1, max_size=5)
bson_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
documents = st.dictionaries(names, bson_values, max_size=6)


@given(st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1), st.integers(0, 30_000), st.integers(0, 30_000))
def test_tokens_order_by_time_and_then_by_place_in_the_transaction(one: int, two: int, i: int, j: int) -> None:
    left, right = tokens.event(one, i, UUID, b""), tokens.event(two, j, UUID, b"")
    assert (left < right) == ((one, i) < (two, j))
    assert tokens.high_water(one) < left


@given(st.integers(1, 2**63 - 1), st.integers(0, 30_000), st.booleans(), bson_values)
def test_a_token_says_where_it_is(ts: int, index: int, invalidate: bool, key: Any) -> None:
    element = raw.encode({"_id": key})[4:-1]
    token = tokens.parse({"_data": tokens.event(ts, index, UUID, element, invalidate=invalidate)})
    assert (token.ts, token.index, token.invalidate, token.high_water) == (ts, index, invalidate, False)
    mark = tokens.parse({"_data": tokens.high_water(ts)})
    assert (mark.ts, mark.high_water) == (ts, True)


@given(st.text("0123456789abcdefABCDEFxyz", max_size=40))
def test_a_broken_token_is_refused_with_a_code(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        tokens.parse({"_data": text})
    assert caught.value.code in (9, 15, 40649)


@settings(max_examples=40, deadline=None)
@given(documents)
def test_elements_put_together_are_the_document(document: dict[str, Any]) -> None:
    data = raw.encode(document)
    assert raw.document(*(data[e.begin : e.end] for e in raw.elements(data))) == data
    assert [e.name.decode() for e in raw.elements(data)] == list(document)


@settings(max_examples=40, deadline=None)
@given(documents, documents)
def test_setting_fields_in_raw_bytes_is_what_it_is_in_a_dict(document: dict[str, Any], changes: dict[str, Any]) -> None:
    result = raw.with_fields(raw.encode(document), changes)
    assert result == raw.encode({**document, **changes})


@settings(max_examples=100, deadline=None)
@given(bson_values, bson_values)
def test_equal_keys_mean_equal_values(left: Any, right: Any) -> None:
    assert values.equal(left, left)
    assert (values.sort_key(left) < values.sort_key(right)) + (
        values.sort_key(right) < values.sort_key(left)
    ) + values.equal(left, right) == 1


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        (None, -1), (float("nan"), float("-inf")), (1, 1.5), (Int64(2), Decimal128("2.5")), (9, "a"), ("z", {}),
        ({"a": 9}, {"b": 1}), ({}, []), ([9], b""), (b"", ObjectId()), (ObjectId(), False), (True, DatetimeMS(0)),
        (DatetimeMS(0), bson.Timestamp(0, 1)), (bson.Timestamp(9, 9), bson.Regex("a")), (bson.MinKey(), None),
        (bson.Regex("a"), bson.MaxKey()),
    ],
)  # fmt: skip
def test_types_compare_in_the_order_of_bson(lower: Any, higher: Any) -> None:
    assert values.sort_key(lower) < values.sort_key(higher)


@settings(max_examples=40, deadline=None)
@given(documents, documents)
def test_a_difference_applied_to_the_old_gives_the_new(before: dict[str, Any], after: dict[str, Any]) -> None:
    change = difference(before, after)
    rebuilt = raw.decode(raw.encode(before))
    for cut in change.truncated:
        holder = rebuilt
        *above, last = cut["field"].split(".")
        for part in above:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        holder[int(last) if isinstance(holder, list) else last] = (
            holder[int(last)] if isinstance(holder, list) else holder[last]
        )[: cut["newSize"]]
    spec: dict[str, Any] = {}
    if change.updated:
        spec["$set"] = change.updated
    if change.removed:
        spec["$unset"] = dict.fromkeys(change.removed, "")
    apply_operators(rebuilt, spec, SCOPE, inserting=False)
    assert values.sort_key(_by_name(rebuilt)) == values.sort_key(_by_name(after))


def _by_name(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _by_name(value[name]) for name in sorted(value)}
    return [_by_name(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ({"$add": ["$$NOW", 5000]}, DatetimeMS(NOW + 5000)),
        ({"$subtract": ["$$NOW", DatetimeMS(NOW - 7)]}, Int64(7)),
        ({"$add": [{"$ifNull": ["$none", 0]}, 1]}, 1),
        ({"$add": ["$l", 1]}, Int64(6)),
        ({"$cond": [{"$lt": ["$a", 2]}, "less", "$a"]}, "less"),
        ({"$cond": {"if": False, "then": 1, "else": {"$literal": "$a"}}}, "$a"),
        ({"$and": [True, {"$not": ["$none"]}, {"$gte": ["$s.x", 3]}]}, True),
        ({"$or": [0, None, "$none"]}, False),
        ({"$max": ["$a", 7, "$none"]}, 7),
        ({"$min": "$list"}, 1),
        ({"$concat": ["a", "b"]}, "ab"),
        ({"$concat": ["a", "$none"]}, None),
        ({"$eq": ["$none", None]}, False),
        ({"$gt": ["$a", "$none"]}, True),
        ({"$let": {"vars": {"x": 2}, "in": {"$multiply": ["$$x", "$a"]}}}, 2),
        ({"$map": {"input": "$list", "as": "n", "in": {"$add": ["$$n", 1]}}}, [3, 2]),
        ({"$filter": {"input": "$list", "cond": {"$gt": ["$$this", 1]}}}, [2]),
        ({"x": "$a", "y": "$none"}, {"x": 1}),
        (["$a", "$none"], [1, None]),
    ],
)
def test_expressions_give_what_mongodb_gives(expression: Any, result: Any) -> None:
    document = {"a": 1, "l": Int64(5), "s": {"x": 3}, "list": [2, 1]}
    found = compile_expression(expression, SCOPE)(document)
    assert found == result
    assert type(found) is type(result)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_framing(data: bytes) -> None:
    message = struct.pack("<iiii", 16 + len(data), 1, 0, wire.OP_MSG) + data
    try:
        wire.parse(message)
    except wire.ProtocolError:
        return


def test_the_ttl_monitor_deletes_what_is_over_and_streams_see_it() -> None:
    clock = FakeClock()
    engine = Engine(time=clock.time, oplog_bytes=10**6)
    collection = engine.create("air", "flights")
    engine.create_index(collection, {"v": 2, "key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 60})
    for key, at in (
        (1, DatetimeMS(int(clock.time() * 1000))),
        (2, DatetimeMS(int(clock.time() * 1000) + 30_000)),
        (3, "never"),
    ):
        element = raw.element("_id", key)
        engine.insert(collection, key, element, raw.document(element, raw.element("at", at)))
    assert expire(engine) == 0
    clock.advance(61)
    assert expire(engine) == 1
    assert engine.oplog.entries[-1].operation == "delete"
    clock.advance(1000)
    assert expire(engine) == 1
    assert list(collection.documents) == [3]


def test_cluster_times_ascend_even_when_the_clock_goes_back() -> None:
    clock = FakeClock()
    engine = Engine(time=clock.time, oplog_bytes=10**6)
    seen = []
    for step in (0.0, 0.5, 1.0, -5.0, 0.0, 100.0):
        clock.advance(step)
        engine.note()
        seen.append(engine.oplog.last)
    assert seen == sorted(set(seen))

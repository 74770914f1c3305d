"""Filters refuse what is no query, where the mistake is; what they answer is compared with servers' answers in
`contract/trainer/test_filters.py`."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtrain.errors import FilterError
from streamtrain.filters import Filter
from streamtrain.sandbox.mongo.expressions import Scope
from streamtrain.sandbox.mongo.matcher import compile_filter
from streamtrain.trainer.filtering import NO, UNREADABLE, YES, Filtering

CODEC: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)

REFUSED = [
    ({"a": {"$gte": 1, "$lte": 2, "$exist": True}}, ("a", "$exist"), "did you mean '$exists'?"),
    ({"a": {"$qt": 1}}, ("a", "$qt"), "did you mean"),
    ({"a": {"$where": "x"}}, ("a", "$where"), "unknown operator '$where'"),
    ({"$where": "this.a"}, ("$where",), "where a field is expected"),
    ({"$expr": {"$gt": ["$a", 1]}}, ("$expr",), "unknown operator '$expr'"),
    ({"$ors": [{"a": 1}]}, ("$ors",), "did you mean '$or'?"),
    ({"$or": []}, ("$or",), "at least one query"),
    ({"$or": {"a": 1}}, ("$or",), "a list"),
    ({"$and": [{"a": 1}, 5]}, ("$and", 1), "must be a mapping"),
    ({"$and": [{"a": {"$gtt": 5}}]}, ("$and", 0, "a", "$gtt"), "did you mean '$gt'?"),
    ({"a": {"$gt": 1, "b": 2}}, ("a", "b"), "stands beside operators"),
    ({"a..b": 1}, ("a..b",), "no path"),
    ({"": 1}, ("",), "no path"),
    ({"a": {"$in": 5}}, ("a", "$in"), "a list"),
    ({"a": {"$exists": "yes"}}, ("a", "$exists"), "true or false"),
    ({"a": {"$type": "flaot"}}, ("a", "$type"), "no BSON type"),
    ({"a": {"$type": "strin"}}, ("a", "$type"), "did you mean 'string'?"),
    ({"a": {"$type": 99}}, ("a", "$type"), "no BSON type"),
    ({"a": {"$size": -1}}, ("a", "$size"), "a number of elements"),
    ({"a": {"$size": 1.5}}, ("a", "$size"), "a number of elements"),
    ({"a": {"$mod": [0, 1]}}, ("a", "$mod"), "not 0"),
    ({"a": {"$mod": [float("nan"), 1]}}, ("a", "$mod"), "a divisor"),
    ({"a": {"$mod": [3]}}, ("a", "$mod"), "a remainder"),
    ({"a": {"$regex": "("}}, ("a", "$regex"), "no regular expression"),
    ({"a": {"$regex": "a", "$options": "g"}}, ("a", "$options"), "i, m, s and x"),
    ({"a": {"$options": "i"}}, ("a", "$options"), "needs a $regex"),
    ({"a": {"$regex": 5}}, ("a", "$regex"), "needs a pattern"),
    ({"a": {"$not": 5}}, ("a", "$not"), "there is $ne"),
    ({"a": {"$all": 5}}, ("a", "$all"), "a list"),
    ({"a": {"$all": [{"$gt": 5}]}}, ("a", "$all", 0), "$elemMatch"),
    ({"a": {"$elemMatch": 5}}, ("a", "$elemMatch"), "a query"),
    ({"a": {"$eq": {"$oid": "zz"}}}, ("a", "$eq"), "$oid"),
    ({"a": {"$gt": {"b": {"$c": 1}}}}, ("a", "$gt", "b", "$c"), "inside a value"),
    ({"a": {"$lt": {"$regularExpression": {"pattern": "a", "options": ""}}}}, ("a", "$lt"), "has no order"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "place", "message"), REFUSED, ids=[str(query) for query, _, _ in REFUSED])
def test_what_is_no_query_is_refused_at_its_place(query: dict[str, Any], place: tuple[Any, ...], message: str) -> None:
    with pytest.raises(FilterError) as caught:
        Filter(query)
    assert caught.value.place == place
    assert message in caught.value.problem


def test_only_the_fields_that_a_filter_names_are_looked_at() -> None:
    query = {"a.b": 1, "$or": [{"c": 1}, {"$nor": [{"d.0.e": 2}]}], "f": {"$elemMatch": {"g": 1}}}
    assert Filter(query).fields == ("a", "c", "d", "f")


def test_a_malformed_field_makes_the_document_unreadable_only_if_the_filter_names_it() -> None:
    sound = bson.encode({"a": {"b": 1}, "z": {"b": 1}})
    inside = bson.encode({"b": 1})
    broken = inside[:4] + b"\x99" + inside[5:]
    at_a = sound.replace(inside, broken, 1)
    at_z = sound[: sound.rindex(inside)] + broken + sound[sound.rindex(inside) + len(inside) :]
    text = bson.encode({"a": "?", "z": 1}).replace(b"?", b"\xff")
    documents = [sound, at_a, at_z, b"\x05\x00\x00\x00\x01", b"", text]
    answers = Filtering({"a": {"$exists": True}}).answers(documents)
    assert answers.tolist() == [YES, UNREADABLE, YES, UNREADABLE, UNREADABLE, YES]
    assert Filtering({"a": {"$type": "string", "$ne": "?"}}).answers([text, sound]).tolist() == [YES, NO]


def test_of_duplicate_names_the_first_counts_as_in_mongodb() -> None:
    one, two = bson.encode({"a": 1}), bson.encode({"a": 2})
    both = (len(one) + len(two) - 5).to_bytes(4, "little") + one[4:-1] + two[4:]
    assert Filtering({"a": 1}).answers([both]).tolist() == [YES]


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.sampled_from([0.5, 1.0, float("nan"), "", "a", "ab", "b"]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["x", "y", "0"]), inner)),
    max_leaves=6,
)
PATHS = st.sampled_from(["a", "b", "a.x", "a.0", "a.x.y", "b.1.x", "a.0.0"])


def operators(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        *(st.builds(lambda value, name=name: {name: value}, VALUES) for name in ("$eq", "$ne")),
        *(st.builds(lambda value, name=name: {name: value}, VALUES) for name in ("$gt", "$gte", "$lt", "$lte")),
        *(st.builds(lambda some, name=name: {name: some}, st.lists(VALUES, max_size=3)) for name in ("$in", "$nin")),
        st.builds(lambda flag: {"$exists": flag}, st.booleans()),
        st.builds(lambda kind: {"$type": kind}, st.sampled_from(["number", "string", "array", "object", "null"])),
        st.builds(lambda size: {"$size": size}, st.integers(0, 3)),
        st.builds(lambda some: {"$all": some}, st.lists(LEAVES, max_size=2)),
        st.builds(lambda pattern: {"$regex": pattern}, st.sampled_from(["^a", "b$", "."])),
        st.builds(lambda rest: {"$mod": [2, rest]}, st.integers(-1, 1)),
        st.builds(lambda condition: {"$not": condition}, inner),
        st.builds(lambda condition: {"$elemMatch": condition}, inner),
        st.builds(lambda path, value: {"$elemMatch": {path: value}}, st.sampled_from(["x", "y"]), LEAVES),
    )


CONDITIONS = st.one_of(LEAVES, st.lists(LEAVES, max_size=2), operators(operators(st.just({"$gt": 0}))))
QUERIES = st.recursive(
    st.dictionaries(PATHS, CONDITIONS, min_size=1, max_size=2),
    lambda inner: st.builds(
        lambda name, parts: {name: parts},
        st.sampled_from(["$and", "$or", "$nor"]),
        st.lists(inner, min_size=1, max_size=2),
    ),
    max_leaves=3,
)


@given(QUERIES, st.lists(st.dictionaries(st.sampled_from(["a", "b"]), VALUES), min_size=1, max_size=8))
@settings(deadline=None, max_examples=300)
def test_filters_answer_as_the_embedded_server_s_own_matcher(
    query: dict[str, Any], documents: list[dict[str, Any]]
) -> None:
    raw = [bson.encode(document) for document in documents]
    peer = compile_filter(query, Scope(now=None, cluster_time=None))  # type: ignore[arg-type]
    expected = [peer(bson.decode(document, CODEC)) for document in raw]
    whole = Filter(query)
    assert [whole.matches(bson.decode(document, CODEC)) for document in raw] == expected
    assert (Filtering(query).answers(raw) == YES).tolist() == expected

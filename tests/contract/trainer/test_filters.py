"""A job's filter answers as the server's own queries do: the embedded one, and MongoDB where a container engine is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import bson
import pytest
from bson import DatetimeMS, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.binary import Binary
from pymongo import MongoClient
from pymongo.synchronous.collection import Collection

from streamtrain.sandbox.mongo_server import ThreadedMongo
from streamtrain.trainer.filtering import YES, Filtering
from tests.real_mongo import RealMongo

OID = ObjectId("0123456789abcdef01234567")

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 5, Int64(5), 5.0, 5.5, -7, Int64(2**40), 1e300, float("nan"), float("inf"), -0.0,
    Decimal128("5"), Decimal128("5.50"), Decimal128("NaN"), Decimal128("1E-20"), Decimal128("0.1"), 0.1,
    "", "a", "A", "abc", "abcd", "ä", "grün", "line\nabc", "5", DatetimeMS(0), DatetimeMS(1_700_000_000_000),
    DatetimeMS(-(2**60)), Timestamp(5, 1), OID, Binary(b"ab"), Binary(b"ab", 128), Binary(b"abc"), Regex("^a", "i"),
    MinKey(), MaxKey(), {}, {"b": 5}, {"b": None}, {"b": "abc"}, {"b": [5, 6]}, {"b": {"c": 5}}, {"c": 1},
    {"b": 5, "c": 1}, {"c": 1, "b": 5}, [], [5], [5, 6], [6, 5], [1, [5]], [[5]], [[5, 6], 7], [None], ["abc", "x"],
    [{"b": 5}], [{"b": 5}, {"b": 7}], [{"b": 5, "c": 1}, {"b": 6, "c": 2}], [{"c": 1}], [{"b": None}], [{"b": [5, 6]}],
    [{"b": 5}, 3], [3, 4], [[{"b": 5}]], [{"b": {"c": 5}}], [True], [float("nan")], [{"1": 4}, [2, 4]], [5, {"1": 4}],
    [[], 1], [[1, 2, 3], [4]],
]  # fmt: skip

QUERIES: list[dict[str, Any]] = [
    {}, {"a": 5}, {"a": {"$eq": 5}}, {"a": {"$ne": 5}}, {"a": 5.5}, {"a": 0}, {"a": "abc"}, {"a": {"$ne": "abc"}},
    {"a": True}, {"a": {"$ne": True}}, {"a": None}, {"a": {"$ne": None}}, {"a": float("nan")}, {"a": []}, {"a": [5]},
    {"a": [5, 6]}, {"a": {}}, {"a": {"b": 5}}, {"a": {"b": 5, "c": 1}}, {"a": {"$ne": {"b": 5}}}, {"a": [[5]]},
    {"a": {"$oid": str(OID)}}, {"a": {"$date": "1970-01-01T00:00:00Z"}}, {"a": {"$numberDecimal": "5.5"}},
    {"a": {"$numberDecimal": "0.1"}}, {"a": {"$timestamp": {"t": 5, "i": 1}}}, {"a": {"$minKey": 1}},
    {"a": {"$binary": {"base64": "YWI=", "subType": "00"}}},
    {"a": {"$gt": 5}}, {"a": {"$gte": 5}}, {"a": {"$lt": 5}}, {"a": {"$lte": 5}}, {"a": {"$gt": 1, "$lt": 6}},
    {"a": {"$gt": "abc"}}, {"a": {"$lte": "abc"}}, {"a": {"$gt": False}}, {"a": {"$gte": None}}, {"a": {"$gt": None}},
    {"a": {"$lte": None}}, {"a": {"$gte": float("nan")}}, {"a": {"$lt": float("nan")}}, {"a": {"$gt": [5]}},
    {"a": {"$lt": {"b": 6}}}, {"a": {"$gt": {"$date": "1970-01-01T00:00:00Z"}}}, {"a": {"$lt": {"$oid": "f" * 24}}},
    {"a": {"$gt": {"$numberDecimal": "5.4"}}}, {"a": {"$lt": float("inf")}}, {"a": {"$gt": float("-inf")}},
    {"a": {"$in": [5, "abc", None]}}, {"a": {"$nin": [5, "abc", None]}}, {"a": {"$in": []}}, {"a": {"$nin": []}},
    {"a": {"$in": [[5], True]}}, {"a": {"$in": [{"$regularExpression": {"pattern": "^ab", "options": ""}}]}},
    {"a": {"$exists": True}}, {"a": {"$exists": False}}, {"a": {"$type": "number"}}, {"a": {"$type": "int"}},
    {"a": {"$type": "long"}}, {"a": {"$type": "double"}}, {"a": {"$type": "decimal"}}, {"a": {"$type": "array"}},
    {"a": {"$type": "object"}}, {"a": {"$type": ["string", "bool"]}}, {"a": {"$type": 10}}, {"a": {"$type": "date"}},
    {"a": {"$type": "regex"}}, {"a": {"$type": "binData"}}, {"a": {"$type": "minKey"}}, {"a": {"$type": "objectId"}},
    {"a": {"$not": {"$gt": 5}}}, {"a": {"$not": {"$type": "number"}}}, {"a": {"$not": {"$regex": "^a"}}},
    {"a": {"$not": {"$eq": None}}}, {"a": {"$not": {"$exists": True}}},
    {"a": {"$regex": "^a"}}, {"a": {"$regex": "^A", "$options": "i"}}, {"a": {"$regex": "^abc$", "$options": "m"}},
    {"a": {"$regex": "e.abc", "$options": "s"}}, {"a": {"$regex": "a b c # x", "$options": "x"}},
    {"a": {"$regularExpression": {"pattern": "bc", "options": "i"}}},
    {"a": {"$size": 0}}, {"a": {"$size": 2}}, {"a": {"$not": {"$size": 2}}}, {"a": {"$mod": [5, 0]}},
    {"a": {"$mod": [4, 1]}}, {"a": {"$mod": [4, -3]}}, {"a": {"$mod": [-4, 1]}},
    {"a": {"$all": [5, 6]}}, {"a": {"$all": []}}, {"a": {"$all": [[5]]}}, {"a": {"$all": ["abc"]}},
    {"a": {"$all": [{"$elemMatch": {"b": 5}}, {"$elemMatch": {"b": 7}}]}},
    {"a": {"$elemMatch": {"b": 5}}}, {"a": {"$elemMatch": {"b": 5, "c": 2}}},
    {"a": {"$elemMatch": {"$gt": 4, "$lt": 6}}},
    {"a": {"$elemMatch": {"b": {"$gt": 5}}}}, {"a": {"$elemMatch": {"$eq": 5}}}, {"a": {"$elemMatch": {"$size": 2}}},
    {"a": {"$elemMatch": {"$elemMatch": {"$eq": 5}}}}, {"a": {"$elemMatch": {"$or": [{"b": 6}, {"b": 7}]}}},
    {"a": {"$elemMatch": {}}}, {"a": {"$elemMatch": {"0": 5}}}, {"a": {"$elemMatch": {"$not": {"$gte": 5}}}},
    {"a.b": 5}, {"a.b": {"$ne": 5}}, {"a.b": None}, {"a.b": {"$ne": None}}, {"a.b": {"$exists": True}},
    {"a.b": {"$exists": False}}, {"a.b": {"$gt": 5}}, {"a.b": {"$size": 2}}, {"a.b": {"$type": "array"}},
    {"a.b": [5, 6]}, {"a.b.c": 5}, {"a.b.c": {"$exists": False}}, {"a.b": {"$in": [5, None]}}, {"a.b": {"$nin": [5]}},
    {"a.b": {"$elemMatch": {"$eq": 6}}}, {"a.b": {"$not": {"$gt": 5}}},
    {"a.0": 5}, {"a.1": 6}, {"a.0": [5]}, {"a.0.b": 5}, {"a.0": {"$exists": True}}, {"a.1": 4}, {"a.0.0": 5},
    {"a.0": None}, {"a.1": None}, {"a.0": {"$size": 3}}, {"a.0.1": 2}, {"a.1.1": 4}, {"a.0.b": {"$exists": False}},
    {"a.0": {"$gt": 3}}, {"a.00": 5}, {"a.0": {"$in": [1, 5]}},
    {"$and": [{"a": {"$gt": 1}}, {"a": {"$lt": 6}}]}, {"$or": [{"a": 5}, {"a": "abc"}]},
    {"$nor": [{"a": 5}, {"a": None}]},
    {"$or": [{"a.b": 5}, {"$and": [{"a": {"$type": "string"}}, {"a": {"$ne": "a"}}]}]},
    {"a": {"$ne": None}, "z": {"$exists": False}}, {"missing": None}, {"missing": {"$ne": 1}}, {"missing.x": None},
    {"_id": {"$mod": [2, 1]}},
]  # fmt: skip


@pytest.fixture
def collection(each_mongo: ThreadedMongo | RealMongo) -> Iterator[Collection[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](each_mongo.uri) as client:
        found = client.get_database(f"filters{ObjectId()}")["c"]
        yield found
        client.drop_database(found.database.name)


def test_a_filter_answers_as_the_server_does(collection: Collection[dict[str, Any]]) -> None:
    documents: list[dict[str, Any]] = [{"_id": number, "a": value} for number, value in enumerate(VALUES)]
    documents.append({"_id": len(documents)})
    collection.insert_many(documents)
    raw = [bson.encode(document) for document in documents]
    different = {}
    for query in QUERIES:
        expected = {document["_id"] for document in collection.find(_as_bson(query), {"_id": 1})}
        ours = {number for number, answer in enumerate(Filtering(query).answers(raw)) if answer == YES}
        if ours != expected:
            different[str(query)] = [documents[number].get("a", "missing") for number in sorted(ours ^ expected)]
    assert different == {}


def _as_bson(value: Any) -> Any:
    """A query of the settings as the driver takes it."""
    if isinstance(value, dict):
        literal = len(value) == 1 and next(iter(value)) not in ("$regex", "$type")
        read = json_util.object_hook(value) if literal else value
        return read if read is not value else {name: _as_bson(item) for name, item in value.items()}
    return [_as_bson(item) for item in value] if isinstance(value, list) else value

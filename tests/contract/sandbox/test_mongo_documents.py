"""CRUD through the real driver: results, errors and types as MongoDB gives them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import bson
import pytest
from bson import DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.binary import Binary
from bson.code import Code
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, InsertOne, MongoClient, ReplaceOne, ReturnDocument, UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, WriteError
from pymongo.synchronous.collection import Collection

from streamtrain.sandbox.mongo_server import ThreadedMongo
from tests.real_mongo import RealMongo

EVERY_TYPE: dict[str, Any] = {
    "double": 1.5,
    "negative_zero": -0.0,
    "nan": float("nan"),
    "inf": float("inf"),
    "string": "grün 😀 \x00 end",
    "document": {"b": 1, "a": {"$dollar": 1}},
    "array": [1, [2, {"x": []}], {}],
    "binary": Binary(b"\x00\x01", 0),
    "vector": Binary(b"\x27\x00\x00\x00\x80\x3f", 9),
    "user": Binary(b"u", 128),
    "uuid": Binary(b"i" * 16, 4),
    "oid": ObjectId("0123456789abcdef01234567"),
    "true": True,
    "date": datetime.datetime(2013, 1, 1, 5, 15),
    "null": None,
    "regex": Regex("^a.*b$", "im"),
    "ref": DBRef("c", 1),
    "code": Code("f()"),
    "scoped": Code("f()", {"x": 1}),
    "int32": 2**31 - 1,
    "int64": Int64(5),
    "large": 2**63 - 1,
    "timestamp": Timestamp(4, 2),
    "decimal": Decimal128("1.10"),
    "decimal_nan": Decimal128("NaN"),
    "min": MinKey(),
    "max": MaxKey(),
}
OUT_OF_RANGE = b"\x09far\x00" + (253402300800000 * 10).to_bytes(8, "little")
UNDEFINED, SYMBOL = b"\x06undefined\x00", b"\x0esymbol\x00\x02\x00\x00\x00s\x00"


@pytest.fixture
def client(each_mongo: ThreadedMongo | RealMongo) -> Iterator[MongoClient[dict[str, Any]]]:
    with MongoClient(each_mongo.uri) as client:
        yield client


@pytest.fixture
def collection(client: MongoClient[dict[str, Any]]) -> Collection[dict[str, Any]]:
    return client.air.flights


def raw_of(collection: Collection[Any], key: Any) -> bytes:
    options: bson.CodecOptions[RawBSONDocument] = bson.CodecOptions(document_class=RawBSONDocument)
    document = collection.with_options(codec_options=options).find_one({"_id": key})
    assert document is not None
    return document.raw


def test_driver_sees_a_replica_set_primary_of_mongodb_7(client: MongoClient[dict[str, Any]]) -> None:
    hello = client.admin.command("hello")
    assert hello["isWritablePrimary"]
    assert hello["setName"] == "rs0"
    assert hello["maxWireVersion"] == 21
    assert client.server_info()["version"].startswith("7.0.")
    assert client.admin.command("replSetGetStatus")["myState"] == 1


def test_stored_documents_keep_every_byte(collection: Collection[Any]) -> None:
    document = bson.encode({"_id": 1, **EVERY_TYPE})
    document = document[:-1] + OUT_OF_RANGE + UNDEFINED + SYMBOL + b"\x00"
    document = len(document).to_bytes(4, "little") + document[4:]
    collection.insert_one(RawBSONDocument(document))
    assert raw_of(collection, 1) == document


def test_an_update_leaves_the_bytes_of_other_fields_alone(collection: Collection[Any]) -> None:
    body = bson.encode({"_id": 1, "n": 1, **EVERY_TYPE})
    collection.insert_one(RawBSONDocument(body))
    collection.update_one({"_id": 1}, {"$set": {"n": 2, "added": "x"}})
    assert raw_of(collection, 1) == bson.encode({"_id": 1, "n": 2, **EVERY_TYPE, "added": "x"})


def test_id_comes_first_whatever_the_document_had(collection: Collection[Any]) -> None:
    raw = b"\x10a\x00\x01\x00\x00\x00\x10_id\x00\x07\x00\x00\x00"
    collection.insert_one(RawBSONDocument((len(raw) + 5).to_bytes(4, "little") + raw + b"\x00"))
    assert list(collection.find_one({"_id": 7})) == ["_id", "a"]  # type: ignore[arg-type]


def test_equal_numbers_of_different_types_are_one_id(collection: Collection[dict[str, Any]]) -> None:
    collection.insert_one({"_id": 1})
    for same in (Int64(1), 1.0, Decimal128("1")):
        with pytest.raises(DuplicateKeyError):
            collection.insert_one({"_id": same})
    collection.insert_one({"_id": True})
    assert collection.count_documents({}) == 2


def test_duplicate_key_names_index_and_value(collection: Collection[dict[str, Any]]) -> None:
    collection.create_index([("a", 1), ("b", -1)], unique=True)
    collection.insert_one({"_id": 1, "a": 1, "b": 2})
    with pytest.raises(DuplicateKeyError) as caught:
        collection.insert_one({"_id": 2, "a": 1, "b": 2})
    assert caught.value.details is not None
    assert caught.value.details["keyPattern"] == {"a": 1, "b": -1}
    assert caught.value.details["keyValue"] == {"a": 1, "b": 2}
    collection.insert_one({"_id": 3, "a": 1, "b": 3})
    with pytest.raises(DuplicateKeyError):
        collection.update_one({"_id": 3}, {"$set": {"b": 2}})


def test_ordered_bulk_stops_at_the_first_error_and_unordered_goes_on(collection: Collection[dict[str, Any]]) -> None:
    collection.insert_one({"_id": 1})
    with pytest.raises(BulkWriteError) as caught:
        collection.insert_many([{"_id": 2}, {"_id": 1}, {"_id": 3}], ordered=True)
    assert caught.value.details["nInserted"] == 1
    with pytest.raises(BulkWriteError) as caught:
        collection.insert_many([{"_id": 4}, {"_id": 1}, {"_id": 5}], ordered=False)
    assert caught.value.details["nInserted"] == 2
    assert sorted(d["_id"] for d in collection.find()) == [1, 2, 4, 5]


def test_bulk_write_counts_every_kind(collection: Collection[dict[str, Any]]) -> None:
    result = collection.bulk_write(
        [
            InsertOne({"_id": 1, "n": 0}),
            UpdateOne({"_id": 1}, {"$inc": {"n": 5}}),
            UpdateOne({"_id": 2}, {"$set": {"n": 1}}, upsert=True),
            ReplaceOne({"_id": 2}, {"r": 1}),
            UpdateMany({}, {"$set": {"all": True}}),
            DeleteOne({"_id": 1}),
        ]
    )
    counts = result.inserted_count, result.matched_count, result.modified_count, result.deleted_count
    assert counts == (1, 4, 4, 1)
    assert result.upserted_ids == {2: 2}
    assert list(collection.find()) == [{"_id": 2, "r": 1, "all": True}]


def test_update_operators_change_and_type_as_mongodb_does(collection: Collection[dict[str, Any]]) -> None:
    collection.insert_one(
        {"_id": 1, "i": 1, "l": Int64(1), "d": 1.5, "m": Decimal128("1.1"), "a": [3, 1], "s": {"x": 1}}
    )
    collection.update_one(
        {"_id": 1},
        {
            "$inc": {"i": 1, "l": 1, "d": 1, "m": 1, "new": 4},
            "$push": {"a": {"$each": [2], "$sort": 1}},
            "$set": {"s.y.z": "deep"},
            "$unset": {"s.x": ""},
            "$min": {"low": 3},
        },
    )
    document = collection.find_one({"_id": 1})
    assert document is not None
    assert document["a"] == [1, 2, 3]
    assert document["s"] == {"y": {"z": "deep"}}
    assert (document["i"], document["l"], document["d"], document["m"]) == (2, 2, 2.5, Decimal128("2.1"))
    assert isinstance(document["l"], Int64)
    assert not isinstance(document["i"], Int64)
    collection.update_one({"_id": 1}, {"$set": {"i": 2**31 - 1}})
    collection.update_one({"_id": 1}, {"$inc": {"i": 1}})
    assert isinstance(collection.find_one({"_id": 1})["i"], Int64)  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"$set": {"_id": 2}}, 66),
        ({"$inc": {"s": 1}}, 14),
        ({"$push": {"s": 1}}, 2),
        ({"$set": {"s.deep": 1}}, 28),
        ({"$set": {"a": 1, "a.b": 2}}, 40),
        ({"$nonsense": {"a": 1}}, 9),
    ],
)
def test_refused_updates_have_their_codes(collection: Collection[dict[str, Any]], change: Any, code: int) -> None:
    collection.insert_one({"_id": 1, "s": "text"})
    with pytest.raises(WriteError) as caught:
        collection.update_one({"_id": 1}, change)
    assert caught.value.code == code
    assert collection.find_one({"_id": 1}) == {"_id": 1, "s": "text"}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"n": 2}, [2]),
        ({"n": {"$gt": 1, "$lte": 3}}, [2, 3]),
        ({"n": {"$ne": 1}}, [2, 3, 4, 5]),
        ({"n": None}, [4, 5]),
        ({"n": {"$exists": False}}, [4]),
        ({"n": {"$in": [1, None]}}, [1, 4, 5]),
        ({"tags": "a"}, [1, 2]),
        ({"tags": ["a", "b"]}, [1]),
        ({"tags": {"$all": ["a", "b"]}}, [1]),
        ({"tags": {"$size": 1}}, [2]),
        ({"sub.x": {"$gte": 5}}, [3, 4]),
        ({"sub.0.x": 5}, [4]),
        ({"sub": {"$elemMatch": {"x": 5, "y": 1}}}, [4]),
        ({"$or": [{"n": 1}, {"_id": 5}]}, [1, 5]),
        ({"$nor": [{"n": {"$exists": True}}]}, [4]),
        ({"n": {"$not": {"$gt": 1}}}, [1, 4, 5]),
        ({"name": {"$regex": "^x", "$options": "i"}}, [1]),
        ({"n": {"$type": "number"}}, [1, 2, 3]),
        ({"n": {"$mod": [2, 1]}}, [1, 3]),
        ({"$expr": {"$eq": ["$n", {"$add": ["$_id", 0]}]}}, [1, 2, 3]),
        ({"n": {"$gt": "a"}}, []),
        ({"_id": {"$in": [3, 1, 99]}}, [1, 3]),
        ({"_id": 3, "n": 4}, []),
    ],
)
def test_filters_select_as_mongodb_does(
    collection: Collection[dict[str, Any]], query: Any, expected: list[int]
) -> None:
    documents = [
        {"_id": 1, "n": 1, "tags": ["a", "b"], "name": "Xavier"},
        {"_id": 2, "n": 2.0, "tags": ["a"]},
        {"_id": 3, "n": Int64(3), "sub": {"x": 7}},
        {"_id": 4, "sub": [{"x": 5, "y": 1}, {"x": 1}]},
        {"_id": 5, "n": None},
    ]
    collection.insert_many(documents)
    assert [d["_id"] for d in collection.find(query).sort("_id", 1)] == expected
    collection.create_index("n")
    collection.create_index("tags")
    assert [d["_id"] for d in collection.find(query).sort("_id", 1)] == expected


def test_cursors_give_everything_in_batches(collection: Collection[dict[str, Any]]) -> None:
    collection.insert_many([{"_id": i, "v": -i} for i in range(1000)])
    assert [d["_id"] for d in collection.find(batch_size=7)] == list(range(1000))
    assert [d["v"] for d in collection.find({"_id": {"$lt": 300}}, {"_id": 0}).sort("v", 1).skip(1).limit(3)] == [
        -298,
        -297,
        -296,
    ]
    cursor = collection.find(batch_size=2)
    next(cursor)
    cursor.close()


def test_aggregations_group_sort_and_project(collection: Collection[dict[str, Any]]) -> None:
    collection.insert_many([{"_id": i, "k": i % 3, "v": i, "t": ["p", "q"]} for i in range(9)])
    grouped = collection.aggregate(
        [
            {"$match": {"_id": {"$gte": 3}}},
            {"$group": {"_id": "$k", "n": {"$sum": 1}, "mean": {"$avg": "$v"}, "all": {"$push": "$v"}}},
            {"$sort": {"_id": -1}},
            {"$limit": 2},
        ]
    )
    assert list(grouped) == [
        {"_id": 2, "n": 2, "mean": 6.5, "all": [5, 8]},
        {"_id": 1, "n": 2, "mean": 5.5, "all": [4, 7]},
    ]
    unwound = collection.aggregate([{"$unwind": "$t"}, {"$count": "n"}])
    assert list(unwound) == [{"n": 18}]
    assert collection.distinct("k") == [0, 1, 2]
    assert collection.count_documents({"k": 1}, limit=2) == 2


def test_find_and_modify_gives_before_or_after(collection: Collection[dict[str, Any]]) -> None:
    collection.insert_many([{"_id": 1, "p": 2}, {"_id": 2, "p": 1}])
    assert collection.find_one_and_update({}, {"$set": {"seen": 1}}, sort=[("p", 1)]) == {"_id": 2, "p": 1}
    after = collection.find_one_and_update(
        {"_id": 9},
        {"$setOnInsert": {"made": True}, "$inc": {"n": 1}},
        upsert=True,
        return_document=ReturnDocument.AFTER,
    )
    assert after == {"_id": 9, "made": True, "n": 1}
    assert collection.find_one_and_delete({"_id": 9}, {"n": 1}) == {"_id": 9, "n": 1}
    assert collection.find_one_and_replace({"_id": 77}, {"x": 1}) is None


def test_indexes_and_collections_are_listed_with_their_options(client: MongoClient[dict[str, Any]]) -> None:
    images = {"enabled": True}
    client.air.create_collection("with_images", changeStreamPreAndPostImages=images)
    client.air.plain.insert_one({})
    client.air.plain.create_index("a", unique=True, name="by_a")
    client.air.command("collMod", "plain", changeStreamPreAndPostImages=images)
    listed = {c["name"]: c for c in client.air.list_collections()}
    assert listed["with_images"]["options"] == {"changeStreamPreAndPostImages": images}
    assert listed["plain"]["options"] == {"changeStreamPreAndPostImages": images}
    assert listed["plain"]["info"]["uuid"].subtype == 4
    assert client.air.plain.index_information()["by_a"]["unique"] is True
    client.air.plain.drop_index("by_a")
    assert list(client.air.plain.index_information()) == ["_id_"]
    client.drop_database("air")
    assert "air" not in client.list_database_names()


def test_unknown_commands_and_operators_are_errors(client: MongoClient[dict[str, Any]]) -> None:
    with pytest.raises(OperationFailure) as caught:
        client.admin.command("nonsense")
    assert caught.value.code == 59
    with pytest.raises(OperationFailure) as caught:
        client.air.c.find_one({"a": {"$nonsense": 1}})
    assert caught.value.code == 2


def test_an_aborted_transaction_leaves_nothing(client: MongoClient[dict[str, Any]]) -> None:
    client.air.c.insert_one({"_id": 1, "v": 1})
    with client.start_session() as session:
        session.start_transaction()
        client.air.c.update_one({"_id": 1}, {"$set": {"v": 2}}, session=session)
        client.air.c.delete_one({"_id": 1}, session=session)
        client.air.c.insert_one({"_id": 2}, session=session)
        session.abort_transaction()
    assert list(client.air.c.find()) == [{"_id": 1, "v": 1}]


def test_a_second_transaction_on_one_document_conflicts(client: MongoClient[dict[str, Any]]) -> None:
    client.air.c.insert_one({"_id": 1, "v": 1})
    with client.start_session() as one, client.start_session() as two:
        one.start_transaction()
        two.start_transaction()
        client.air.c.update_one({"_id": 1}, {"$set": {"v": 2}}, session=one)
        with pytest.raises(OperationFailure) as caught:
            client.air.c.update_one({"_id": 1}, {"$set": {"v": 3}}, session=two)
        assert caught.value.code == 112
        assert caught.value.has_error_label("TransientTransactionError")
        one.commit_transaction()
    assert client.air.c.find_one() == {"_id": 1, "v": 2}

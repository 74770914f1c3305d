"""Change streams through the real driver: events, positions, pipelines and the ways in which they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from bson import Int64, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import OperationFailure

from streamtrain.sandbox.mongo_server import ThreadedMongo
from tests.real_mongo import RealMongo

Document = dict[str, Any]
PATIENCE_S = 10.0


@pytest.fixture
def client(each_mongo: ThreadedMongo | RealMongo) -> Iterator[MongoClient[Document]]:
    with MongoClient[Document](each_mongo.uri) as client:
        yield client


@pytest.fixture
async def async_client(each_mongo: ThreadedMongo | RealMongo) -> AsyncIterator[AsyncMongoClient[Document]]:
    async with AsyncMongoClient[Document](each_mongo.uri) as client:
        yield client


@pytest.fixture
def sandbox_client(mongo_server: ThreadedMongo) -> Iterator[MongoClient[Document]]:
    """For tests that cut the oplog, which a real server does only in its own time."""
    with MongoClient[Document](mongo_server.uri) as client:
        yield client


def events(stream: Any, count: int) -> list[Document]:
    """The next events, and that there is none behind them."""
    found = [stream.next() for _ in range(count)]
    assert stream.try_next() is None
    return found


def strip(event: Document) -> Document:
    return {k: v for k, v in event.items() if k not in ("_id", "clusterTime", "wallTime", "ns")}


def test_events_have_the_fields_of_a_7_0_server_in_their_order(client: MongoClient[Document]) -> None:
    collection = client.air.flights
    with collection.watch(max_await_time_ms=20) as stream:
        collection.insert_one({"_id": 1, "a": 1, "gone": 1, "list": [1, 2]})
        collection.update_one({"_id": 1}, {"$set": {"a": 2, "s": {"x": 1}}, "$unset": {"gone": ""}})
        collection.update_one({"_id": 1}, [{"$set": {"list": [1], "pad": "p" * 200}}])
        collection.replace_one({"_id": 1}, {"r": True})
        collection.delete_one({"_id": 1})
        found = events(stream, 5)
    assert list(found[0]) == ["_id", "operationType", "clusterTime", "wallTime", "fullDocument", "ns", "documentKey"]
    assert list(found[1]) == [
        "_id",
        "operationType",
        "clusterTime",
        "wallTime",
        "ns",
        "documentKey",
        "updateDescription",
    ]
    assert [event["operationType"] for event in found] == ["insert", "update", "replace", "replace", "delete"]
    assert found[1]["updateDescription"] == {
        "updatedFields": {"a": 2, "s": {"x": 1}},
        "removedFields": ["gone"],
        "truncatedArrays": [],
    }
    assert strip(found[3]) == {
        "operationType": "replace",
        "fullDocument": {"_id": 1, "r": True},
        "documentKey": {"_id": 1},
    }
    assert strip(found[4]) == {"operationType": "delete", "documentKey": {"_id": 1}}
    assert all(event["ns"] == {"db": "air", "coll": "flights"} for event in found)
    assert isinstance(found[0]["clusterTime"], Timestamp)


def test_a_pipeline_update_of_a_large_document_is_a_difference(client: MongoClient[Document]) -> None:
    collection = client.air.flights
    collection.insert_one({"_id": 1, "pad": "p" * 500, "list": [1, 2, 3], "s": {"a": 1, "b": 2}})
    with collection.watch(max_await_time_ms=20) as stream:
        collection.update_one({"_id": 1}, [{"$set": {"list": [1, 9], "s.a": 5, "n": 1}}, {"$unset": "s.b"}])
        [event] = events(stream, 1)
    assert event["updateDescription"] == {
        "updatedFields": {"n": 1, "list.1": 9, "s.a": 5},
        "removedFields": ["s.b"],
        "truncatedArrays": [{"field": "list", "newSize": 2}],
    }


def test_writes_that_change_nothing_are_no_events(client: MongoClient[Document]) -> None:
    collection = client.air.flights
    collection.insert_one({"_id": 1, "a": 1})
    with collection.watch(max_await_time_ms=20) as stream:
        collection.update_one({"_id": 1}, {"$set": {"a": 1}})
        collection.update_one({"_id": 2}, {"$set": {"a": 1}})
        collection.delete_one({"_id": 2})
        assert events(stream, 0) == []


def test_tokens_ascend_like_strings_and_high_water_marks_are_short(client: MongoClient[Document]) -> None:
    collection = client.air.flights
    seen: list[str] = []
    with collection.watch(max_await_time_ms=10) as stream:
        for i in range(5):
            assert stream.try_next() is None
            assert stream.resume_token is not None
            seen.append(stream.resume_token["_data"])
            collection.insert_many([{"_id": f"{i}-{n}"} for n in range(3)])
            seen += [stream.next()["_id"]["_data"] for _ in range(3)]
            client.air.other.insert_one({})
    assert seen == sorted(seen)
    assert len(set(seen)) == len(seen)
    assert len(seen[0]) < len(seen[1])


@pytest.mark.parametrize("key", ["text", 5, Int64(2**40), -3, 2.5, b"bytes", {"a": 1}, None, True])
def test_a_stream_resumes_after_an_event_of_any_id(client: MongoClient[Document], key: Any) -> None:
    collection = client.air.flights
    with collection.watch() as stream:
        collection.insert_one({"_id": key})
        collection.insert_one({"_id": "next"})
        token = stream.next()["_id"]
    for option in ("resume_after", "start_after"):
        with collection.watch(**{option: token}) as again:  # type: ignore[arg-type]
            assert again.next()["documentKey"] == {"_id": "next"}


def test_a_stream_starts_at_an_operation_time_and_at_the_token_of_an_empty_batch(client: MongoClient[Document]) -> None:
    collection = client.air.flights
    time_before = client.admin.command("ping")["operationTime"]
    with collection.watch(max_await_time_ms=10) as stream:
        assert stream.try_next() is None
        token = stream.resume_token
    collection.insert_many([{"_id": 1}, {"_id": 2}])
    with collection.watch(start_at_operation_time=time_before) as stream:
        assert [stream.next()["documentKey"]["_id"] for _ in range(2)] == [1, 2]
    with collection.watch(resume_after=token) as stream:
        assert [stream.next()["documentKey"]["_id"] for _ in range(2)] == [1, 2]


def test_an_idle_stream_moves_on_with_the_cluster(client: MongoClient[Document]) -> None:
    with client.air.idle.watch(max_await_time_ms=10) as stream:
        assert stream.try_next() is None
        before = stream.resume_token
        client.air.busy.insert_one({})
        client.admin.command({"appendOplogNote": 1, "data": {}})
        assert stream.try_next() is None
        assert stream.resume_token is not None
        assert before is not None
        assert stream.resume_token["_data"] > before["_data"]


def test_update_lookup_shows_the_document_of_now_or_null(client: MongoClient[Document]) -> None:
    collection = client.air.flights
    collection.insert_many([{"_id": 1}, {"_id": 2}])
    with collection.watch(full_document="updateLookup") as stream:
        collection.update_one({"_id": 1}, {"$set": {"v": 1}})
        collection.update_one({"_id": 1}, {"$set": {"v": 2}})
        collection.update_one({"_id": 2}, {"$set": {"v": 1}})
        collection.delete_one({"_id": 2})
        found = [stream.next() for _ in range(3)]
    assert [event["fullDocument"] for event in found] == [{"_id": 1, "v": 2}, {"_id": 1, "v": 2}, None]


def test_post_images_show_the_document_as_the_update_left_it(client: MongoClient[Document]) -> None:
    collection = client.air.create_collection("flights", changeStreamPreAndPostImages={"enabled": True})
    collection.insert_one({"_id": 1})
    with collection.watch(full_document="whenAvailable") as stream:
        collection.update_one({"_id": 1}, {"$set": {"v": 1}})
        collection.update_one({"_id": 1}, {"$set": {"v": 2}})
        collection.delete_one({"_id": 1})
        assert [stream.next()["fullDocument"] for _ in range(2)] == [{"_id": 1, "v": 1}, {"_id": 1, "v": 2}]


def test_without_post_images_when_available_is_null_and_required_ends_the_stream(client: MongoClient[Document]) -> None:
    collection = client.air.flights
    collection.insert_one({"_id": 1})
    with (
        collection.watch(full_document="whenAvailable") as stream,
        collection.watch(full_document="required") as strict,
    ):
        collection.update_one({"_id": 1}, {"$set": {"v": 1}})
        assert stream.next()["fullDocument"] is None
        with pytest.raises(OperationFailure) as caught:
            strict.next()
    assert caught.value.code == 47


def test_a_database_stream_sees_its_collections_and_outlives_their_drop(client: MongoClient[Document]) -> None:
    with client.air.watch(max_await_time_ms=20) as stream:
        client.air.a.insert_one({"_id": 1})
        client.other.a.insert_one({"_id": 1})
        client.air.b.insert_one({"_id": 1})
        client.air.a.drop()
        client.air.b.rename("c")
        client.drop_database("air")
        found = events_until_closed(stream)
    kinds = [(event["operationType"], event.get("ns", {}).get("coll")) for event in found]
    assert kinds == [
        ("insert", "a"),
        ("insert", "b"),
        ("drop", "a"),
        ("rename", "b"),
        ("drop", "c"),
        ("dropDatabase", None),
        ("invalidate", None),
    ]


def events_until_closed(stream: Any) -> list[Document]:
    found = []
    deadline = time.monotonic() + PATIENCE_S
    while stream.alive and time.monotonic() < deadline:
        event = stream.try_next()
        if event is not None:
            found.append(event)
    return found


def test_a_dropped_collection_invalidates_its_stream_and_start_after_goes_on(client: MongoClient[Document]) -> None:
    collection = client.air.flights
    with collection.watch() as stream:
        collection.insert_one({"_id": 1})
        collection.drop()
        found = events_until_closed(stream)
    assert [event["operationType"] for event in found] == ["insert", "drop", "invalidate"]
    collection.insert_one({"_id": 2})
    with pytest.raises(OperationFailure) as caught:
        collection.watch(resume_after=found[2]["_id"])
    assert caught.value.code == 260
    with collection.watch(start_after=found[2]["_id"]) as stream:
        assert stream.next()["documentKey"] == {"_id": 2}
    with collection.watch(resume_after=found[1]["_id"]) as stream:
        assert stream.next()["operationType"] == "invalidate"


def test_pipelines_narrow_and_shape_events(client: MongoClient[Document]) -> None:
    pipeline = [
        {"$match": {"operationType": {"$in": ["insert", "delete"]}, "ns.coll": {"$ne": "noise"}}},
        {"$match": {"$or": [{"operationType": "delete"}, {"fullDocument.v": {"$gte": 5}}]}},
        {"$project": {"fullDocument.secret": 0}},
    ]
    with client.air.watch(pipeline, max_await_time_ms=20) as stream:
        client.air.a.insert_many([{"_id": 1, "v": 1}, {"_id": 2, "v": 5, "secret": "s"}])
        client.air.noise.insert_one({"v": 9})
        client.air.a.update_one({"_id": 2}, {"$set": {"v": 6}})
        client.air.a.delete_one({"_id": 1})
        found = events(stream, 2)
    assert [strip(event) for event in found] == [
        {"operationType": "insert", "fullDocument": {"_id": 2, "v": 5}, "documentKey": {"_id": 2}},
        {"operationType": "delete", "documentKey": {"_id": 1}},
    ]


def test_update_descriptions_can_be_projected_away(client: MongoClient[Document]) -> None:
    collection = client.air.flights
    collection.insert_one({"_id": 1})
    with collection.watch([{"$unset": "updateDescription"}], full_document="updateLookup") as stream:
        collection.update_one({"_id": 1}, {"$set": {"v": 1}})
        event = stream.next()
    assert "updateDescription" not in event
    assert event["fullDocument"] == {"_id": 1, "v": 1}


def test_a_token_that_the_pipeline_changed_is_fatal(client: MongoClient[Document]) -> None:
    with client.air.flights.watch([{"$project": {"_id": 0}}]) as stream:
        client.air.flights.insert_one({})
        with pytest.raises(OperationFailure) as caught:
            stream.next()
    assert caught.value.code == 280
    assert caught.value.has_error_label("NonResumableChangeStreamError")


def test_history_that_is_gone_is_error_286(mongo_server: ThreadedMongo, sandbox_client: MongoClient[Document]) -> None:
    collection = sandbox_client.air.flights
    with collection.watch() as stream:
        collection.insert_one({"_id": 1})
        token = stream.next()["_id"]
    when = sandbox_client.admin.command("ping")["operationTime"]
    collection.insert_many([{} for _ in range(10)])
    mongo_server.cut_oplog()
    for options in ({"resume_after": token}, {"start_after": token}, {"start_at_operation_time": when}):
        with pytest.raises(OperationFailure) as caught:
            collection.watch(**options)
        assert caught.value.code == 286
        assert caught.value.has_error_label("NonResumableChangeStreamError")


def test_an_open_cursor_that_was_overtaken_dies_with_136(
    mongo_server: ThreadedMongo, sandbox_client: MongoClient[Document]
) -> None:
    opened = sandbox_client.air.command({"aggregate": "flights", "pipeline": [{"$changeStream": {}}], "cursor": {}})
    sandbox_client.air.flights.insert_many([{} for _ in range(3)])
    mongo_server.cut_oplog()
    with pytest.raises(OperationFailure) as caught:
        sandbox_client.air.command({"getMore": Int64(opened["cursor"]["id"]), "collection": "flights"})
    assert caught.value.code == 136


def test_the_oplog_is_bounded_in_bytes() -> None:
    server = ThreadedMongo(oplog_bytes=100_000)
    server.start()
    try:
        with MongoClient[Document](server.uri) as client:
            start = client.admin.command("ping")["operationTime"]
            client.air.flights.insert_many([{"pad": "x" * 1000} for _ in range(300)])
            with pytest.raises(OperationFailure) as caught:
                client.air.flights.watch(start_at_operation_time=start)
            assert caught.value.code == 286
            assert client.local.command("collStats", "oplog.rs")["size"] <= 100_000
    finally:
        server.stop()


def test_a_token_of_another_collection_is_error_280(client: MongoClient[Document]) -> None:
    with client.air.a.watch() as stream:
        client.air.a.insert_one({})
        token = stream.next()["_id"]
    client.air.b.insert_one({})
    with pytest.raises(OperationFailure) as caught:
        client.air.b.watch(resume_after=token)
    assert caught.value.code == 280
    assert caught.value.has_error_label("NonResumableChangeStreamError")


@pytest.mark.parametrize(
    ("token", "code"), [({"_data": "zz"}, 9), ({"_data": ""}, 40649), ({"x": 1}, 40647), ({"_data": "82"}, 15)]
)
def test_broken_tokens_have_their_codes(client: MongoClient[Document], token: Document, code: int) -> None:
    with pytest.raises(OperationFailure) as caught:
        client.air.flights.watch(resume_after=token)
    assert caught.value.code == code


def test_internal_databases_and_wrong_stages_are_refused(client: MongoClient[Document]) -> None:
    for collection in (client.admin.a, client.local.a, client.config.a):
        with pytest.raises(OperationFailure) as caught:
            collection.watch()
        assert caught.value.code == 73
    with pytest.raises(OperationFailure):
        client.air.flights.watch([{"$group": {"_id": 1}}])


def test_an_event_over_16_mb_ends_the_stream_and_the_batch_it_is_in(client: MongoClient[Document]) -> None:
    collection = client.air.flights
    half = "x" * (9 * 1024 * 1024)
    collection.insert_one({"_id": 1, "a": half})
    with collection.watch(full_document="updateLookup") as stream:
        collection.update_one({"_id": 1}, {"$set": {"a": half[:-1] + "y"}})
        with pytest.raises(OperationFailure) as caught:
            stream.next()
    assert caught.value.code == 10334


def test_batches_are_bounded_by_number_and_by_bytes(client: MongoClient[Document]) -> None:
    opened = client.air.command(
        {"aggregate": "flights", "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}}
    )
    client.air.flights.insert_many([{"pad": "x" * 3_000_000} for _ in range(8)])
    cursor = Int64(opened["cursor"]["id"])

    def more(**options: Any) -> Document:
        reply: Document = client.air.command({"getMore": cursor, "collection": "flights", "maxTimeMS": 10, **options})
        return reply["cursor"]

    assert opened["cursor"]["firstBatch"] == []
    first = more(batchSize=2)
    assert len(first["nextBatch"]) == 2
    assert first["postBatchResumeToken"] == first["nextBatch"][-1]["_id"]
    assert len(more()["nextBatch"]) == 5
    assert len(more()["nextBatch"]) == 1
    assert more()["nextBatch"] == []


def test_an_awaiting_get_more_answers_when_something_happens_or_time_is_up(client: MongoClient[Document]) -> None:
    opened = client.air.command({"aggregate": "flights", "pipeline": [{"$changeStream": {}}], "cursor": {}})
    command = {"getMore": Int64(opened["cursor"]["id"]), "collection": "flights", "maxTimeMS": 200}
    began = time.monotonic()
    assert client.air.command(command)["cursor"]["nextBatch"] == []
    assert time.monotonic() - began >= 0.19


async def test_a_waiting_stream_is_woken_by_a_write(async_client: AsyncMongoClient[Document]) -> None:
    collection = async_client.air.flights
    async with await collection.watch(max_await_time_ms=60_000) as stream:
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await async_client.air.other.insert_one({})
        await collection.insert_one({"_id": 1})
        event = await asyncio.wait_for(waiting, 10)
    assert event["documentKey"] == {"_id": 1}


def test_a_killed_cursor_is_error_43(client: MongoClient[Document]) -> None:
    opened = client.air.command({"aggregate": "flights", "pipeline": [{"$changeStream": {}}], "cursor": {}})
    cursor = Int64(opened["cursor"]["id"])
    assert client.air.command({"killCursors": "flights", "cursors": [cursor]})["cursorsKilled"] == [cursor]
    with pytest.raises(OperationFailure) as caught:
        client.air.command({"getMore": cursor, "collection": "flights"})
    assert caught.value.code == 43


def test_a_transaction_shows_at_commit_with_one_cluster_time_and_can_be_resumed_inside(
    client: MongoClient[Document],
) -> None:
    client.air.a.insert_one({"_id": 0})
    with client.air.watch(max_await_time_ms=20) as stream:
        with client.start_session() as session, session.start_transaction():
            client.air.a.insert_one({"_id": 1}, session=session)
            client.air.a.update_one({"_id": 0}, {"$set": {"v": 1}}, session=session)
            client.air.b.insert_one({"_id": 1}, session=session)
            assert stream.try_next() is None
        found = events(stream, 3)
    assert [event["operationType"] for event in found] == ["insert", "update", "insert"]
    assert len({event["clusterTime"] for event in found}) == 1
    assert all("txnNumber" in event and "lsid" in event for event in found)
    with client.air.watch(resume_after=found[0]["_id"]) as again:
        assert again.next()["_id"] == found[1]["_id"]


def test_events_carry_documents_byte_for_byte(client: MongoClient[Document]) -> None:
    raw = client.get_database("air").get_collection("flights")
    document = b"\x10_id\x00\x01\x00\x00\x00\x12n\x00\x05\x00\x00\x00\x00\x00\x00\x00\x06undefined\x00"
    document = (len(document) + 5).to_bytes(4, "little") + document + b"\x00"
    options = client.codec_options.with_options(document_class=RawBSONDocument)
    with raw.with_options(codec_options=options).watch() as stream:
        raw.insert_one(RawBSONDocument(document))
        assert document in stream.next().raw


def test_a_standalone_server_refuses_streams() -> None:
    server = ThreadedMongo(replica_set=None)
    server.start()
    try:
        with MongoClient[Document](server.uri) as client:
            assert "setName" not in client.admin.command("hello")
            client.air.flights.insert_one({"_id": 1})
            with pytest.raises(OperationFailure) as caught:
                client.air.flights.watch()
            assert caught.value.code == 40573
            with pytest.raises(OperationFailure) as caught:
                client.admin.command("replSetGetStatus")
            assert caught.value.code == 76
    finally:
        server.stop()

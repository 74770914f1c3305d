"""What a server in a process of its own still knows after kill -9."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bson import Int64
from bson.binary import Binary
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from streamtrain.sandbox.mongo_server import MongoProcess, running_mongo
from tests.contract.corpus_replay import Connection

Document = dict[str, Any]
Start = Callable[..., MongoProcess]


def test_acknowledged_writes_survive_kill_9_and_a_stream_resumes_from_an_old_token(
    mongo_process: Start, tmp_path: Path
) -> None:
    server = mongo_process(data_file=tmp_path / "data.bson")
    acknowledged: list[int] = []

    def write(uri: str) -> None:
        with MongoClient[Document](uri, retryWrites=False, serverSelectionTimeoutMS=100) as writer:
            try:
                for i in range(1_000_000):
                    writer.air.flights.insert_one({"_id": i})
                    acknowledged.append(i)
            except PyMongoError:
                return

    with MongoClient[Document](server.uri) as client, client.air.flights.watch() as stream:
        writer = threading.Thread(target=write, args=(server.uri,))
        writer.start()
        seen = [stream.next() for _ in range(50)]
    server.kill()
    writer.join(30)
    server.start()
    with MongoClient[Document](server.uri) as client:
        stored = {document["_id"] for document in client.air.flights.find()}
        assert stored >= set(acknowledged)
        assert len(stored) - len(acknowledged) <= 1
        with client.air.flights.watch(resume_after=seen[10]["_id"]) as stream:
            again = [stream.next() for _ in range(len(stored) - 11)]
    assert again[:39] == seen[11:]
    assert [event["documentKey"]["_id"] for event in again] == sorted(stored)[11:]


def test_everything_is_as_it_was_after_a_restart(mongo_process: Start, tmp_path: Path) -> None:
    server = mongo_process(data_file=tmp_path / "data.bson")
    with MongoClient[Document](server.uri) as client:
        db = client.air
        db.create_collection("images", changeStreamPreAndPostImages={"enabled": True})
        db.plain.create_index("a", unique=True)
        db.plain.insert_many([{"_id": i, "a": i} for i in range(5)])
        db.plain.update_one({"_id": 1}, {"$set": {"v": 1}})
        db.plain.replace_one({"_id": 2}, {"a": 9})
        db.plain.delete_one({"_id": 3})
        db.images.insert_one({"_id": 1})
        db.images.update_one({"_id": 1}, {"$set": {"v": 1}})
        db.gone.insert_one({})
        db.gone.drop()
        db.old.insert_one({"_id": 1})
        db.old.rename("new")
        db.new.rename("moved")
        with client.start_session() as session, session.start_transaction():
            db.plain.insert_one({"_id": 10, "a": 10}, session=session)
        before = state(client)
        token = client.admin.command("ping")["operationTime"]
    server.kill()
    server.start()
    with MongoClient[Document](server.uri) as client:
        assert state(client) == before
        assert client.admin.command("ping")["operationTime"] >= token
        with pytest.raises(PyMongoError):
            client.air.plain.insert_one({"_id": 99, "a": 9})


def state(client: MongoClient[Document]) -> Document:
    start = client.local["oplog.rs"].find_one(sort=[("$natural", 1)])
    assert start is not None
    with client.air.watch(
        start_at_operation_time=start["ts"], full_document="whenAvailable", max_await_time_ms=50
    ) as stream:
        events = []
        while (event := stream.try_next()) is not None:
            events.append(event)
    return {
        "collections": sorted(client.air.list_collections(), key=lambda c: c["name"]),
        "documents": {name: list(client.air[name].find()) for name in sorted(client.air.list_collection_names())},
        "indexes": {name: client.air[name].index_information() for name in sorted(client.air.list_collection_names())},
        "events": events,
        "set": client.admin.command("replSetGetConfig")["config"]["settings"],
    }


def test_a_torn_last_record_is_cut_off(mongo_process: Start, tmp_path: Path) -> None:
    file = tmp_path / "data.bson"
    server = mongo_process(data_file=file)
    with MongoClient[Document](server.uri) as client:
        client.air.flights.insert_many([{"_id": i} for i in range(10)])
    server.kill()
    with file.open("r+b") as data:
        data.truncate(file.stat().st_size - 7)
    server.start()
    with MongoClient[Document](server.uri) as client:
        assert client.air.flights.count_documents({}) in (9, 10)
        client.air.flights.insert_one({"_id": "after"})
    server.kill()
    server.start()
    with MongoClient[Document](server.uri) as client:
        assert client.air.flights.find_one({"_id": "after"}) is not None


def test_a_retryable_write_is_known_across_a_restart(mongo_process: Start, tmp_path: Path) -> None:
    server = mongo_process(data_file=tmp_path / "data.bson")
    session = {"id": Binary(b"s" * 16, 4)}
    command = {
        "insert": "flights",
        "documents": [{"_id": 1}],
        "txnNumber": Int64(1),
        "lsid": session,
        "$db": "air",
    }
    assert answer(server.port, command)["n"] == 1
    server.kill()
    server.start()
    assert answer(server.port, command)["n"] == 1
    assert answer(server.port, {"count": "flights", "$db": "air"})["n"] == 1


def answer(port: int, command: Document) -> Document:
    """What the server says to one command, without a driver that changes it."""
    connection = Connection(port)
    reply = connection.send(command, [], 0)
    connection.close()
    assert reply is not None
    return reply


def test_a_cut_oplog_stays_cut(mongo_process: Start, tmp_path: Path) -> None:
    server = mongo_process(data_file=tmp_path / "data.bson")
    with MongoClient[Document](server.uri) as client:
        start = client.admin.command("ping")["operationTime"]
        client.air.flights.insert_many([{} for _ in range(5)])
        client.admin.command({"sandboxCutOplog": 1})
    server.kill()
    server.start()
    with MongoClient[Document](server.uri) as client, pytest.raises(OperationFailure) as caught:
        client.air.flights.watch(start_at_operation_time=start)
    assert caught.value.code == 286


def test_a_server_without_a_file_forgets_and_ends_with_its_parent() -> None:
    with running_mongo() as server:
        assert isinstance(server, MongoProcess)
        with MongoClient[Document](server.uri) as client:
            client.air.flights.insert_one({})
        process = server._process
    assert process is not None
    assert process.returncode == 0


def test_a_taken_port_is_said_so(mongo_process: Start) -> None:
    server = mongo_process()
    with pytest.raises(RuntimeError, match="exit code 69"):
        MongoProcess(port=server.port).start()


def test_a_server_that_is_not_ready_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamtrain.sandbox.mongo_server.START_TIMEOUT", 0.0)
    server = MongoProcess()
    with pytest.raises(RuntimeError, match="not ready within 0 s"):
        server.start()
    with pytest.raises(AssertionError):
        _ = server.pid  # there is no process any more

"""Faults that tests put into the server, as the real driver meets them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure

from streamtrain.sandbox.mongo_server import ThreadedMongo

Document = dict[str, Any]


@pytest.fixture
def client(mongo_server: ThreadedMongo) -> Iterator[MongoClient[Document]]:
    with MongoClient[Document](mongo_server.uri) as client:
        yield client


def test_an_injected_error_comes_as_often_as_asked(mongo_server: ThreadedMongo, client: MongoClient[Document]) -> None:
    mongo_server.faults.error("ping", 13, times=2, skip=1)
    client.admin.command("ping")
    for _ in range(2):
        with pytest.raises(OperationFailure) as caught:
            client.admin.command("ping")
        assert caught.value.code == 13
    client.admin.command("ping")


@pytest.mark.parametrize("when", ["before", "after", "within"])
def test_a_retried_write_is_applied_once_wherever_the_connection_broke(
    mongo_server: ThreadedMongo, client: MongoClient[Document], when: str
) -> None:
    mongo_server.faults.drop("insert", when=when)
    client.air.flights.insert_one({"_id": 1})
    mongo_server.faults.drop("update", when=when)
    client.air.flights.update_one({"_id": 1}, {"$inc": {"n": 1}})
    mongo_server.faults.drop("findAndModify", when=when)
    assert client.air.flights.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}) == {"_id": 1, "n": 1}
    assert client.air.flights.find_one() == {"_id": 1, "n": 2}
    assert mongo_server.faults.applied == 3


@pytest.mark.parametrize("when", ["before", "after", "within"])
def test_a_stream_goes_on_where_its_connection_broke(
    mongo_server: ThreadedMongo, client: MongoClient[Document], when: str
) -> None:
    with client.air.flights.watch(max_await_time_ms=50) as stream:
        client.air.flights.insert_many([{"_id": i} for i in range(5)])
        mongo_server.faults.drop("getMore", when=when, times=1)
        assert [stream.next()["documentKey"]["_id"] for _ in range(5)] == [0, 1, 2, 3, 4]
    assert mongo_server.faults.applied == 1


def test_a_resumable_error_on_a_stream_loses_nothing(
    mongo_server: ThreadedMongo, client: MongoClient[Document]
) -> None:
    with client.air.flights.watch(max_await_time_ms=50) as stream:
        client.air.flights.insert_one({"_id": 1})
        assert stream.next()["documentKey"] == {"_id": 1}
        mongo_server.faults.error("getMore", 43)
        client.air.flights.insert_one({"_id": 2})
        assert stream.next()["documentKey"] == {"_id": 2}


def test_a_delay_holds_the_command_back(mongo_server: ThreadedMongo, client: MongoClient[Document]) -> None:
    mongo_server.faults.delay("ping", 0.1)
    began = time.monotonic()
    client.admin.command("ping")
    assert time.monotonic() - began >= 0.1


def test_faults_can_be_set_by_an_admin_command(client: MongoClient[Document]) -> None:
    client.admin.command({"sandboxFault": "find", "kind": "error", "code": 50, "times": 1})
    with pytest.raises(OperationFailure) as caught:
        client.air.flights.find_one()
    assert caught.value.code == 50
    client.admin.command({"sandboxFault": "find", "kind": "error", "code": 50, "times": 9})
    client.admin.command({"sandboxFault": "", "kind": "clear"})
    assert client.air.flights.find_one() is None


def test_dropped_connections_are_cleaned_up(mongo_server: ThreadedMongo, client: MongoClient[Document]) -> None:
    with client.air.flights.watch(max_await_time_ms=50) as stream:
        assert stream.try_next() is None
        cursors = mongo_server.server.dispatcher.cursors
        mongo_server.drop_connections()
        client.air.flights.insert_one({"_id": 1})
        assert stream.next()["documentKey"] == {"_id": 1}
    deadline = time.monotonic() + 10
    while len(cursors) and time.monotonic() < deadline:
        client.admin.command("ping")
    assert len(cursors) == 0


def test_a_client_that_leaves_while_it_waits_takes_its_cursor_with_it(mongo_server: ThreadedMongo) -> None:
    cursors = mongo_server.server.dispatcher.cursors
    waiting = MongoClient[Document](mongo_server.uri, socketTimeoutMS=200)
    opened = waiting.air.command({"aggregate": "flights", "pipeline": [{"$changeStream": {}}], "cursor": {}})
    with pytest.raises(AutoReconnect):
        waiting.air.command({"getMore": opened["cursor"]["id"], "collection": "flights", "maxTimeMS": 600_000})
    deadline = time.monotonic() + 10
    while len(cursors) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(cursors) == 0
    waiting.close()


def test_a_server_that_stepped_down_refuses_writes_until_it_is_primary_again(client: MongoClient[Document]) -> None:
    client.admin.command({"replSetStepDown": 0.3, "force": True})
    with pytest.raises(NotPrimaryError):
        client.get_database("air").command({"insert": "c", "documents": [{"_id": 1}]})
    client.air.c.insert_one({"_id": 2})
    assert client.air.c.count_documents({}) == 1


def test_garbage_on_a_connection_closes_only_that_connection(
    mongo_server: ThreadedMongo, client: MongoClient[Document]
) -> None:
    client.admin.command("ping")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64, (30).to_bytes(4, "little") + b"\x01" * 26):
        with socket.create_connection(("127.0.0.1", mongo_server.port), timeout=10) as connection:
            connection.sendall(garbage)
            assert connection.recv(100) == b""
    client.admin.command("ping")


MALFORMED: list[Document] = [
    {"update": "c", "updates": [{}]},
    {"update": "c", "updates": [{"q": 5, "u": {"$set": {"a": 1}}}], "upsert": True},
    {"delete": "c", "deletes": [{"limit": 1}]},
    {"insert": 5, "documents": [{}]},
    {"insert": "", "documents": [{}]},
    {"find": "c", "filter": {"a": {"$in": 5}}},
    {"find": "c", "filter": {"a": {"$regex": "("}}},
    {"find": "c", "sort": 5},
    {"find": "c", "projection": {"a": 1, "b": 0}},
    {"aggregate": "c", "pipeline": [5], "cursor": {}},
    {"aggregate": "c", "pipeline": [{"$group": {}}], "cursor": {}},
    {"aggregate": "c", "pipeline": [{"$changeStream": {"startAtOperationTime": 5}}], "cursor": {}},
    {"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": 5}}], "cursor": {}},
    {"getMore": "text", "collection": "c"},
    {"createIndexes": "c", "indexes": [{"name": "x"}]},
    {"findAndModify": "c", "query": {}, "update": [{"$set": 5}], "upsert": True},
    {"commitTransaction": 1},
    {"renameCollection": "a.b"},
]


@pytest.mark.parametrize("command", MALFORMED, ids=str)
def test_a_senseless_command_is_an_error_and_the_connection_lives_on(
    client: MongoClient[Document], command: Document
) -> None:
    client.air.c.insert_one({"_id": 1, "a": "text"})
    assert code_of(client, command) is not None
    assert client.air.c.count_documents({}) == 1


def code_of(client: MongoClient[Document], command: Document) -> int | None:
    """The code of the error that a command is answered with, as a whole or for its one write."""
    try:
        reply = client.air.command(command)
    except OperationFailure as error:
        return error.code
    code: int = reply["writeErrors"][0]["code"]
    return code

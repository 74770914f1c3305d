"""A server with users, as the real driver meets it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import OperationFailure

from streamtrain.sandbox.mongo_server import ThreadedMongo, User

Document = dict[str, Any]
USERS = (
    User("root", "s3cret,=/"),
    User("reader", "readerpw", roles=(("read", "air"),)),
    User("writer", "writerpw", roles=(("readWrite", "air"),)),
)


@pytest.fixture
def guarded() -> Iterator[ThreadedMongo]:
    server = ThreadedMongo(users=USERS)
    server.start()
    yield server
    server.stop()


def test_the_right_password_is_let_in(guarded: ThreadedMongo) -> None:
    with MongoClient[Document](guarded.uri, username="root", password="s3cret,=/") as client:
        client.air.c.insert_one({"_id": 1})
        status = client.admin.command("connectionStatus")
    assert status["authInfo"]["authenticatedUsers"] == [{"user": "root", "db": "admin"}]


@pytest.mark.parametrize(("name", "password"), [("root", "wrong"), ("nobody", "s3cret,=/")])
async def test_a_wrong_name_or_password_is_error_18(guarded: ThreadedMongo, name: str, password: str) -> None:
    async with AsyncMongoClient[Document](guarded.uri, username=name, password=password) as client:
        with pytest.raises(OperationFailure) as caught:
            await client.air.c.find_one()
    assert caught.value.code == 18


def test_without_a_name_nothing_but_the_handshake_works(guarded: ThreadedMongo) -> None:
    with MongoClient[Document](guarded.uri) as client:
        client.admin.command("ping")
        with pytest.raises(OperationFailure) as caught:
            client.air.c.find_one()
    assert caught.value.code == 13


def test_roles_hold(guarded: ThreadedMongo) -> None:
    with MongoClient[Document](guarded.uri, username="reader", password="readerpw") as client:
        assert client.air.c.find_one() is None
        client.air.c.watch().close()
        for refused in (client.air.c.insert_one, client.other.c.find_one):
            with pytest.raises(OperationFailure) as caught:
                refused({})
            assert caught.value.code == 13
        with pytest.raises(OperationFailure):
            client.admin.command("replSetGetStatus")
    with MongoClient[Document](guarded.uri, username="writer", password="writerpw") as client:
        client.air.c.insert_one({})

"""A MongoDB that cannot be followed is told before anything depends on it, with what to do about it."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest
from pymongo import MongoClient

from streamtrain.clock import SystemClock
from streamtrain.errors import (
    AuthenticationError,
    ConfigError,
    MongoError,
    PermissionMissingError,
    StreamtrainError,
)
from streamtrain.sandbox.mongo_server import ThreadedMongo, User
from streamtrain.source import preflight
from streamtrain.source.preflight import Facts
from streamtrain.source.source import Source
from streamtrain.source.status import SourceState
from tests.fakes.publisher import MemoryPublisher
from tests.integration.source.at_work import COLLECTION, DATABASE, spec_of


async def check(uri: str, **options: object) -> Facts:
    spec = spec_of(uri, **options)
    client = preflight.connect(spec)
    try:
        return await preflight.check(spec, client)
    finally:
        await client.close()


@pytest.fixture
def database(mongo_server: ThreadedMongo):
    with MongoClient(mongo_server.uri) as client:
        client[DATABASE].create_collection(COLLECTION)
        yield client[DATABASE]


async def test_a_server_that_can_be_followed_tells_what_the_source_needs(mongo_server, database):
    facts = await check(mongo_server.uri)
    assert facts.identity.topology == "rs0"
    assert not facts.sharded
    assert facts.full_document == "updateLookup"
    database.other.insert_one({})
    assert (await check(mongo_server.uri)).operation_time > facts.operation_time


async def test_post_images_are_used_where_the_collection_has_them(mongo_server, database):
    database.create_collection("imaged", changeStreamPreAndPostImages={"enabled": True})
    assert (await check(mongo_server.uri, collection="imaged")).full_document == "whenAvailable"
    assert (await check(mongo_server.uri, collection="imaged", full_document="required")).full_document == "required"
    with pytest.raises(MongoError, match="post-images") as raised:
        await check(mongo_server.uri, full_document="required")
    assert "collMod" in raised.value.hint


async def test_a_collection_that_is_missing_is_named(mongo_server, database):
    with pytest.raises(MongoError, match=rf"there is no collection {DATABASE}\.fligths"):
        await check(mongo_server.uri, collection="fligths")


async def test_a_view_cannot_be_followed(mongo_server, database):
    database.create_collection("view", viewOn=COLLECTION, pipeline=[])
    with pytest.raises(MongoError, match="view"):
        await check(mongo_server.uri, collection="view")


async def test_a_standalone_server_is_told_apart_with_the_way_to_a_replica_set():
    server = ThreadedMongo(replica_set=None)
    server.start()
    try:
        with pytest.raises(MongoError, match="standalone") as raised:
            await check(server.uri)
    finally:
        server.stop()
    assert "rs.initiate()" in raised.value.hint


async def test_a_server_that_is_not_there_is_named_with_its_address():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(MongoError, match=f"{address} cannot be reached") as raised:
            await check(f"mongodb://user:secret@{address}/?serverSelectionTimeoutMS=200")
    assert "secret" not in str(raised.value)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_wrong_replica_set_name_is_explained(mongo_server, database):
    uri = f"mongodb://127.0.0.1:{mongo_server.port}/?replicaSet=other&serverSelectionTimeoutMS=200"
    with pytest.raises(MongoError, match="does not belong to the replica set"):
        asyncio.run(check(uri))
    gc.collect()  # the driver does not close the connection to a member that it drops: complain here, not later


@pytest.mark.parametrize(
    ("command", "code", "kind"),
    [
        ("aggregate", 13, PermissionMissingError),
        ("aggregate", 40573, MongoError),
        ("hello", 11600, MongoError),
    ],
)
async def test_what_the_server_refuses_is_an_error_that_names_the_namespace(
    mongo_server, database, command: str, code: int, kind: type[StreamtrainError]
):
    mongo_server.call(lambda: mongo_server.faults.error(command, code, times=9, namespace=None))
    user = "somebody:hunter2@" if command == "saslStart" else ""
    with pytest.raises(kind) as raised:
        await check(
            f"mongodb://{user}127.0.0.1:{mongo_server.port}/?directConnection=true&serverSelectionTimeoutMS=500"
        )
    assert type(raised.value) is kind
    assert raised.value.hint


@pytest.fixture
def guarded():
    """A server that asks for passwords, with the collection."""
    server = ThreadedMongo(
        users=[
            User("root", "pw"),
            User("reader", "pw", roles=(("read", DATABASE),)),
            User("stranger", "hunter2", roles=(("read", "elsewhere"),)),
        ]
    )
    server.start()
    with MongoClient(f"mongodb://root:pw@127.0.0.1:{server.port}/?authSource=admin") as client:
        client[DATABASE].create_collection(COLLECTION)
    yield f"127.0.0.1:{server.port}/?authSource=admin"
    server.stop()


async def test_a_user_with_the_role_read_can_follow_a_collection(guarded):
    assert (await check(f"mongodb://reader:pw@{guarded}")).identity.collection


async def test_a_wrong_password_is_told_and_not_shown(guarded):
    with pytest.raises(AuthenticationError, match="credentials") as raised:
        await check(f"mongodb://reader:hunter2@{guarded}")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("user", ["stranger:hunter2@", ""])
async def test_a_missing_privilege_names_the_namespace(guarded, user):
    with pytest.raises(PermissionMissingError, match=f"{DATABASE}.{COLLECTION}") as raised:
        await check(f"mongodb://{user}{guarded}")
    assert "changeStream" in raised.value.hint
    assert "hunter2" not in str(raised.value)


async def test_a_user_who_may_not_list_collections_can_still_follow_one(mongo_server, database):
    mongo_server.call(lambda: mongo_server.faults.error("listCollections", 13, times=9))
    mongo_server.call(lambda: mongo_server.faults.error("replSetGetConfig", 13, times=9))
    facts = await check(mongo_server.uri)
    assert (facts.identity.cluster, facts.identity.collection) == ("", "")
    assert facts.full_document == "updateLookup"


@pytest.mark.parametrize(
    "uri",
    ["mongodb://user:pa:ss@host/", "mongodb://host:port/", "mongodb://host/?tls=maybe", "mongodb://u:hunter2@h:x"],
)
def test_a_uri_that_makes_no_sense_is_a_configuration_error_without_its_password(uri: str) -> None:
    spec = spec_of("mongodb://host/").model_copy(update={"uri": type(spec_of("mongodb://host/").uri)(uri)})
    with pytest.raises(ConfigError) as raised:
        preflight.connect(spec)
    assert "hunter2" not in str(raised.value)


async def test_a_source_that_cannot_start_says_so_in_its_status(mongo_server):
    source = Source(spec=spec_of(mongo_server.uri), publisher=MemoryPublisher(), clock=SystemClock())
    with pytest.raises(MongoError):
        await source.run()
    assert source.status().state is SourceState.FAILED
    assert "there is no collection" in source.status().reason

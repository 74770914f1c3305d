"""How MongoDB is started in a container, on an engine and a server that stand in for the real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from streamtrain.sandbox.mongo_server import ThreadedMongo
from tests.fakes.docker_engine import FakeEngine, running_engine
from tests.real_mongo import COMMAND, IMAGE, ImageMissingError, RealMongo, direct_uri, initiate

Run = Callable[..., FakeEngine]


@pytest.fixture
def run_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs an engine that testcontainers finds."""
    from testcontainers.core.config import ConnectionMode, testcontainers_config

    running = []

    def run(engine: FakeEngine) -> FakeEngine:
        context = running_engine(engine)
        context.__enter__()
        running.append(context)
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        return engine

    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
    monkeypatch.setattr(testcontainers_config, "connection_mode_override", ConnectionMode.docker_host)
    yield run
    for context in running:
        context.__exit__(None, None, None)


@pytest.fixture
def standalone() -> Iterator[ThreadedMongo]:
    server = ThreadedMongo(replica_set=None)
    server.start()
    yield server
    server.stop()


def test_the_container_is_a_replica_set_that_is_reached_directly(run_engine: Run, mongo_server: ThreadedMongo) -> None:
    engine = run_engine(FakeEngine(port=mongo_server.port, images={IMAGE}))
    with RealMongo() as server:
        [created] = engine.created
        assert created["Image"] == IMAGE
        assert created["Cmd"] == COMMAND
        assert "27017/tcp" in created["ExposedPorts"]
        assert engine.running
        assert server.uri == f"mongodb://127.0.0.1:{mongo_server.port}/?directConnection=true"
        with MongoClient(server.uri) as client:
            client.air.flights.insert_one({"_id": 1})
    assert not engine.running


def test_what_earlier_tests_wrote_is_dropped(run_engine: Run, mongo_server: ThreadedMongo) -> None:
    run_engine(FakeEngine(port=mongo_server.port, images={IMAGE}))
    with RealMongo() as server, MongoClient(server.uri) as client:
        client.air.flights.insert_one({"_id": 1})
        client.state.jobs.insert_one({"_id": 1})
        server.clear()
        assert not {"air", "state"} & set(client.list_database_names())


def test_an_image_that_is_missing_is_pulled(run_engine: Run, mongo_server: ThreadedMongo) -> None:
    engine = run_engine(FakeEngine(port=mongo_server.port, images=set(), pulls={IMAGE}))
    with RealMongo():
        assert engine.images == {IMAGE}


def test_an_image_that_cannot_be_pulled_is_an_error_of_its_own(run_engine: Run, mongo_server: ThreadedMongo) -> None:
    engine = run_engine(FakeEngine(port=mongo_server.port, images=set()))
    with pytest.raises(ImageMissingError, match=f"no image {IMAGE}: no route to the registry"):
        RealMongo().start()
    assert engine.created == []


def test_a_server_that_does_not_come_up_is_stopped_and_its_log_shown(
    run_engine: Run, standalone: ThreadedMongo
) -> None:
    engine = run_engine(FakeEngine(port=standalone.port, images={IMAGE}))
    with pytest.raises(RuntimeError, match=r"not started with replication(?s:.*)mongod's last words"):
        RealMongo().start()
    assert not engine.running


def test_initiating_a_set_that_is_initiated_changes_nothing(mongo_server: ThreadedMongo) -> None:
    initiate(mongo_server.uri)
    initiate(mongo_server.uri)


def test_initiating_waits_for_the_server_to_be_primary(mongo_server: ThreadedMongo) -> None:
    uri = direct_uri("127.0.0.1", mongo_server.port)
    with MongoClient(uri) as client:
        client.admin.command({"replSetStepDown": 0.3, "force": True})
    initiate(uri)
    with MongoClient(uri) as client:
        assert client.admin.command("hello")["isWritablePrimary"]


def test_a_server_that_is_not_primary_in_time_is_an_error(mongo_server: ThreadedMongo) -> None:
    uri = direct_uri("127.0.0.1", mongo_server.port)
    with MongoClient(uri) as client:
        client.admin.command({"replSetStepDown": 60, "force": True})
    with pytest.raises(TimeoutError, match="did not become primary"):
        initiate(uri, timeout_s=0.2)


def test_a_server_without_a_replica_set_is_refused(standalone: ThreadedMongo) -> None:
    with pytest.raises(OperationFailure) as caught:
        initiate(standalone.uri)
    assert caught.value.code == 76


def test_an_ipv6_host_is_bracketed() -> None:
    assert direct_uri("::1", 5) == "mongodb://[::1]:5/?directConnection=true"

"""Fixtures that several packages of tests share."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from streamtrain import config
from streamtrain.errors import DependencyError
from streamtrain.sandbox.apache_kafka import CACHE_VARIABLE, DEFAULT_CACHE, ApacheKafka, find_apache
from streamtrain.sandbox.kafka_broker import KafkaBroker
from streamtrain.sandbox.mongo_server import MongoProcess, ThreadedMongo
from tests.docker_engine import engine_address, missing_engine
from tests.real_mongo import ImageMissingError, RealMongo

ROOT = Path(__file__).resolve().parents[1]
MISSABLE = {"apache", "docker"}
"""The marks of tests that need what not every machine has."""

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kafka",
        choices=["noida", "apache"],
        default="noida",
        help="the broker of the fixture `kafka`; the contract tests use both (default: noida)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a machine lacks is said in one line, with the number of tests that it costs, not in one per test."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and MISSABLE & {mark.name for mark in item.iter_markers()}:
        *_, reason = report.longrepr
        report.longrepr = (__file__, None, reason)
    return report


# ------------------------------------------------------------------------------------------------ Kafka


def _cache() -> Path | None:
    return None if os.environ.get(CACHE_VARIABLE) else ROOT / DEFAULT_CACHE


@pytest.fixture(scope="session")
def noida_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(directory=tmp_path_factory.mktemp("noida")) as broker:
        yield broker


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """One broker, shared by the tests of this process. Skips where Apache Kafka or Java is missing."""
    try:
        runtime = find_apache(_cache())
    except DependencyError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with ApacheKafka(directory=tmp_path_factory.mktemp("apache"), runtime=runtime) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> KafkaBroker | ApacheKafka:
    """The broker that --kafka names; tests isolate themselves by a topic prefix of their own."""
    broker: KafkaBroker | ApacheKafka = request.getfixturevalue(f"{request.config.getoption('--kafka')}_kafka")
    return broker


def _settings(broker: KafkaBroker | ApacheKafka) -> config.Kafka:
    return config.Kafka(bootstrap_servers=broker.bootstrap_servers, topic_prefix=f"t{uuid.uuid4().hex[:10]}")


@pytest.fixture
def kafka_config(kafka: KafkaBroker | ApacheKafka) -> config.Kafka:
    """Settings with a topic prefix that nothing else uses."""
    return _settings(kafka)


@pytest.fixture
def apache_kafka_config(apache_kafka: ApacheKafka) -> config.Kafka:
    return _settings(apache_kafka)


@pytest.fixture(params=["noida", pytest.param("apache", marks=pytest.mark.apache)])
def each_kafka_config(request: pytest.FixtureRequest) -> config.Kafka:
    """For contract tests: once on the light broker, once on Apache Kafka."""
    return _settings(request.getfixturevalue(f"{request.param}_kafka"))


# ---------------------------------------------------------------------------------------------- MongoDB


@pytest.fixture
def mongo_server() -> Iterator[ThreadedMongo]:
    """A fresh server on a free port, in a thread: `.uri`, `.faults`, `.cut_oplog()`, `.drop_connections()`."""
    server = ThreadedMongo()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def mongo_process() -> Iterator[Callable[..., MongoProcess]]:
    """Starts servers in processes of their own, which can be killed: `mongo_process(data_file=..., port=...)`."""
    servers: list[MongoProcess] = []

    def start(**options: object) -> MongoProcess:
        server = MongoProcess(**options)  # type: ignore[arg-type]
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def real_mongo() -> Iterator[RealMongo]:
    """One MongoDB 7.0 in a container, shared by the tests of this process. Skips where no Docker engine answers."""
    reason = missing_engine(engine_address())
    if reason is not None:
        pytest.skip(reason)
    server = RealMongo()
    try:
        server.start()
    except ImageMissingError as error:
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.fixture(params=["sandbox", pytest.param("container", marks=pytest.mark.docker)])
def each_mongo(request: pytest.FixtureRequest) -> ThreadedMongo | RealMongo:
    """For what both must hold to: once on the embedded server, once on MongoDB itself. Only `.uri` is common to them;
    a test that puts faults into the server takes `mongo_server`."""
    if request.param == "sandbox":
        sandbox: ThreadedMongo = request.getfixturevalue("mongo_server")
        return sandbox
    real: RealMongo = request.getfixturevalue("real_mongo")
    real.clear()
    return real

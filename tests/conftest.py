"""Fixtures that several packages of tests share."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from streamtrain import config
from streamtrain.errors import DependencyError
from streamtrain.sandbox.apache_kafka import CACHE_VARIABLE, DEFAULT_CACHE, ApacheKafka, find_apache
from streamtrain.sandbox.kafka_broker import KafkaBroker
from streamtrain.sandbox.mongo_server import MongoProcess, ThreadedMongo

ROOT = Path(__file__).resolve().parents[1]

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kafka",
        choices=["noida", "apache"],
        default="noida",
        help="the broker of the fixture `kafka`; the contract tests use both (default: noida)",
    )


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

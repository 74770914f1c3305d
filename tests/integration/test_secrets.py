"""Passwords that MongoDB really asks for, in a deployment that really runs: nothing that it writes shows them (I9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
import pymongo
import pytest

from streamtrain import config
from streamtrain.errors import EXIT_OK
from streamtrain.sandbox.kafka_broker import free_ports
from streamtrain.sandbox.mongo_server import ThreadedMongo, User
from tests.deployment import Deployment, wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

PASSWORD = "hunter2/pl@nted"
ENCODED = "hunter2%2Fpl%40nted"
FORM_S = 120.0


@pytest.fixture
def mongo() -> Iterator[ThreadedMongo]:
    server = ThreadedMongo(users=[User("trainer", PASSWORD)])
    server.start()
    yield server
    server.stop()


def shows_a_secret(text: str) -> bool:
    return PASSWORD in text or ENCODED in text or repr(PASSWORD)[1:-1] in text


def test_a_password_is_nowhere(mongo: ThreadedMongo, kafka_config: config.Kafka, tmp_path: Path) -> None:
    uri = mongo.uri.replace("mongodb://", f"mongodb://trainer:{ENCODED}@").replace("/?", "/?authSource=admin&")
    settings = _settings(uri=uri, kafka=kafka_config)
    deployment = Deployment(config=settings, folder=tmp_path)
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(uri)
    try:
        orders = client["shop"].create_collection("orders")
        deployment.start()
        seen: list[dict[str, Any]] = []

        def job() -> dict[str, Any]:
            if (status := deployment.status()) is not None:
                seen.append(status)
                found: dict[str, Any] = status["jobs"]["price"]
                return found
            return {}

        wait_until(lambda: job().get("phase") == "training", timeout=FORM_S, what="training")
        orders.insert_many([{"items": float(n), "price": 1.0} for n in range(100)])
        wait_until(lambda: job().get("checkpoint"), timeout=FORM_S, what="a manifest in GridFS")

        # Now whatever asks MongoDB fails, and says so.
        mongo.faults.error("saslStart", 18, times=1000)
        mongo.drop_connections()
        wait_until(lambda: not (deployment.status() or {"ready": True})["ready"], timeout=FORM_S, what="trouble")
        job()
        mongo.faults.clear()
        assert deployment.drain() == EXIT_OK
    finally:
        deployment.stop()
    assert not shows_a_secret(repr(seen))
    assert not shows_a_secret(deployment.log_file.read_text())
    state = client["streamtrain"]
    for name in state.list_collection_names():
        for document in state[name].find():
            assert not shows_a_secret(bson.encode(document).decode("latin-1"))
    client.close()


def _settings(*, uri: str, kafka: config.Kafka) -> dict[str, Any]:
    return {
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix},
        "admin": {"listen": f"127.0.0.1:{free_ports(1)[0]}"},
        "log": {"level": "debug"},
        "sources": [
            {"name": "orders", "uri": uri, "database": "shop", "collection": "orders", "partitions": 2},
        ],
        "jobs": [
            {
                "name": "price",
                "source": "orders",
                "features": [{"field": "items", "dtype": "float32"}],
                "labels": [{"field": "price", "dtype": "float32", "task": "regression"}],
                "checkpoint": {"every": "1s"},
            }
        ],
    }

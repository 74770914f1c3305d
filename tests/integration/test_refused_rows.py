"""A user's model that cannot take some of what is written: one deployment, two workers, from MongoDB to the
dead-letter topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from aiokafka import AIOKafkaConsumer

from streamtrain import config
from streamtrain.kafka import topics
from streamtrain.sandbox.mongo_server import MongoProcess
from tests.deployment import Deployment, one_job, wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]

WAIT_SECONDS = 60.0
REFUSED = (10, -11, 1_000_000)
OVERFLOWS = (1e38, -3e38)


@pytest.fixture
def deployment(
    kafka_config: config.Kafka, mongo_process: Callable[..., MongoProcess], tmp_path: Path
) -> Iterator[tuple[Deployment, str]]:
    mongo = mongo_process(data_file=tmp_path / "mongo.data")
    with pymongo.MongoClient[dict[str, Any]](mongo.uri) as client:
        client["table"].create_collection("documents")
    running = Deployment(
        config=one_job(
            kafka_config,
            mongo.uri,
            database="table",
            partitions=4,
            job={
                "name": "table",
                "features": [{"field": "x", "dtype": "float32"}, {"field": "n", "dtype": "int32"}],
                "labels": [{"field": "y", "dtype": "float32", "task": "regression"}],
                "model": "small_models:table",
                "round": {"batch_size": 16},
                "checkpoint": {"every": "1s"},
                "workers": {"min": 2},
            },
        ),
        folder=tmp_path,
        python_path=Path(__file__).parent,
    )
    yield running, mongo.uri
    running.stop()


def test_rows_that_a_model_cannot_take_become_dead_letters_and_the_rest_is_learned(
    deployment: tuple[Deployment, str], kafka_config: config.Kafka
) -> None:
    running, uri = deployment
    running.start()
    training(running)
    with pymongo.MongoClient[dict[str, Any]](uri, w="majority") as client:
        documents = client["table"]["documents"]
        documents.insert_many(good(0, 60))
        learned(running, 60)
        documents.insert_many(
            [
                *good(60, 90),
                *({"_id": f"overflow {x}", "x": x, "n": 3, "y": 1.0} for x in OVERFLOWS),
                *good(90, 120),
            ]
        )
        learned(running, 120)
        assert job(running)["generation"] == 1  # found without an end of the generation
        documents.insert_many(
            [
                *good(120, 150),
                *({"_id": f"refused {n}", "x": 0.5, "n": n, "y": 1.0} for n in REFUSED),
                *good(150, 180),
            ]
        )
        learned(running, 180)
        assert job(running)["generation"] == 2  # one that fails, and one that finds all of them
        documents.insert_many(good(180, 240))
        learned(running, 240)
    assert job(running)["generation"] == 2
    records = wait_until(
        lambda: (
            (found := job(running))["checkpoint"] is not None
            and found["checkpoint"]["rows_learned"] == 240
            and found["counts"]
        ),
        timeout=WAIT_SECONDS,
        what="a manifest with all of them",
    )
    assert records["dead_letters"] == len(REFUSED) + len(OVERFLOWS)
    assert records["learned"] == 240
    letters = asyncio.run(dead_letters(kafka_config))
    assert sorted(letters.values()) == ["model-refuses"] * len(REFUSED) + ["non-finite-loss:y"] * len(OVERFLOWS)
    assert running.drain() == 0

    running.start()  # what is not to be learned does not come back out of the window
    training(running)
    with pymongo.MongoClient[dict[str, Any]](uri, w="majority") as client:
        for begin in range(240, 440, 40):
            client["table"]["documents"].insert_many(good(begin, begin + 40))
            learned(running, begin + 40)
    assert job(running)["generation"] == 3
    assert job(running)["counts"]["expelled"] == 0
    assert running.drain() == 0


def good(begin: int, end: int) -> list[dict[str, Any]]:
    return [{"_id": i, "x": i % 7 / 7, "n": i % 10, "y": 1.0} for i in range(begin, end)]


def job(running: Deployment) -> dict[str, Any]:
    found = running.job()
    assert found is not None
    return found


def training(running: Deployment) -> None:
    wait_until(lambda: (running.job() or {}).get("phase") == "training", timeout=WAIT_SECONDS, what="the group")


def learned(running: Deployment, rows: int) -> None:
    wait_until(
        lambda: (found := running.job()) is not None and found["rows_learned"] == rows,
        timeout=WAIT_SECONDS,
        what=f"{rows} rows",
    )


async def dead_letters(kafka: config.Kafka) -> dict[str, str]:
    """Reasons by origin."""
    topic = topics.dead_letter_topic(kafka.topic_prefix, "table")
    consumer = AIOKafkaConsumer(
        topic, **topics.kafka_options(kafka), auto_offset_reset="earliest", enable_auto_commit=False
    )
    await consumer.start()
    try:
        found: dict[str, str] = {}
        while batches := await consumer.getmany(timeout_ms=1000):
            for record in (record for records in batches.values() for record in records):
                headers = dict(record.headers)
                found[record.key.decode()] = headers["reason"].decode()
        return found
    finally:
        await consumer.stop()

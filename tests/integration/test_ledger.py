"""The ledger (I1, I2): whatever dies, every document that MongoDB acknowledged is learned exactly once."""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pymongo
import pytest

from streamtrain import config
from streamtrain.artifacts import GridFSStore
from streamtrain.registry.manifests import from_stored
from streamtrain.sandbox.mongo_server import MongoProcess
from streamtrain.types import Manifest
from tests.deployment import Deployment, one_job, wait_until

DOCUMENTS = 50_000
KILLS = 7
WRITE_SECONDS = 150.0
BATCH = 100
SEED = 20261130
TRAINING_AGAIN_SECONDS = 60.0


class Writer(threading.Thread):
    """Inserts documents 0..count-1 in order, acknowledged by the majority, over at least `seconds`. It goes no further
    than `allowed`: so the faults fall into the stream, not after it, however slow the machine is."""

    def __init__(self, *, uri: str, count: int, seconds: float) -> None:
        super().__init__(name="ledger-writer", daemon=True)
        self._uri, self._count, self._seconds = uri, count, seconds
        self.allowed = 0
        self.written = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with pymongo.MongoClient[dict[str, Any]](self._uri, w="majority") as client:
                collection = client["ledger"]["documents"]
                for first in range(0, self._count, BATCH):
                    while first + BATCH > self.allowed:
                        sleep(0.02)
                    collection.insert_many(
                        [{"_id": slot, "slot": slot, "y": 0.0} for slot in range(first, first + BATCH)]
                    )
                    self.written = first + BATCH
                    sleep(self._seconds * BATCH / self._count)  # a stream, not a heap
        except pymongo.errors.PyMongoError as error:
            self.error = error


@pytest.fixture
def deployment(
    apache_kafka_config: config.Kafka, mongo_process: Callable[..., MongoProcess], tmp_path: Path
) -> Iterator[tuple[Deployment, str]]:
    mongo = mongo_process(data_file=tmp_path / "mongo.data")
    with pymongo.MongoClient[dict[str, Any]](mongo.uri) as client:
        client["ledger"].create_collection("documents")
    settings = one_job(
        apache_kafka_config,
        mongo.uri,
        database="ledger",
        partitions=8,
        job={
            "name": "ledger",
            "features": [{"field": "slot", "dtype": "int32"}],
            "labels": [{"field": "y", "dtype": "float32", "task": "regression"}],
            "model": "tests.ledger_model:build",
            "hyper": {"slots": DOCUMENTS},
            "loss_reduction": "sum",
            "round": {"replay_ratio": 0},
            "checkpoint": {"every": "2s"},
            "workers": {"min": 2},
        },
    )
    running = Deployment(config=settings, folder=tmp_path, python_path=Path(__file__).parents[2])
    yield running, mongo.uri
    running.stop()


def _learned(deployment: Deployment) -> int:
    """Records learned by the weights in force, 0 while nothing trains."""
    job = deployment.job()
    return int(job["rows_learned"]) if job and job["phase"] in ("training", "saving") else 0


def _counts_of_learning(uri: str) -> tuple[np.ndarray[Any, Any], Manifest]:
    """The ledger's weights as the head manifest has them."""
    with pymongo.MongoClient[dict[str, Any]](uri) as client:
        database = client["streamtrain"]
        head = database["jobs"].find_one({"_id": "ledger"})
        assert head is not None
        document = database["manifests"].find_one({"_id": head["head"]})
        assert document is not None
    manifest = from_stored(document)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        store = GridFSStore(uri=uri, database="streamtrain")
        store.get(manifest.artifacts["state"], path)
        store.close()
        with np.load(path) as arrays:
            weights = next(arrays[name] for name in arrays.files if arrays[name].size == DOCUMENTS)
            return weights.reshape(-1), manifest


@pytest.mark.apache
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_document_is_learned_exactly_once_whatever_is_killed(deployment: tuple[Deployment, str]) -> None:
    running, uri = deployment
    chance = random.Random(SEED)
    running.start()
    wait_until(lambda: (running.job() or {}).get("phase") == "training", timeout=120, what="the first generation")
    writer = Writer(uri=uri, count=DOCUMENTS, seconds=WRITE_SECONDS)
    writer.start()

    # The order is drawn, but both kinds occur; a drain with a restart stands in the middle of the faults.
    victims = ["daemon", "worker"] * (KILLS // 2) + [chance.choice(["daemon", "worker"])]
    chance.shuffle(victims)
    victims.insert(len(victims) // 2, "drain")
    story = []
    for number, victim in enumerate(victims, start=1):
        writer.allowed = DOCUMENTS * number // (len(victims) + 1)
        before = _learned(running)
        wait_until(
            lambda before=before: _learned(running) > before or not writer.is_alive(),
            timeout=TRAINING_AGAIN_SECONDS,
            what=f"training to go on after {story}",
        )
        sleep(chance.uniform(0.0, 2.0))  # anywhere within rounds, saves and transactions
        story.append(f"{victim} at {writer.written} written, {_learned(running)} learned")
        if victim == "daemon":
            running.kill()
            running.start()
        elif victim == "worker":
            workers = wait_until(running.workers, timeout=TRAINING_AGAIN_SECONDS, what=f"a worker to kill; {story}")
            chance.choice(workers).kill()
        else:
            assert running.drain() == 0, running.log_file.read_text()[-4000:]
            running.start()

    assert writer.is_alive(), f"the faults must fall into the stream, not after it: {story}"
    writer.allowed = DOCUMENTS
    writer.join(timeout=WRITE_SECONDS * 2)
    assert writer.error is None, writer.error
    assert not writer.is_alive()
    wait_until(lambda: _learned(running) >= DOCUMENTS, timeout=120, what=f"all documents to be learned; {story}")
    assert running.drain() == 0, running.log_file.read_text()[-4000:]

    times, manifest = _counts_of_learning(uri)
    lost, twice = np.flatnonzero(times == 0), np.flatnonzero(times > 1)
    assert not len(lost), f"{len(lost)} documents were not learned, the first are {lost[:5]}; {story}"
    assert not len(twice), f"{len(twice)} documents were learned again, the first are {twice[:5]}; {story}"
    assert np.all(times == 1)
    assert manifest.rows_learned == DOCUMENTS

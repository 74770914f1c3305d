"""Real workers that are killed, frozen, or frozen before they have arrived: the job trains again, with what it had
saved, and no process is left behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pymongo
import pytest

from streamtrain import config
from streamtrain.sandbox.mongo_server import MongoProcess
from tests.deployment import Deployment, one_job, wait_until

# From a loss to training again: found, killed, the next generation has imported TensorFlow, formed and learned.
WAIT_SECONDS = 30.0
WRITE_EVERY_SECONDS = 0.05


class Trickle(threading.Thread):
    """A labelled document now and then: a worker owes an answer only while there is something to learn."""

    def __init__(self, uri: str) -> None:
        super().__init__(name="trickle")
        self._uri = uri
        self.stopped = threading.Event()
        self.written = 0

    def run(self) -> None:
        with pymongo.MongoClient[dict[str, Any]](self._uri, w="majority") as client:
            while not self.stopped.wait(WRITE_EVERY_SECONDS):
                client["loss"]["documents"].insert_one({"_id": self.written, "x": 1.0, "y": 2.0})
                self.written += 1


@pytest.fixture
def deployment(
    kafka_config: config.Kafka, mongo_process: Callable[..., MongoProcess], tmp_path: Path
) -> Iterator[tuple[Deployment, Trickle]]:
    mongo = mongo_process(data_file=tmp_path / "mongo.data")
    with pymongo.MongoClient[dict[str, Any]](mongo.uri) as client:
        client["loss"].create_collection("documents")
    running = Deployment(
        config=one_job(
            kafka_config,
            mongo.uri,
            database="loss",
            partitions=4,
            job={
                "name": "loss",
                "features": [{"field": "x", "dtype": "float32"}],
                "labels": [{"field": "y", "dtype": "float32", "task": "regression"}],
                "checkpoint": {"every": "1s"},
                "workers": {"min": 2},
            },
        ),
        folder=tmp_path,
        python_path=Path(__file__).parents[2],
    )
    trickle = Trickle(mongo.uri)
    yield running, trickle
    trickle.stopped.set()
    if trickle.is_alive():
        trickle.join()
    running.stop()


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lost_worker_does_not_stop_the_job(deployment: tuple[Deployment, Trickle]) -> None:
    running, trickle = deployment
    running.start()
    learn_on(running, trickle, generation=1)

    workers = of_generation(running, 1)
    workers[1].send_signal(signal.SIGKILL)
    learn_on(running, trickle, generation=2)
    gone(workers)

    workers = of_generation(running, 2)
    workers[0].send_signal(signal.SIGSTOP)
    # Its successor is frozen too, while it still imports TensorFlow: it never arrives.
    gone(workers)
    stuck = wait_until(running.workers, timeout=WAIT_SECONDS, what="the third generation")
    stuck[0].send_signal(signal.SIGSTOP)
    learn_on(running, trickle, generation=4)
    gone(stuck)

    trickle.stopped.set()
    trickle.join()
    written = trickle.written
    wait_until(lambda: learned(running) == written, timeout=WAIT_SECONDS, what="all documents, once")
    workers = of_generation(running, 4)
    assert running.drain() == 0
    gone(workers)


def learned(running: Deployment) -> int:
    job = running.job()
    return int(job["rows_learned"]) if job else 0


def learn_on(running: Deployment, trickle: Trickle, *, generation: int) -> None:
    """Until that generation has learned what was written after it was asked for, and has saved something."""
    if not trickle.is_alive():
        wait_until(
            lambda: (running.job() or {}).get("phase") == "training", timeout=WAIT_SECONDS, what="the first group"
        )
        trickle.start()
    target = trickle.written + 10
    wait_until(
        lambda: (
            (job := running.job()) is not None
            and job["generation"] == generation
            and job["rows_learned"] >= target
            and job["checkpoint"] is not None
        ),
        timeout=WAIT_SECONDS,
        what=f"generation {generation} to learn",
    )


def of_generation(running: Deployment, generation: int) -> list[psutil.Process]:
    job = running.job()
    assert job is not None
    assert job["generation"] == generation
    return [psutil.Process(pid) for pid in job["pids"]]


def gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=WAIT_SECONDS)
    assert not alive

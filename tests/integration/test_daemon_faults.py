"""One daemon whose MongoDB fails, stalls and hangs up on it, whose state cannot be written for a while, and whose
temporary folder is cleaned away: it keeps its workers where it can, and everything is learned once."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pymongo
import pytest

from streamtrain import config
from streamtrain.errors import EXIT_OK
from streamtrain.sandbox.mongo_server import MongoProcess
from tests.deployment import Deployment, one_job, wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.xdist_group("daemon")]

WAIT_S = 60.0
STEPPED_DOWN = 189
NOT_WRITABLE = 10107
RETRYABLE = ("RetryableWriteError",)


class Faulty:
    """A deployment, and what is done to its MongoDB."""

    def __init__(self, *, deployment: Deployment, client: pymongo.MongoClient[dict[str, Any]]) -> None:
        self.deployment = deployment
        self.client = client
        self.written = 0

    def fault(self, command: str, kind: str, **options: Any) -> None:
        self.client.admin.command({"sandboxFault": command, "kind": kind, **options})

    def learns(self, what: str) -> dict[str, Any]:
        """What is written now is learned, once, and saved."""
        self.client["shop"]["orders"].insert_many([{"x": float(n % 5), "y": 2.0 * (n % 5)} for n in range(100)])
        self.written += 100

        def learned() -> dict[str, Any] | None:
            job = self.job()
            assert job["rows_learned"] <= self.written
            saved = job["checkpoint"]
            done = job["rows_learned"] == self.written and saved and saved["rows_learned"] == self.written
            return job if done else None

        try:
            job = wait_until(learned, timeout=WAIT_S, what=f"what was written {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.deployment.log_file.read_text()[-4000:]}") from None
        assert job is not None
        return job

    def job(self) -> dict[str, Any]:
        job = wait_until(self.deployment.job, timeout=WAIT_S, what="the status")
        assert job is not None
        return job


@pytest.fixture
def faulty(kafka_config: config.Kafka, mongo_process: Callable[..., MongoProcess], tmp_path: Path) -> Iterator[Faulty]:
    mongo = mongo_process(data_file=tmp_path / "mongo.data")
    deployment = Deployment(
        config=one_job(
            kafka_config,
            mongo.uri,
            database="shop",
            partitions=2,
            collection="orders",
            job={
                "name": "orders",
                "features": [{"field": "x", "dtype": "float32"}],
                "labels": [{"field": "y", "dtype": "float32", "task": "regression"}],
                "checkpoint": {"every": "500ms"},
            },
        ),
        folder=tmp_path,
        python_path=Path(__file__).parents[2],
    )
    with pymongo.MongoClient[dict[str, Any]](mongo.uri) as client:
        client["shop"].create_collection("orders")
        yield Faulty(deployment=deployment, client=client)
        deployment.stop()


@pytest.mark.timeout(240)
def test_a_daemon_outlives_the_faults_of_its_surroundings(faulty: Faulty) -> None:
    """One story rather than many tests: a group takes long to form."""
    deployment = faulty.deployment
    deployment.start()
    wait_until(lambda: (deployment.job() or {}).get("phase") == "training", timeout=WAIT_S, what="training")
    faulty.learns("before any fault")

    for when in ("drop_before", "drop_after", "drop_within"):
        faulty.fault("getMore", when, times=2)
    faulty.fault("getMore", "error", code=STEPPED_DOWN, skip=1, times=2)
    faulty.fault("aggregate", "error", code=STEPPED_DOWN, times=2)
    faulty.learns("while the change stream was cut off, and could not be opened again")

    faulty.fault("getMore", "delay", seconds=3.0, times=2)
    faulty.fault("find", "delay", seconds=2.0, times=2)
    faulty.learns("while MongoDB was slow")

    for collection in ("jobs", "manifests", "deployment"):
        namespace = f"streamtrain.{collection}"
        faulty.fault("*", "error", code=NOT_WRITABLE, labels=RETRYABLE, times=6, namespace=namespace)
        faulty.fault("*", "drop_after", times=2, namespace=namespace)
    faulty.learns("while no state could be written")

    for folder in _scratch_of(deployment):
        shutil.rmtree(folder)
    job = faulty.learns("after the temporary folder had been cleaned away")
    assert job["generation"] == 1, deployment.log_file.read_text()

    faulty.fault("*", "error", code=NOT_WRITABLE, times=1, namespace="streamtrain.checkpoints.chunks")
    job = faulty.learns("although a worker could not write what it saved")
    assert job["generation"] >= 1

    daemon = deployment.daemon
    assert daemon is not None
    workers = deployment.workers()
    daemon.send_signal(signal.SIGINT)
    assert daemon.wait(WAIT_S) == EXIT_OK
    assert not psutil.wait_procs(workers, timeout=10)[1]
    assert '"message": "drained"' in deployment.log_file.read_text()


def _scratch_of(deployment: Deployment) -> list[Path]:
    return list(deployment.scratch.iterdir())

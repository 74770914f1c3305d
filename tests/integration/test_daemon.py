"""One daemon on embedded servers, as an operator has it: it learns, says what it does, learns again when told to,
reloads, drains, and never shows a secret."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pymongo
import pytest

from streamtrain.errors import EXIT_INTERRUPTED, EXIT_OK
from streamtrain.sandbox.kafka_broker import KafkaBroker, free_ports
from streamtrain.sandbox.mongo_server import MongoProcess
from tests.deployment import Deployment, wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.xdist_group("daemon")]

SECRET = "hunter2-planted"
FORM_S = 120.0
LEARN_S = 60.0
MAX_RSS = 200 * 1024**2


class Operator:
    """The deployment, its collection, and the command line beside it."""

    def __init__(self, *, deployment: Deployment, config: dict[str, Any], folder: Path, mongo: MongoProcess) -> None:
        self.deployment = deployment
        self.mongo = mongo
        self.file = folder / "streamtrain.yaml"
        self.address = config["admin"]["listen"]
        self.client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(mongo.uri)
        self.collection = self.client["shop"]["orders"]
        self.written = 0

    def write(self, count: int) -> None:
        documents = [{"items": float(n % 7), "price": 3.0 * (n % 7) + 1.0} for n in range(count)]
        self.collection.insert_many(documents)
        self.written += count

    def streamtrain(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "streamtrain", *arguments, "--config", str(self.file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert SECRET not in done.stdout + done.stderr
        return done

    def status(self) -> dict[str, Any]:
        done = self.streamtrain("status", "--json")
        assert done.returncode == EXIT_OK, done.stdout + done.stderr
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def job(self) -> dict[str, Any]:
        job: dict[str, Any] = self.status()["jobs"]["price"]
        return job

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def log(self) -> str:
        return self.deployment.log_file.read_text()

    def until(self, condition: Any, *, timeout: float, what: str) -> None:
        try:
            wait_until(condition, timeout=timeout, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()[-4000:]}") from None

    def serves(self) -> bool:
        daemon = self.deployment.daemon
        assert daemon is not None
        assert daemon.poll() is None, self.log()
        try:
            return self.get("/livez") == "alive\n"
        except OSError:
            return False


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "kafka").mkdir()
    (folder / "token").write_text(f"{SECRET}\n")
    mongo = MongoProcess(data_file=folder / "mongodb")
    mongo.start()
    try:
        with KafkaBroker(directory=folder / "kafka") as broker:
            config = {
                "kafka": {"bootstrap_servers": broker.bootstrap_servers},
                "admin": {"listen": f"127.0.0.1:{free_ports(1)[0]}", "token_file": "token"},
                "state": {"artifacts": str(folder / "artifacts")},
                "sources": [
                    {
                        "name": "orders",
                        "uri": mongo.uri,
                        "database": "shop",
                        "collection": "orders",
                        "partitions": 4,
                    }
                ],
                "jobs": [
                    {
                        "name": "price",
                        "source": "orders",
                        "features": [{"field": "items", "dtype": "float32"}],
                        "labels": [{"field": "price", "dtype": "float32", "task": "regression"}],
                        "checkpoint": {"every": "2s"},
                        "workers": {"min": 2},
                    }
                ],
            }
            deployment = Deployment(config=config, folder=folder)
            operator = Operator(deployment=deployment, config=config, folder=folder, mongo=mongo)
            operator.client["shop"].create_collection("orders")
            try:
                yield operator
            finally:
                deployment.stop()
                operator.client.close()
    finally:
        mongo.stop()


@pytest.fixture(autouse=True)
def stopped(operator: Operator) -> Iterator[None]:
    """Whatever a failed test leaves running is gone before the next one."""
    yield
    operator.deployment.stop()


def test_a_daemon_from_its_first_document_to_its_drain(operator: Operator) -> None:
    """One story rather than many tests: a group takes long to form."""
    deployment = operator.deployment
    deployment.start()
    daemon = deployment.daemon
    assert daemon is not None
    operator.until(operator.serves, timeout=FORM_S, what="the admin endpoint")
    operator.until(lambda: operator.job()["phase"] == "training", timeout=FORM_S, what="training")

    operator.write(500)
    operator.until(lambda: operator.job()["rows_learned"] == 500, timeout=LEARN_S, what="500 learned rows")
    operator.until(lambda: operator.job()["checkpoint"], timeout=LEARN_S, what="a manifest")
    assert operator.get("/readyz") == "ready\n"
    _is_described(operator)

    process = psutil.Process(daemon.pid)
    assert process.memory_info().rss < MAX_RSS
    assert not [entry.path for entry in process.memory_maps() if "tensorflow" in entry.path]

    _a_second_daemon_stands_by(operator)
    _reloads(operator)

    lineage = _retrains(operator)
    operator.write(300)
    operator.until(lambda: operator.job()["rows_learned"] == 800, timeout=LEARN_S, what="what came meanwhile")

    _outlives_its_mongodb(operator)

    operator.write(200)
    assert deployment.drain() == EXIT_OK
    assert SECRET not in operator.log()
    assert '"message": "drained"' in operator.log()
    assert not deployment.workers()
    head = operator.client["streamtrain"]["jobs"].find_one({"_id": "price"})
    assert head is not None
    assert head["head"].startswith(f"price/{lineage}/")


def _retrains(operator: Operator) -> str:
    """Begins one and cancels it; another one takes the job's place. Its lineage."""
    begun = json.loads(operator.streamtrain("retrain", "price", "--since", "1h", "--workers", "1", "--json").stdout)
    assert begun["records"] == 500
    operator.until(lambda: operator.job()["retrains"][0]["pids"], timeout=FORM_S, what="a worker beside the job")
    assert f"retrain {begun['lineage']} from price/" in operator.streamtrain("status").stdout
    operator.streamtrain("retrain", "price", begun["lineage"], "--cancel")
    assert operator.job()["retrains"] == []
    assert operator.job()["phase"] in ("training", "saving")
    done = operator.streamtrain("retrain", "price", "--from", "scratch", "--promote", "--json")
    lineage: str = json.loads(done.stdout)["lineage"]
    operator.until(
        lambda: operator.job()["lineage"] == lineage and operator.job()["rows_learned"] == 500,
        timeout=FORM_S,
        what="the window learned again",
    )
    operator.until(lambda: operator.job()["phase"] == "training", timeout=FORM_S, what="the job to go on")
    operator.streamtrain("pause", "price")
    operator.until(lambda: operator.job()["phase"] == "paused", timeout=LEARN_S, what="the pause")
    operator.streamtrain("resume", "price")
    operator.until(
        lambda: operator.job()["phase"] == "training", timeout=FORM_S, what="the job to go on after the pause"
    )
    return lineage


def _is_described(operator: Operator) -> None:
    """In the metrics and for a person."""
    metrics = operator.get("/metrics")
    assert 'streamtrain_records_total{job="price",outcome="learned"} 500.0' in metrics
    assert 'streamtrain_source_events_total{source="orders"} 500.0' in metrics
    assert 'streamtrain_job_phase{job="price",phase="training"} 1.0' in metrics
    assert "streamtrain_lease_held 1.0" in metrics
    assert SECRET not in metrics
    shown = operator.streamtrain("status").stdout
    assert "source orders: streaming, 500 events published" in shown
    assert "learned 500 rows" in shown
    status = operator.status()
    assert status["ready"] is True
    assert status["jobs"]["price"]["report"]["scores"]["price"]["rows"] == 500
    assert status["jobs"]["price"]["backlog"] == 0


def _a_second_daemon_stands_by(operator: Operator) -> None:
    """It shares the state, so it waits; a signal ends it while it does."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    second = subprocess.Popen(
        [sys.executable, "-m", "streamtrain", "run", "-c", str(operator.file), "--set", f"admin.listen={address}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def waiting() -> bool:
            try:
                urllib.request.urlopen(f"http://{address}/readyz", timeout=5)
            except urllib.error.HTTPError as answer:
                return "waits for the lease, which" in answer.read().decode()
            except OSError:
                return False
            return False

        operator.until(waiting, timeout=LEARN_S, what="the second daemon to stand by")
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == EXIT_OK
    finally:
        if second.poll() is None:
            second.kill()
            second.wait()
    assert operator.get("/readyz") == "ready\n"


def _reloads(operator: Operator) -> None:
    daemon = operator.deployment.daemon
    assert daemon is not None
    before = operator.file.read_text()
    try:
        operator.file.write_text(before.replace("every: 2s", "every: 3s") + "log: {level: debug}\n")
        os.kill(daemon.pid, signal.SIGHUP)
        told = '"need_a_restart": ["jobs"]'
        operator.until(lambda: told in operator.log(), timeout=LEARN_S, what="the reload")
        operator.file.write_text(before + "logs: {}\n")
        os.kill(daemon.pid, signal.SIGHUP)
        operator.until(lambda: "unknown key 'logs'" in operator.log(), timeout=LEARN_S, what="the refused reload")
    finally:
        operator.file.write_text(before)


def _outlives_its_mongodb(operator: Operator) -> None:
    """Not ready, but alive, while MongoDB is away; then it goes on from where it was."""
    operator.mongo.kill()

    def unready() -> bool:
        try:
            operator.get("/readyz")
        except urllib.error.HTTPError as answer:
            return "source orders: " in answer.read().decode()
        return False

    operator.until(unready, timeout=LEARN_S, what="readiness to fail")
    assert operator.get("/livez") == "alive\n"
    operator.mongo.start()
    operator.write(100)
    operator.until(lambda: operator.job()["rows_learned"] == 900, timeout=LEARN_S, what="what came afterwards")
    operator.until(lambda: operator.status()["ready"], timeout=LEARN_S, what="readiness")


def test_a_second_signal_ends_the_daemon_at_once(operator: Operator) -> None:
    deployment = operator.deployment
    deployment.start()
    daemon = deployment.daemon
    assert daemon is not None
    operator.until(operator.serves, timeout=FORM_S, what="the admin endpoint")
    operator.until(deployment.workers, timeout=FORM_S, what="workers")
    workers = deployment.workers()
    daemon.send_signal(signal.SIGTERM)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(30) in (EXIT_INTERRUPTED, EXIT_OK)  # OK: it had drained before the second one came
    assert not psutil.wait_procs(workers, timeout=30)[1]

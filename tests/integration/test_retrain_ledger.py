"""The ledger of a retrain (I1, I2): it is learned from scratch beside a job whose documents are still being written,
takes its place, and whatever is killed on the way, its weights have learned every document exactly once."""

from __future__ import annotations

import json
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymongo
import pytest

from streamtrain.artifacts import DirectoryStore
from streamtrain.registry.manifests import from_stored
from streamtrain.sandbox.kafka_broker import KafkaBroker, free_ports
from streamtrain.sandbox.mongo_server import MongoProcess
from streamtrain.types import Manifest
from tests.deployment import Deployment, wait_until

SLOTS = 30_000
BEFORE = 4_000
BATCH, EVERY_S = 50, 0.25
FORM_S = 120.0


class Writer(threading.Thread):
    """Inserts documents in order until it is told to stop, or all are written."""

    def __init__(self, uri: str) -> None:
        super().__init__(name="retrain-writer", daemon=True)
        self._uri = uri
        self._stopped = threading.Event()
        self.written = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with pymongo.MongoClient[dict[str, Any]](self._uri, w="majority") as client:
                self._write(client["ledger"]["documents"], BEFORE)
                while not self._stopped.wait(EVERY_S) and self.written + BATCH <= SLOTS:
                    self._write(client["ledger"]["documents"], BATCH)
        except pymongo.errors.PyMongoError as error:
            self.error = error

    def _write(self, collection: Any, count: int) -> None:
        first = self.written
        collection.insert_many([{"_id": slot, "slot": slot, "y": 0.0} for slot in range(first, first + count)])
        self.written += count

    def stop(self) -> None:
        self._stopped.set()
        self.join(30)
        assert self.error is None, self.error


class Ledger:
    def __init__(self, *, deployment: Deployment, address: str, uri: str, artifacts: Path) -> None:
        self.deployment = deployment
        self.uri = uri
        self._address, self._artifacts = address, artifacts

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://{self._address}/v1/jobs/ledger/{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
            return document

    def job(self) -> dict[str, Any]:
        return self.deployment.job() or {"phase": None, "retrains": [], "rows_learned": 0, "lineage": None}

    def retrain(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = self.job()["retrains"]
        return found[0] if found else {"state": None, "rounds": 0, "pids": []}

    def until(self, condition: Any, what: str) -> None:
        try:
            wait_until(condition, timeout=FORM_S, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.deployment.log_file.read_text()[-4000:]}") from None

    def kill(self) -> None:
        self.deployment.kill()
        self.deployment.start()
        self.until(lambda: self.deployment.job() is not None, "the next daemon")

    def head(self) -> tuple[Manifest, set[str]]:
        """And the lineages whose manifests are kept."""
        with pymongo.MongoClient[dict[str, Any]](self.uri) as client:
            database = client["streamtrain"]
            job = database["jobs"].find_one({"_id": "ledger"})
            assert job is not None
            assert not job.get("retrains")
            stored = database["manifests"].find_one({"_id": job["head"]})
            assert stored is not None
            return from_stored(stored), {found["lineage"] for found in database["manifests"].find()}

    def times_learned(self, manifest: Manifest) -> np.ndarray[Any, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.npz"
            DirectoryStore(path=self._artifacts).get(manifest.artifacts["state"], path)
            with np.load(path) as arrays:
                return next(arrays[name] for name in arrays.files if arrays[name].size == SLOTS).reshape(-1)


@pytest.fixture
def ledger(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Ledger]:
    mongo = MongoProcess(data_file=tmp_path / "mongo.data")
    mongo.start()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pymongo.MongoClient[dict[str, Any]](mongo.uri) as client:
        client["ledger"].create_collection("documents")
    settings = {
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": "retrain-ledger"},
        "admin": {"listen": address},
        "state": {"artifacts": str(tmp_path / "artifacts")},
        "sources": [
            {"name": "ledger", "uri": mongo.uri, "database": "ledger", "collection": "documents", "partitions": 4}
        ],
        "jobs": [
            {
                "name": "ledger",
                "source": "ledger",
                "features": [{"field": "slot", "dtype": "int32"}],
                "labels": [{"field": "y", "dtype": "float32", "task": "regression"}],
                "model": "tests.ledger_model:build",
                "hyper": {"slots": SLOTS},
                "loss_reduction": "sum",
                "round": {"replay_ratio": 0, "max_records": 32, "batch_size": 32},
                "checkpoint": {"every": "500ms"},
            }
        ],
    }
    deployment = Deployment(config=settings, folder=tmp_path, python_path=Path(__file__).parents[2])
    try:
        yield Ledger(deployment=deployment, address=address, uri=mongo.uri, artifacts=tmp_path / "artifacts")
    finally:
        deployment.stop()
        mongo.stop()


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_retrained_lineage_has_learned_every_document_once_whatever_is_killed(ledger: Ledger) -> None:
    ledger.deployment.start()
    ledger.until(lambda: ledger.job()["phase"] == "training", "the first generation")
    writer = Writer(ledger.uri)
    writer.start()
    ledger.until(lambda: ledger.job()["rows_learned"] >= BEFORE, "documents to retrain")
    first = ledger.job()["lineage"]

    begun = ledger.post("retrain", {"from": "scratch", "hyper": {"told": "the ledger"}})
    ledger.until(lambda: ledger.retrain()["rounds"] > 0, "the retrain to learn")
    assert ledger.retrain()["state"] == "learning"
    assert ledger.job()["phase"] in ("training", "saving")
    ledger.kill()
    ledger.until(lambda: ledger.retrain()["state"] == "ready", "its range to be learned")
    assert ledger.retrain()["lineage"] == begun["lineage"]
    assert ledger.retrain()["scores"]["y"]["rows"] == begun["records"]
    ledger.kill()
    ledger.until(lambda: ledger.retrain()["state"] == "ready", "it to be found again")
    ledger.until(lambda: ledger.job()["phase"] == "training", "the job to go on")
    assert ledger.job()["lineage"] == first

    ledger.post(f"retrain/{begun['lineage']}/promote", {})
    ledger.until(lambda: ledger.retrain()["pids"], "it to learn the gap")
    ledger.kill()
    ledger.until(lambda: ledger.job()["lineage"] == begun["lineage"], "it to take the job's place")
    assert writer.is_alive(), "all of this must happen beside a running writer"
    ledger.until(lambda: ledger.job()["phase"] == "training", "the job to go on in the new lineage")
    assert ledger.job()["hyper"] == {"told": "the ledger"}
    writer.stop()
    ledger.until(lambda: ledger.job()["rows_learned"] >= writer.written, "all documents to be learned")
    assert ledger.deployment.drain() == 0, ledger.deployment.log_file.read_text()[-4000:]

    manifest, lineages = ledger.head()
    times = ledger.times_learned(manifest)
    written = times[: writer.written]
    assert np.all(written == 1), (np.flatnonzero(written != 1)[:5], written[written != 1][:5], writer.written)
    assert not times[writer.written :].any()
    assert (manifest.lineage, manifest.hyper) == (begun["lineage"], {"told": "the ledger"})
    assert manifest.rows_learned == writer.written
    assert lineages <= {first, begun["lineage"]}

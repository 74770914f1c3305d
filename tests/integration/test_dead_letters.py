"""Documents that a job's model could not take, learned after all: from the dead letters to the weights (I7)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pymongo
import pytest
import yaml

from streamtrain import config
from streamtrain.errors import EXIT_OK, EXIT_USAGE
from streamtrain.registry.manifests import from_stored
from streamtrain.sandbox.kafka_broker import free_ports
from streamtrain.sandbox.mongo_server import ThreadedMongo
from streamtrain.types import Manifest
from tests.deployment import Deployment, wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SLOTS = 100
BAD = range(0, SLOTS, 5)
WITHIN_S = 120.0

# The ledger's model, but one whose loss is no number where `x` is 0.
MODEL = textwrap.dedent("""
    import keras

    def minus(y, told):
        return 0.0 * keras.ops.reshape(y, (-1,)) - keras.ops.reshape(told, (-1,))

    def build(schema, hyper):
        slot, x = keras.Input((), name="slot", dtype="int32"), keras.Input((), name="x")
        count = keras.layers.Embedding(hyper["slots"], 1, embeddings_initializer="zeros", name="ledger")(slot)
        count = keras.layers.Reshape((1,))(count) + keras.layers.Reshape((1,))(0.0 * keras.ops.log(x + SHIFT))
        model = keras.Model([slot, x], count)
        model.compile(optimizer=keras.optimizers.SGD(1.0), loss=minus)
        return model
""")


def settings(mongo: ThreadedMongo, kafka: config.Kafka, folder: Path) -> dict[str, Any]:
    return {
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix},
        "admin": {"listen": f"127.0.0.1:{free_ports(1)[0]}"},
        "state": {"artifacts": str(folder / "artifacts")},
        "sources": [{"name": "s", "uri": mongo.uri, "database": "d", "collection": "c", "partitions": 4}],
        "jobs": [
            {
                "name": "count",
                "source": "s",
                "features": [{"field": "slot", "dtype": "int32"}, {"field": "x", "dtype": "float32"}],
                "labels": [{"field": "y", "dtype": "float32", "task": "regression"}],
                "model": "counting_model:build",
                "hyper": {"slots": SLOTS},
                "loss_reduction": "sum",
                "round": {"replay_ratio": 0, "max_wait": "20ms"},
                "checkpoint": {"every": "1s"},
                "workers": {"min": 2},
            }
        ],
    }


def dead_letters(folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "streamtrain", "dead-letters", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        cwd=folder,
        check=False,
    )
    assert done.returncode == EXIT_OK, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def counts(running: Deployment) -> dict[str, int]:
    job = running.job() or {}
    found: dict[str, int] = job.get("counts") or {}
    return found if job.get("phase") in ("training", "saving") else {}


def learned(mongo: ThreadedMongo, folder: Path) -> tuple[Manifest, list[int]]:
    """How often each document is in the weights of the head."""
    with pymongo.MongoClient[dict[str, Any]](mongo.uri) as client:
        state = client["streamtrain"]
        job = state["jobs"].find_one({"_id": "count"})
        assert job is not None
        document = state["manifests"].find_one({"_id": job["head"]})
        assert document is not None
    manifest = from_stored(document)
    with np.load(folder / "artifacts" / manifest.artifacts["state"].name) as arrays:
        weights = next(arrays[name] for name in arrays.files if arrays[name].size == SLOTS)
    return manifest, weights.reshape(-1).astype(int).tolist()


def test_what_a_model_could_not_take_is_learned_once_by_the_one_that_can(
    mongo_server: ThreadedMongo, kafka_config: config.Kafka, tmp_path: Path
) -> None:
    model = tmp_path / "counting_model.py"
    model.write_text("SHIFT = 0.0\n" + MODEL)
    running = Deployment(config=settings(mongo_server, kafka_config, tmp_path), folder=tmp_path, python_path=tmp_path)
    with pymongo.MongoClient[dict[str, Any]](mongo_server.uri) as client:
        collection = client["d"].create_collection("c")
        try:
            running.start()
            wait_until(lambda: counts(running), timeout=WITHIN_S, what="training")
            collection.insert_many([{"slot": n, "x": 0.0 if n in BAD else 2.0, "y": 1.0} for n in range(SLOTS)])
            wait_until(
                lambda: counts(running).get("learned") == SLOTS - len(BAD), timeout=WITHIN_S, what="what can be learned"
            )
            assert running.drain() == EXIT_OK, running.log_file.read_text()[-4000:]
            _, times = learned(mongo_server, tmp_path)
            assert times == [int(n not in BAD) for n in range(SLOTS)]

            (listed,) = dead_letters(tmp_path, "list", "count")["reasons"]
            assert (listed["reason"], listed["letters"], listed["replayed"]) == ("non-finite-loss:y", len(BAD), 0)

            model.write_text("SHIFT = 1.0\n" + MODEL)
            running.start()
            wait_until(lambda: counts(running), timeout=WITHIN_S, what="training to go on")
            assert dead_letters(tmp_path, "replay", "count", "--reason", "type")["replayed"] == {}
            found = dead_letters(tmp_path, "replay", "count", "--reason", "non-finite-loss")
            assert found["replayed"] == {"non-finite-loss:y": len(BAD)}
            running.workers()[0].kill()  # before, while or after they are learned
            assert dead_letters(tmp_path, "replay", "count")["left"] == {"replayed before": len(BAD)}
            wait_until(
                lambda: counts(running).get("redriven") == len(BAD), timeout=WITHIN_S, what="the letters to be learned"
            )
            assert running.drain() == EXIT_OK, running.log_file.read_text()[-4000:]
        finally:
            running.stop()
    manifest, times = learned(mongo_server, tmp_path)
    assert times == [1] * SLOTS
    assert manifest.counts.redriven == len(BAD)
    assert manifest.counts.learned == SLOTS
    assert manifest.scores["y"].rows == SLOTS - len(BAD)


def test_a_job_without_letters_and_one_that_is_not_there(
    mongo_server: ThreadedMongo, kafka_config: config.Kafka, tmp_path: Path
) -> None:
    (tmp_path / "streamtrain.yaml").write_text(yaml.safe_dump(settings(mongo_server, kafka_config, tmp_path)))
    command = [sys.executable, "-m", "streamtrain", "dead-letters", "list"]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": WITHIN_S, "cwd": tmp_path}
    options["env"] = {name: value for name, value in os.environ.items() if not name.startswith("STREAMTRAIN")}
    wrong = subprocess.run([*command, "cuont"], check=False, **options)
    assert wrong.returncode == EXIT_USAGE
    assert "there is no job 'cuont'" in wrong.stderr
    none = subprocess.run([*command, "count"], check=False, **options)
    assert (none.returncode, none.stdout) == (EXIT_OK, "count: no dead letters\n"), none.stderr

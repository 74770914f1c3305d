"""`check-model` and `streamtrain.testing`, with real processes."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import bson
import pymongo
import pytest

from streamtrain.checking.checker import check
from streamtrain.checking.verdicts import State, Verdict
from streamtrain.config import Job
from streamtrain.errors import EXIT_CONFIG, EXIT_OK, EXIT_USAGE
from streamtrain.sandbox.mongo_server import ThreadedMongo
from streamtrain.testing import check_model

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.xdist_group("check-model")]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCHEMA: dict[str, Any] = {
    "features": [
        {"field": "x", "dtype": "float32", "length": 3},
        {"field": "count", "dtype": "int32"},
        {"field": "word", "dtype": "string"},
    ],
    "labels": [{"field": "y", "dtype": "float32", "task": "regression"}],
}
SETTINGS = """\
kafka: {bootstrap_servers: "127.0.0.1:1"}
sources: [{name: s, uri: "MONGO", database: d, collection: c}]
jobs:
  - name: sound
    source: s
    features: [{field: x, dtype: float32, length: 3}, {field: count, dtype: int32}]
    labels: [{field: y, dtype: float32, task: regression}]
    model: checked_models:sound
  - name: accumulating
    source: s
    features: [{field: x, dtype: float32, length: 3}, {field: count, dtype: int32}]
    labels: [{field: y, dtype: float32, task: regression}]
    model: checked_models:accumulating
"""


def documents(count: int = 100) -> list[dict[str, Any]]:
    draw = random.Random(1)
    return [
        {
            "x": [draw.gauss(0, 1) for _ in range(3)],
            "count": draw.randrange(5),
            "word": draw.choice("abc"),
            "y": draw.gauss(0, 1),
        }
        for _ in range(count)
    ]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def checked(model: str) -> dict[str, Verdict]:
    job = {"name": "j", "source": "s", **SCHEMA, "model": f"checked_models:{model}", "round": {"batch_size": 32}}
    found = check(Job.model_validate(job), [bson.encode(document) for document in documents()])
    return {each.check: each for each in found}


@pytest.mark.usefixtures("models")
def test_what_two_workers_a_restore_and_an_export_show_of_a_model_is_told() -> None:
    found = checked("restless")
    workers, restored = found["two workers learn what one learns"], found["saved and restored"]
    assert workers.state is State.FAILED
    assert "counting/seen" in workers.message
    assert restored.state is State.FAILED
    assert "SeedGenerator" in restored.advice
    assert found["exported, and answers raw documents"].state is State.FAILED


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("model", "message", "advice"),
    [
        ("wrong_type", "Cast string to float is not supported", "'word' string"),
        ("ended", "ended with status 3", "run it by hand"),
    ],
)
def test_a_model_that_cannot_be_built_says_why(model: str, message: str, advice: str) -> None:
    first, *others = checked(model).values()
    assert first.state is State.FAILED
    assert message in first.message
    assert advice in first.advice
    assert {each.state for each in others} == {State.SKIPPED}


def streamtrain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-m", "streamtrain", "check-model", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False, timeout=280
    )


def test_the_command_samples_the_collection_and_its_exit_code_says_whether_all_is_well(
    tmp_path: Path, mongo_server: ThreadedMongo
) -> None:
    (tmp_path / "streamtrain.yaml").write_text(SETTINGS.replace("MONGO", mongo_server.uri))
    several = streamtrain(tmp_path)
    assert several.returncode == EXIT_USAGE
    assert "--job sound|accumulating" in several.stderr
    empty = streamtrain(tmp_path, "--job", "sound")
    assert "d.c holds no document" in empty.stderr
    with pymongo.MongoClient[dict[str, Any]](mongo_server.uri) as client:
        client["d"]["c"].insert_many([*documents(), {"x": "?", "y": 1.0}])
    sound = streamtrain(tmp_path, "--job", "sound", "--json")
    assert sound.returncode == EXIT_OK, sound.stdout + sound.stderr
    told = json.loads(sound.stdout)
    assert (told["ok"], told["job"]) == (True, "sound")
    states = {each["check"]: each["state"] for each in told["checks"]}
    assert states == {
        "builds, and fits the schema": "ok",
        "documents decode": "care",
        "ten steps": "ok",
        "two workers learn what one learns": "ok",
        "saved and restored": "ok",
        "written as .keras": "ok",
        "exported, and answers raw documents": "ok",
    }
    assert "type:x 1" in next(each["message"] for each in told["checks"] if each["state"] == "care")


def test_documents_may_come_from_a_file_and_a_failure_is_told_with_advice(tmp_path: Path) -> None:
    (tmp_path / "streamtrain.yaml").write_text(SETTINGS.replace("MONGO", "mongodb://127.0.0.1:1"))
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents(3)))
    done = streamtrain(tmp_path, "--job", "accumulating", "--documents", "some.jsonl")
    assert done.returncode == EXIT_CONFIG, done.stderr
    assert done.stdout.startswith("failed  builds, and fits the schema: the optimizer accumulates gradients")
    assert "raise round.batch_size instead" in done.stdout


@pytest.mark.usefixtures("models")
def test_a_user_s_test_fails_with_advice() -> None:
    import checked_models

    with pytest.raises(AssertionError, match="was made before the model's function was called") as raised:
        check_model(checked_models.outside, schema=SCHEMA, documents=documents())
    assert "advice: make every layer inside the function" in str(raised.value)


def test_the_test_that_the_docs_show_passes(tmp_path: Path) -> None:
    for page in ("README.md", "docs/models.md"):
        for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
            (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_flight_models.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=280)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_function_that_workers_cannot_import_is_refused() -> None:
    def local(schema: Any, hyper: Any) -> None: ...

    for build in (local, lambda schema, hyper: None):
        with pytest.raises(AssertionError, match="cannot be imported by the workers"):
            check_model(build, schema=SCHEMA, documents=documents(1))

"""Every example learns what is in its documents, far better than a guess; one of them in a whole deployment."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamtrain.sandbox.kafka_broker import KafkaBroker, free_ports
from streamtrain.sandbox.mongo_server import MongoProcess
from streamtrain.trainer.worker import quieten
from tests.deployment import Deployment, wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.xdist_group("examples")]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "training")
LEARNS_S = 90.0

quieten(os.environ)


@pytest.fixture(scope="module")
def strategy() -> Any:
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a module of the examples, as a worker does that was started in their folder."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module
    for name in (*NAMES, "training"):
        sys.modules.pop(name, None)


# By label: a metric, and what is demanded of it, given what a guess reaches.
BETTER: dict[str, dict[str, tuple[str, Callable[[float, float], bool]]]] = {
    "wide_and_deep": {"bought": ("accuracy", lambda found, guess: found > guess + 0.12)},
    "several_outputs": {
        "minutes": ("mae", lambda found, guess: found < 0.6 * guess),
        "tipped": ("accuracy", lambda found, guess: found > guess + 0.2),
        "stars": ("accuracy", lambda found, guess: found > guess + 0.2),
    },
    "session_gru": {"buys": ("accuracy", lambda found, guess: found > guess + 0.3)},
    "basket_attention": {"spent": ("mae", lambda found, guess: found < 0.5 * guess)},
    "image_bytes": {"kind": ("accuracy", lambda found, guess: found > 0.9)},
    "large_vocabulary": {"liked": ("accuracy", lambda found, guess: found > guess + 0.3)},
    "review_text": {"happy": ("accuracy", lambda found, guess: found > 0.9)},
    "rare_class": {
        "fraud": ("accuracy", lambda found, guess: found > guess + 0.3),  # weighted: both classes count alike
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_predicts_far_better_than_a_guess(name: str, module: Callable[[str], Any], strategy: Any) -> None:
    training, example = module("training"), module(name).EXAMPLE
    found = training.train(example, example.made_up(), strategy=strategy)
    assert set(found) == set(BETTER[name])
    for label, (metric, better) in BETTER[name].items():
        assert better(found[label][metric], found[label]["trivial"]), found


def test_the_page_of_the_examples_has_a_command_for_each() -> None:
    commands = re.findall(r"`python (\w+)\.py`", (EXAMPLES / "README.md").read_text())
    assert sorted(commands) == NAMES


def test_an_example_prints_its_settings(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "rare_class.py"), "--settings"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert yaml.safe_load(printed)["jobs"][0]["weight"] == {"classes": {0: 1.0, 1: 50.0}}


def test_several_labels_are_learned_and_scored_by_a_whole_deployment(
    module: Callable[[str], Any], tmp_path: Path
) -> None:
    training, example = module("training"), module("several_outputs").EXAMPLE
    mongo = MongoProcess()
    mongo.start()
    try:
        (tmp_path / "kafka").mkdir()
        with KafkaBroker(directory=tmp_path / "kafka") as broker:
            settings = yaml.safe_load(example.settings)
            settings["kafka"]["bootstrap_servers"] = broker.bootstrap_servers
            settings["sources"][0]["uri"] = mongo.uri
            settings["admin"] = {"listen": f"127.0.0.1:{free_ports(1)[0]}"}
            settings["jobs"][0]["workers"] = {"min": 2}
            running = training.Example(yaml.safe_dump(settings), example.document)
            training.write(running, running.made_up(1))  # the collection has to be there
            deployment = Deployment(config=settings, folder=tmp_path, python_path=EXAMPLES)
            try:
                deployment.start()
                wait_until(
                    lambda: (deployment.job() or {}).get("phase") == "training", timeout=LEARNS_S, what="a group"
                )
                training.write(running, running.made_up(400, seed=2))
                wait_until(lambda: scored(deployment) >= 300, timeout=LEARNS_S, what="scores of every label")
                assert deployment.drain() == 0
            finally:
                deployment.stop()
    finally:
        mongo.stop()


def phase(deployment: Deployment) -> str:
    job = deployment.job()
    return str(job["phase"]) if job else ""


def scored(deployment: Deployment) -> int:
    """The rows of the label that has fewest."""
    job = deployment.job()
    found = job["report"]["scores"] if job else {}
    return min((found[label]["rows"] for label in ("minutes", "tipped", "stars") if label in found), default=0)

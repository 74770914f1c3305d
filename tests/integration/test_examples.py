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
LEARNS_S = 120.0
ROWS = 200

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


# What a whole deployment learns, and the labels of which every one must be scored.
DEPLOYED = {
    "several_outputs": ("minutes", "tipped", "stars"),
    "session_gru": ("buys",),
    "image_bytes": ("kind",),
}


def test_several_labels_lists_and_binary_data_are_learned_by_a_whole_deployment(
    module: Callable[[str], Any], tmp_path: Path
) -> None:
    training = module("training")
    mongo = MongoProcess()
    mongo.start()
    try:
        (tmp_path / "kafka").mkdir()
        with KafkaBroker(directory=tmp_path / "kafka") as broker:
            settings: dict[str, Any] = {
                "kafka": {"bootstrap_servers": broker.bootstrap_servers},
                "admin": {"listen": f"127.0.0.1:{free_ports(1)[0]}"},
                "sources": [],
                "jobs": [],
            }
            examples = {}
            for name in DEPLOYED:
                own = yaml.safe_load(module(name).EXAMPLE.settings)
                own["sources"][0]["uri"] = mongo.uri
                settings["sources"] += own["sources"]
                settings["jobs"] += own["jobs"]
                examples[name] = training.Example(yaml.safe_dump({**settings, **own}), module(name).EXAMPLE.document)
                training.write(examples[name], examples[name].made_up(1))  # the collection has to be there
            deployment = Deployment(config=settings, folder=tmp_path, python_path=EXAMPLES)
            try:
                deployment.start()
                wait_until(lambda: phases(deployment) == {"training"}, timeout=LEARNS_S, what="three groups")
                for example in examples.values():
                    training.write(example, example.made_up(ROWS, seed=2))
                wait_until(lambda: scored(deployment) >= ROWS - 1, timeout=LEARNS_S, what="scores of every label")
                assert deployment.drain() == 0
            finally:
                deployment.stop()
    finally:
        mongo.stop()


def phases(deployment: Deployment) -> set[str]:
    status = deployment.status()
    return {str(job["phase"]) for job in status["jobs"].values()} if status else set()


def scored(deployment: Deployment) -> int:
    """The rows of the label that has fewest."""
    status = deployment.status() or {"jobs": {}}
    found = {label: values for job in status["jobs"].values() for label, values in job["report"]["scores"].items()}
    return min(int(found.get(label, {"rows": 0})["rows"]) for labels in DEPLOYED.values() for label in labels)

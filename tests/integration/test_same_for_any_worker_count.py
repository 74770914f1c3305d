"""One, two and three workers learn the same: groups of real processes on the same made-up rounds, uneven and empty
partitions and whole empty rounds among them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtrain.trainer.worker import quieten

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
GROUP_TIMEOUT_S = 300
REGRESSION = {"field": "y", "dtype": "float64", "task": "regression"}
CLASSIFICATION = {"field": "y", "dtype": "int32", "task": "classification"}
KIND = {**CLASSIFICATION, "field": "kind"}
SGD = {"class_name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
ADAM = {"class_name": "adam", "learning_rate": 0.01, "global_clipnorm": 1.0}
Weights = dict[str, Any]
Scenario = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Every rank's final state, and what its loop reported."""

    replicas: list[Weights]
    reports: list[dict[str, Any]]


def train(folder: Path, *, world: int, scenarios: Sequence[Scenario]) -> list[Outcome]:
    """Trains the scenarios one after the other with a group of `world` processes."""
    held = [socket.socket() for _ in range(world)]  # TensorFlow's servers can listen on these ports, no one else
    for each in held:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
    ranks = []
    for rank in range(world):
        task = {"type": "worker", "index": rank}
        environ = {**os.environ, "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}
        quieten(environ)
        argument = json.dumps({"rank": rank, "world": world, "folder": str(folder), "scenarios": scenarios})
        command = [sys.executable, str(HERE / "loop_rank.py"), argument]
        ranks.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
    try:
        printed = [process.communicate(timeout=GROUP_TIMEOUT_S)[0].splitlines() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
        for each in held:
            each.close()
    assert [process.returncode for process in ranks] == [0] * world
    return [
        Outcome(
            replicas=[
                _load(file) for rank in range(world) if (file := state_file(folder, scenario, world, rank)).exists()
            ],
            reports=[json.loads(lines[place]) for lines in printed],
        )
        for place, scenario in enumerate(scenarios)
    ]


def state_file(folder: Path, scenario: Scenario, world: int, rank: int) -> Path:
    return folder / f"{scenario['name']}-{world}-{rank}.npz"


def _load(path: Path) -> Weights:
    with np.load(path) as state:
        return {name: state[name] for name in state.files if name != "meta"}


def difference(one: Weights, other: Weights) -> float:
    return max(float(np.abs(one[name] - other[name]).max(initial=0.0)) for name in one)


def test_float64_weights_agree_to_1e_10_after_200_rounds(tmp_path: Path) -> None:
    common: Scenario = {"rounds": 200, "dtype": "float64", "label": REGRESSION}
    mlp = {**common, "model": "small_models:mlp"}
    scenarios = [
        {**mlp, "name": "sgd", "optimizer": SGD},
        {**mlp, "name": "adam", "optimizer": ADAM},
        {**common, "name": "builtin", "model": "builtin"},
        {**common, "name": "directed", "model": "small_models:directed", "optimizer": SGD, "rounds": 40},
        {**mlp, "name": "sum", "optimizer": {**SGD, "learning_rate": 1e-4}, "loss_reduction": "sum", "rounds": 40},
        {**common, "name": "classifier", "model": "builtin", "optimizer": ADAM, "label": CLASSIFICATION, "rounds": 40},
        {**common, "name": "labels", "model": "builtin", "labels": [REGRESSION, KIND], "rounds": 40},
    ]
    alone = train(tmp_path, world=1, scenarios=scenarios)
    for world in (2, 3):
        for one, several in zip(alone, train(tmp_path, world=world, scenarios=scenarios), strict=True):
            assert max(difference(several.replicas[0], replica) for replica in several.replicas) == 0.0
            assert difference(one.replicas[0], several.replicas[0]) <= 1e-10
            for report in several.reports:
                assert report["traces"] == one.reports[0]["traces"] == 1
                assert report["steps"] == one.reports[0]["steps"]
                assert report["rows"] == one.reports[0]["rows"]
                assert report["loss"] == pytest.approx(one.reports[0]["loss"], rel=1e-10)


def test_float32_weights_differ_no_more_than_by_the_order_of_rows(tmp_path: Path) -> None:
    common: Scenario = {"rounds": 200, "dtype": "float32", "label": REGRESSION, "model": "small_models:mlp"}
    scenarios = [{**common, "name": "sgd", "optimizer": SGD}, {**common, "name": "adam", "optimizer": ADAM}]
    permuted = [
        {**scenario, "name": f"{scenario['name']}-{seed}", "permutation": seed}
        for scenario in scenarios
        for seed in (1, 2)
    ]
    sgd, adam, *others = (each.replicas[0] for each in train(tmp_path, world=1, scenarios=[*scenarios, *permuted]))
    tolerated = [
        3 * max(difference(one, other) for other in pair) for one, pair in ((sgd, others[:2]), (adam, others[2:]))
    ]
    for world in (2, 3):
        found = train(tmp_path, world=world, scenarios=scenarios)
        for one, several, limit in zip((sgd, adam), found, tolerated, strict=True):
            assert 0.0 <= difference(one, several.replicas[0]) <= limit


def test_replicas_stay_identical_with_dropout_and_plain_batch_normalisation(tmp_path: Path) -> None:
    noisy = {"name": "noisy", "rounds": 30, "model": "small_models:noisy", "dtype": "float32", "label": REGRESSION}
    (found,) = train(tmp_path, world=2, scenarios=[noisy])
    assert difference(*found.replicas) == 0.0


def test_rows_that_are_left_out_or_held_out_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    common: Scenario = {"rounds": 10, "dtype": "float64", "label": REGRESSION, "poisoned": 0.01, "held": 0.05}
    scenarios = [
        {**common, "name": "poisoned", "model": "small_models:mlp", "optimizer": ADAM},
        {**common, "name": "moments", "model": "builtin"},
        {**common, "name": "masks", "model": "small_models:noisy"},
        {**common, "name": "synchronized", "model": "small_models:synchronized"},
    ]
    alone, found = (train(tmp_path, world=world, scenarios=scenarios) for world in (1, 2))
    assert len(alone[0].reports[0]["refused"]) > 5
    for one, several in zip(alone, found, strict=True):
        assert difference(*several.replicas) == 0.0
        assert sorted(row for report in several.reports for row in report["refused"]) == one.reports[0]["refused"]
        for report in several.reports:
            assert report["steps"] == one.reports[0]["steps"]
            assert report["rows"] == one.reports[0]["rows"]
    for one, several in zip(alone[:2], found, strict=False):  # masks differ by the rank
        assert difference(one.replicas[0], several.replicas[0]) <= 1e-10
        for report in several.reports:
            assert report["held"] == pytest.approx(one.reports[0]["held"], rel=1e-10)
            assert report["gradient"] == pytest.approx(one.reports[0]["gradient"], rel=1e-8)


def test_a_replica_of_which_one_bit_differs_is_noticed_by_all(tmp_path: Path) -> None:
    tampered = {"name": "tampered", "rounds": 3, "model": "small_models:mlp", "dtype": "float32", "label": REGRESSION}
    (found,) = train(tmp_path, world=3, scenarios=[{**tampered, "tampered": True}])
    assert [report["verified"] for report in found.reports] == [["same", "differ"]] * 3


def test_training_goes_on_from_a_saved_state_with_any_number_of_workers(tmp_path: Path) -> None:
    common: Scenario = {"dtype": "float64", "label": REGRESSION}
    models = [{**common, "model": "builtin"}, {**common, "model": "small_models:mlp", "optimizer": ADAM}]
    through = [{**model, "name": f"through-{i}", "rounds": 20} for i, model in enumerate(models)]
    half = [{**model, "name": f"half-{i}", "rounds": 9} for i, model in enumerate(models)]
    resumed = [
        {**scenario, "name": f"resumed-{i}", "first": 9, "restore": str(state_file(tmp_path, half[i], 1, 0))}
        for i, scenario in enumerate(through)
    ]
    found = train(tmp_path, world=1, scenarios=[*through, *half, *resumed])
    for one, other in zip(found[:2], found[4:], strict=True):
        assert difference(one.replicas[0], other.replicas[0]) == 0.0
    for one, several in zip(found[:2], train(tmp_path, world=3, scenarios=resumed), strict=True):
        assert difference(one.replicas[0], several.replicas[0]) <= 1e-10

"""One rank of a group that trains made-up rounds: what `test_same_for_any_worker_count` launches. It has the real
strategy, model and loop, but neither Kafka nor a daemon."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from streamtrain import config
from streamtrain.clock import SystemClock
from streamtrain.errors import ReplicasDifferError
from streamtrain.trainer.checkpoint import restore_state, state_bytes
from streamtrain.trainer.loop import Loop
from streamtrain.trainer.model import JobModel, set_precision
from streamtrain.trainer.refusals import Refusal
from streamtrain.trainer.rows import RoundRows, Rows
from streamtrain.types import Round, RoundCounts

PARTITIONS = 5
BATCH_SIZE = 96
WORDS = [b"a", b"bc", "é".encode(), b"", b"long string of a category"]


def job_of(options: dict[str, Any]) -> config.Job:
    return config.Job.model_validate(
        {
            "name": "job",
            "source": "source",
            "features": [
                {"field": "x", "dtype": "float64" if options["dtype"] == "float64" else "float32", "length": 6},
                {"field": "count", "dtype": "int32"},
                {"field": "word", "dtype": "string"},
                {"field": "at.time", "dtype": "datetime"},
                {"field": "flag", "dtype": "bool"},
            ],
            "labels": labels_of(options),
            "model": options["model"],
            "hyper": options.get("hyper", {}),
            "optimizer": options.get("optimizer"),
            "loss_reduction": options.get("loss_reduction", "mean"),
            "dtype": options["dtype"],
        }
    )


def labels_of(options: dict[str, Any]) -> list[dict[str, Any]]:
    return options["labels"] if "labels" in options else [options["label"]]


def rows_of_round(number: int, options: dict[str, Any]) -> list[Rows]:
    """All partitions' rows of a round: uneven, some partitions and now and then whole rounds empty."""
    rng = np.random.default_rng([options.get("seed", 0), number])
    shuffle = np.random.default_rng([options.get("permutation", 0), number]) if options.get("permutation") else None
    found = []
    for partition in range(PARTITIONS):
        n = 0 if number % 11 == 7 or (partition + number) % 4 == 0 else int(rng.integers(0, 60))
        x = rng.normal(size=(n, 6))
        word = rng.integers(0, len(WORDS), n)
        target = x[:, 0] - 0.5 * x[:, 1] + 0.3 * (word == 2) + 0.1 * rng.normal(size=n)
        if options.get("poisoned"):
            target[rng.random(n) < options["poisoned"]] = np.nan
            x[rng.random(n) < options["poisoned"], 0] = np.inf
        labels = {
            label["field"]: target if label["task"] == "regression" else (target > 0).astype(float)
            for label in labels_of(options)
        }
        weights = rng.uniform(0.5, 2.0, n)
        weights[rng.random(n) < 0.05] = 0.0
        scored = rng.random(n) < 0.5
        order = np.arange(n) if shuffle is None else shuffle.permutation(n)
        held = rng.random(n) < options["held"] if options.get("held") else None
        found.append(
            Rows(
                partition=partition,
                columns={
                    "x": x.astype(options["dtype"])[order],
                    "count": rng.integers(-3, 9, n).astype(np.int32)[order],
                    "word": np.array([WORDS[w] for w in word] + [b""], object)[:-1][order],
                    "at.time": rng.integers(1_700_000_000_000, 1_710_000_000_000, n)[order],
                    "flag": (rng.random(n) < 0.5)[order],
                },
                labels={field: values.astype(options["dtype"])[order] for field, values in labels.items()},
                weights=weights[order],
                scored=scored[order],
                wall_time_ms=np.zeros(n, np.int64),
                held=held,
                offsets=1000 * number + np.arange(n),
            )
        )
    return found


def train(strategy: Any, options: dict[str, Any], *, rank: int, world: int, folder: Path) -> dict[str, Any]:
    """Trains one scenario, leaves its state in `folder`, and says what the loop reported."""
    set_precision(options["dtype"])
    with strategy.scope():
        model = JobModel(job=job_of(options))
    refusals: list[Refusal] = []
    loop = Loop(
        strategy=strategy,
        model=model,
        partitions=PARTITIONS,
        clock=SystemClock(),
        on_progress=lambda stage, done: None,
        on_refusals=refusals.extend,
    )
    if options.get("restore"):
        restore_state(model, Path(options["restore"]), rank=rank)
    else:
        model.part_seeds(rank)
    reports = []
    for number in range(options.get("first", 0), options["rounds"]):
        rows = [part for part in rows_of_round(number, options) if part.partition % world == rank]
        round_ = Round(number, (), (), (), 0, BATCH_SIZE)
        reports.append(loop.run(RoundRows(round_, tuple(rows), {}, RoundCounts(), {}, {}, 0, 0)))
    if options.get("tampered"):
        return {"verified": [told(loop), told(loop, tamper=model.keras.weights[0] if rank == world - 1 else None)]}
    (folder / f"{options['name']}-{world}-{rank}.npz").write_bytes(state_bytes(model, rank=rank))
    scores = [report.scores["y"] for report in reports]
    return {
        "traces": loop.traces,
        "steps": sum(report.steps for report in reports),
        "rows": sum(score.rows for score in scores),
        "loss": sum(score.loss for score in scores),
        "refused": sorted([refusal.partition, refusal.offset, refusal.reason] for refusal in refusals),
        "held": sum(report.holdout["y"].loss for report in reports if report.holdout),
        "gradient": sum(report.norms.gradient_sum for report in reports),
    }


def told(loop: Loop, tamper: Any = None) -> str:
    """What `verify` says; tamper: a variable of which one bit is turned before."""
    if tamper is not None:
        value = np.array(tamper.numpy())
        value.view(np.uint8).ravel()[0] ^= 1
        tamper.assign(value)
    try:
        loop.verify()
    except ReplicasDifferError:
        return "differ"
    return "same"


def main(argument: str) -> None:
    """argument: JSON of {rank, world, folder, scenarios}; prints a JSON line for each scenario."""
    given = json.loads(argument)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    for options in given["scenarios"]:
        found = train(strategy, options, rank=given["rank"], world=given["world"], folder=Path(given["folder"]))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""How good the built-in model is on real data: the flights' delays in the order in which they become known, each
predicted before it is learned, in one pass, beside two predictors that cost nothing. No servers: only the loop.

    python benchmarks/quality.py [--labels 60000] [--round 200] [--replay 1.0] [--hyper '{"learning_rate": 0.01}']
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamtrain.trainer.worker import quieten

quieten(os.environ)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import yaml  # noqa: E402

from streamtrain import config, scores  # noqa: E402
from streamtrain.clock import SystemClock  # noqa: E402
from streamtrain.demo.baselines import MeanBaseline, ShiftBaseline  # noqa: E402
from streamtrain.demo.configuration import LABEL, Addresses, configuration  # noqa: E402
from streamtrain.sandbox.streams import Write, flights  # noqa: E402
from streamtrain.trainer.assemble import spread  # noqa: E402
from streamtrain.trainer.loop import Loop  # noqa: E402
from streamtrain.trainer.model import JobModel, set_precision  # noqa: E402
from streamtrain.trainer.rows import RoundRows, Rows  # noqa: E402
from streamtrain.types import DType, Round, RoundCounts, Schema, Scores  # noqa: E402

MARKS = (200, 1_000, 5_000, 20_000, 60_000)
WINDOW = 20_000
_NUMPY = {DType.FLOAT32: np.float32, DType.INT32: np.int32, DType.STRING: object}


@dataclass(frozen=True, slots=True)
class Labelled:
    """Flights in the order in which their delay became known: features as of their departure."""

    columns: dict[str, Any]
    labels: Any
    departed: list[int]


def labelled_flights(schema: Schema, limit: int) -> Labelled:
    inserted: dict[str, dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    labels: list[int] = []
    departed: list[int] = []
    for event in flights():
        if event.write is Write.INSERT:
            inserted[event.id] = event.fields
        elif event.write is Write.UPDATE:
            found.append(inserted.pop(event.id))
            labels.append(event.fields[LABEL])
            departed.append(event.dep_delay)
            if len(labels) >= limit:
                break
    columns = {}
    for feature in schema.features:
        values = [_value(document, feature.field) for document in found]
        column = np.empty(len(values), _NUMPY[feature.dtype])
        column[:] = values
        columns[feature.field] = column
    return Labelled(columns, np.array(labels, np.float32), departed)


def _value(document: dict[str, Any], path: str) -> Any:
    value: Any = document
    for part in path.split("."):
        value = value[part]
    return value.encode() if isinstance(value, str) else value


def rows_of(data: Labelled, index: Any, fresh: int) -> Rows:
    """The rows at `index`; the first `fresh` of them are new, the rest are replayed; spread evenly."""
    n = len(index)
    place = spread(fresh, n - fresh)
    index, scored = index[place], (np.arange(n) < fresh)[place]
    return Rows(
        partition=0,
        columns={name: column[index] for name, column in data.columns.items()},
        labels={LABEL: data.labels[index]},
        weights=np.ones(n),
        scored=scored,
        wall_time_ms=np.zeros(n, np.int64),
    )


def demo_job(**settings: Any) -> config.Job:
    """The job of `streamtrain demo`."""
    nowhere = Addresses(mongo="mongodb://localhost", kafka="localhost:9092", admin="127.0.0.1:0")
    written = yaml.safe_load(configuration(addresses=nowhere, artifacts=Path("checkpoints"), workers=1))
    return config.Job.model_validate({**written["jobs"][0], **settings})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=330_000)
    parser.add_argument("--round", type=int, default=200)
    parser.add_argument("--replay", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--without", default="", help="leave out the features whose fields begin with this")
    parser.add_argument("--hyper", type=json.loads, default={})
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    job = demo_job(hyper=options.hyper, seed=options.seed)
    if options.without:
        kept = tuple(feature for feature in job.features if not feature.field.startswith(options.without))
        job = job.model_copy(update={"features": kept})
    data = labelled_flights(job.schema_(), options.labels)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    set_precision(job.dtype)
    with strategy.scope():
        model = JobModel(job=job)
    loop = Loop(strategy=strategy, model=model, partitions=1, clock=SystemClock(), on_progress=lambda stage, n: None)
    mean, shift, total = MeanBaseline(), ShiftBaseline(), Scores()
    rng = np.random.default_rng(options.seed)
    begun, cpu, steps, results = time.perf_counter(), time.process_time(), 0, []
    marks = [mark for mark in MARKS if mark < len(data.labels)] + [len(data.labels)]
    for number, first in enumerate(range(0, len(data.labels), options.round)):
        last = min(first + options.round, len(data.labels))
        replayed = rng.integers(max(0, first - WINDOW), first, int((last - first) * options.replay)) if first else []
        index = np.concatenate([np.arange(first, last), np.array(replayed, np.int64)])
        rows = rows_of(data, index, last - first)
        report = loop.run(
            RoundRows(Round(number, (), (), (), 0, options.batch), (rows,), {}, RoundCounts(), {}, {}, 0, 0)
        )
        total, steps = scores.merge(total, report.scores[LABEL]), steps + report.steps
        for place in range(first, last):
            mean.score_then_learn(int(data.labels[place]))
            shift.score_then_learn(data.departed[place], int(data.labels[place]))
        while marks and last >= marks[0]:
            marks.pop(0)
            found = {"labels": last, "mae": scores.mae(total), "running mean": mean.mae, "dep_delay + shift": shift.mae}
            found["below the better"] = 1 - found["mae"] / min(mean.mae or 0, shift.mae or 0)
            results.append({name: round(value, 4) for name, value in found.items()})
            print(json.dumps(results[-1]), file=sys.stderr)
    print(
        json.dumps(
            {
                "prequential": results,
                "steps": steps,
                "seconds": round(time.perf_counter() - begun, 1),
                "cpu_us_per_row": round((time.process_time() - cpu) / len(data.labels) / (1 + options.replay) * 1e6, 2),
                "python": sys.version.split()[0],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()

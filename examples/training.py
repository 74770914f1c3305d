"""Trains an example on documents that it makes up, with the loop that streamtrain's workers run, and prints how well
it predicts each document before it learns from it. What the examples' `python NAME.py` does."""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import bson
import yaml

from streamtrain.config import Job, Settings
from streamtrain.trainer.worker import quieten

Document = dict[str, Any]
PARTITIONS = 2

quieten(os.environ)


@dataclass(frozen=True)
class Example:
    """settings: a settings file, for `streamtrain run -c`. document: makes one up, in order of number. documents: how
    many it takes until the model has learned something."""

    settings: str
    document: Callable[[random.Random, int], Document]
    documents: int = 6000

    @property
    def job(self) -> Job:
        return Settings.model_validate(yaml.safe_load(self.settings)).jobs[0]

    def made_up(self, count: int | None = None, seed: int = 1) -> list[Document]:
        generator = random.Random(seed)
        return [self.document(generator, number) for number in range(count or self.documents)]


def train(example: Example, documents: Sequence[Document], *, strategy: Any = None) -> dict[str, dict[str, float]]:
    """By label the metrics of the last third of the documents, each predicted before it was learned, beside `trivial`:
    the error of always saying the median, or the accuracy of always saying the most frequent class."""
    import tensorflow as tf

    from streamtrain import scores
    from streamtrain.clock import SystemClock
    from streamtrain.trainer.loop import Loop
    from streamtrain.trainer.model import JobModel, set_precision
    from streamtrain.trainer.selection import Selection

    job = example.job
    set_precision(job.dtype)
    strategy = strategy or tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = JobModel(job=job)
    loop = Loop(
        strategy=strategy, model=model, partitions=PARTITIONS, clock=SystemClock(), on_progress=lambda stage, done: None
    )
    loop.prepare()
    found: dict[str, Any] = {}
    size = job.round.batch_size * 4
    rounds = [documents[begin : begin + size] for begin in range(0, len(documents), size)]
    for number, part in enumerate(rounds):
        report = loop.run(_read(job, number, part))
        if number >= 2 * len(rounds) // 3:
            found = scores.merge_by_label(found, report.scores)
    last = documents[2 * len(rounds) // 3 * size :]
    return {
        label.field: {**scores.metrics(label, found[label.field]), "trivial": _trivial(label, last, Selection.of(job))}
        for label in job.schema_().labels
    }


def _read(job: Job, number: int, documents: Sequence[Document]) -> Any:
    """A round of these documents, as the feed of a worker hands it to the loop."""
    import numpy as np

    from streamtrain.trainer.decode import LABELLED, Decoder
    from streamtrain.trainer.rows import RoundRows, Rows
    from streamtrain.trainer.selection import Selection
    from streamtrain.types import Round, RoundCounts

    decoded = Decoder.of(job).decode([bson.encode(document) for document in documents])
    assert not decoded.reasons, decoded.reasons
    selection = Selection.of(job)
    labelled = np.flatnonzero(decoded.outcome == LABELLED)
    parts = []
    for partition in range(PARTITIONS):
        rows = labelled[partition::PARTITIONS]
        labels = {name: column[rows] for name, column in decoded.labels.items()}
        parts.append(
            Rows(
                partition=partition,
                columns={name: column[rows] for name, column in decoded.columns.items()},
                labels=labels,
                weights=selection.weights(labels, np.ones(len(rows))),
                scored=np.ones(len(rows), np.bool_),
                wall_time_ms=np.zeros(len(rows), np.int64),
            )
        )
    round_ = Round(number, (), (), (), 0, job.round.batch_size)
    return RoundRows(round_, tuple(parts), {}, RoundCounts(), {}, {}, 0, 0)


def _trivial(label: Any, documents: Iterable[Document], selection: Any) -> float:
    import numpy as np

    values = np.array([_found(document, label.field) for document in documents], np.float64)
    if label.task == "regression":
        return float(np.abs(values - np.median(values)).mean())
    weights = selection.weights({label.field: values}, np.ones(len(values)))
    return float(np.bincount(values.astype(np.int64), weights).max() / weights.sum())


def _found(document: Mapping[str, Any], field: str) -> Any:
    value: Any = document
    for name in field.split("."):
        value = value[name]
    return value


def main(example: Example) -> None:
    """`python NAME.py`; with --settings or --write, what is needed to train it with a real daemon."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", action="store_true", help="print the settings file, for `streamtrain run -c`")
    parser.add_argument("--write", type=int, metavar="N", help="write N made-up documents into the settings' MongoDB")
    options = parser.parse_args()
    if options.settings:
        print(example.settings, end="")
    elif options.write:
        write(example, example.made_up(options.write))
    else:
        for field, found in train(example, example.made_up()).items():
            print(f"{field}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()))


def write(example: Example, documents: Iterable[Document]) -> None:
    """Replaces them one by one, so that it can be called again."""
    from pymongo import MongoClient

    settings = Settings.model_validate(yaml.safe_load(example.settings))
    source = settings.sources[0]
    with MongoClient(source.uri.get_secret_value()) as client:  # type: MongoClient[Document]
        collection = client[source.database][source.collection]
        for number, document in enumerate(documents):
            collection.replace_one({"_id": number}, document, upsert=True)

"""Labelled streams that ship inside packages: the demo's flights, river's Phishing, ImageSegments and Bananas,
scikit-learn's digits. Each with the schema that a user would write for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from prequential import Stream

from streamtrain import config
from streamtrain.demo.configuration import LABEL, Addresses, configuration
from streamtrain.sandbox.streams import Write, flights
from streamtrain.types import DType, Schema

_NUMPY = {DType.FLOAT32: np.float32, DType.INT32: np.int32, DType.STRING: object}


def classified(name: str, *, limit: int | None = None, **settings: Any) -> tuple[config.Job, Stream]:
    """A small stream and its job, everything but features and label as it is by default. limit: of rows."""
    features, rows, labels = _CLASSIFIED[name]()
    values = np.array(rows[:limit], np.float32)
    classes = sorted(set(labels))
    job = config.Job.model_validate(
        {
            "name": name,
            "source": "stream",
            "features": [{"field": feature, "dtype": "float32"} for feature in features],
            "labels": [{"field": "label", "dtype": "int32", "task": "classification", "classes": len(classes)}],
            **settings,
        }
    )
    columns = {feature: values[:, place] for place, feature in enumerate(features)}
    return job, Stream(columns, np.array([classes.index(label) for label in labels[:limit]], np.int32))


def _river(name: str) -> tuple[Sequence[str], list[list[float]], list[Any]]:
    from river import datasets  # seconds

    features: Sequence[str] = ()
    rows, labels = [], []
    for x, y in getattr(datasets, name)():
        features = [str(feature) for feature in x]
        rows.append([float(value) for value in x.values()])
        labels.append(y)
    return features, rows, labels


def _digits() -> tuple[Sequence[str], list[list[float]], list[Any]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.feature_names, digits.data.tolist(), digits.target.tolist()


_CLASSIFIED: Mapping[str, Callable[[], tuple[Sequence[str], list[list[float]], list[Any]]]] = {
    "phishing": lambda: _river("Phishing"),
    "segments": lambda: _river("ImageSegments"),
    "bananas": lambda: _river("Bananas"),
    "digits": _digits,
}
CLASSIFIED = tuple(_CLASSIFIED)


# ------------------------------------------------------------------------------------------------ flights


def demo_job(**settings: Any) -> config.Job:
    """The job of `streamtrain demo`."""
    nowhere = Addresses(mongo="mongodb://localhost", kafka="localhost:9092", admin="127.0.0.1:0")
    written = yaml.safe_load(configuration(addresses=nowhere, artifacts=Path("checkpoints"), workers=1))
    return config.Job.model_validate({**written["jobs"][0], **settings})


def labelled_flights(schema: Schema, limit: int) -> tuple[Stream, list[int]]:
    """Flights in the order in which their delay became known, features as of departure; and how late each left."""
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
        column = np.empty(len(found), _NUMPY[feature.dtype])
        column[:] = [_value(document, feature.field) for document in found]
        columns[feature.field] = column
    return Stream(columns, np.array(labels, np.float32)), departed


def _value(document: dict[str, Any], path: str) -> Any:
    value: Any = document
    for part in path.split("."):
        value = value[part]
    return value.encode() if isinstance(value, str) else value

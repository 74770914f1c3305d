"""Raw BSON documents to columns by the schema, many at once. One bad document never fails its batch nor changes
its neighbours' values: it comes back with the reason for which it goes to the dead-letter topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from streamtrain import config
from streamtrain.errors import ConfigError
from streamtrain.trainer.columns import (
    FLOATS,
    INTEGERS,
    INVALID,
    MISSING,
    NON_FINITE,
    NOTHING,
    OK,
    RANGE,
    REASONS,
    States,
    Values,
    configured_value,
    empty_column,
    filler,
    read_scalars,
)
from streamtrain.trainer.locate import Located, Locator, Positions
from streamtrain.trainer.notes import noted
from streamtrain.trainer.rows import Column
from streamtrain.trainer.sequences import read_sequences
from streamtrain.trainer.vectors import read_binaries, read_lists
from streamtrain.types import DType, Feature, Label, Schema, Task

INVALID_BSON = "invalid-bson"
LARGEST_WEIGHT = 1e9
LARGEST_TARGET = 1e15  # of a regression's label: the squares of a batch's errors must add up to a float32
_BATCH = 4096  # documents located at once: what they take stays in the processor's cache

# What a document is to the trainer.
LABELLED, WAITING, BAD = np.uint8(0), np.uint8(1), np.uint8(2)


class Absent(Enum):
    """What becomes of labels that are not there."""

    WAIT = auto()  # the document waits for them
    GIVE = auto()  # those that have an `absent_value` get it
    IGNORE = auto()  # whatever labels there are: only the features are asked for


@dataclass(frozen=True, slots=True)
class Decoded:
    """n documents. columns, labels: per field [n] or [n, length], zero (or empty) in rows that are not LABELLED
    and lack the value. outcome [n]: LABELLED, WAITING (a label is absent or null) or BAD. reasons: by row, why
    it is BAD: `<reason>:<field>` or `invalid-bson`. weights [n]: what the documents say of their weight, None where
    the job asks for no field of theirs. missing [n]: which labels are missing, a bit for each; None where there is
    only one label. notes: per field [n], what is told of its value (`notes.py`)."""

    columns: Mapping[str, Column]
    labels: Mapping[str, Column]
    outcome: npt.NDArray[np.uint8]
    reasons: Mapping[int, str]
    weights: npt.NDArray[np.float64] | None = None
    missing: npt.NDArray[np.int64] | None = None
    notes: Mapping[str, States] = field(default_factory=dict)

    def missing_labels(self, row: int) -> int:
        """Of a row that is WAITING: which labels are missing."""
        return 1 if self.missing is None else int(self.missing[row])

    def __len__(self) -> int:
        return len(self.outcome)


class Decoder:
    """Decodes by one schema. weight: the field in which documents say what they weigh, missing_weight: what those
    weigh that do not. Raises ConfigError when the schema asks for what cannot be decoded."""

    def __init__(self, schema: Schema, *, weight: str | None = None, missing_weight: float = 1.0) -> None:
        for feature in schema.features:
            _check_feature(feature)
        for label in schema.labels:
            _check_label(label)
        self._features = schema.features
        self._labels = schema.labels
        self._weight = weight
        self._missing_weight = missing_weight
        fields = [feature.field for feature in schema.features] + [label.field for label in schema.labels]
        fields += [] if weight is None else [weight]
        self._paths = {path: index for index, path in enumerate(dict.fromkeys(fields))}
        self._locator = Locator(tuple(self._paths))
        self._missing = {
            feature.field: configured_value(feature.field, "missing", feature.dtype, feature.missing)
            for feature in schema.features
            if feature.missing is not None
        }
        self._pads = {
            feature.field: filler(feature.dtype)
            if feature.pad is None
            else configured_value(feature.field, "pad", feature.dtype, feature.pad)
            for feature in schema.features
            if feature.max_length is not None
        }

    @classmethod
    def of(cls, job: config.Job) -> Decoder:
        """What the job asks for. Raises ConfigError."""
        if job.weight is None:
            return cls(job.schema_())
        return cls(job.schema_(), weight=job.weight.field, missing_weight=job.weight.missing)

    @property
    def weighs(self) -> bool:
        """Whether documents give themselves a weight."""
        return self._weight is not None

    def decode(self, documents: Sequence[bytes], absent: Absent = Absent.WAIT) -> Decoded:
        """Raises nothing for whatever the documents hold."""
        batches = [self._decode(documents[i : i + _BATCH], absent) for i in range(0, len(documents), _BATCH)]
        if len(batches) == 1:
            return batches[0]
        if not batches:
            return self._decode(documents, absent)
        reasons = {
            number * _BATCH + row: reason
            for number, batch in enumerate(batches)
            for row, reason in batch.reasons.items()
        }
        return Decoded(
            columns={f.field: np.concatenate([b.columns[f.field] for b in batches]) for f in self._features},
            labels={la.field: np.concatenate([b.labels[la.field] for b in batches]) for la in self._labels},
            outcome=np.concatenate([b.outcome for b in batches]),
            reasons=reasons,
            weights=None
            if self._weight is None
            else np.concatenate([b.weights for b in batches if b.weights is not None]),
            missing=None
            if len(self._labels) == 1
            else np.concatenate([b.missing for b in batches if b.missing is not None]),
            notes={name: np.concatenate([b.notes[name] for b in batches]) for name in batches[0].notes},
        )

    def _decode(self, documents: Sequence[bytes], absent: Absent) -> Decoded:
        located = self._locator.locate(documents)
        values = Values.of(located.data)
        columns: dict[str, Column] = {}
        labels: dict[str, Column] = {}
        states: list[tuple[str, States]] = []
        notes: dict[str, States] = {}
        missing = np.zeros(len(documents), np.int64)
        for feature in self._features:
            kinds, at = self._place(located, feature.field)
            columns[feature.field], state, notes[feature.field] = self._feature(feature, values, kinds, at)
            states.append((feature.field, state))
        for bit, label in enumerate(self._labels):
            kinds, at = self._place(located, label.field)
            labels[label.field], state = _label(label, values, kinds, at)
            notes[label.field] = noted(label.dtype, kinds, state)
            lacks = state == MISSING
            if absent is Absent.GIVE and label.absent_after is not None and lacks.any():
                labels[label.field][lacks] = np.asarray(label.absent_value).astype(labels[label.field].dtype)
                state[lacks] = OK
                lacks = np.zeros_like(lacks)
            if absent is not Absent.IGNORE:
                states.append((label.field, state))
                missing |= lacks.astype(np.int64) << bit
        waiting = missing != 0
        weights = None
        if self._weight is not None:
            weights, state = self._weights(values, *self._place(located, self._weight))
            states.append((self._weight, state))
        outcome = np.full(len(documents), LABELLED, np.uint8)
        reasons: dict[int, str] = {}
        for name, state in states:
            for row in np.flatnonzero(state).tolist() if state.any() else ():
                if not waiting[row] and row not in reasons:
                    code = int(state[row])
                    reasons[row] = INVALID_BSON if code == INVALID else f"{REASONS[code]}:{name}"
        if waiting.any():
            outcome[waiting] = WAITING
        if located.malformed.any():
            for row in np.flatnonzero(located.malformed).tolist():
                reasons[row] = INVALID_BSON
        if reasons:
            outcome[list(reasons)] = BAD
        return Decoded(columns, labels, outcome, reasons, weights, None if len(self._labels) == 1 else missing, notes)

    def _weights(self, values: Values, kinds: States, at: Positions) -> tuple[npt.NDArray[np.float64], States]:
        column, states = read_scalars(values, kinds, at, DType.FLOAT64)
        weights = column.astype(np.float64)
        absent = states == MISSING
        weights[absent], states[absent] = self._missing_weight, OK
        states[(states == OK) & ((weights < 0) | (weights > LARGEST_WEIGHT))] = RANGE
        return weights, states

    def _place(self, located: Located, field: str) -> tuple[States, Positions]:
        path = self._paths[field]
        return located.kind[path], located.at[path]

    def _feature(self, feature: Feature, values: Values, kinds: States, at: Positions) -> tuple[Column, States, States]:
        """The column with missing values replaced, the state of each row that remains, and notes of what there was."""
        if feature.max_length is not None:
            pad = self._pads[feature.field]
            column, states = read_sequences(values, kinds, at, feature.dtype, feature.max_length, pad)
            if feature.missing is not None:
                states[np.isin(kinds, NOTHING)] = OK  # an absent list is an empty one
        elif feature.length is None:
            column, states = read_scalars(values, kinds, at, feature.dtype)
        elif feature.encoding == "binary":
            column, states = read_binaries(values, kinds, at, feature.dtype, feature.length)
        else:
            column, states = read_lists(values, kinds, at, feature.dtype, feature.length)
        notes = noted(feature.dtype, kinds, states)
        if feature.field in self._missing and states.any():
            replaced = (states == MISSING) | (states == NON_FINITE)
            column[replaced] = self._missing[feature.field]
            states[replaced] = OK
        if states.ndim == 2:
            states = states.max(axis=1)
            if states.any():
                column[states != OK] = filler(feature.dtype)
        return column, states, notes


def _label(label: Label, values: Values, kinds: States, at: Positions) -> tuple[Column, States]:
    column, states = read_scalars(values, kinds, at, label.dtype)
    if label.dtype is not DType.BOOL:
        numbers = column.astype(np.float64)
        if label.task is Task.CLASSIFICATION:
            fits = (numbers >= 0) & (numbers < label.classes) & (np.trunc(numbers) == numbers)
        else:
            fits = np.abs(numbers) <= LARGEST_TARGET
        wrong = (states == OK) & ~fits
        if wrong.any():
            states[wrong] = RANGE
            column[wrong] = 0
    return column, states


def _check_feature(feature: Feature) -> None:
    if feature.encoding == "binary":
        if feature.length is None:
            raise ConfigError(f"feature {feature.field!r}: encoding: binary needs a length")
        if feature.dtype not in FLOATS:
            raise ConfigError(f"feature {feature.field!r}: a binary vector holds float32, not {feature.dtype.value}")
    if feature.length is not None and feature.max_length is not None:
        raise ConfigError(f"feature {feature.field!r}: length and max_length exclude each other")
    if feature.width is not None and feature.width < 1:
        raise ConfigError(f"feature {feature.field!r}: length must be at least 1")


def _check_label(label: Label) -> None:
    allowed = (*FLOATS, *INTEGERS, DType.BOOL) if label.task is Task.CLASSIFICATION else (*FLOATS, *INTEGERS)
    if label.dtype not in allowed:
        raise ConfigError(
            f"label {label.field!r}: {label.dtype.value} cannot be the label of a {label.task.value}",
            hint=f"use one of {', '.join(dtype.value for dtype in allowed)}",
        )


def empty_columns(schema: Schema, rows: int) -> tuple[dict[str, Column], dict[str, Column]]:
    """Features and labels of `rows` rows that hold nothing yet."""
    features = {
        feature.field: empty_column(feature.dtype, (rows,) if feature.width is None else (rows, feature.width))
        for feature in schema.features
    }
    return features, {label.field: empty_column(label.dtype, (rows,)) for label in schema.labels}

"""What is unusual in the fields of a round's documents, beside what earlier rounds have shown: in bounded memory, by
partition and in the order of its records, so that the counts do not depend on the number of workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from streamtrain.trainer.decode import Decoded
from streamtrain.trainer.notes import COERCED, MISSING, OUT_OF_RANGE
from streamtrain.trainer.rows import Column
from streamtrain.types import DType, FieldCounts, Schema

SLOTS = 1 << 15
"""Of a partition's and a field's table of strings, one bit of knowledge each. A string whose slot (by crc32) is taken
counts as seen: of strings that are new, as large a share is overlooked as slots are taken, at most about a half."""

LEARNING_VALUES = 100
"""Numbers of a field that a partition must have shown before one can be out of range."""

LIFE_VALUES = 100_000
"""Numbers, and half of the slots strings, after which what was seen is about to be forgotten, unless seen again."""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # crc32 alone puts strings that are alike into places that are alike
_NUMERIC = frozenset({DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64, DType.DATETIME})


@dataclass(frozen=True, slots=True)
class Segment:
    """Documents [begin, end) of a decoded batch, which are of one partition."""

    partition: int
    begin: int
    end: int


class FieldStatistics:
    """missing: absent, null, or not finite and replaced. coerced: of a BSON type that is not the field's own (an int64
    for a float32), and taken exactly. unseen: a string, of a field with one string, that no earlier document of its
    partition has shown; the first of several alike in a round. out_of_range: a number that the field's type cannot
    hold, or further outside of what earlier rounds have shown than that is wide (of a vector: any of its elements).
    """

    def __init__(self, schema: Schema, partitions: Sequence[int]) -> None:
        self._partitions = {partition: row for row, partition in enumerate(partitions)}
        count = len(self._partitions)
        dtypes = {f.field: f.dtype for f in schema.features} | {label.field: label.dtype for label in schema.labels}
        self._ranges = {field: _Range(count) for field, dtype in dtypes.items() if dtype in _NUMERIC}
        self._strings = {f.field: _Strings(count) for f in schema.features if f.dtype is DType.STRING and not f.width}
        self._found = dict.fromkeys(dtypes, FieldCounts())

    def observe(self, decoded: Decoded, segments: Sequence[Segment]) -> None:
        """The next documents. segments: in their order, without gaps."""
        parts = [segment for segment in segments if segment.end > segment.begin]
        if not parts:
            return
        rows = np.array([self._partitions[segment.partition] for segment in parts])
        starts = np.array([segment.begin for segment in parts])
        for field, notes in decoded.notes.items():
            column = decoded.columns[field] if field in decoded.columns else decoded.labels[field]
            amounts = np.bincount(notes, minlength=OUT_OF_RANGE + 1)
            usable = notes <= COERCED
            unseen = beyond = 0
            if field in self._strings:
                unseen = self._strings[field].observe(column, usable, rows, starts)
            elif field in self._ranges:
                beyond = self._ranges[field].observe(column, usable, rows, starts)
            self._found[field] += FieldCounts(
                missing=int(amounts[MISSING]),
                coerced=int(amounts[COERCED]),
                unseen=unseen,
                out_of_range=int(amounts[OUT_OF_RANGE]) + beyond,
            )

    def end_round(self) -> dict[str, FieldCounts]:
        """The counts since the last call, of the fields that have any; what was seen is known from now on."""
        found, self._found = self._found, dict.fromkeys(self._found, FieldCounts())
        for numbers in self._ranges.values():
            numbers.end_round()
        for strings in self._strings.values():
            strings.end_round()
        return {field: counts for field, counts in found.items() if counts != FieldCounts()}


class _Range:
    """The least and the largest number of each partition, of this life and of the one before."""

    def __init__(self, partitions: int) -> None:
        self._low = np.full((3, partitions), np.inf)  # of the life before, of this one, of this round
        self._high = np.full((3, partitions), -np.inf)
        self._seen = np.zeros((2, partitions), np.int64)  # in this life, in this round
        self._known = np.zeros(partitions, np.bool_)

    def observe(
        self,
        column: Column,
        usable: npt.NDArray[np.bool_],
        rows: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
    ) -> int:
        numbers = column.astype(np.float64)
        least, most = (numbers, numbers) if numbers.ndim == 1 else (numbers.min(axis=1), numbers.max(axis=1))
        if not usable.all():
            least, most = np.where(usable, least, np.inf), np.where(usable, most, -np.inf)
        lows, highs = np.minimum.reduceat(least, starts), np.maximum.reduceat(most, starts)
        low, high = self._low[:2].min(axis=0)[rows], self._high[:2].max(axis=0)[rows]
        with np.errstate(invalid="ignore", over="ignore"):
            span = high - low
            low, high = low - span, high + span
        suspects = np.flatnonzero(self._known[rows] & ((lows < low) | (highs > high)))
        ends = np.append(starts[1:], len(usable))
        beyond = 0
        for at in suspects.tolist():
            part = slice(starts[at], ends[at])
            beyond += int((usable[part] & ((least[part] < low[at]) | (most[part] > high[at]))).sum())
        np.minimum.at(self._low[2], rows, lows)
        np.maximum.at(self._high[2], rows, highs)
        np.add.at(self._seen[1], rows, np.add.reduceat(usable.astype(np.int64), starts))
        return beyond

    def end_round(self) -> None:
        self._low[1] = self._low[1:].min(axis=0)
        self._high[1] = self._high[1:].max(axis=0)
        self._low[2], self._high[2] = np.inf, -np.inf
        self._seen[0] += self._seen[1]
        self._seen[1] = 0
        self._known |= self._seen[0] >= LEARNING_VALUES
        old = self._seen[0] >= LIFE_VALUES
        if old.any():
            self._low[0, old], self._high[0, old] = self._low[1, old], self._high[1, old]
            self._low[1, old], self._high[1, old] = np.inf, -np.inf
            self._seen[0, old] = 0


class _Strings:
    """Slots of strings that each partition has shown, in this life and in the one before."""

    def __init__(self, partitions: int) -> None:
        self._before = np.zeros((partitions, SLOTS), np.bool_)
        self._now = np.zeros((partitions, SLOTS), np.bool_)

    def observe(
        self,
        column: Column,
        usable: npt.NDArray[np.bool_],
        rows: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
    ) -> int:
        hashes = np.fromiter(map(crc32, column.tolist()), np.uint64, len(column))
        slots = (hashes * _SPREAD >> np.uint64(40)).astype(np.int64) % SLOTS
        of_row = np.repeat(rows, np.diff(np.append(starts, len(column))))
        if not usable.all():
            slots, of_row = slots[usable], of_row[usable]
        new = ~(self._now[of_row, slots] | self._before[of_row, slots])
        self._now[of_row, slots] = True
        return len(np.unique(of_row[new] * SLOTS + slots[new])) if new.any() else 0

    def end_round(self) -> None:
        full = np.flatnonzero(self._now.sum(axis=1) > SLOTS // 2)
        self._before[full] = self._now[full]
        self._now[full] = False

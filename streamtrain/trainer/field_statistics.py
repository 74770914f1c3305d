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

Rows = npt.NDArray[np.int64]
"""Of each segment: its partition's row in the tables, or its first document."""

Usable = npt.NDArray[np.bool_] | None
"""Which documents have a value; None where all have."""

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
            noted = bool(notes.any())
            usable = notes <= COERCED if noted else None
            unseen = beyond = 0
            if field in self._strings:
                unseen = self._strings[field].observe(column, usable, rows, starts)
            elif field in self._ranges:
                beyond = self._ranges[field].observe(column, usable, rows, starts)
            if not noted and not unseen and not beyond:
                continue
            amounts = np.bincount(notes, minlength=OUT_OF_RANGE + 1)
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
        self._least = np.full(partitions, -np.inf)  # what is not out of range yet
        self._most = np.full(partitions, np.inf)
        self._known = np.zeros(partitions, np.bool_)

    def observe(self, column: Column, usable: Usable, rows: Rows, starts: Rows) -> int:
        if usable is None:
            least = most = column if column.ndim == 1 else column.reshape(-1)
            width = 1 if column.ndim == 1 else column.shape[1]
            lows, highs = np.minimum.reduceat(least, starts * width), np.maximum.reduceat(most, starts * width)
            lows, highs = lows.astype(np.float64), highs.astype(np.float64)
        else:
            by_row = column.astype(np.float64).reshape(len(column), -1)
            lows = np.minimum.reduceat(np.where(usable, by_row.min(axis=1), np.inf), starts)
            highs = np.maximum.reduceat(np.where(usable, by_row.max(axis=1), -np.inf), starts)
        low, high = self._least[rows], self._most[rows]
        suspects = np.flatnonzero((lows < low) | (highs > high))
        beyond = 0
        for at in suspects.tolist():
            part = slice(starts[at], starts[at + 1] if at + 1 < len(starts) else len(column))
            of_part = column[part].astype(np.float64).reshape(part.stop - part.start, -1)
            wild = ((of_part < low[at]) | (of_part > high[at])).any(axis=1)
            beyond += int((wild if usable is None else wild & usable[part]).sum())
        np.minimum.at(self._low[2], rows, lows)
        np.maximum.at(self._high[2], rows, highs)
        amounts = np.diff(starts, append=len(column)) if usable is None else np.add.reduceat(usable, starts, dtype=int)
        np.add.at(self._seen[1], rows, amounts)
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
        low, high = self._low[:2].min(axis=0), self._high[:2].max(axis=0)
        with np.errstate(invalid="ignore", over="ignore"):
            span = high - low
            self._least = np.where(self._known, low - span, -np.inf)
            self._most = np.where(self._known, high + span, np.inf)


class _Strings:
    """Slots of strings that each partition has shown, in this life and in the one before."""

    def __init__(self, partitions: int) -> None:
        self._before = np.zeros((partitions, SLOTS), np.bool_)
        self._now = np.zeros((partitions, SLOTS), np.bool_)
        self._taken = np.zeros(partitions, np.int64)  # slots of `_now`

    def observe(self, column: Column, usable: Usable, rows: Rows, starts: Rows) -> int:
        hashes = np.fromiter(map(crc32, column.tolist()), np.uint64, len(column))
        slots = (hashes * _SPREAD >> np.uint64(40)).astype(np.int64) % SLOTS
        of_row = np.repeat(rows, np.diff(starts, append=len(column)))
        if usable is not None:
            slots, of_row = slots[usable], of_row[usable]
        not_now = ~self._now[of_row, slots]
        if not not_now.any():
            return 0
        places = np.unique(of_row[not_now] * SLOTS + slots[not_now])
        new_rows, new_slots = np.divmod(places, SLOTS)
        self._now[new_rows, new_slots] = True
        self._taken += np.bincount(new_rows, minlength=len(self._taken))
        return int((~self._before[new_rows, new_slots]).sum())

    def end_round(self) -> None:
        full = np.flatnonzero(self._taken > SLOTS // 2)
        if len(full):
            self._before[full] = self._now[full]
            self._now[full] = False
            self._taken[full] = 0

"""From a round's rows to stacked arrays: which global step each row belongs to (DESIGN idea 4), and the
[steps, width, ...] arrays of this rank, padded with rows of weight zero. Pure numpy; never TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamtrain.trainer.columns import NUMPY_DTYPES
from streamtrain.trainer.rows import Column, Rows
from streamtrain.types import Schema

STEPS_PER_CALL = 16
"""Steps that one call of the compiled function runs: bounds the latency of a stop and the memory of a stack."""

NO_STEP = -1

_WIDTH_BUCKETS = 16
_MIN_WIDTH_BUCKET = 8


@dataclass(frozen=True, slots=True)
class Pack:
    """Columns of one dtype that travel side by side in one array; offsets and lengths count its last axis.

    A scalar column has length None and takes one place.
    """

    dtype: np.dtype[np.generic]
    fields: tuple[str, ...]
    lengths: tuple[int | None, ...]

    @property
    def width(self) -> int:
        return sum(length or 1 for length in self.lengths)

    def places(self) -> Iterator[tuple[str, int, int | None]]:
        """(field, offset, length) of each column."""
        offset = 0
        for name, length in zip(self.fields, self.lengths, strict=True):
            yield name, offset, length
            offset += length or 1


@dataclass(frozen=True, slots=True)
class Layout:
    """How columns and labels of a schema are laid out in a stack; the same on every rank."""

    packs: tuple[Pack, ...]
    labels: tuple[str, ...]
    real: np.dtype[np.generic]


@dataclass(frozen=True, slots=True)
class Stack:
    """`steps` consecutive steps of this rank. packs: [K, B, pack width] each; labels: [K, B, labels] of the
    layout's real dtype; weights [K, B], zero for padding; scored [K, B]: 1 where a row counts for prequential
    scores. rows [K, B]: which of this rank's rows of the round (of all its partitions, in their order) stands
    there; real [K, B]: false for padding, which repeats others."""

    first_step: int
    packs: tuple[Column, ...]
    labels: Column
    weights: npt.NDArray[np.floating]
    scored: npt.NDArray[np.floating]
    rows: npt.NDArray[np.int64]
    real: npt.NDArray[np.bool_]

    @property
    def steps(self) -> int:
        return int(self.weights.shape[0])

    def arrays(self, begin: int, end: int | None = None) -> tuple[tuple[Column, ...], Column, Column, Column]:
        """(packs, labels, weights, scored) of some of the steps."""
        part = slice(begin, end)
        return tuple(pack[part] for pack in self.packs), self.labels[part], self.weights[part], self.scored[part]

    def rows_of(self, step: int, places: Sequence[int]) -> tuple[tuple[Column, ...], Column, Column, Column]:
        """`arrays` without the axis of steps, of what stands at these places of a step."""
        chosen = list(places)
        packs = tuple(pack[step][chosen] for pack in self.packs)
        return packs, self.labels[step][chosen], self.weights[step][chosen], self.scored[step][chosen]

    def take_out(self, rows: npt.NDArray[np.int64]) -> None:
        """Makes padding of these rows: no trace of what they hold stays."""
        self.pad(np.isin(self.rows, rows))

    def pad(self, gone: npt.NDArray[np.bool_]) -> None:
        """Puts rows that count, of the same step if there are any, in the place of what stands in `gone` [K, B]."""
        self.real[gone] = False
        self.weights[gone] = self.scored[gone] = 0
        good = self.weights > 0
        anywhere = np.argwhere(good)
        for step in np.flatnonzero(gone.any(axis=1)).tolist():
            place = (
                (step, int(good[step].argmax())) if good[step].any() else tuple(anywhere[0]) if len(anywhere) else ()
            )
            for values in (*self.packs, self.labels, self.rows):
                values[step][gone[step]] = values[place] if place else _nothing(values.dtype)


def layout_of(schema: Schema, real: type[np.floating]) -> Layout:
    """One pack per numpy dtype, in order of first appearance."""
    by_dtype: dict[np.dtype[np.generic], list[tuple[str, int | None]]] = {}
    for feature in schema.features:
        by_dtype.setdefault(np.dtype(NUMPY_DTYPES[feature.dtype]), []).append((feature.field, feature.width))
    packs = tuple(
        Pack(dtype=dtype, fields=tuple(f for f, _ in columns), lengths=tuple(n for _, n in columns))
        for dtype, columns in by_dtype.items()
    )
    return Layout(packs=packs, labels=tuple(label.field for label in schema.labels), real=np.dtype(real))


def steps_of(rows: int, batch_size: int) -> int:
    """S = ceil(R / batch_size): so every step of a round with rows has at least one."""
    return -(-rows // batch_size)


def step_of_rows(counts: Sequence[int], batch_size: int) -> list[npt.NDArray[np.int64]]:
    """For each partition with n rows the step of each of them: rows ordered by ((i + 1/2)/n, partition), the
    g-th of R going to step floor(g * S / R). A function of all partitions' counts alone, so every rank agrees."""
    total = int(sum(counts))
    if total == 0:
        return [np.empty(0, np.int64) for _ in counts]
    keys = np.concatenate([(np.arange(n) + 0.5) / n for n in counts if n])
    place = np.empty(total, np.int64)
    place[np.argsort(keys, kind="stable")] = np.arange(total)  # stable: ties go to the lower partition
    steps = place * steps_of(total, batch_size) // total
    return np.split(steps, np.cumsum(counts)[:-1])


def bucketed(width: int, batch_size: int) -> int:
    """The next width of a coarse grid, so that few shapes occur."""
    grain = max(_MIN_WIDTH_BUCKET, -(-batch_size // _WIDTH_BUCKETS))
    return -(-max(1, width) // grain) * grain


def stacks(
    *, layout: Layout, rows: Sequence[Rows], steps: Sequence[npt.NDArray[np.int64]], total_steps: int, batch_size: int
) -> Iterator[Stack]:
    """This rank's share of a round, `STEPS_PER_CALL` steps at a time; also when it has no row in some or in all.

    steps: per element of `rows` the step of each row (`step_of_rows`), NO_STEP for one that takes part in none.
    Within a step rows stand by partition.
    Padding repeats the rows of its step (of a step without any, a row of the stack): a model can digest them, and a
    mean over the batch, such as batch normalisation takes, stays about what it is.
    """
    step = np.concatenate([*steps, np.empty(0, np.int64)])
    order = np.argsort(step, kind="stable")[int((step == NO_STEP).sum()) :]
    step = step[order]
    starts = np.searchsorted(step, np.arange(total_steps + 1))
    joined = join(layout, rows, order)
    for first in range(0, total_steps, STEPS_PER_CALL):
        last = min(first + STEPS_PER_CALL, total_steps)
        low, high = int(starts[first]), int(starts[last])
        held = np.diff(starts[first : last + 1])[:, None]  # rows of each step
        column = np.arange(bucketed(int(held.max()), batch_size))
        place = np.where(held > 0, starts[first:last, None] - low + column % np.maximum(held, 1), 0)
        real = column < held
        stack = Stack(
            first_step=first,
            packs=tuple(_placed(pack[low:high], place) for pack in joined.packs),
            labels=_placed(joined.labels[low:high], place),
            weights=_placed(joined.weights[low:high], place) * real,
            scored=_placed(joined.scored[low:high], place) * real,
            rows=_placed(order[low:high], place),
            real=real,
        )
        idle = real & (stack.weights == 0)
        if idle.any():  # nothing that a row of weight zero holds may be felt, not even as a number that is none
            stack.take_out(stack.rows[idle])
        yield stack


@dataclass(frozen=True, slots=True)
class Joined:
    """Rows as they stand in a step: packs [n, pack width] each, labels [n, labels], weights [n], scored [n]."""

    packs: tuple[Column, ...]
    labels: Column
    weights: npt.NDArray[np.floating]
    scored: npt.NDArray[np.floating]


def join(layout: Layout, rows: Sequence[Rows], order: npt.NDArray[np.int64]) -> Joined:
    """Of all rows of this rank those that `order` names, in that order."""
    present = [part for part in rows if len(part)]
    count = len(order)
    packs = []
    for pack in layout.packs:
        joined = np.empty((count, pack.width), pack.dtype)
        for name, offset, length in pack.places() if present else ():
            column = _column([part.columns[name] for part in present], count, order)
            if length is None:
                joined[:, offset] = column
            else:
                joined[:, offset : offset + length] = column
        packs.append(joined)
    labels = np.empty((count, len(layout.labels)), layout.real)
    for index, name in enumerate(layout.labels if present else ()):
        labels[:, index] = _column([part.labels[name] for part in present], count, order)
    return Joined(
        packs=tuple(packs),
        labels=labels,
        weights=_column([part.weights for part in present], count, order).astype(layout.real),
        scored=_column([part.scored for part in present], count, order).astype(layout.real),
    )


def _column(parts: Sequence[Column], count: int, order: npt.NDArray[np.int64]) -> Column:
    return np.concatenate(parts)[order] if parts else np.empty(count)


def _placed(values: Column, place: npt.NDArray[np.int64]) -> Any:
    """The rows that stand at each place of a [K, B, ...] array; without any row, values that mean nothing."""
    if len(values):
        return values[place]
    return np.full((*place.shape, *values.shape[1:]), _nothing(values.dtype), values.dtype)


def _nothing(dtype: np.dtype[Any]) -> Any:
    return b"" if dtype == np.object_ else 0

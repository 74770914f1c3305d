"""Labelled versions of one partition as columns, ordered by offset: appended at the end, evicted at the front,
and taken out where a newer version or a delete has come."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress

import numpy as np
import numpy.typing as npt

from streamtrain.trainer.decode import Decoded, empty_columns
from streamtrain.trainer.records import Records
from streamtrain.trainer.rows import Column
from streamtrain.types import Schema

_LEAST_CAPACITY = 64
_STRING_BYTES = 60  # of a short string object, about

Places = npt.NDArray[np.int64]


class VersionLog:
    """Places are indices into the arrays; they are valid until the next `append` or `evict`."""

    def __init__(self, schema: Schema, *, weighted: bool = False) -> None:
        self._columns, self._labels = empty_columns(schema, _LEAST_CAPACITY)
        self.weights = np.zeros(_LEAST_CAPACITY) if weighted else None
        self.offsets = np.zeros(_LEAST_CAPACITY, np.int64)
        self.cluster_times = np.zeros(_LEAST_CAPACITY, np.int64)
        self._alive = np.zeros(_LEAST_CAPACITY, np.bool_)
        self._held = np.zeros(_LEAST_CAPACITY, np.bool_)
        self._identities: list[tuple[bytes, bytes]] = []  # (namespace, key) of the places [0, tail)
        self._head = 0
        self._tail = 0

    @property
    def nbytes(self) -> int:
        """About what the versions take."""
        strings = sum(column.size for column in self._columns.values() if column.dtype == np.object_)
        arrays = [self.offsets, self.cluster_times, self._alive, *self._columns.values(), *self._labels.values()]
        arrays += [self._held] if self.weights is None else [self._held, self.weights]
        return sum(array.nbytes for array in arrays) + _STRING_BYTES * strings * self._tail // len(self.offsets)

    def append(
        self,
        records: Records,
        places: Places,
        decoded: Decoded,
        rows: Places,
        held: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Adds the records at `places`, whose values are the `rows` of decoded. held: which of them are kept from
        replay."""
        n = len(places)
        if n == 0:
            return
        self._make_room(n)
        new = slice(self._tail, self._tail + n)
        source = _as_slice(rows)
        for field, column in self._columns.items():
            column[new] = decoded.columns[field][source]
        for field, column in self._labels.items():
            column[new] = decoded.labels[field][source]
        self.offsets[new] = records.offsets[places]
        self.cluster_times[new] = records.cluster_times[places]
        self._alive[new] = True
        self._held[new] = False if held is None else held
        if self.weights is not None:
            assert decoded.weights is not None
            self.weights[new] = decoded.weights[source]
        chosen = places.tolist()
        self._identities.extend(
            zip(map(records.namespaces.__getitem__, chosen), map(records.keys.__getitem__, chosen), strict=True)
        )
        self._tail += n

    def remove(self, offsets: npt.NDArray[np.int64]) -> None:
        """Takes out the versions of these offsets."""
        self._alive[self._at(offsets)] = False

    def alike(self, some: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the version of each of the offsets `some` says the same, bit for bit, as that of `others`."""
        left, right = self._at(some), self._at(others)
        same = np.ones(len(left), np.bool_)
        for column in (*self._columns.values(), *self._labels.values()):
            same &= _same(column[left], column[right])
        if self.weights is not None:
            same &= _same(self.weights[left], self.weights[right])
        return same

    def evict(self, begin: int) -> list[tuple[bytes, bytes, int]]:
        """Drops the versions below `begin`; returns (namespace, key, offset) of those that were the latest."""
        cut = self._cut(begin)
        gone = np.flatnonzero(self._alive[self._head : cut]) + self._head
        self._alive[self._head : cut] = False
        self._head = cut
        return [
            (*self._identities[place], offset)
            for place, offset in zip(gone.tolist(), self.offsets[gone].tolist(), strict=True)
        ]

    def replayable(self, below: int) -> Places:
        """The versions with offsets below `below` that are not held out, in order of offset."""
        cut = self._cut(below)
        return np.flatnonzero(self._alive[self._head : cut] & ~self._held[self._head : cut]) + self._head

    def take(self, places: Places) -> tuple[Mapping[str, Column], Mapping[str, Column]]:
        return (
            {field: column[places] for field, column in self._columns.items()},
            {field: column[places] for field, column in self._labels.items()},
        )

    def _at(self, offsets: npt.NDArray[np.int64]) -> Places:
        places: Places = self._head + np.searchsorted(self.offsets[self._head : self._tail], offsets)
        return places

    def _cut(self, offset: int) -> int:
        return self._head + int(np.searchsorted(self.offsets[self._head : self._tail], offset))

    def _make_room(self, n: int) -> None:
        """Moves what is alive to the front, of larger arrays where it takes more than half of these."""
        capacity = len(self.offsets)
        if self._tail + n <= capacity:
            return
        alive = np.flatnonzero(self._alive[: self._tail])
        while len(alive) + n > capacity // 2:
            capacity *= 2
        self._identities = list(compress(self._identities, self._alive[: self._tail].tolist()))

        def moved(old: Column) -> Column:
            new = np.zeros((capacity, *old.shape[1:]), old.dtype)
            new[: len(alive)] = old[alive]
            return new

        self._columns = {field: moved(column) for field, column in self._columns.items()}
        self._labels = {field: moved(column) for field, column in self._labels.items()}
        self.offsets, self.cluster_times = moved(self.offsets), moved(self.cluster_times)  # type: ignore[assignment]
        self._alive, self._held = moved(self._alive), moved(self._held)  # type: ignore[assignment]
        self.weights = None if self.weights is None else moved(self.weights)  # type: ignore[assignment]
        self._head, self._tail = 0, len(alive)


def _as_slice(rows: Places) -> slice | Places:
    """Rows that follow each other as a slice, which is copied much faster."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def _same(some: Column, others: Column) -> npt.NDArray[np.bool_]:
    """Row by row. A NaN equals a NaN, whatever bits make it one; zero and minus zero differ."""
    if some.dtype == np.object_:
        return np.fromiter(map(_equal, some.tolist(), others.tolist()), np.bool_, len(some))
    same = np.equal(some, others)
    if np.issubdtype(some.dtype, np.floating):
        same = same & (np.signbit(some) == np.signbit(others)) | np.isnan(some) & np.isnan(others)
    rows: npt.NDArray[np.bool_] = np.all(same.reshape(len(some), -1), axis=1)
    return rows


def _equal(one: object, other: object) -> bool:
    return one is other or bool(np.all(one == other))

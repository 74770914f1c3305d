"""Labelled versions of one partition as columns, in the order in which they were learned: appended at the end,
evicted at the front, and taken out where a newer version or a delete has come."""

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
_OBJECT_BYTES = 33  # of a string or binary object, beside its content
_SAMPLED_ROWS = 32

ABSENT_BITS = 22
"""A version's code, by which the log is ordered, is its offset with as many zero bits behind it. Of one whose label was
absent it is the offset up to which the partition was learned then, and a number in these bits."""
ABSENT = (1 << ABSENT_BITS) - 1

Places = npt.NDArray[np.int64]


class VersionLog:
    """Places are indices into the arrays; they are valid until the next `append` or `evict`."""

    def __init__(self, schema: Schema, *, weighted: bool = False) -> None:
        self._columns, self._labels = empty_columns(schema, _LEAST_CAPACITY)
        self.weights = np.zeros(_LEAST_CAPACITY) if weighted else None
        self.codes = np.zeros(_LEAST_CAPACITY, np.int64)
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
        arrays = [self.codes, self.offsets, self.cluster_times, self._alive]
        arrays += [*self._columns.values(), *self._labels.values()]
        arrays += [self._held] if self.weights is None else [self._held, self.weights]
        return sum(array.nbytes for array in arrays) + self._tail * self._object_bytes()

    def _object_bytes(self) -> int:
        """Of the strings and the binary data of a row, by a few rows from all over the log."""
        rows = np.arange(0, self._tail, max(1, self._tail // _SAMPLED_ROWS))
        sizes = [
            _OBJECT_BYTES + len(value)
            for column in self._columns.values()
            if column.dtype == np.object_
            for value in column[rows].ravel().tolist()
        ]
        return sum(sizes) // max(1, len(rows))

    def append(
        self,
        records: Records,
        places: Places,
        decoded: Decoded,
        rows: Places,
        held: npt.NDArray[np.bool_] | None = None,
        *,
        codes: npt.NDArray[np.int64] | None = None,
        cluster_times: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Adds the records at `places`, whose values are the `rows` (ascending) of decoded. held: which of them are
        kept from replay. codes, cluster_times: where they stand, and the time that their age counts from; default: the
        records' own."""
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
        self.codes[new] = self.offsets[new] << ABSENT_BITS if codes is None else codes
        self.cluster_times[new] = records.cluster_times[places] if cluster_times is None else cluster_times
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

    def remove(self, codes: npt.NDArray[np.int64]) -> None:
        """Takes out the versions with these codes."""
        self._alive[self._at(codes)] = False

    def alike(
        self, some: npt.NDArray[np.int64], others: npt.NDArray[np.int64], *, labels_only: bool = False
    ) -> npt.NDArray[np.bool_]:
        """Whether the version with each of the codes `some` says the same, bit for bit, as that of `others`."""
        left, right = self._at(some), self._at(others)
        same = np.ones(len(left), np.bool_)
        for column in (*(() if labels_only else self._columns.values()), *self._labels.values()):
            same &= _same(column[left], column[right])
        if self.weights is not None:
            same &= _same(self.weights[left], self.weights[right])
        return same

    def give_features(self, codes: npt.NDArray[np.int64], columns: Mapping[str, Column]) -> None:
        """Replaces the features of the versions with these codes, where they are still there."""
        there = self._there(codes)
        places = self._at(codes[there])
        for field, column in self._columns.items():
            column[places] = columns[field][there]

    def copy_features(self, codes: npt.NDArray[np.int64], sources: npt.NDArray[np.int64]) -> None:
        """Gives the versions with the `codes` the features of those with the codes `sources`, one after the other."""
        for place, source in zip(self._at(codes).tolist(), self._at(sources).tolist(), strict=True):
            for column in self._columns.values():
                column[place] = column[source]

    def features(self, codes: npt.NDArray[np.int64]) -> Mapping[str, Column]:
        places = self._at(codes)
        return {field: column[places] for field, column in self._columns.items()}

    def evict(self, begin: int) -> list[tuple[bytes, bytes, int]]:
        """Drops what was learned below the offset `begin`; returns (namespace, key, code) of the versions that were
        the latest."""
        cut = self._cut(begin)
        gone = np.flatnonzero(self._alive[self._head : cut]) + self._head
        self._alive[self._head : cut] = False
        self._head = cut
        return [
            (*self._identities[place], code)
            for place, code in zip(gone.tolist(), self.codes[gone].tolist(), strict=True)
        ]

    def codes_of(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The codes of the versions with these offsets that are there."""
        part = slice(self._head, self._tail)
        return self.codes[part][self._alive[part] & np.isin(self.offsets[part], offsets)]

    def take_out(self, codes: npt.NDArray[np.int64]) -> list[tuple[bytes, bytes, int]]:
        """`remove`, of those that are still there; returns (namespace, key, code) of them."""
        codes = codes[self._there(codes)]
        places = self._at(codes)
        self._alive[places] = False
        return [(*self._identities[place], code) for place, code in zip(places.tolist(), codes.tolist(), strict=True)]

    @property
    def last_code(self) -> int:
        """Of the version that was appended last; -1 where there is none any more."""
        return int(self.codes[self._tail - 1]) if self._tail > self._head else -1

    def absent(self) -> Places:
        """The versions whose label was absent."""
        part = slice(self._head, self._tail)
        return np.flatnonzero(self._alive[part] & (self.codes[part] & ABSENT != 0)) + self._head

    def sort(self) -> None:
        """Brings what was appended out of order into it."""
        order = np.argsort(self.codes[: self._tail], kind="stable")
        arrays = [self.codes, self.offsets, self.cluster_times, self._alive, self._held]
        arrays += [] if self.weights is None else [self.weights]
        for array in (*arrays, *self._columns.values(), *self._labels.values()):
            array[: self._tail] = array[: self._tail][order]
        self._identities = [self._identities[place] for place in order.tolist()]

    def replayable(self, below: int) -> Places:
        """The versions that were learned below the offset `below` and are not held out, in that order."""
        cut = self._cut(below)
        return np.flatnonzero(self._alive[self._head : cut] & ~self._held[self._head : cut]) + self._head

    def take(self, places: Places) -> tuple[Mapping[str, Column], Mapping[str, Column]]:
        return (
            {field: column[places] for field, column in self._columns.items()},
            {field: column[places] for field, column in self._labels.items()},
        )

    def _there(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        places = self._at(codes)
        there: npt.NDArray[np.bool_] = places < self._tail
        there[there] = (self.codes[places[there]] == codes[there]) & self._alive[places[there]]
        return there

    def _at(self, codes: npt.NDArray[np.int64]) -> Places:
        places: Places = self._head + np.searchsorted(self.codes[self._head : self._tail], codes)
        return places

    def _cut(self, offset: int) -> int:
        code = offset << ABSENT_BITS
        return self._head + int(np.searchsorted(self.codes[self._head : self._tail], code))

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
        self.codes = moved(self.codes)  # type: ignore[assignment]
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

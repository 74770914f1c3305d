"""Documents of one partition that wait for a label, by identity, in a few dozen bytes each: no key is kept, only a
hash of it so wide that two documents share one less often than a disk lies. A pure core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

NEVER = 2**63 - 1
"""A cluster time that does not come, and an offset beyond all."""

BLOCK_BITS = 16
"""Offsets in a block of a checkpoint (waiting_file.py), as a power of two."""

_LEAST_CAPACITY = 64
_FULLEST = 0.75  # of the rows after a clean-up, so that the next is some way off
_BLOCK = 4096  # rows that are looked through together
_DEAD = -1
_MANY_LABELS = 8

Ints = npt.NDArray[np.int64]


class WaitingIndex:
    """Rows in order of the documents' first versions. A row number is valid until the next `add`.

    due: of a set of missing labels, the cluster time at which a document that was first seen at a cluster time waits
    no longer for them; NEVER where it does.
    """

    def __init__(self, due: Callable[[int, int], int], *, labels: int) -> None:
        self._due_of = due
        self._labels_dtype = np.uint8 if labels <= _MANY_LABELS else np.int64
        self._document_keys: dict[int, bytes] = {}  # of the rows whose documentKey is more than their key
        self._labelled: dict[int, int] = {}  # offset of the last version with a label that came before it was missing
        self._changed: set[int] = set()  # blocks of offsets of first versions, since they were last asked for
        self._count = 0
        self._allocate(_LEAST_CAPACITY)
        self._tail = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """About what it takes."""
        arrays = (self._slots, self._low, self._high, self._first, self._latest, self._since, self._due, self._missing)
        return sum(array.nbytes for array in arrays) + 250 * len(self._document_keys) + 150 * len(self._labelled)

    # ------------------------------------------------------------------ one document

    def find(self, namespace: bytes, key: bytes) -> tuple[int, ...]:
        """The rows with this `_id`: more than one only where a collection holds an `_id` more than once."""
        if self._count == 0:
            return ()
        low, high = _hashes(namespace, key)
        mask, slots, lows, highs, latest = self._mask, self._slot_view, self._low_view, self._high_view, self._view
        at = low & mask
        found: tuple[int, ...] = ()
        while (row := slots[at] - 1) >= 0:
            if lows[row] == low and highs[row] == high and latest[row] != _DEAD:
                found = (*found, row)
            at = (at + 1) & mask
        return found

    def document_key(self, row: int, key: bytes) -> bytes:
        return self._document_keys.get(row, key)

    def first(self, row: int) -> int:
        """The offset of the document's first version."""
        return self._first_view[row]

    def latest(self, row: int) -> int:
        return self._view[row]

    def since(self, row: int) -> int:
        """The cluster time of the first version."""
        return self._since_view[row]

    def due(self, row: int) -> int:
        return self._due_view[row]

    def labelled(self, row: int) -> int:
        """The offset of the version that had a label before it was missing again, -1 without one."""
        return self._labelled.get(row, -1)

    def add(
        self,
        namespace: bytes,
        key: bytes,
        document_key: bytes,
        *,
        first: int,
        latest: int,
        since: int,
        missing: int,
        labelled: int = -1,
    ) -> None:
        """A document that begins to wait. first: not below that of any row."""
        if self._tail == len(self._first):
            self._make_room(1)
        row = self._tail
        low, high = _hashes(namespace, key)
        self._low_view[row], self._high_view[row] = low, high
        self._first_view[row], self._view[row], self._since_view[row] = first, latest, since
        self._tail += 1
        self._count += 1
        self._changed.add(first >> BLOCK_BITS)
        if document_key != key:
            self._document_keys[row] = document_key
        self._put_slot(low, row)
        self._set_missing(row, missing)
        if labelled >= 0:
            self._labelled[row] = labelled

    def add_all(
        self,
        namespaces: Sequence[bytes],
        keys: Sequence[bytes],
        document_keys: Sequence[bytes],
        *,
        firsts: Ints,
        latests: Ints,
        since: Ints,
        missing: Ints,
    ) -> None:
        """`add`, many at once."""
        n = len(keys)
        if self._tail + n > len(self._first):
            self._make_room(n)
        begin, new = self._tail, slice(self._tail, self._tail + n)
        for row, (namespace, key, document_key) in enumerate(zip(namespaces, keys, document_keys, strict=True), begin):
            self._low_view[row], self._high_view[row] = _hashes(namespace, key)
            if document_key != key:
                self._document_keys[row] = document_key
        self._first[new], self._latest[new], self._since[new], self._missing[new] = firsts, latests, since, missing
        for labels in np.unique(missing).tolist():
            after = self._due_of(labels, 0)
            self._due[new][missing == labels] = NEVER if after == NEVER else since[missing == labels] + after
        self._tail += n
        self._count += n
        self._changed.update(np.unique(firsts >> BLOCK_BITS).tolist())
        self._fill_slots(begin)
        for block in range(begin // _BLOCK, -(-self._tail // _BLOCK)):
            self._note(block)

    def update(self, row: int, document_key: bytes, key: bytes, *, latest: int, missing: int) -> None:
        """A new version that still waits."""
        self._changed.add(self._first_view[row] >> BLOCK_BITS)
        self._view[row] = latest
        if document_key != key:
            self._document_keys[row] = document_key
        else:
            self._document_keys.pop(row, None)
        self._set_missing(row, missing)

    def remove(self, row: int) -> None:
        self._changed.add(self._first_view[row] >> BLOCK_BITS)
        self._view[row] = _DEAD
        self._count -= 1
        self._document_keys.pop(row, None)
        self._labelled.pop(row, None)

    def _set_missing(self, row: int, missing: int) -> None:
        self._missing_view[row] = missing
        due = self._due_of(missing, self._since_view[row])
        self._due_view[row] = due
        block = row // _BLOCK
        self._block_due[block] = min(int(self._block_due[block]), due)
        if due == NEVER:
            self._block_edge[block] = min(int(self._block_edge[block]), self._view[row])

    def _put_slot(self, low: int, row: int) -> None:
        at = low & self._mask
        slots = self._slot_view
        while slots[at]:
            at = (at + 1) & self._mask
        slots[at] = row + 1

    # ------------------------------------------------------------------ many documents

    @property
    def next_due(self) -> int:
        """The first cluster time that is due; NEVER without one."""
        while True:
            block = int(self._block_due.argmin())
            noted = int(self._block_due[block])
            if noted == NEVER:
                return NEVER
            part, alive = self._part(block)
            due = int(self._due[part][alive].min(initial=NEVER))
            if due == noted:
                return due
            self._block_due[block] = due

    def overdue(self, watermark: int, limit: int) -> list[int]:
        """Up to `limit` rows that are due before the watermark, the first seen first."""
        rows: list[int] = []
        for block in np.flatnonzero(self._block_due < watermark).tolist():
            part, alive = self._part(block)
            due = self._due[part]
            self._block_due[block] = due[alive].min(initial=NEVER)
            rows += (np.flatnonzero(alive & (due < watermark)) + part.start).tolist()
            if len(rows) >= limit:
                break
        return rows[:limit]

    def evict(self, begin: int, since: int) -> int:
        """Removes the documents that are never due, whose latest version lies below the offset `begin` and which were
        first seen before the cluster time `since`; returns how many."""
        before = self._count
        for block in np.flatnonzero(self._block_edge < begin).tolist():
            part, alive = self._part(block)
            endless = alive & (self._due[part] == NEVER)
            gone = endless & (self._latest[part] < begin) & (self._since[part] < since)
            for row in (np.flatnonzero(gone) + part.start).tolist():
                self.remove(row)
            self._block_edge[block] = self._latest[part][endless & ~gone].min(initial=NEVER)
        return before - self._count

    def rows(self, begin: int = 0, end: int = NEVER) -> Ints:
        """The rows whose first versions lie at offsets `begin <= o < end`, in order of these."""
        low, high = np.searchsorted(self._first[: self._tail], (begin, end)).tolist()
        rows: Ints = np.flatnonzero(self._latest[low:high] != _DEAD) + low
        return rows

    def places(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Offsets of the first and of the latest versions, and the sets of missing labels."""
        return self._first[rows], self._latest[rows], self._missing[rows].astype(np.int64)

    def changed(self) -> list[int]:
        """The blocks of offsets in which something has changed since the last call."""
        changed, self._changed = sorted(self._changed), set()
        return changed

    def note_labelled(self, labelled: Mapping[int, int]) -> None:
        """labelled: as `labelled_before` of another index tells it."""
        if labelled:
            for row in np.flatnonzero(np.isin(self._latest[: self._tail], list(labelled))).tolist():
                self._labelled[row] = labelled[self._view[row]]

    def labelled_before(self) -> dict[int, int]:
        """By the latest version's offset, that of the version that had a label before it was missing again."""
        return {self._view[row]: offset for row, offset in self._labelled.items()}

    def _part(self, block: int) -> tuple[slice, npt.NDArray[np.bool_]]:
        part = slice(block * _BLOCK, min((block + 1) * _BLOCK, self._tail))
        return part, self._latest[part] != _DEAD

    # ------------------------------------------------------------------ room

    def _allocate(self, capacity: int) -> None:
        self._first, self._latest = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
        self._since, self._due = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
        self._low, self._high = np.zeros(capacity, np.int64), np.zeros(capacity, np.int32)
        self._missing = np.zeros(capacity, self._labels_dtype)
        self._slots = np.zeros(1 << (capacity * 3 // 2).bit_length(), np.int32)
        blocks = -(-capacity // _BLOCK)
        self._block_due, self._block_edge = np.full(blocks, NEVER), np.full(blocks, NEVER)
        self._look()

    def _look(self) -> None:
        """Single items are read and written much faster through memory views."""
        self._mask = len(self._slots) - 1
        self._slot_view, self._low_view, self._high_view = _view(self._slots), _view(self._low), _view(self._high)
        self._first_view, self._view, self._since_view = _view(self._first), _view(self._latest), _view(self._since)
        self._due_view, self._missing_view = _view(self._due), _view(self._missing)

    def _make_room(self, n: int) -> None:
        """Moves the living rows to the front, of arrays that they and `n` more do not fill."""
        alive = np.flatnonzero(self._latest[: self._tail] != _DEAD)
        old = (self._first, self._latest, self._since, self._due, self._low, self._high, self._missing)
        keys, labelled = self._document_keys, self._labelled
        count = len(alive)
        self._allocate(max(_LEAST_CAPACITY, int((count + n) / _FULLEST) + 1))
        new = (self._first, self._latest, self._since, self._due, self._low, self._high, self._missing)
        moves: list[tuple[Any, Any]] = list(zip(old, new, strict=True))
        for source, target in moves:
            target[:count] = source[alive]
        if keys or labelled:
            moved = {row: place for place, row in enumerate(alive.tolist())}
            self._document_keys = {moved[row]: key for row, key in keys.items()}
            self._labelled = {moved[row]: offset for row, offset in labelled.items()}
        self._tail = count
        self._fill_slots(0)
        for block in range(len(self._block_due)):
            self._note(block)

    def _note(self, block: int) -> None:
        """The least due time and offset of a block."""
        part, alive = self._part(block)
        due = self._due[part]
        self._block_due[block] = due[alive].min(initial=NEVER)
        self._block_edge[block] = self._latest[part][alive & (due == NEVER)].min(initial=NEVER)

    def _fill_slots(self, begin: int) -> None:
        """Of all rows from `begin` on: each takes its slot if that is free and no later row wants it too, the rest the
        next."""
        rows = np.arange(begin, self._tail, dtype=np.int32)
        at = self._low[begin : self._tail] & self._mask
        while len(rows):
            free = self._slots[at] == 0
            self._slots[at[free]] = rows[free] + 1
            left = self._slots[at] != rows + 1
            rows, at = rows[left], (at[left] + 1) & self._mask


def _view(array: Any) -> MutableSequence[int]:
    view: Any = memoryview(array)
    found: MutableSequence[int] = view
    return found


def _hashes(namespace: bytes, key: bytes) -> tuple[int, int]:
    """96 bits of keyed hashes (SipHash), another key in each process: nobody can choose documents that share them."""
    return hash(namespace) ^ hash(key), hash(namespace + key) >> 32

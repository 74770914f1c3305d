"""Documents that are deleted further on in what a worker has still to read: their earlier versions must not be learned
any more. Known before the first of them is read, so that a retrain leaves no trace of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamtrain.trainer.identity import agree
from streamtrain.trainer.records import Records


class Forgotten:
    """Deletes of some partitions by the hash of their document's key, 24 bytes each; of collections whose
    documentKeys are more than that, the documentKeys too. Empty at first; grows only before records are asked about."""

    def __init__(self) -> None:
        self._hashes = np.zeros(0, np.int64)  # ascending
        self._offsets = np.zeros(0, np.int64)
        self._document_keys: list[bytes | None] = []  # None where it is the key
        self._added: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Sequence[bytes | None]]] = []

    def __bool__(self) -> bool:
        return len(self._hashes) > 0 or bool(self._added)

    def add(self, records: Records, places: npt.NDArray[np.int64]) -> None:
        """The records at `places` end their documents."""
        if len(places) == 0:
            return
        keys = [
            None if records.document_keys[place] == records.keys[place] else records.document_keys[place]
            for place in places.tolist()
        ]
        self._added.append((_hashes(records)[places], records.offsets[places], keys))

    def among(self, records: Records) -> npt.NDArray[np.bool_]:
        """Which of the records are of documents that end behind them."""
        self._settle()
        hashes = _hashes(records)
        first = np.searchsorted(self._hashes, hashes)
        held = first < len(self._hashes)
        found = np.zeros(len(records), np.bool_)
        found[held] = self._hashes[first[held]] == hashes[held]
        for place in np.flatnonzero(found).tolist():
            found[place] = self._ends(records, place, int(first[place]))
        return found

    def _ends(self, records: Records, place: int, at: int) -> bool:
        key, document_key, offset = records.keys[place], records.document_keys[place], records.offsets[place]
        wanted = self._hashes[at]
        while at < len(self._hashes) and self._hashes[at] == wanted:
            if self._offsets[at] > offset and agree(key, self._document_keys[at] or document_key, document_key):
                return True
            at += 1
        return False

    def _settle(self) -> None:
        if not self._added:
            return
        hashes = np.concatenate([self._hashes, *(hashes for hashes, _, _ in self._added)])
        offsets = np.concatenate([self._offsets, *(offsets for _, offsets, _ in self._added)])
        keys = [*self._document_keys, *(key for _, _, keys in self._added for key in keys)]
        # Of each document the last delete first: most often it alone is looked at.
        order = np.lexsort((-offsets, hashes))
        self._hashes, self._offsets = hashes[order], offsets[order]
        self._document_keys = [keys[place] for place in order.tolist()]
        self._added.clear()


def _hashes(records: Records) -> npt.NDArray[np.int64]:
    """Of namespace and key; bytes remember their hash, and a process has one seed for it."""
    keys = np.fromiter(map(hash, records.keys), np.int64, len(records))
    names = np.fromiter(map(hash, records.namespaces), np.int64, len(records))
    mixed: npt.NDArray[np.int64] = keys ^ (names << 1)
    return mixed

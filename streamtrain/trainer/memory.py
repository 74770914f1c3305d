"""The window in memory: per partition the latest labelled version of each document, and which documents wait for
their label. A pure core: no I/O, no clock. What it holds is a function of the records since the window's begin
alone, so that reading those again gives the same memory as having lived through them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamtrain.trainer.decode import LABELLED, WAITING, Decoded
from streamtrain.trainer.identity import NEVER, Identities, Version
from streamtrain.trainer.log import VersionLog
from streamtrain.trainer.records import Records
from streamtrain.trainer.rows import Column
from streamtrain.types import Operation, Schema

# Outcomes of records beside those of documents (decode.py). FILTERED: a version that the job's filter turns away.
# FORGOTTEN: one of a document that is known to be deleted later. Both leave nothing of their document.
DELETED, FILTERED, FORGOTTEN, SKIPPED = np.uint8(3), np.uint8(4), np.uint8(5), np.uint8(6)

_INSERT = ord(Operation.INSERT)
_DELETE = ord(Operation.DELETE)
_LABELLED, _WAITING, _DELETED, _SKIPPED = int(LABELLED), int(WAITING), int(DELETED), int(SKIPPED)
_IDENTITY_BYTES = 250  # of Python objects per known document, about
_WAITING_BYTES = 100  # of a note of when a document began to wait
_CLUSTER_TICKS = 2.0**32  # of a cluster time, per second


@dataclass(frozen=True, slots=True)
class Fresh:
    """The labelled versions among some records, in order of offset: each is learned once. records: their places
    among the records. scored: the first labelled version of a document that was inserted or was waiting for it.
    late: how many had been waiting. unchanged: how many more there were that say the same as the version in memory:
    they have taken its place, and are not learned again."""

    records: npt.NDArray[np.int64]
    scored: npt.NDArray[np.bool_]
    late: int
    unchanged: int = 0


class PartitionMemory:
    """half_life: seconds of cluster time after which a version is replayed half as often. keep_deleted: a delete
    changes nothing (`on_delete: keep`). weighted: whether documents give themselves a weight."""

    def __init__(
        self,
        *,
        schema: Schema,
        partition: int,
        half_life: float,
        keep_deleted: bool = False,
        weighted: bool = False,
    ) -> None:
        self._partition = partition
        self._half_life = half_life
        self._keep_deleted = keep_deleted
        self._log = VersionLog(schema, weighted=weighted)
        self._namespaces: dict[bytes, Identities] = {}
        self._waiting: deque[tuple[int, bytes, bytes]] = deque()  # (offset, namespace, key) when it began to wait
        self._begin = 0

    @property
    def rows(self) -> int:
        """Documents known: with their latest labelled version, or waiting for a label."""
        return sum(map(len, self._namespaces.values()))

    @property
    def nbytes(self) -> int:
        """About what they take."""
        return self._log.nbytes + _IDENTITY_BYTES * self.rows + _WAITING_BYTES * len(self._waiting)

    def evict(self, begin: int) -> None:
        """Forgets all whose latest version lies below the offset `begin`."""
        self._begin = begin
        for namespace, key, offset in self._log.evict(begin):
            self._namespaces[namespace].forget(key, offset << 1 | 1)
        while self._waiting and self._waiting[0][0] < begin:
            offset, namespace, key = self._waiting.popleft()
            self._namespaces[namespace].forget(key, offset << 1)

    def apply(
        self,
        records: Records,
        outcomes: npt.NDArray[np.uint8],
        decoded: Decoded,
        rows: npt.NDArray[np.int64],
        held: npt.NDArray[np.bool_] | None = None,
    ) -> Fresh:
        """Takes the partition's next records. outcomes: per record LABELLED, WAITING, BAD, DELETED, FILTERED,
        FORGOTTEN or SKIPPED. rows: per record its row in `decoded`, which is read for the labelled ones only. held:
        which records are of documents that are held out: they are never replayed."""
        fresh: list[int] = []
        scored: list[bool] = []
        superseded: list[int] = []
        again: list[int] = []  # places in `fresh` of labelled versions that follow a labelled one,
        before: list[int] = []  # and the offsets of those
        late = 0
        begin = self._begin
        namespace, identities = b"", Identities()
        for place, (offset, outcome, operation, name, key, document_key) in enumerate(
            zip(
                records.offsets.tolist(),
                outcomes.tolist(),
                records.operations,
                records.namespaces,
                records.keys,
                records.document_keys,
                strict=True,
            )
        ):
            if name is not namespace and name != namespace:
                namespace, identities = name, self._namespaces.setdefault(name, Identities())
            entries = identities.entries
            entry = entries.get(key)
            if outcome == _LABELLED and entry is None:  # by far the most common: a new document
                code = offset << 1 | 1
                entries[key] = code if document_key == key else (document_key, code, NEVER)
                fresh.append(place)
                scored.append(operation == _INSERT)
                continue
            if outcome == _SKIPPED or (outcome == _DELETED and self._keep_deleted and not isinstance(entry, list)):
                continue  # one of several documents of an `_id` is not archived: it has moved to another shard
            found = identities.find(key, document_key)
            if found is not None and found[1] & 1:
                superseded.append(found[1] >> 1)
                if outcome == _LABELLED:
                    again.append(len(fresh))
                    before.append(found[1] >> 1)
            if outcome == _LABELLED:
                waited = found is not None and not found[1] & 1
                late += waited
                fresh.append(place)
                scored.append(_first_label(found, begin) if found is not None else operation == _INSERT)
                identities.replace(key, found, (document_key, offset << 1 | 1, NEVER))
            elif outcome == _WAITING:
                identities.replace(key, found, (document_key, offset << 1, _last_labelled(found)))
                self._waiting.append((offset, name, key))
            elif found is not None:
                identities.put(key, found, None)
        places = np.array(fresh, np.int64)
        self._log.append(records, places, decoded, rows[places], None if held is None else held[places])
        learned = np.ones(len(places), np.bool_)
        if again:
            same = self._log.alike(np.array(before, np.int64), records.offsets[places[again]])
            learned[np.array(again, np.int64)[same]] = False
        if superseded:
            self._log.remove(np.array(superseded, np.int64))
        unchanged = len(places) - int(learned.sum())
        if unchanged:
            return Fresh(places[learned], np.array(scored, np.bool_)[learned], late, unchanged)
        return Fresh(records=places, scored=np.array(scored, np.bool_), late=late)

    def replay(self, *, count: int, seed: int, below: int) -> npt.NDArray[np.int64]:
        """Up to `count` versions with offsets below `below`, as places for `take`: without replacement, weighted
        by recency, the same for the same seed wherever and however often the partition was read.

        The `count` largest of log(weight) + Gumbel noise are a weighted sample without replacement (Efraimidis
        and Spirakis 2006, in the Gumbel-top-k form); the noise is a hash of seed, partition and offset.
        """
        places = self._log.replayable(below)
        if count <= 0 or len(places) == 0:
            return places[:0]
        offsets = self._log.offsets[places]
        if count < len(places):
            times = self._log.cluster_times[places]
            age = (times.max() - times) / _CLUSTER_TICKS
            noise = -np.log(-np.log(_uniform(offsets, seed, self._partition)))
            score = noise - age * (math.log(2.0) / max(self._half_life, 1e-9))
            chosen = np.argpartition(score, len(score) - count)[len(score) - count :]
            places, offsets = places[chosen], offsets[chosen]
        return places[np.lexsort((offsets, _uniform(offsets, ~seed, self._partition)))]

    def take(self, places: npt.NDArray[np.int64]) -> tuple[Mapping[str, Column], Mapping[str, Column]]:
        """Features and labels of the versions that `replay` named."""
        return self._log.take(places)

    def offsets(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where the versions that `replay` named stand in the topic."""
        return self._log.offsets[places]

    def weights(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64] | None:
        """The weights that their documents give themselves, None where they give none."""
        return None if self._log.weights is None else self._log.weights[places]

    def contents(self) -> dict[tuple[bytes, bytes], tuple[int, bool, int]]:
        """What is known, by (namespace, documentKey): offset, whether labelled, and the last labelled version's
        offset inside the window if it waits again (else -1)."""
        known: dict[tuple[bytes, bytes], tuple[int, bool, int]] = {}
        for namespace, identities in self._namespaces.items():
            for document_key, code, last in identities.versions():
                known[namespace, document_key] = (code >> 1, bool(code & 1), last if last >= self._begin else NEVER)
        return known


def _first_label(found: Version, begin: int) -> bool:
    """Whether a document that is known gets its first label inside the window."""
    return not found[1] & 1 and found[2] < begin


def _last_labelled(found: Version | None) -> int:
    if found is None:
        return NEVER
    return found[1] >> 1 if found[1] & 1 else found[2]


def _uniform(offsets: npt.NDArray[np.int64], seed: int, partition: int) -> npt.NDArray[np.float64]:
    """Numbers in (0, 1), independent for all offsets, seeds and partitions (the finaliser of splitmix64, twice)."""
    stream = _mix(np.array([(seed * 0x9E3779B97F4A7C15 + partition + 1) % 2**64], np.uint64))
    mixed = _mix(offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + stream)
    return ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


def _mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))

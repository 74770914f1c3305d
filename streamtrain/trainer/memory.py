"""The window in memory: per partition the latest labelled version of each document, and which documents wait for
their label. A pure core: no I/O, no clock. What it holds is a function of the records since the window's begin and of
what `waiting_file.py` saves, so that reading those again gives the same memory as having lived through them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from streamtrain.trainer.absence import CLUSTER_TICKS, Absence, Absences, Patience
from streamtrain.trainer.decode import BAD, LABELLED, WAITING, Decoded
from streamtrain.trainer.identity import Identities, Version, agree
from streamtrain.trainer.log import ABSENT_BITS, VersionLog
from streamtrain.trainer.records import Records
from streamtrain.trainer.replay import draw
from streamtrain.trainer.rows import Column
from streamtrain.trainer.settling import Earlier, Settled, settle
from streamtrain.trainer.waiting import Waiting
from streamtrain.trainer.waiting_index import WaitingIndex
from streamtrain.types import Operation, Schema

# Outcomes of records beside those of documents (decode.py). FILTERED: a version that the job's filter turns away.
# FORGOTTEN: one of a document that is known to be deleted later. Both leave nothing of their document.
DELETED, FILTERED, FORGOTTEN, SKIPPED = np.uint8(3), np.uint8(4), np.uint8(5), np.uint8(6)

_INSERT = ord(Operation.INSERT)
_LABELLED, _WAITING, _DELETED, _SKIPPED = int(LABELLED), int(WAITING), int(DELETED), int(SKIPPED)
_IDENTITY_BYTES = 250  # of Python objects per document in memory, about
_ABSENT = (1 << ABSENT_BITS) - 1


@dataclass(frozen=True, slots=True)
class Fresh:
    """The labelled versions among some records, in order of offset: each is learned once. records: their places
    among the records. scored: the first labelled version of a document that was inserted or was waiting for it.
    late: how many had been waiting, and latencies: for how many seconds. after_absent: how many of documents whose
    label had been absent. unchanged: how many more there were that say the same as the version in memory: they have
    taken its place, and are not learned again. features: with `features_as_of: first`, those that they are learned
    with; origins: and the offset of the version whose features `settle` brings instead, -1 where it does not."""

    records: npt.NDArray[np.int64]
    scored: npt.NDArray[np.bool_]
    late: int
    unchanged: int = 0
    after_absent: int = 0
    latencies: tuple[int, ...] = ()
    features: Mapping[str, Column] | None = None
    origins: npt.NDArray[np.int64] | None = None


@dataclass(slots=True)
class _Taken:
    """What `apply` collects. fresh, scored: as in Fresh, of all labelled versions. again: places in `fresh` of those
    that follow a labelled one, and before: the codes of these. heirs: places in `fresh` of those that get the features
    of another version, and sources: its code, or -1 - the offset of one that has to be read again."""

    fresh: list[int] = field(default_factory=list)
    scored: list[bool] = field(default_factory=list)
    superseded: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    heirs: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    latencies: list[int] = field(default_factory=list)
    after_absent: int = 0


class PartitionMemory:
    """half_life: seconds of cluster time after which a version is replayed half as often. keep_deleted: a delete
    changes nothing (`on_delete: keep`). weighted: whether documents give themselves a weight. first: whether rows get
    the features of their documents' first versions."""

    def __init__(
        self,
        *,
        schema: Schema,
        partition: int,
        half_life: float,
        keep_deleted: bool = False,
        weighted: bool = False,
        first: bool = False,
    ) -> None:
        self._partition = partition
        self._half_life = half_life
        self._keep_deleted = keep_deleted
        self._first = first
        self._log = VersionLog(schema, weighted=weighted)
        self._namespaces: dict[bytes, Identities] = {}
        self._patience = Patience(schema)
        self._labels = len(schema.labels)
        self._waiting = WaitingIndex(self._patience.due, labels=self._labels)
        self._absences = Absences()
        self._origins: dict[int, int] = {}  # by code, of what has other features than its own: where these are from
        self._unsettled: dict[int, int] = {}  # of `_origins`, what still has its own features
        self._begin = 0
        self._seen = 0  # the latest cluster time
        self._live = True

    @property
    def rows(self) -> int:
        """Documents known: with their latest labelled version, or waiting for a label."""
        return sum(map(len, self._namespaces.values())) + len(self._waiting)

    @property
    def waiting(self) -> WaitingIndex:
        return self._waiting

    @property
    def nbytes(self) -> int:
        """About what they take."""
        known = sum(map(len, self._namespaces.values()))
        return self._log.nbytes + _IDENTITY_BYTES * known + self._waiting.nbytes

    def evict(self, begin: int) -> None:
        """Forgets all whose latest version was learned below the offset `begin`, and what waits there for good."""
        self._begin = begin
        for namespace, key, code in self._log.evict(begin):
            self._namespaces[namespace].forget(key, code)
            self._origins.pop(code, None)
        self._waiting.evict(begin, self._patience.lost_before(self._seen))

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
        taken = _Taken()
        fresh, scored = taken.fresh, taken.scored
        namespace, identities = b"", Identities()
        waiting = self._waiting
        find, some_wait = waiting.find, len(waiting) > 0
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
            waits = find(name, key) if some_wait else ()
            if outcome == _LABELLED and entry is None and not waits:  # by far the most common: a new document
                code = offset << ABSENT_BITS
                entries[key] = code if document_key == key else (document_key, code)
                fresh.append(place)
                scored.append(operation == _INSERT)
                continue
            several = isinstance(entry, list) or len(waits) + (entry is not None) > 1
            if outcome == _SKIPPED or (outcome == _DELETED and self._keep_deleted and not several):
                continue  # one of several documents of an `_id` is not archived: it has moved to another shard
            found = None if entry is None else identities.find(key, document_key)
            row = self._waiting_row(waits, key, document_key, found) if waits else -1
            if row >= 0:
                missing = decoded.missing_labels(int(rows[place])) if outcome == _WAITING else 0
                self._end_wait(taken, records, place, outcome, row, identities, missing)
                continue
            if found is not None:
                if outcome == _WAITING and found[1] & _ABSENT:
                    continue  # it was learned as it stood when its label was absent
                self._supersede(taken, found[1], outcome)
            if outcome == _LABELLED:
                fresh.append(place)
                scored.append(found is None and operation == _INSERT)
                identities.replace(key, found, (document_key, offset << ABSENT_BITS))
                continue
            if found is not None:
                identities.put(key, found, None)
            if outcome == _WAITING:
                waiting.add(
                    name,
                    key,
                    document_key,
                    first=offset,
                    latest=offset,
                    since=int(records.cluster_times[place]),
                    missing=decoded.missing_labels(int(rows[place])),
                    labelled=-1 if found is None else found[1] >> ABSENT_BITS,
                )
                some_wait = True
        if len(records):
            self._seen = max(self._seen, int(records.cluster_times.max()))
        return self._keep(taken, records, decoded, rows, held)

    def _waiting_row(self, rows: tuple[int, ...], key: bytes, document_key: bytes, found: Version | None) -> int:
        """The row that a record is about, -1 when it is about none, or about `found`, which is in memory."""
        keys = {row: self._waiting.document_key(row, key) for row in rows}
        if found is not None and found[0] == document_key:
            return -1
        for row, known in keys.items():
            if known == document_key:
                return row
        fitting = [row for row, known in keys.items() if agree(key, known, document_key)]
        row = max(fitting, key=self._waiting.latest, default=-1)
        nearer = found is None or (row >= 0 and self._waiting.latest(row) > found[1] >> ABSENT_BITS)
        return row if nearer else -1

    def _end_wait(
        self,
        taken: _Taken,
        records: Records,
        place: int,
        outcome: int,
        row: int,
        identities: Identities,
        missing: int,
    ) -> None:
        """A record of a document that waits: mostly its label."""
        waiting = self._waiting
        offset, cluster_time = int(records.offsets[place]), int(records.cluster_times[place])
        key, document_key = records.keys[place], records.document_keys[place]
        overdue = self._live and waiting.due(row) < cluster_time
        if outcome == _WAITING and not overdue:
            waiting.update(row, document_key, key, latest=offset, missing=missing)
            return
        first, since, scored = waiting.first(row), waiting.since(row), waiting.labelled(row) < self._begin
        if overdue:  # whatever the record says, it was learned as it stood when its label was absent
            absence = Absence(first, waiting.latest(row), waiting.due(row), scored, kept=outcome == _WAITING)
            code = self._absences.add(absence)
            if absence.kept:
                absence.identity = (records.namespaces[place], key)
                identities.put(key, None, (document_key, code))
        waiting.remove(row)
        if outcome != _LABELLED:
            return
        if overdue:
            taken.after_absent += 1
        else:
            taken.latencies.append((cluster_time >> 32) - (since >> 32))
        if self._first:
            taken.heirs.append(len(taken.fresh))
            taken.sources.append(-1 - first)
        taken.fresh.append(place)
        taken.scored.append(scored and not overdue)
        identities.put(key, None, (document_key, offset << ABSENT_BITS))

    def _supersede(self, taken: _Taken, code: int, outcome: int) -> None:
        """The version with this code is followed by a record of its document."""
        if code >= 0:
            taken.superseded.append(code)
        else:
            self._absences[code].kept = False
        if outcome != _LABELLED:
            return
        if code & _ABSENT:
            taken.after_absent += 1
        else:
            taken.again.append(len(taken.fresh))
            taken.before.append(code)
        if self._first:
            taken.heirs.append(len(taken.fresh))
            taken.sources.append(code if code >= 0 else -1 - self._absences[code].first)

    def _keep(
        self,
        taken: _Taken,
        records: Records,
        decoded: Decoded,
        rows: npt.NDArray[np.int64],
        held: npt.NDArray[np.bool_] | None,
    ) -> Fresh:
        """Puts the labelled versions in the log, and takes out those that they have followed."""
        places = np.array(taken.fresh, np.int64)
        scored = np.array(taken.scored, np.bool_)
        self._log.append(records, places, decoded, rows[places], None if held is None else held[places])
        codes = records.offsets[places] << ABSENT_BITS
        origins = self._inherit(codes, taken) if self._first and self._live else None
        learned = np.ones(len(places), np.bool_)
        if taken.again:
            at = np.array(taken.again, np.int64)
            same = self._log.alike(np.array(taken.before, np.int64), codes[at], labels_only=self._first)
            learned[at[same]] = False
        if taken.superseded:
            self._log.remove(np.array(taken.superseded, np.int64))
            for code in taken.superseded if self._origins else ():
                self._origins.pop(code, None)
        unchanged = len(places) - int(learned.sum())
        if unchanged:
            places, scored, codes = places[learned], scored[learned], codes[learned]
        return Fresh(
            records=places,
            scored=scored,
            late=len(taken.latencies),
            unchanged=unchanged,
            after_absent=taken.after_absent,
            latencies=tuple(taken.latencies),
            features=None if origins is None else self._log.features(codes),
            origins=None if origins is None else origins[learned],
        )

    def _inherit(self, codes: npt.NDArray[np.int64], taken: _Taken) -> npt.NDArray[np.int64]:
        """Gives the versions with these codes the features that they are learned with. Returns per code the offset of
        the version whose features are still to come, else -1."""
        origins = np.full(len(codes), -1, np.int64)
        copied: list[tuple[int, int]] = []
        for place, source in zip(taken.heirs, taken.sources, strict=True):
            code = int(codes[place])
            self._origins[code] = origin = (
                -1 - source if source < 0 else self._origins.get(source, source >> ABSENT_BITS)
            )
            if source < 0 or source in self._unsettled:
                self._unsettled[code] = origins[place] = origin
            else:
                copied.append((code, source))
        if copied:
            self._log.copy_features(*np.array(copied, np.int64).T)
        return origins

    # ------------------------------------------------------------------ at the end of a round

    def fall_due(self, watermark: int, limit: int) -> None:
        """Takes up to `limit` documents whose label is due before the watermark, or before the latest record that was
        read, out of those that wait: `settle` gives them their absent values."""
        for row in self._waiting.overdue(max(watermark, self._seen), limit):
            waiting = self._waiting
            scored = waiting.labelled(row) < self._begin
            self._absences.add(Absence(waiting.first(row), waiting.latest(row), waiting.due(row), scored))
            waiting.remove(row)

    def wanted(self) -> npt.NDArray[np.int64]:
        """Offsets of the versions that `settle` needs, ascending."""
        offsets = set(self._unsettled.values())
        for _, absence in self._absences:
            offsets.add(absence.latest)
            if self._first:
                offsets.add(absence.first)
        return np.array(sorted(offsets), np.int64)

    def settle(self, earlier: Earlier, *, end: int) -> Settled:
        """Learns the documents whose labels are absent, and brings the features of first versions. earlier: what the
        log still holds of `wanted`. end: up to which offset the partition is learned with this round."""
        settled = settle(earlier, list(self._absences))
        refused, lost = self._bring_features(earlier)
        learned = {code for code, _ in settled.absences}
        for code, absence in self._absences:
            if absence.kept and absence.identity is not None and code not in learned:
                self._namespaces[absence.identity[0]].forget(absence.identity[1], code)
        kept = [place for place, (_, absence) in enumerate(settled.absences) if absence.kept]
        first = max(self._log.last_code, (end - 1) << ABSENT_BITS) + 1
        codes = np.arange(first, first + len(kept))
        self._log.append(
            earlier.records,
            settled.places[kept],
            settled.decoded,
            np.array(kept, np.int64),
            None if earlier.held is None else earlier.held[settled.places[kept]],
            codes=codes,
            cluster_times=np.array([settled.absences[place][1].due for place in kept], np.int64),
        )
        for place, code in zip(kept, codes.tolist(), strict=True):
            pending, absence = settled.absences[place]
            self._remember(earlier.records, int(settled.places[place]), code, pending, absence)
        self._absences.clear()
        return replace(settled, refused=[*settled.refused, *refused], lost=settled.lost + lost)

    def _remember(self, records: Records, place: int, code: int, pending: int, absence: Absence) -> None:
        """A document whose label was absent is in memory under this code."""
        if self._first:
            self._origins[code] = absence.first
        if absence.identity is not None:
            self._namespaces[absence.identity[0]].recode(absence.identity[1], pending, code)
            return
        key, document_key = records.keys[place], records.document_keys[place]
        self._namespaces.setdefault(records.namespaces[place], Identities()).put(key, None, (document_key, code))

    def _bring_features(self, earlier: Earlier) -> tuple[list[tuple[int, str]], int]:
        """To the versions that still have their own. Returns what is refused, and how many the log holds no more:
        those keep their own features."""
        codes = np.array(list(self._unsettled), np.int64)
        places = earlier.find(np.array(list(self._unsettled.values()), np.int64))
        self._unsettled.clear()
        there = places >= 0
        lost = len(places) - int(there.sum())
        codes, places = codes[there], places[there]
        if not len(codes) or earlier.features is None:
            return [], lost
        bad = earlier.features.outcome[places] == BAD
        self._log.give_features(codes[~bad], earlier.features_of(places[~bad]))
        self._take_out(codes[bad])
        reasons = earlier.features.reasons
        return [(place, reasons[place]) for place in sorted(set(places[bad].tolist()))], lost

    def expel(self, offsets: npt.NDArray[np.int64]) -> None:
        """Takes the versions with these offsets out of the memory: they are not to be replayed."""
        self._take_out(self._log.codes_of(offsets))

    def _take_out(self, codes: npt.NDArray[np.int64]) -> None:
        for namespace, key, code in self._log.take_out(codes):
            self._namespaces[namespace].forget(key, code)
            self._origins.pop(code, None)

    # ------------------------------------------------------------------ checkpoints

    def absent(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Codes, offsets and due times of the versions in memory whose labels were absent."""
        places = self._log.absent()
        return self._log.codes[places], self._log.offsets[places], self._log.cluster_times[places]

    def inherited(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Codes of the versions with the features of another one, and the offsets of those."""
        return np.array(list(self._origins), np.int64), np.array(list(self._origins.values()), np.int64)

    def begin_refill(self) -> None:
        """The records that follow were learned before: nothing is due, and nothing inherits, until `end_refill`."""
        self._live = False

    def end_refill(self) -> None:
        self._live = True

    def forget_waiting(self) -> WaitingIndex:
        """Lets `wait_again` say what waits; returns what the refill has found to wait."""
        found, self._waiting = self._waiting, WaitingIndex(self._patience.due, labels=self._labels)
        return found

    def wait_again(self, records: Records, waiting: Waiting) -> None:
        """records: first versions of documents that wait, in order."""
        rows = np.searchsorted(waiting.firsts, records.offsets)
        self._waiting.add_all(
            records.namespaces,
            records.keys,
            records.document_keys,
            firsts=records.offsets,
            latests=waiting.latests[rows],
            since=records.cluster_times,
            missing=waiting.missing[rows],
        )

    def recall(self, earlier: Earlier, waiting: Waiting) -> int:
        """Brings back the versions whose labels were absent, and the features that were another version's. earlier:
        what the log still holds of them. Returns how many it does not."""
        places = earlier.find(waiting.offsets)
        there = places >= 0
        there[there] = earlier.usable[places[there]]
        if earlier.features is None:
            there[there] = earlier.labels.outcome[places[there]] == LABELLED
        at, codes = places[there], waiting.codes[there]
        held = None if earlier.held is None else earlier.held[at]
        self._log.append(earlier.records, at, earlier.labels, at, held, codes=codes, cluster_times=waiting.dues[there])
        self._log.sort()
        for place, code in zip(at.tolist(), codes.tolist(), strict=True):
            key, document_key = earlier.records.keys[place], earlier.records.document_keys[place]
            identities = self._namespaces.setdefault(earlier.records.namespaces[place], Identities())
            identities.put(key, None, (document_key, code))
        origins = earlier.find(waiting.origins)
        found = origins >= 0
        self._log.give_features(waiting.heirs[found], earlier.features_of(origins[found]))
        self._origins = dict(zip(waiting.heirs.tolist(), waiting.origins.tolist(), strict=True))
        return len(there) - int(there.sum())

    # ------------------------------------------------------------------ replay

    def replay(self, *, count: int, seed: int, below: int) -> npt.NDArray[np.int64]:
        """Up to `count` versions that were learned below the offset `below`, as places for `take`: weighted by
        recency (replay.py)."""
        places = self._log.replayable(below)
        if count <= 0 or len(places) == 0:
            return places[:0]
        offsets, ages = self._log.offsets[places], self._log.cluster_times[places]
        ages = (ages.max() - ages) / CLUSTER_TICKS / max(self._half_life, 1e-9)
        return places[draw(offsets, ages, count=count, seed=seed, partition=self._partition)]

    def take(self, places: npt.NDArray[np.int64]) -> tuple[Mapping[str, Column], Mapping[str, Column]]:
        """Features and labels of the versions that `replay` named."""
        return self._log.take(places)

    def offsets(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where the versions that `replay` named stand in the topic."""
        return self._log.offsets[places]

    def weights(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64] | None:
        """The weights that their documents give themselves, None where they give none."""
        return None if self._log.weights is None else self._log.weights[places]

    def contents(self) -> dict[tuple[bytes, bytes], tuple[int, bool]]:
        """What is in memory, by (namespace, documentKey): the offset of its version, or the one up to which the
        partition was learned when its label was absent; and whether it was."""
        return {
            (namespace, document_key): (code >> ABSENT_BITS, code & _ABSENT != 0)
            for namespace, identities in self._namespaces.items()
            for document_key, code in identities.versions()
        }

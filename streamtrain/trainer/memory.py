"""The window in memory: per partition the latest labelled version of each document, and which documents wait for
their label. A pure core: no I/O, no clock. What it holds is a function of the records since the window's begin and of
what `waiting_file.py` saves, so that reading those again gives the same memory as having lived through them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamtrain.trainer.absence import CLUSTER_TICKS, Absence, Absences, Patience
from streamtrain.trainer.decode import BAD, LABELLED, Decoded
from streamtrain.trainer.identity import Identities
from streamtrain.trainer.log import ABSENT, ABSENT_BITS, VersionLog
from streamtrain.trainer.records import Records
from streamtrain.trainer.replay import draw
from streamtrain.trainer.rows import Column
from streamtrain.trainer.settling import Earlier, Settled, settle
from streamtrain.trainer.taking import Taking
from streamtrain.trainer.waiting import Waiting
from streamtrain.trainer.waiting_index import WaitingIndex
from streamtrain.types import Schema

_IDENTITY_BYTES = 250  # of Python objects per document in memory, about


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
        taken = Taking(
            namespaces=self._namespaces,
            waiting=self._waiting,
            absences=self._absences,
            begin=self._begin,
            live=self._live,
            keep_deleted=self._keep_deleted,
            first=self._first,
        )
        taken.take(records, outcomes, decoded, rows)
        if len(records):
            self._seen = max(self._seen, int(records.cluster_times.max()))
        return self._keep(taken, records, decoded, rows, held)

    def _keep(
        self,
        taken: Taking,
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

    def _inherit(self, codes: npt.NDArray[np.int64], taken: Taking) -> npt.NDArray[np.int64]:
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
        order = np.argsort(places[there])  # as the log takes rows; by code they are sorted below
        at, codes, dues = places[there][order], waiting.codes[there][order], waiting.dues[there][order]
        held = None if earlier.held is None else earlier.held[at]
        self._log.append(earlier.records, at, earlier.labels, at, held, codes=codes, cluster_times=dues)
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
            (namespace, document_key): (code >> ABSENT_BITS, code & ABSENT != 0)
            for namespace, identities in self._namespaces.items()
            for document_key, code in identities.versions()
        }

"""What a partition's next records mean for their documents: which versions are learned, which wait, which leave the
memory. A pure core; a pass over one chunk of records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamtrain.trainer.absence import Absence, Absences
from streamtrain.trainer.decode import LABELLED, WAITING, Decoded
from streamtrain.trainer.identity import Identities, Version, agree
from streamtrain.trainer.log import ABSENT, ABSENT_BITS
from streamtrain.trainer.records import Records
from streamtrain.trainer.waiting_index import WaitingIndex
from streamtrain.types import Operation

# Outcomes of records beside those of documents (decode.py). FILTERED: a version that the job's filter turns away.
# FORGOTTEN: one of a document that is known to be deleted later. Both leave nothing of their document.
DELETED, FILTERED, FORGOTTEN, SKIPPED = np.uint8(3), np.uint8(4), np.uint8(5), np.uint8(6)

_INSERT = ord(Operation.INSERT)
_LABELLED, _WAITING, _DELETED, _SKIPPED = int(LABELLED), int(WAITING), int(DELETED), int(SKIPPED)


class Taking:
    """What a pass finds. fresh: places of labelled versions among the records, scored: whether each counts for scores.
    superseded: codes of the versions in memory that are followed by others. again: places in `fresh` of those that
    follow a labelled one, and before: the codes of these. heirs: places in `fresh` of those that get the features of
    another version, and sources: its code, or -1 - the offset of one that has to be read again. latencies: seconds that
    late labels took. after_absent: labels of documents whose label had been absent."""

    def __init__(
        self,
        *,
        namespaces: dict[bytes, Identities],
        waiting: WaitingIndex,
        absences: Absences,
        begin: int,
        live: bool,
        keep_deleted: bool,
        first: bool,
    ) -> None:
        """begin: of the window. live: whether labels may be absent by now. keep_deleted, first: as of
        PartitionMemory."""
        self._namespaces = namespaces
        self._waiting = waiting
        self._absences = absences
        self._begin = begin
        self._live = live
        self._keep_deleted = keep_deleted
        self._first = first
        self.fresh: list[int] = []
        self.scored: list[bool] = []
        self.superseded: list[int] = []
        self.again: list[int] = []
        self.before: list[int] = []
        self.heirs: list[int] = []
        self.sources: list[int] = []
        self.latencies: list[int] = []
        self.after_absent = 0

    def take(
        self,
        records: Records,
        outcomes: npt.NDArray[np.uint8],
        decoded: Decoded,
        rows: npt.NDArray[np.int64],
    ) -> None:
        fresh, scored = self.fresh, self.scored
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
                self._end_wait(records, place, outcome, row, identities, missing)
                continue
            if found is not None:
                if outcome == _WAITING and found[1] & ABSENT:
                    continue  # it was learned as it stood when its label was absent
                self._supersede(found[1], outcome)
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
            self.after_absent += 1
        else:
            self.latencies.append((cluster_time >> 32) - (since >> 32))
        if self._first:
            self.heirs.append(len(self.fresh))
            self.sources.append(-1 - first)
        self.fresh.append(place)
        self.scored.append(scored and not overdue)
        identities.put(key, None, (document_key, offset << ABSENT_BITS))

    def _supersede(self, code: int, outcome: int) -> None:
        """The version with this code is followed by a record of its document."""
        if code >= 0:
            self.superseded.append(code)
        else:
            self._absences[code].kept = False
        if outcome != _LABELLED:
            return
        if code & ABSENT:
            self.after_absent += 1
        else:
            self.again.append(len(self.fresh))
            self.before.append(code)
        if self._first:
            self.heirs.append(len(self.fresh))
            self.sources.append(code if code >= 0 else -1 - self._absences[code].first)

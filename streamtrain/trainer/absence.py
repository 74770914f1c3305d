"""Labels that have not come in time: when a document has waited long enough, and which documents are to be learned
with their labels absent at the end of the round. A pure core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamtrain.trainer.waiting_index import NEVER
from streamtrain.types import Schema

CLUSTER_TICKS = 2**32  # of a cluster time, per second


class Patience:
    """How long each set of missing labels is waited for."""

    def __init__(self, schema: Schema) -> None:
        self._after = [None if label.absent_after is None else _ticks(label.absent_after) for label in schema.labels]
        longest = schema.longest_absence
        self._longest = None if longest is None else _ticks(longest)
        self._by_set: dict[int, int | None] = {}

    @property
    def ends(self) -> bool:
        """Whether a label may be absent at all."""
        return self._longest is not None

    def due(self, missing: int, since: int) -> int:
        """Until what cluster time a document that was first seen at `since` waits for the missing labels: for the
        last of them. NEVER where one of them may not be absent."""
        if missing not in self._by_set:
            waits = [after for bit, after in enumerate(self._after) if missing >> bit & 1]
            known = [after for after in waits if after is not None]
            self._by_set[missing] = max(known) if known and len(known) == len(waits) else None
        after = self._by_set[missing]
        return NEVER if after is None else since + after

    def lost_before(self, seen: int) -> int:
        """Before what cluster time a document must have been first seen to be forgotten once it leaves the window
        without having got a label that may not be absent."""
        return NEVER if self._longest is None else seen - self._longest


def _ticks(seconds: float) -> int:
    return round(seconds * CLUSTER_TICKS)


@dataclass(slots=True)
class Absence:
    """A document that is learned with its labels absent. first, latest: offsets of its versions. due: the cluster time
    at which it was. scored: whether it counts for scores. kept: whether it stays in memory afterwards, and where
    its record was seen meanwhile, the identity that it is known by."""

    first: int
    latest: int
    due: int
    scored: bool
    kept: bool = True
    identity: tuple[bytes, bytes] | None = None


class Absences:
    """Those of the present round. Their codes (log.py) are negative and odd: no place in the log."""

    def __init__(self) -> None:
        self._all: list[Absence] = []

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[tuple[int, Absence]]:
        """(code, absence) in the order in which they came."""
        return ((_code(place), absence) for place, absence in enumerate(self._all))

    def add(self, absence: Absence) -> int:
        self._all.append(absence)
        return _code(len(self._all) - 1)

    def __getitem__(self, code: int) -> Absence:
        return self._all[(-1 - code) // 2]

    def clear(self) -> None:
        self._all.clear()


def _code(place: int) -> int:
    return -1 - 2 * place

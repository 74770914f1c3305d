"""What a round learns of versions that were read before: documents whose labels are absent, with their values, and
the features of first versions. A pure core: the feed has read them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamtrain.trainer.absence import Absence
from streamtrain.trainer.decode import BAD, LABELLED, Decoded
from streamtrain.trainer.records import Records
from streamtrain.trainer.rows import Column

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Earlier:
    """Versions that were read again, in order of offset. usable: which of them the job still takes. held: which are
    of documents that are held out. labels: decoded with absent values; features: for their features alone, where
    a job asks for those of first versions."""

    records: Records
    usable: npt.NDArray[np.bool_]
    held: npt.NDArray[np.bool_] | None
    labels: Decoded
    features: Decoded | None

    def find(self, offsets: Ints) -> Ints:
        """The places of these versions, -1 of those that are not there."""
        places = np.searchsorted(self.records.offsets, offsets)
        there = places < len(self.records)
        there[there] = self.records.offsets[places[there]] == offsets[there]
        return np.where(there, places, -1)

    def features_of(self, places: Ints) -> Mapping[str, Column]:
        columns = self.labels.columns if self.features is None else self.features.columns
        return {field: column[places] for field, column in columns.items()}


@dataclass(frozen=True, slots=True)
class Settled:
    """absences: those that are learned, and of each the place of its latest version, the values in `decoded`, and
    whether it counts for scores. refused: (place, reason) of versions that must become dead letters. lost: how many
    versions the log does not hold any more."""

    absences: Sequence[tuple[int, Absence]]
    places: Ints
    decoded: Decoded
    refused: Sequence[tuple[int, str]]
    lost: int

    @property
    def scored(self) -> npt.NDArray[np.bool_]:
        return np.array([absence.scored for _, absence in self.absences], np.bool_)


def settle(earlier: Earlier, absences: Sequence[tuple[int, Absence]]) -> Settled:
    """absences: with their codes, in the order in which they are learned."""
    latest = earlier.find(np.array([absence.latest for _, absence in absences], np.int64))
    firsts = latest
    if earlier.features is not None:
        firsts = earlier.find(np.array([absence.first for _, absence in absences], np.int64))
    learned: list[tuple[int, Absence]] = []
    places: list[int] = []
    sources: list[int] = []
    refused: list[tuple[int, str]] = []
    lost = 0
    for each, place, first in zip(absences, latest.tolist(), firsts.tolist(), strict=True):
        lost += place < 0 or first < 0
        if place < 0 or not earlier.usable[place]:
            continue
        source = place if first < 0 else first
        if earlier.labels.outcome[place] == BAD and earlier.features is None:
            refused.append((place, earlier.labels.reasons[place]))
        elif earlier.features is not None and earlier.features.outcome[source] == BAD:
            refused.append((source, earlier.features.reasons[source]))
        else:
            learned.append(each)
            places.append(place)
            sources.append(source)
    at = np.array(places, np.int64)
    weights = earlier.labels.weights
    decoded = Decoded(
        columns=earlier.features_of(np.array(sources, np.int64)),
        labels={field: column[at] for field, column in earlier.labels.labels.items()},
        outcome=np.full(len(at), LABELLED, np.uint8),
        reasons={},
        weights=None if weights is None else weights[at],
    )
    return Settled(absences=learned, places=at, decoded=decoded, refused=refused, lost=lost)

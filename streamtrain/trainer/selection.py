"""What a job takes of the records of its source, before they are decoded, and how much it lets each count: filter,
hold-out, weights, and which documents are to be forgotten. The same records always give the same answer."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from streamtrain import config
from streamtrain.trainer.decode import BAD
from streamtrain.trainer.filtering import NO, UNREADABLE, Filtering
from streamtrain.trainer.forgotten import Forgotten
from streamtrain.trainer.records import Records
from streamtrain.trainer.rows import Column
from streamtrain.trainer.taking import DELETED, FILTERED, FORGOTTEN, SKIPPED
from streamtrain.types import Operation

TO_DECODE = np.uint8(0)  # the same as LABELLED, the most common outcome

_DELETE = ord(Operation.DELETE)


class Selection:
    """One job's; knows of no document to forget until it is told to `foresee`. forget_deleted: `on_delete: forget`.
    holdout: share of the documents. class_weights: by label field, the weights of its classes."""

    def __init__(
        self,
        *,
        filtering: Filtering | None = None,
        forget_deleted: bool = True,
        holdout: float = 0.0,
        class_weights: Mapping[str, npt.NDArray[np.float64]] = MappingProxyType({}),
    ) -> None:
        self._filtering = filtering
        self._forget_deleted = forget_deleted
        self._forgotten = Forgotten()
        self._held_below = round(holdout * 2**64)
        self._class_weights = class_weights

    @classmethod
    def of(cls, job: config.Job) -> Selection:
        """Raises FilterError."""
        return cls(
            filtering=None if job.filter is None else Filtering(job.filter),
            forget_deleted=job.on_delete == "forget",
            holdout=job.holdout,
            class_weights=_class_weights(job),
        )

    @property
    def foresees(self) -> bool:
        """Whether a record may be a reason not to learn one before it."""
        return self._forget_deleted or self._filtering is not None

    def foresee(self, records: Records) -> None:
        """Takes note of the documents that these records, which will be taken later, delete or turn away."""
        operations = np.frombuffer(records.operations, np.uint8)
        ends = (operations == _DELETE) & self._forget_deleted
        if self._filtering is not None:
            ends |= self._without_foresight(records) == FILTERED
        self._forgotten.add(records, np.flatnonzero(ends))

    def outcomes(self, records: Records) -> npt.NDArray[np.uint8]:
        """Per record TO_DECODE, or what has become of it already: DELETED, SKIPPED, FORGOTTEN, FILTERED, or BAD
        where the filter cannot read it."""
        outcomes = self._without_foresight(records)
        if self._forgotten:
            outcomes[self._forgotten.among(records) & (outcomes != DELETED) & (outcomes != SKIPPED)] = FORGOTTEN
        return outcomes

    def _without_foresight(self, records: Records) -> npt.NDArray[np.uint8]:
        sizes = np.fromiter(map(len, records.values), np.int64, len(records))
        outcomes = np.where(sizes > 0, TO_DECODE, SKIPPED)
        outcomes[np.frombuffer(records.operations, np.uint8) == _DELETE] = DELETED
        if self._filtering is not None:
            chosen = np.flatnonzero(outcomes == TO_DECODE)
            answers = self._filtering.answers([records.values[place] for place in chosen.tolist()])
            outcomes[chosen[answers == NO]] = FILTERED
            outcomes[chosen[answers == UNREADABLE]] = BAD
        return outcomes

    def held(self, records: Records) -> npt.NDArray[np.bool_] | None:
        """Which records are of documents that are held out, by a hash of their key alone: the same documents for
        every job with that share, and among those of every larger share. None where no document is."""
        if not self._held_below:
            return None
        hashes = np.fromiter(map(zlib.crc32, records.keys), np.uint64, len(records))
        held: npt.NDArray[np.bool_] = _mixed(hashes) < np.uint64(self._held_below)
        return held

    def weights(self, labels: Mapping[str, Column], given: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The weights of rows in the loss: what their documents give themselves, times those of their classes."""
        for field, classes in self._class_weights.items():
            given = given * classes[labels[field].astype(np.int64)]
        return given


def _class_weights(job: config.Job) -> dict[str, npt.NDArray[np.float64]]:
    label = job.weighted_label()
    if job.weight is None or job.weight.classes is None or label is None:
        return {}
    weights = np.ones(label.classes)
    for number, weight in job.weight.classes.items():
        weights[number] = weight
    return {label.field: weights}


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64. A partition is the same checksum's remainder: unmixed, some would hold out nothing
    or everything."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))

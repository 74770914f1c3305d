"""What the feed hands to the loop: decoded rows of a round, in learning order, still by partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streamtrain.types import FieldCounts, Learned, Round, RoundCounts

Column = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows of one partition: fresh and replayed ones spread evenly among each other.

    columns: per feature field [n], or [n, length] for a vector; strings are object arrays of `bytes` (UTF-8).
    labels: per label field [n]. weights: [n] float64, the weight of each row in the loss. scored: [n] bool,
    whether the row counts for prequential scores (test-then-train; never a replayed row). wall_time_ms: [n]
    int64, when the version was written in MongoDB; 0 where that is no freshness sample (replayed rows, a retrain).
    held: [n] bool, rows of the hold-out: scored by themselves, never learned from; None where the job has none.
    offsets: [n] int64, where each version lies in the source's topic, -1 where that is not known; None for unknown all.
    replayed: [n] bool, rows that were drawn from the memory; absent: [n] bool, rows that are learned because their
    labels are absent; None where there is none.
    """

    partition: int
    columns: Mapping[str, Column]
    labels: Mapping[str, Column]
    weights: npt.NDArray[np.float64]
    scored: npt.NDArray[np.bool_]
    wall_time_ms: npt.NDArray[np.int64]
    held: npt.NDArray[np.bool_] | None = None
    offsets: npt.NDArray[np.int64] | None = None
    replayed: npt.NDArray[np.bool_] | None = None
    absent: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.weights)


@dataclass(frozen=True, slots=True)
class RoundRows:
    """A round, read and decoded, of the partitions that this rank owns (in order of partition).

    learned: where each owned partition stands after this round. timings: seconds of `read`, `decode`, `memory`.
    waiting, next_absent, label_latency, fields, redriven: as in RoundReport.
    """

    round: Round
    rows: tuple[Rows, ...]
    learned: Mapping[int, Learned]
    counts: RoundCounts
    dead_letter_reasons: Mapping[str, int]
    timings: Mapping[str, float]
    memory_rows: int
    memory_bytes: int
    waiting: int = 0
    next_absent: int | None = None
    label_latency: tuple[int, ...] = ()
    fields: Mapping[str, FieldCounts] = field(default_factory=dict)
    redriven: Mapping[int, int] = field(default_factory=dict)

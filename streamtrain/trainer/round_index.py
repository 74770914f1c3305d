"""Which row of a round is which: rows are numbered over all partitions of a rank, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamtrain.trainer.batches import Stack
from streamtrain.trainer.refusals import Refusal
from streamtrain.trainer.rows import Rows


@dataclass(frozen=True, slots=True)
class RoundIndex:
    """Per row of this rank. offsets: -1 where not known. wall_ms: 0 where that is no freshness sample."""

    partitions: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    replayed: npt.NDArray[np.bool_]
    held: npt.NDArray[np.bool_]
    absent: npt.NDArray[np.bool_]
    wall_ms: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Rows]) -> RoundIndex:
        nothing = np.zeros(0, np.int64)
        parts = [part for part in rows if len(part)]

        def joined(arrays: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
            return np.concatenate([nothing, *arrays])

        return cls(
            partitions=joined([np.full(len(p), p.partition) for p in parts]),  # type: ignore[arg-type]
            offsets=joined([np.full(len(p), -1) if p.offsets is None else p.offsets for p in parts]),  # type: ignore[arg-type]
            replayed=joined([np.zeros(len(p)) if p.replayed is None else p.replayed for p in parts]) != 0,
            held=joined([np.zeros(len(p)) if p.held is None else p.held for p in parts]) != 0,
            absent=joined([np.zeros(len(p)) if p.absent is None else p.absent for p in parts]) != 0,
            wall_ms=joined([p.wall_time_ms for p in parts]),  # type: ignore[arg-type]
        )

    def wall_times_ms(self, stack: Stack) -> npt.NDArray[np.int64]:
        """Of the freshness samples in a stack."""
        wall = self.wall_ms[stack.rows[stack.real]] if stack.real.any() else self.wall_ms[:0]
        return wall[wall > 0]

    def refusal(self, row: int, reason: str) -> Refusal:
        return Refusal(
            partition=int(self.partitions[row]),
            offset=int(self.offsets[row]),
            reason=reason,
            replayed=bool(self.replayed[row]),
            held=bool(self.held[row]),
            absent=bool(self.absent[row]),
        )

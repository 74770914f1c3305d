"""What a retrain shows of itself: a snapshot, safe to keep and to hand out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamtrain.control.pace import Pace
from streamtrain.control.progress import Progress, remaining
from streamtrain.control.status import JobStatus
from streamtrain.types import Learned, Retrain, RetrainState, RoundCounts, Scores

FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RetrainStatus:
    """state: of `types.RetrainState`, or `failed`, and then `reason` says why. records: in its range; while it is
    promoted, through what the job has learned. done: of them. eta_s: None while it cannot be told. workers: process
    ids. scores: of its own rows that its weights had not learned before; they are not the job's.
    """

    lineage: str
    state: str
    reason: str
    hint: str
    base: str | None
    hyper: Mapping[str, Any]
    promote: bool
    since_ms: int | None
    until_ms: int | None
    created_ms: int
    records: int
    done: int
    records_per_s: float | None
    eta_s: float | None
    phase: str | None
    workers: tuple[int, ...] = ()
    rounds: int = 0
    rows_learned: int = 0
    counts: RoundCounts = field(default_factory=RoundCounts)
    scores: Mapping[str, Scores] = field(default_factory=dict)
    manifest: str | None = None

    @property
    def progress(self) -> float:
        """Of its records, in [0, 1]."""
        return self.done / self.records if self.records else 1.0


def retrain_status(
    retrain: Retrain,
    *,
    progress: Progress | None,
    controller: JobStatus | None,
    end: Sequence[Learned],
    pace: Pace,
    reason: str,
) -> RetrainStatus:
    """progress: None before its first generation. controller: None while it has no workers to care for. reason: what
    it waits for itself."""
    records = sum(to.count - begin.count for begin, to in zip(retrain.begins, end, strict=True))
    left = records if progress is None else min(records, remaining(progress.learned, end))
    ready = retrain.state is RetrainState.READY
    failed = controller is not None and controller.gave_up
    return RetrainStatus(
        lineage=retrain.lineage,
        state=FAILED if failed else retrain.state.value,
        reason=reason or (controller.reason if controller is not None else ""),
        hint=controller.hint if controller is not None else "",
        base=retrain.base,
        hyper=retrain.hyper,
        promote=retrain.promote,
        since_ms=retrain.since_ms,
        until_ms=retrain.until_ms,
        created_ms=retrain.created_ms,
        records=records,
        done=records if ready else records - left,
        records_per_s=None if ready else pace.per_s(),
        eta_s=None if ready or failed else pace.eta_s(left),
        phase=None if controller is None else controller.phase.value,
        workers=() if controller is None else controller.workers,
        rounds=progress.rounds if progress else 0,
        rows_learned=progress.rows_learned if progress else 0,
        counts=progress.counts if progress else RoundCounts(),
        scores=progress.scores if progress else {},
        manifest=controller.checkpoint.id if controller and controller.checkpoint else retrain.head,
    )

"""What a job's controller shows of itself: a snapshot, safe to keep and to hand out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamtrain.control.forming import Retrain
from streamtrain.control.machine import Phase
from streamtrain.control.progress import Progress, remaining
from streamtrain.types import Learned, Manifest, Retention, RoundCounts, Scores


@dataclass(frozen=True, slots=True)
class RetrainStatus:
    """lineage: the one that it began. from_scratch: None when an earlier daemon began it. done: the share of
    its records that are learned, None before its first round; 1.0 once it has caught up."""

    lineage: str
    from_scratch: bool | None
    done: float | None


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    id: str
    sequence: int
    created_ms: int
    rounds: int
    rows_learned: int


@dataclass(frozen=True, slots=True)
class JobStatus:
    """reason: why the phase is what it is, empty when it is as it should be. hint: what to do about it.

    workers: process ids. rounds, steps, rows_learned, counts, scores: totals of the lineage. backlog and
    oldest_untrained_s: None while not known. tick_age_s: since the controller last looked at its topic.
    """

    job: str
    phase: Phase
    reason: str
    hint: str
    generation: int
    workers: tuple[int, ...]
    lineage: str | None
    rounds: int
    steps: int
    rows_learned: int
    counts: RoundCounts
    scores: Mapping[str, Scores]
    learned: tuple[Learned, ...]
    window_begins: tuple[int, ...]
    backlog: int | None
    oldest_untrained_s: float | None
    retention: Retention | None
    retrain: RetrainStatus | None
    checkpoint: CheckpointStatus | None
    failures: int
    last_error: str
    tick_age_s: float


def checkpoint_status(head: Manifest) -> CheckpointStatus:
    return CheckpointStatus(head.id, head.sequence, head.created_ms, head.rounds, head.rows_learned)


def retrain_status(progress: Progress, asked: Retrain | None) -> RetrainStatus | None:
    """Of the lineage in `progress`, or of a retrain that was asked for and has not begun; None without one."""
    if asked is not None and asked.lineage != progress.lineage:
        return RetrainStatus(asked.lineage, asked.from_scratch, None)
    if progress.retrain_until is None:
        return None if asked is None else RetrainStatus(asked.lineage, asked.from_scratch, 1.0)
    counts = progress.counts
    read = counts.learned + counts.waiting + counts.deletes + counts.dead_letters + counts.skipped
    left = remaining(progress.learned, progress.retrain_until)
    done = 1.0 if read + left == 0 else read / (read + left)
    return RetrainStatus(progress.lineage, asked.from_scratch if asked else None, done)

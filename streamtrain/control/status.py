"""What a job's controller shows of itself: a snapshot, safe to keep and to hand out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamtrain.control.machine import Phase
from streamtrain.types import Learned, Manifest, Retention, RoundCounts, Scores


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
    oldest_untrained_s: None while not known. tick_age_s: since the controller last looked at its topic. hyper: of the
    lineage, see Manifest. gave_up: paused by what would fail again.
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
    checkpoint: CheckpointStatus | None
    failures: int
    last_error: str
    tick_age_s: float
    hyper: Mapping[str, Any] = field(default_factory=dict)
    gave_up: bool = False


def checkpoint_status(head: Manifest) -> CheckpointStatus:
    return CheckpointStatus(head.id, head.sequence, head.created_ms, head.rounds, head.rows_learned)

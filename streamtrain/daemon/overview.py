"""What the daemon says of itself: the status document, and what is not ready or stuck and why. Pure functions
over the parts' own snapshots; they decide nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from streamtrain import __version__, scores
from streamtrain.control.machine import Phase
from streamtrain.control.retrain_status import RetrainStatus
from streamtrain.control.status import JobStatus
from streamtrain.source.status import SourceState, SourceStatus
from streamtrain.types import Label, RoundCounts

# What a controller may take between two looks at its topic: more than every deadline of its Kafka clients.
CONTROLLER_TICK_DEADLINE_S = 120.0
# The event loop's own timer: a probe is answered by the same loop, so this catches what comes and goes.
LOOP_TICK_DEADLINE_S = 30.0

_WORKING = frozenset({Phase.TRAINING, Phase.SAVING})


@dataclass(frozen=True, slots=True)
class Process:
    """The daemon itself. waiting: why nothing runs yet (another daemon holds the lease), or draining; empty
    while it works. loop_tick_age_s: since the event loop last ran a timer that is due every second."""

    pid: int
    uptime_s: float
    lease_held: bool
    lease_epoch: int
    waiting: str
    loop_tick_age_s: float


@dataclass(frozen=True, slots=True)
class JobView:
    """status: None before the controller exists, and then `reason` says what it waits for."""

    source: str
    status: JobStatus | None
    reason: str
    report: Mapping[str, Any]
    retrains: tuple[RetrainStatus, ...] = ()
    labels: Mapping[str, Label] = field(default_factory=dict)


def not_ready(process: Process, sources: Mapping[str, SourceStatus], jobs: Mapping[str, JobView]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    if process.waiting:
        reasons["daemon"] = process.waiting
    elif not process.lease_held:
        reasons["lease"] = "the lease cannot be renewed: nothing is published or committed until it can"
    for name, source in sources.items():
        if source.state is not SourceState.STREAMING:
            reasons[f"source {name}"] = source.reason or source.state.value
    for name, job in jobs.items():
        if job.status is None:
            reasons[f"job {name}"] = job.reason
        elif job.status.phase not in _WORKING:
            reasons[f"job {name}"] = f"{job.status.phase.value}: {job.status.reason}".removesuffix(": ")
    return reasons


def stuck(process: Process, jobs: Mapping[str, JobView]) -> dict[str, str]:
    """What only a restart would help. A server that cannot be reached is not here: that is not being ready."""
    reasons: dict[str, str] = {}
    if process.loop_tick_age_s > LOOP_TICK_DEADLINE_S:
        reasons["event loop"] = f"ran no timer for {process.loop_tick_age_s:.0f} s"
    for name, job in jobs.items():
        status = job.status
        if status is None or status.phase is Phase.STOPPED:
            continue
        if status.tick_age_s > CONTROLLER_TICK_DEADLINE_S:
            reasons[f"job {name}"] = f"its controller made no progress for {status.tick_age_s:.0f} s"
    return reasons


def document(
    process: Process,
    sources: Mapping[str, SourceStatus],
    jobs: Mapping[str, JobView],
    *,
    now_ms: int,
) -> dict[str, Any]:
    """The answer of `GET /v1/status`."""
    reasons = not_ready(process, sources, jobs)
    return {
        "version": __version__,
        "pid": process.pid,
        "uptime_s": round(process.uptime_s, 3),
        "ready": not reasons,
        "not_ready": reasons,
        "lease": {"held": process.lease_held, "epoch": process.lease_epoch},
        "sources": {name: _source(source) for name, source in sources.items()},
        "jobs": {name: _job(job, now_ms) for name, job in jobs.items()},
    }


def _source(source: SourceStatus) -> dict[str, Any]:
    return {
        "state": source.state.value,
        "reason": source.reason,
        "namespace": source.namespace,
        "published": source.events,
        "bytes": source.bytes,
        "transactions": source.transactions,
        "restarts": source.restarts,
        "position_age_s": source.position_age_s,
        "last_event_ms": source.last_event_ms,
        "prefetch_bytes": source.prefetch_bytes,
    }


def _job(job: JobView, now_ms: int) -> dict[str, Any]:
    status = job.status
    if status is None:
        return {
            "source": job.source,
            "phase": Phase.IDLE.value,
            "reason": job.reason,
            "hint": "",
            "workers": 0,
            "pids": [],
            "generation": 0,
            "lineage": None,
            "rounds": 0,
            "steps": 0,
            "rows_learned": 0,
            "counts": asdict(RoundCounts()),
            "backlog": None,
            "oldest_untrained_s": None,
            "retention": None,
            "learned": [],
            "window_begins": [],
            "failures": 0,
            "last_error": "",
            "checkpoint": None,
            "hyper": {},
            "retrains": [],
            "report": dict(job.report),
        }
    checkpoint, retention = status.checkpoint, status.retention
    return {
        "source": job.source,
        "phase": status.phase.value,
        "reason": status.reason,
        "hint": status.hint,
        "workers": len(status.workers),
        "pids": list(status.workers),
        "generation": status.generation,
        "lineage": status.lineage,
        "rounds": status.rounds,
        "steps": status.steps,
        "rows_learned": status.rows_learned,
        "counts": asdict(status.counts),
        "backlog": status.backlog,
        "oldest_untrained_s": status.oldest_untrained_s,
        "retention": None if retention is None else asdict(retention),
        "learned": [asdict(place) for place in status.learned],
        "window_begins": list(status.window_begins),
        "failures": status.failures,
        "last_error": status.last_error,
        "checkpoint": None
        if checkpoint is None
        else {**asdict(checkpoint), "age_s": max(0.0, (now_ms - checkpoint.created_ms) / 1000)},
        "hyper": dict(status.hyper),
        "retrains": retrains(job),
        "report": dict(job.report),
    }


def retrains(job: JobView) -> list[dict[str, Any]]:
    """The lineages that are learned beside the job."""
    return [_retrain(retrain, job.labels) for retrain in job.retrains]


def _retrain(retrain: RetrainStatus, labels: Mapping[str, Label]) -> dict[str, Any]:
    """from: `scratch`, or the manifest whose weights it began with. scores: of the lineage's own rows."""
    return {
        "lineage": retrain.lineage,
        "state": retrain.state,
        "reason": retrain.reason,
        "hint": retrain.hint,
        "from": retrain.base or "scratch",
        "since_ms": retrain.since_ms,
        "until_ms": retrain.until_ms,
        "hyper": dict(retrain.hyper),
        "promote": retrain.promote,
        "created_ms": retrain.created_ms,
        "records": retrain.records,
        "done": retrain.done,
        "progress": round(retrain.progress, 4),
        "records_per_s": retrain.records_per_s,
        "eta_s": retrain.eta_s,
        "phase": retrain.phase,
        "workers": len(retrain.workers),
        "pids": list(retrain.workers),
        "rounds": retrain.rounds,
        "rows_learned": retrain.rows_learned,
        "counts": asdict(retrain.counts),
        "scores": {
            name: {"rows": found.rows, **scores.metrics(labels[name], found)}
            for name, found in retrain.scores.items()
            if found.rows and name in labels
        },
        "manifest": retrain.manifest,
    }

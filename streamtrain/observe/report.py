"""Turns a job's round reports into metrics and into the numbers that the status shows. It keeps sums only:
after a thousand rounds it is as small as after one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import structlog
from prometheus_client import Gauge

from streamtrain import metrics, scores
from streamtrain.clock import Clock
from streamtrain.observe.freshness import quantile
from streamtrain.types import (
    FRESHNESS_BUCKETS_MS,
    LABEL_LATENCY_BUCKETS_S,
    FieldCounts,
    Label,
    Norms,
    Retention,
    RetentionState,
    RoundCounts,
    RoundReport,
    Scores,
)

RECENT_S = 60.0  # what "recent" means for freshness and scores
RECENT_HOLDOUT_S = 600.0  # and for the hold-out, which is a small share of the documents
_SLOT_S = 1.0
_OUTCOMES = (
    "learned", "waiting", "deletes", "dead_letters", "skipped", "unchanged", "filtered", "forgotten", "held_out",
)  # fmt: skip
_QUANTILES = {"p50": 0.5, "p99": 0.99}

log = structlog.get_logger()


class JobReport:
    """The action that a job's controller calls with each merged report: `on_round(report)`."""

    def __init__(self, *, job: str, labels: Sequence[Label], clock: Clock) -> None:
        self._job = job
        self._labels = {label.field: label for label in labels}
        self._clock = clock
        self._rounds = 0
        self._steps = 0
        self._counts = RoundCounts()
        self._reasons: dict[str, int] = {}
        self._timings: Mapping[str, float] = {}
        self._memory = (0, 0)
        self._freshness = _Recent()
        self._total_freshness = [0] * (len(FRESHNESS_BUCKETS_MS) + 1)
        self._scores: dict[str, Scores] = {}
        self._recent_scores = _RecentScores(RECENT_S)
        self._holdout: dict[str, Scores] = {}
        self._recent_holdout = _RecentScores(RECENT_HOLDOUT_S)
        self._waiting = 0
        self._label_latency = [0] * (len(LABEL_LATENCY_BUCKETS_S) + 1)
        self._norms = Norms()
        self._fields: dict[str, FieldCounts] = {}

    def on_round(self, report: RoundReport) -> None:
        now = self._clock.monotonic()
        self._rounds += 1
        self._steps += report.steps
        self._counts += report.counts
        for reason, count in report.dead_letter_reasons.items():
            if reason not in self._reasons:
                log.warning("the first dead letters of their kind", job=self._job, reason=reason, documents=count)
            self._reasons[reason] = self._reasons.get(reason, 0) + count
        self._timings = dict(report.timings)
        self._memory = (report.memory_rows, report.memory_bytes)
        self._freshness.add(now, report.freshness_ms)
        for bucket, count in enumerate(report.freshness_ms):
            self._total_freshness[bucket] += count
        self._scores = scores.merge_by_label(self._scores, report.scores)
        self._recent_scores.add(now, report.scores)
        self._holdout = scores.merge_by_label(self._holdout, report.holdout)
        self._recent_holdout.add(now, report.holdout)
        self._waiting = report.waiting
        for bucket, count in enumerate(report.label_latency):
            self._label_latency[bucket] += count
        if report.norms.steps:
            self._norms = report.norms
        for field, counts in report.fields.items():
            self._fields[field] = self._fields.get(field, FieldCounts()) + counts
        self._export(now, report)

    def on_backlog(self, *, backlog: int | None, oldest_untrained_s: float | None, retention: Retention | None) -> None:
        """How things stand in Kafka; what is not known is left as it was, since missing is not a number."""
        if backlog is not None:
            metrics.BACKLOG.labels(self._job).set(backlog)
            metrics.OLDEST_UNTRAINED.labels(self._job).set(oldest_untrained_s or 0.0)
        headroom_s = math.inf if backlog == 0 else None if retention is None else retention.headroom_s
        if headroom_s is not None:
            metrics.RETENTION_HEADROOM.labels(self._job).set(headroom_s)
        if retention is None:
            return
        for state in RetentionState:
            metrics.RETENTION_STATE.labels(self._job, state.value).set(state is retention.state)

    def summary(self) -> dict[str, Any]:
        """What this process has seen of the job since it started."""
        now = self._clock.monotonic()
        return {
            "rounds": self._rounds,
            "steps": self._steps,
            "records": asdict(self._counts),
            "dead_letter_reasons": dict(self._reasons),
            "scores": self._values(self._scores),
            "recent_scores": self._values(self._recent_scores.sum(now)),
            "holdout": self._values(self._holdout),
            "recent_holdout": self._values(self._recent_holdout.sum(now)),
            "norms": _norms(self._norms),
            "fields": {field: asdict(counts) for field, counts in self._fields.items()},
            "freshness_ms": _quantiles(self._freshness.counts(now)),
            "freshness_ms_since_start": _quantiles(self._total_freshness),
            "waiting": self._waiting,
            "label_latency_s": _quantiles(self._label_latency, LABEL_LATENCY_BUCKETS_S),
            "last_round_seconds": dict(self._timings),
            "memory_rows": self._memory[0],
            "memory_bytes": self._memory[1],
        }

    def _values(self, by_label: Mapping[str, Scores]) -> dict[str, dict[str, float]]:
        labels = self._labels
        return {name: {"rows": s.rows, **scores.metrics(labels[name], s)} for name, s in by_label.items() if s.rows}

    def _export(self, now: float, report: RoundReport) -> None:
        job = self._job
        metrics.ROUNDS.labels(job).inc()
        metrics.STEPS.labels(job).inc(report.steps)
        for outcome in _OUTCOMES:
            metrics.RECORDS.labels(job, outcome).inc(getattr(report.counts, outcome))
        metrics.REPLAYED.labels(job).inc(report.counts.replayed)
        metrics.LATE_LABELS.labels(job).inc(report.counts.late_labels)
        metrics.WAITING.labels(job).set(report.waiting)
        metrics.ABSENT_LABELS.labels(job).inc(report.counts.absent_labels)
        metrics.LABELS_AFTER_ABSENT.labels(job).inc(report.counts.labels_after_absent)
        metrics.LOST_WAITING.labels(job).inc(report.counts.lost_waiting)
        metrics.LABEL_LATENCY.add(job, report.label_latency)
        for reason, count in report.dead_letter_reasons.items():
            metrics.DEAD_LETTERS.labels(job, reason).inc(count)
        for stage, seconds in report.timings.items():
            metrics.ROUND_SECONDS.labels(job, stage).observe(seconds)
        _export_scores(job, self._values(report.scores), loss=metrics.LOSS, score=metrics.SCORE)
        holdout = self._values(self._recent_holdout.sum(now))
        _export_scores(job, holdout, loss=metrics.HOLDOUT_LOSS, score=metrics.HOLDOUT_SCORE)
        for gauge, found in zip(
            (metrics.GRADIENT_NORM, metrics.UPDATE_NORM), _norms(report.norms).values(), strict=True
        ):
            for stat, norm in found.items():
                gauge.labels(job, stat).set(norm)
        metrics.EXPELLED.labels(job).inc(report.counts.expelled)
        for field, counts in report.fields.items():
            for kind, count in asdict(counts).items():
                metrics.FIELD_VALUES.labels(job, field, kind).inc(count)
        metrics.FRESHNESS.add(job, report.freshness_ms)
        for name, milliseconds in _quantiles(self._freshness.counts(now)).items():
            if milliseconds is not None:
                metrics.FRESHNESS_QUANTILE.labels(job, name).set(milliseconds / 1000)
        metrics.MEMORY_ROWS.labels(job).set(report.memory_rows)
        metrics.MEMORY_BYTES.labels(job).set(report.memory_bytes)


class _RecentScores:
    """Score sums of the last `seconds`, in slots of `_SLOT_S`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._slots: deque[tuple[float, dict[str, Scores]]] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, now: float, new: Mapping[str, Scores]) -> None:
        if self._slots and now - self._slots[-1][0] < _SLOT_S:
            at, last = self._slots.pop()
            self._slots.append((at, scores.merge_by_label(last, new)))
        else:
            self._slots.append((now, dict(new)))
        self._forget(now)

    def sum(self, now: float) -> dict[str, Scores]:
        self._forget(now)
        total = dict[str, Scores]()
        for _at, part in self._slots:
            total = scores.merge_by_label(total, part)
        return total

    def _forget(self, now: float) -> None:
        while self._slots and now - self._slots[0][0] > self._seconds:
            self._slots.popleft()


class _Recent:
    """Histogram counts of the last `RECENT_S` seconds, in slots of `_SLOT_S`."""

    def __init__(self) -> None:
        self._slots: deque[tuple[float, list[int]]] = deque()

    def add(self, now: float, counts: tuple[int, ...]) -> None:
        if not any(counts):
            return
        if not self._slots or now - self._slots[-1][0] >= _SLOT_S:
            self._slots.append((now, [0] * (len(FRESHNESS_BUCKETS_MS) + 1)))
        slot = self._slots[-1][1]
        for bucket, count in enumerate(counts):
            slot[bucket] += count
        self._forget(now)

    def counts(self, now: float) -> list[int]:
        self._forget(now)
        return [sum(column) for column in zip(*(slot for _at, slot in self._slots), strict=True)]

    def _forget(self, now: float) -> None:
        while self._slots and now - self._slots[0][0] > RECENT_S:
            self._slots.popleft()


def _quantiles(counts: list[int], bounds: Sequence[float] = FRESHNESS_BUCKETS_MS) -> dict[str, float | None]:
    return {name: quantile(counts, q, bounds) for name, q in _QUANTILES.items()}


def _norms(norms: Norms) -> dict[str, dict[str, float]]:
    """Of a round's steps; nothing without any."""
    found: dict[str, dict[str, float]] = {"gradient": {}, "update": {}}
    if norms.steps:
        found["gradient"] = {"mean": norms.gradient_sum / norms.steps, "max": norms.gradient_max}
    if norms.updates:
        found["update"] = {"mean": norms.update_sum / norms.updates, "max": norms.update_max}
    return found


def _export_scores(job: str, found: Mapping[str, Mapping[str, float]], *, loss: Gauge, score: Gauge) -> None:
    for label, values in found.items():
        for name, value in values.items():
            if name != "rows":
                (loss.labels(job, label) if name == "loss" else score.labels(job, label, name)).set(value)

"""A job's reports as metrics and status numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from streamtrain.clock import FakeClock
from streamtrain.observe.freshness import quantile
from streamtrain.observe.report import RECENT_HOLDOUT_S, RECENT_S, JobReport
from streamtrain.types import (
    FRESHNESS_BUCKETS_MS,
    LABEL_LATENCY_BUCKETS_S,
    DType,
    FieldCounts,
    Label,
    Norms,
    Retention,
    RetentionState,
    RoundCounts,
    RoundReport,
    Scores,
    Task,
)

LABEL = Label("y", DType.FLOAT32, Task.REGRESSION)


def counted(**at: int) -> tuple[int, ...]:
    """Freshness counts: `ms100=3` puts three samples into the bucket of 100 ms."""
    counts = [0] * (len(FRESHNESS_BUCKETS_MS) + 1)
    for name, count in at.items():
        value = float(name.removeprefix("ms"))
        counts[sum(bound < value for bound in FRESHNESS_BUCKETS_MS)] += count
    return tuple(counts)


def report(number: int, *, error: float = 2.0, freshness: tuple[int, ...] = counted()) -> RoundReport:
    return RoundReport(
        round=number,
        learned={},
        counts=RoundCounts(learned=10, waiting=2, dead_letters=1, replayed=5),
        steps=3,
        scores={"y": Scores(rows=10, weight=10, loss=40, sums={"absolute_error": 10 * error, "squared_error": 90})},
        dead_letter_reasons={"missing": 1},
        freshness_ms=freshness,
        timings={"total": 0.2, "step": 0.1},
        memory_rows=7,
        memory_bytes=700,
    )


def metric(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def test_reports_add_up_in_metrics_and_summary() -> None:
    job = JobReport(job="adds-up", labels=[LABEL], clock=FakeClock())
    job.on_round(report(0, freshness=counted(ms100=3)))
    job.on_round(report(1, error=4.0, freshness=counted(ms100=1)))
    summary = job.summary()
    assert (summary["rounds"], summary["steps"], summary["records"]["learned"]) == (2, 6, 20)
    assert summary["dead_letter_reasons"] == {"missing": 2}
    assert summary["scores"]["y"] == {"rows": 20, "loss": 4.0, "mae": 3.0, "rmse": 3.0}
    assert summary["memory_rows"] == 7
    assert metric("streamtrain_records_total", job="adds-up", outcome="learned") == 20
    assert metric("streamtrain_dead_letters_total", job="adds-up", reason="missing") == 2
    assert metric("streamtrain_prequential_score", job="adds-up", label="y", metric="mae") == 4.0
    assert metric("streamtrain_freshness_seconds_count", job="adds-up") == 4
    assert metric("streamtrain_round_seconds_count", job="adds-up", stage="step") == 2


def test_labels_that_wait_come_late_or_never_are_told() -> None:
    job = JobReport(job="late-labels", labels=[LABEL], clock=FakeClock())
    took = tuple(10 * (bound == pytest.approx(1.25**20, abs=1e-3)) for bound in LABEL_LATENCY_BUCKETS_S)
    counts = RoundCounts(learned=10, late_labels=10, absent_labels=3, labels_after_absent=2, lost_waiting=1)
    assert job.summary()["label_latency_s"] == {"p50": None, "p99": None}
    job.on_round(replace(report(0), counts=counts, waiting=50, label_latency=took))
    job.on_round(replace(report(1), counts=counts, waiting=40))
    summary = job.summary()
    assert summary["waiting"] == 40
    assert summary["records"]["absent_labels"] == 6
    assert 1.25**19 < summary["label_latency_s"]["p50"] < summary["label_latency_s"]["p99"] <= 1.25**20
    assert metric("streamtrain_waiting_documents", job="late-labels") == 40
    assert metric("streamtrain_absent_labels_total", job="late-labels") == 6
    assert metric("streamtrain_labels_after_absent_total", job="late-labels") == 4
    assert metric("streamtrain_lost_waiting_total", job="late-labels") == 2
    assert metric("streamtrain_label_latency_seconds_count", job="late-labels") == 10


def test_norms_are_those_of_the_last_round_that_took_steps() -> None:
    job = JobReport(job="norms", labels=[LABEL], clock=FakeClock())
    assert job.summary()["norms"] == {"gradient": {}, "update": {}}
    norms = Norms(steps=4, gradient_sum=8.0, gradient_max=5.0, updates=2, update_sum=0.2, update_max=0.15)
    job.on_round(replace(report(0), norms=norms))
    job.on_round(report(1))  # one without steps of its own says nothing
    assert job.summary()["norms"] == {"gradient": {"mean": 2.0, "max": 5.0}, "update": {"mean": 0.1, "max": 0.15}}
    assert metric("streamtrain_gradient_norm", job="norms", stat="max") == 5.0
    assert metric("streamtrain_update_norm", job="norms", stat="mean") == 0.1


def test_what_is_unusual_in_fields_adds_up_by_field_and_kind() -> None:
    job = JobReport(job="fields", labels=[LABEL], clock=FakeClock())
    for number in range(2):
        job.on_round(replace(report(number), fields={"x": FieldCounts(missing=3, out_of_range=1)}))
    job.on_round(replace(report(2), fields={"word": FieldCounts(unseen=7)}))
    fields = job.summary()["fields"]
    assert fields["x"] == {"missing": 6, "coerced": 0, "unseen": 0, "out_of_range": 2}
    assert fields["word"]["unseen"] == 7
    assert metric("streamtrain_field_values_total", job="fields", field="x", kind="missing") == 6
    assert metric("streamtrain_field_values_total", job="fields", field="word", kind="unseen") == 7


def test_the_hold_out_is_scored_apart_and_over_a_longer_time() -> None:
    clock = FakeClock()
    job = JobReport(job="held", labels=[LABEL], clock=clock)
    held = {"y": Scores(rows=2, weight=2, loss=8, sums={"absolute_error": 4, "squared_error": 8})}
    job.on_round(replace(report(0), holdout=held))
    clock.advance(RECENT_S + 1)
    summary = job.summary()
    assert summary["holdout"]["y"]["mae"] == summary["recent_holdout"]["y"]["mae"] == 2.0
    assert summary["recent_scores"] == {}
    assert metric("streamtrain_holdout_score", job="held", label="y", metric="mae") == 2.0
    assert metric("streamtrain_holdout_loss", job="held", label="y") == 4.0
    clock.advance(RECENT_HOLDOUT_S)
    assert job.summary()["recent_holdout"] == {}


def test_the_first_dead_letters_of_a_kind_are_told_once() -> None:
    job = JobReport(job="told", labels=[LABEL], clock=FakeClock())
    with capture_logs() as told:
        job.on_round(report(0))
        job.on_round(report(1))
    assert [(line["job"], line["reason"], line["log_level"]) for line in told] == [("told", "missing", "warning")]


def test_recent_numbers_forget_what_is_old_and_totals_do_not() -> None:
    clock = FakeClock()
    job = JobReport(job="forgets", labels=[LABEL], clock=clock)
    job.on_round(report(0, error=100.0, freshness=counted(ms5000=10)))
    clock.advance(RECENT_S + 1)
    job.on_round(report(1, error=1.0, freshness=counted(ms10=10)))
    summary = job.summary()
    assert summary["recent_scores"]["y"]["mae"] == 1.0
    assert summary["scores"]["y"]["mae"] == 50.5
    assert summary["freshness_ms"]["p99"] < 15
    assert summary["freshness_ms_since_start"]["p99"] > 4000


def test_a_thousand_rounds_take_no_more_room_than_a_minute_of_them() -> None:
    clock = FakeClock()
    job = JobReport(job="flat", labels=[LABEL], clock=clock)
    for number in range(1000):
        job.on_round(report(number, freshness=counted(ms10=1)))
        clock.advance(0.5)
    assert len(job._recent_scores) <= RECENT_S + 1
    assert len(job._freshness._slots) <= RECENT_S + 1


def test_what_is_not_known_does_not_become_a_number() -> None:
    job = JobReport(job="unknown", labels=[LABEL], clock=FakeClock())
    job.on_backlog(backlog=40, oldest_untrained_s=3.0, retention=Retention(RetentionState.NEAR, (0,), 12.0))
    job.on_backlog(backlog=None, oldest_untrained_s=None, retention=Retention(RetentionState.OK))
    assert metric("streamtrain_backlog_records", job="unknown") == 40
    assert metric("streamtrain_oldest_untrained_seconds", job="unknown") == 3.0
    assert metric("streamtrain_retention_headroom_seconds", job="unknown") == 12.0
    assert metric("streamtrain_retention_state", job="unknown", state="near") == 0
    assert metric("streamtrain_retention_state", job="unknown", state="ok") == 1


def test_when_all_is_learned_nothing_is_about_to_expire() -> None:
    job = JobReport(job="caught-up", labels=[LABEL], clock=FakeClock())
    job.on_backlog(backlog=40, oldest_untrained_s=3.0, retention=Retention(RetentionState.NEAR, (0,), 12.0))
    job.on_backlog(backlog=0, oldest_untrained_s=None, retention=Retention(RetentionState.OK))
    assert metric("streamtrain_retention_headroom_seconds", job="caught-up") == math.inf


def test_without_samples_there_is_no_quantile() -> None:
    assert quantile((), 0.5) is None
    assert quantile(counted(), 0.99) is None


@pytest.mark.parametrize("q", [0.01, 0.5, 0.99])
def test_a_quantile_lies_within_its_bucket(q: float) -> None:
    value = quantile(counted(ms100=1000), q)
    assert value is not None
    bucket = next(bound for bound in FRESHNESS_BUCKETS_MS if bound >= 100)
    assert bucket / 1.13 <= value <= bucket


def test_a_quantile_above_the_last_bound_is_that_bound() -> None:
    assert quantile((0,) * len(FRESHNESS_BUCKETS_MS) + (5,), 0.5) == FRESHNESS_BUCKETS_MS[-1]

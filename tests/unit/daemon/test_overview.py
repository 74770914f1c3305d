"""What the daemon says of itself, from snapshots of its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamtrain.cli import status_text
from streamtrain.clock import FakeClock
from streamtrain.control.machine import Phase
from streamtrain.control.retrain_status import RetrainStatus
from streamtrain.control.status import CheckpointStatus, JobStatus
from streamtrain.daemon import overview
from streamtrain.daemon.overview import CONTROLLER_TICK_DEADLINE_S, LOOP_TICK_DEADLINE_S, JobView, Process
from streamtrain.observe.report import JobReport
from streamtrain.source.status import SourceState, SourceStatus
from streamtrain.types import DType, Label, Learned, RoundCounts, RoundReport, Scores, Task

NOW_MS = 1_700_000_000_000
WELL = Process(pid=7, uptime_s=60.0, lease_held=True, lease_epoch=3, waiting="", loop_tick_age_s=0.5)
STREAMING = SourceStatus(source="orders", state=SourceState.STREAMING, events=1234)
TRAINING = JobStatus(
    job="price",
    phase=Phase.TRAINING,
    reason="",
    hint="",
    generation=2,
    workers=(11, 12),
    lineage="l1",
    rounds=5,
    steps=50,
    rows_learned=900,
    counts=RoundCounts(learned=900),
    scores={},
    learned=(Learned(10, 9),),
    window_begins=(0,),
    backlog=4,
    oldest_untrained_s=0.5,
    retention=None,
    checkpoint=CheckpointStatus(id="price/l1/3", sequence=3, created_ms=NOW_MS - 2000, rounds=4, rows_learned=800),
    failures=0,
    last_error="",
    tick_age_s=1.0,
)


def report() -> JobReport:
    return JobReport(job="price", labels=[Label("y", DType.FLOAT32, Task.REGRESSION)], clock=FakeClock())


def view(status: JobStatus | None, **changes: Any) -> dict[str, JobView]:
    changed = replace(status, **changes) if status is not None else None
    return {"price": JobView(source="orders", status=changed, reason="waits for orders", report=report().summary())}


def reasons(process: Process = WELL, source: SourceStatus = STREAMING, **job: Any) -> dict[str, str]:
    return overview.not_ready(process, {"orders": source}, view(TRAINING, **job))


def test_a_daemon_whose_parts_all_work_is_ready() -> None:
    assert reasons() == {}
    assert reasons(phase=Phase.SAVING) == {}


@pytest.mark.parametrize("phase", [p for p in Phase if p not in (Phase.TRAINING, Phase.SAVING)])
def test_a_job_in_any_other_phase_is_not_ready(phase: Phase) -> None:
    assert reasons(phase=phase, reason="so it is") == {"job price": f"{phase.value}: so it is"}
    assert reasons(phase=phase) == {"job price": phase.value}


def test_each_part_that_does_not_work_is_named_with_its_reason() -> None:
    source = replace(STREAMING, state=SourceState.LOST, reason="the oplog has rolled over")
    found = reasons(replace(WELL, lease_held=False), source)
    assert found["source orders"] == "the oplog has rolled over"
    assert "cannot be renewed" in found["lease"]
    assert reasons(replace(WELL, waiting="draining")) == {"daemon": "draining"}
    waiting = overview.not_ready(WELL, {"orders": STREAMING}, view(None))
    assert waiting == {"job price": "waits for orders"}


def test_a_part_is_stuck_only_past_its_deadline_and_never_for_what_a_restart_does_not_help() -> None:
    source = replace(STREAMING, state=SourceState.BACKING_OFF)
    assert reasons(source=source)
    assert overview.stuck(WELL, view(TRAINING, phase=Phase.BACKOFF)) == {}
    late = view(TRAINING, tick_age_s=CONTROLLER_TICK_DEADLINE_S + 1)
    assert "made no progress" in overview.stuck(WELL, late)["job price"]
    assert overview.stuck(replace(WELL, loop_tick_age_s=LOOP_TICK_DEADLINE_S + 1), view(None)).keys() == {"event loop"}
    assert overview.stuck(WELL, view(TRAINING, phase=Phase.STOPPED, tick_age_s=1e9)) == {}


def test_the_status_has_the_same_keys_before_a_job_has_begun() -> None:
    before, after = (
        overview.document(WELL, {}, view(status), now_ms=NOW_MS)["jobs"]["price"] for status in (None, TRAINING)
    )
    assert before.keys() == after.keys()


def test_a_person_reads_the_same_as_a_program() -> None:
    job_report = report()
    job_report.on_round(
        RoundReport(
            round=0,
            learned={},
            counts=RoundCounts(learned=900, dead_letters=2),
            steps=50,
            scores={"y": Scores(rows=900, weight=900.0, loss=1800.0, sums={"absolute_error": 900.0})},
            dead_letter_reasons={"missing": 2},
            freshness_ms=(0,) * 40 + (9,) + (0,) * 90,
            timings={},
        )
    )
    retrain = RetrainStatus(
        lineage="l2",
        state="learning",
        reason="",
        hint="",
        base=None,
        hyper={"width": 8},
        promote=False,
        since_ms=None,
        until_ms=None,
        created_ms=NOW_MS,
        records=4000,
        done=1000,
        records_per_s=10.0,
        eta_s=300.0,
        phase="training",
        scores={"y": Scores(rows=90, weight=90.0, loss=90.0)},
    )
    ready = replace(retrain, lineage="l3", state="ready", base="price/l1/2", hyper={}, done=4000, eta_s=None, scores={})
    jobs = view(TRAINING, phase=Phase.PAUSED, reason="for a test", hyper={"units": [4, 2]})
    jobs["price"] = replace(
        jobs["price"],
        report=job_report.summary(),
        retrains=(retrain, ready),
        labels={"y": Label("y", DType.FLOAT32, Task.REGRESSION)},
    )
    document = overview.document(WELL, {"orders": STREAMING}, jobs, now_ms=NOW_MS)
    assert document["jobs"]["price"]["checkpoint"]["age_s"] == 2.0
    first, second = document["jobs"]["price"]["retrains"]
    assert (first["from"], first["lineage"], first["progress"], first["eta_s"]) == ("scratch", "l2", 0.25, 300.0)
    assert (second["from"], second["state"], second["progress"]) == ("price/l1/2", "ready", 1.0)
    shown = status_text.render(document)
    for line in (
        "pid 7, up 60 s, holds the lease, epoch 3",
        "not ready: job price: paused: for a test",
        "source orders: streaming, 1,234 events published",
        "job price: paused, 2 workers, generation 2",
        "learned 900 rows in 50 steps; backlog 4 records",
        "loss 2, mae 1 over the last 900 scored rows",
        "dead letters: missing 2",
        "newest manifest price/l1/3, 2 s old",
        "hyper-parameters of this lineage: units=[4, 2]",
        "retrain l2 from scratch: learning, 25% of 4,000 records, about 5 min 0 s left, with width=8",
        "y: loss 1 over its own 90 rows",
        "retrain l3 from price/l1/2: ready, 4,000 records learned",
    ):
        assert line in shown

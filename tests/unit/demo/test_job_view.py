"""The daemon's status becomes what the demo shows; what a status leaves out is not made up."""

from __future__ import annotations

import pytest

from streamtrain.demo.job import job_view
from streamtrain.demo.view import JobView
from streamtrain.errors import StreamtrainError


def test_status_of_a_training_job_is_read() -> None:
    view = job_view(
        {
            "phase": "training",
            "workers": 2,
            "generation": 1,
            "rounds": 4,
            "rows_learned": 90,
            "backlog": 7,
            "report": {
                "rounds": 6,
                "records": {"learned": 120, "dead_letters": 1},
                "scores": {"arr_delay": {"rows": 80, "mae": 10.0}},
                "freshness_ms_since_start": {"p50": 200.0, "p99": 900.0},
            },
        }
    )
    assert view == JobView(
        phase="training",
        workers=2,
        generation=1,
        rounds=4,
        learned=90,
        scored=80,
        absolute_error=800.0,
        backlog=7,
        dead_letters=1,
        freshness_p50_s=0.2,
        freshness_p99_s=0.9,
    )


def test_before_the_job_is_known_there_is_nothing_to_show() -> None:
    assert job_view({}) == JobView(phase="starting")
    assert job_view({}).mae is None


@pytest.mark.parametrize("phase", ["stopped", "paused"])
def test_a_halted_job_ends_the_demo_with_its_reason(phase: str) -> None:
    with pytest.raises(StreamtrainError, match="the model raised"):
        job_view({"phase": phase, "reason": "the model raised"})

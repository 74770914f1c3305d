"""The model and the baselines are compared over the same flights, and rates are what happened lately."""

from __future__ import annotations

import pytest

from streamtrain.demo.view import Baselines, Comparison, JobView, Rate


def test_baselines_go_no_further_than_the_model_was_scored() -> None:
    baselines = Baselines()
    baselines.written([(0, 10), (0, 10), (0, 1000)])
    comparison = baselines.compare(JobView(scored=2, absolute_error=4.0))
    assert comparison.labels == 2
    assert comparison.model == 2.0
    assert comparison.mean == pytest.approx(5.0)  # 10 off before the first, then none
    later = baselines.compare(JobView(scored=3, absolute_error=4.0))
    assert later.labels == 3


def test_improvement_is_measured_against_the_better_baseline() -> None:
    assert Comparison(labels=9, model=9.0, shift=10.0, mean=20.0).improvement == pytest.approx(0.1)
    assert Comparison(labels=9, model=11.0, shift=20.0, mean=10.0).improvement == pytest.approx(-0.1)
    assert Comparison().improvement is None


def test_rate_forgets_what_was_long_ago() -> None:
    rate = Rate()
    assert rate.at(0.0, 0) == 0.0
    for second in range(1, 11):
        rate.at(float(second), 1000)
    assert rate.at(11.0, 1000) == 0.0
    assert rate.at(12.0, 1300) == pytest.approx(100.0)

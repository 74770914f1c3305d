"""The baselines predict before they learn, and the running median is the median."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.demo.baselines import MeanBaseline, RunningMedian, ShiftBaseline

minutes = st.integers(-200, 1500)


@given(st.lists(minutes, min_size=1, max_size=60))
def test_running_median_is_the_median_after_every_value(values: list[int]) -> None:
    median = RunningMedian()
    for count, value in enumerate(values, start=1):
        median.add(value)
        assert median.value == statistics.median(values[:count])


@given(st.lists(minutes, min_size=1, max_size=40))
def test_mean_baseline_predicts_each_label_from_those_before_it(labels: list[int]) -> None:
    baseline = MeanBaseline()
    for label in labels:
        baseline.score_then_learn(label)
    errors = [abs(label - (statistics.fmean(labels[:at]) if at else 0.0)) for at, label in enumerate(labels)]
    assert baseline.mae == pytest.approx(statistics.fmean(errors))


@given(st.lists(st.tuples(minutes, minutes), min_size=1, max_size=40))
def test_shift_baseline_predicts_each_label_from_those_before_it(flights: list[tuple[int, int]]) -> None:
    baseline = ShiftBaseline()
    for departure, arrival in flights:
        baseline.score_then_learn(departure, arrival)
    shifts = [arrival - departure for departure, arrival in flights]
    errors = [
        abs(arrival - departure - (statistics.median(shifts[:at]) if at else 0.0))
        for at, (departure, arrival) in enumerate(flights)
    ]
    assert baseline.mae == pytest.approx(statistics.fmean(errors))


def test_without_labels_there_is_no_error_to_show() -> None:
    assert MeanBaseline().mae is None
    assert ShiftBaseline().mae is None
    assert RunningMedian().value == 0.0

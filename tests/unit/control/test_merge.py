from __future__ import annotations

from dataclasses import replace

import pytest

from streamtrain.control.merge import merge_reports
from streamtrain.errors import WorkerError
from streamtrain.types import FRESHNESS_BUCKETS_MS, FieldCounts, Learned, Norms, RoundCounts, RoundReport, Scores

BUCKETS = len(FRESHNESS_BUCKETS_MS) + 1
ONE = RoundReport(
    round=4,
    learned={0: Learned(5, 4)},
    counts=RoundCounts(learned=3, dead_letters=1),
    steps=2,
    scores={"y": Scores(rows=9, weight=9.0, loss=1.0)},
    dead_letter_reasons={"missing": 1},
    freshness_ms=(1,) * BUCKETS,
    timings={"read": 0.5, "step": 0.1},
    memory_rows=10,
    memory_bytes=100,
    holdout={"y": Scores(rows=1, weight=1.0)},
    norms=Norms(steps=2, gradient_sum=3.0),
    fields={"x": FieldCounts(missing=1), "y": FieldCounts(coerced=2)},
    expelled={0: (3,)},
    waiting=3,
    next_absent=50,
    label_latency=(0, 2, 1),
)
OTHER = replace(
    ONE,
    learned={1: Learned(7, 6)},
    counts=RoundCounts(learned=2, waiting=1),
    dead_letter_reasons={"missing": 2, "wrong type": 1},
    timings={"read": 0.2, "step": 0.3},
    fields={"x": FieldCounts(missing=2, unseen=5)},
    expelled={1: (4, 5)},
    waiting=4,
    next_absent=None,
    label_latency=(),
)


def test_what_ranks_did_adds_up_and_what_they_share_does_not() -> None:
    merged = merge_reports([ONE, OTHER])
    assert merged.learned == {0: Learned(5, 4), 1: Learned(7, 6)}
    assert merged.counts == RoundCounts(learned=5, waiting=1, dead_letters=1)
    assert merged.dead_letter_reasons == {"missing": 3, "wrong type": 1}
    assert merged.freshness_ms == (2,) * BUCKETS
    assert (merged.memory_rows, merged.memory_bytes) == (20, 200)
    assert merged.timings == {"read": 0.5, "step": 0.3}
    assert merged.steps == 2
    assert merged.scores == ONE.scores
    assert (merged.holdout, merged.norms) == (ONE.holdout, ONE.norms)
    assert merged.fields == {"x": FieldCounts(missing=3, unseen=5), "y": FieldCounts(coerced=2)}
    assert merged.expelled == {0: (3,), 1: (4, 5)}
    assert (merged.waiting, merged.next_absent, merged.label_latency) == (7, 50, (0, 2, 1))
    assert merge_reports([ONE, replace(OTHER, next_absent=40, label_latency=(1,))]).next_absent == 40


@pytest.mark.parametrize("change", [{"round": 5}, {"steps": 3}, {"learned": {0: Learned(7, 6)}}])
def test_ranks_that_disagree_are_no_group(change: dict[str, object]) -> None:
    with pytest.raises(WorkerError):
        merge_reports([ONE, replace(OTHER, **change)])  # type: ignore[arg-type]

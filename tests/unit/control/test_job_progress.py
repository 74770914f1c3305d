from __future__ import annotations

from dataclasses import replace

import pytest

from streamtrain.control.progress import (
    Progress,
    frontier_of_retrain,
    learned_more,
    of_manifest,
    remaining,
    retrained,
    skip_removed,
)
from streamtrain.errors import ContinuityError
from streamtrain.types import (
    FRESHNESS_BUCKETS_MS,
    Frontier,
    Learned,
    Manifest,
    OffsetRange,
    PartitionFrontier,
    Round,
    RoundCounts,
    RoundReport,
    Scores,
)

HEAD = Manifest(
    id="j/l/3",
    job="j",
    lineage="l",
    sequence=3,
    parent=None,
    epoch=1,
    generation=1,
    created_ms=0,
    topic="t",
    topic_epoch=0,
    learned=(Learned(30, 25), Learned(40, 35)),
    window_begins=(0, 0),
    rounds=7,
    steps=9,
    rows_learned=60,
    counts=RoundCounts(learned=60),
    scores={"y": Scores(rows=60, weight=60.0, loss=30.0)},
    artifacts={},
    schema_fingerprint="s",
    model_fingerprint="m",
)


def a_round(number: int, *ends: tuple[int, int]) -> Round:
    fresh = tuple(OffsetRange("t", 0, p, begin, end) for p, (begin, end) in enumerate(ends))
    return Round(number, fresh, (1,) * len(ends), (0,) * len(ends), seed=0, batch_size=8)


def a_report(number: int, learned: dict[int, Learned]) -> RoundReport:
    return RoundReport(
        round=number,
        learned=learned,
        counts=RoundCounts(learned=3, deletes=1),
        steps=2,
        scores={"y": Scores(rows=3, weight=3.0, loss=1.5)},
        dead_letter_reasons={},
        freshness_ms=(0,) * (len(FRESHNESS_BUCKETS_MS) + 1),
        timings={},
    )


def frontier(*partitions: tuple[int, int, int]) -> Frontier:
    return Frontier("t", 0, tuple(PartitionFrontier(*part) for part in partitions), 0.0)


def test_progress_adds_what_a_report_says() -> None:
    after = of_manifest(HEAD).after(
        a_round(7, (30, 33), (40, 40)), a_report(7, {0: Learned(33, 28), 1: Learned(40, 35)})
    )
    assert after.learned == (Learned(33, 28), Learned(40, 35))
    assert (after.rounds, after.steps, after.rows_learned) == (8, 11, 63)
    assert after.counts == RoundCounts(learned=63, deletes=1)
    assert after.scores["y"].rows == 63
    assert after.window_begins == (1, 1)
    assert learned_more(after, HEAD)
    assert not learned_more(of_manifest(HEAD), HEAD)


@pytest.mark.parametrize(
    ("number", "learned"),
    [
        (8, {0: Learned(33, 28)}),  # another round
        (7, {}),  # a partition left out
        (7, {0: Learned(32, 27)}),  # less than was asked for
        (7, {0: Learned(33, 20)}),  # a count that went back
    ],
)
def test_a_report_that_does_not_fit_its_round_is_not_believed(number: int, learned: dict[int, Learned]) -> None:
    with pytest.raises(ContinuityError):
        of_manifest(HEAD).after(a_round(7, (30, 33), (40, 40)), a_report(number, learned))


def test_a_retrain_begins_with_the_window_and_is_unscored_through_what_was_scored() -> None:
    begins = (Learned(10, 8), Learned(5, 4))
    start = retrained(HEAD, lineage="n", begins=begins, frontier=frontier((0, 50, 45), (0, 50, 45)))
    assert (start.lineage, start.learned, start.retrain_until) == ("n", begins, HEAD.learned)
    assert (start.rounds, start.rows_learned, start.window_begins) == (0, 0, (10, 5))
    assert remaining(start.learned, HEAD.learned) == 48
    seen = frontier_of_retrain(frontier((0, 50, 45), (0, 50, 45)), HEAD.learned)
    assert [(part.end, part.published) for part in seen.partitions] == [(30, 25), (40, 35)]
    half = start.after(a_round(0, (10, 30), (5, 5)), a_report(0, {0: Learned(30, 25)}))
    assert half.retrain_until == HEAD.learned
    done = half.after(a_round(1, (30, 30), (5, 40)), a_report(1, {1: Learned(40, 35)}))
    assert done.retrain_until is None


def test_a_retrain_of_a_retrain_is_unscored_through_the_later_end() -> None:
    head = replace(HEAD, retrain_until=(Learned(45, 40), Learned(35, 30)))
    start = retrained(head, lineage="n", begins=(Learned(0, 0),) * 2, frontier=frontier((0, 50, 45), (0, 50, 45)))
    assert start.retrain_until == (Learned(45, 40), Learned(40, 35))


def test_a_retrain_over_a_topic_that_was_created_again_scores_everything() -> None:
    start = retrained(HEAD, lineage="n", begins=(Learned(0, 0),) * 2, frontier=frontier((0, 5, 5), (0, 50, 45)))
    assert start.retrain_until is None


def test_a_retrain_over_another_topic_scores_everything() -> None:
    other = replace(frontier((0, 50, 45), (0, 50, 45)), topic="another")
    assert retrained(HEAD, lineage="n", begins=(Learned(0, 0),) * 2, frontier=other).retrain_until is None
    more = frontier(*[(0, 50, 45)] * 3)
    assert retrained(HEAD, lineage="n", begins=(Learned(0, 0),) * 3, frontier=more).retrain_until is None


def test_offsets_that_are_gone_are_passed_over() -> None:
    places = (Learned(10, 8), Learned(20, 15))
    assert skip_removed(places, frontier((12, 50, 40), (5, 50, 40))) == (Learned(12, 8), Learned(20, 15))


def test_a_fresh_job_has_learned_more_from_its_first_round_on() -> None:
    fresh = Progress(lineage="l", learned=(Learned(0, 0),), window_begins=(0,))
    assert not learned_more(fresh, None)
    assert learned_more(replace(fresh, rounds=1), None)
    assert learned_more(replace(fresh, lineage="another", rounds=1), HEAD)

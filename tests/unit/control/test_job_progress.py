from __future__ import annotations

from dataclasses import replace

import pytest

from streamtrain.control.progress import (
    MOST_EXPELLED,
    Progress,
    begun,
    capped,
    learned_more,
    of_manifest,
    reached,
    remaining,
    skip_removed,
    window_of_range,
)
from streamtrain.errors import ContinuityError
from streamtrain.types import (
    FRESHNESS_BUCKETS_MS,
    Frontier,
    Learned,
    Manifest,
    OffsetRange,
    PartitionFrontier,
    Retrain,
    RetrainState,
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


def test_progress_keeps_what_was_held_out_and_what_must_not_come_back() -> None:
    held = {"y": Scores(rows=2, weight=2.0, loss=1.0)}
    head = replace(HEAD, holdout=held, expelled={0: (0, 5, 20), 1: (0,)})
    report = replace(a_report(7, {0: Learned(33, 28), 1: Learned(40, 35)}), holdout=held, expelled={0: (31,)})
    after = of_manifest(head).after(a_round(7, (30, 33), (40, 40)), report)
    assert after.holdout["y"].rows == 4
    assert after.expelled == {0: (5, 20, 31)}  # what the window has left behind is gone anyway


def test_a_manifest_holds_only_the_newest_of_very_many_expelled_versions() -> None:
    report = replace(a_report(7, {0: Learned(9999, 9999)}), expelled={0: tuple(range(1, MOST_EXPELLED + 50))})
    after = of_manifest(HEAD).after(a_round(7, (30, 9999), (40, 40)), report)
    assert after.expelled[0] == tuple(range(50, MOST_EXPELLED + 50))


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


RETRAIN = Retrain(
    job="j",
    lineage="n",
    state=RetrainState.LEARNING,
    topic="t",
    base=None,
    hyper={"width": 3},
    workers=1,
    begins=(Learned(10, 8), Learned(5, 4)),
    end=(Learned(50, 45), Learned(50, 45)),
    watermark=0,
    forget_through=(50, 50),
    promote=False,
    created_ms=0,
)


def test_a_retrain_from_scratch_begins_with_its_range_and_is_scored() -> None:
    start = begun(RETRAIN, base=None)
    assert (start.lineage, start.learned, start.retrain_until) == ("n", RETRAIN.begins, None)
    assert (start.rounds, start.rows_learned, start.window_begins) == (0, 0, (10, 5))
    assert start.hyper == {"width": 3}
    assert (RETRAIN.records, remaining(start.learned, RETRAIN.end)) == (78, 78)


def test_a_retrain_from_weights_is_unscored_through_what_they_had_learned() -> None:
    start = begun(RETRAIN, base=HEAD)
    assert start.retrain_until == HEAD.learned
    seen = capped(frontier((0, 50, 45), (0, 50, 45)), HEAD.learned)
    assert [(part.end, part.published) for part in seen.partitions] == [(30, 25), (40, 35)]
    half = start.after(a_round(0, (10, 30), (5, 5)), a_report(0, {0: Learned(30, 25)}))
    assert half.retrain_until == HEAD.learned
    done = half.after(a_round(1, (30, 30), (5, 40)), a_report(1, {1: Learned(40, 35)}))
    assert done.retrain_until is None


def test_a_retrain_from_weights_that_were_unscored_themselves_is_so_through_the_later_end() -> None:
    head = replace(HEAD, retrain_until=(Learned(45, 40), Learned(35, 30)))
    assert begun(RETRAIN, base=head).retrain_until == (Learned(45, 40), Learned(40, 35))


def test_weights_that_have_learned_another_topic_have_seen_nothing_of_this_one() -> None:
    assert begun(RETRAIN, base=replace(HEAD, topic="another")).retrain_until is None


def test_a_cap_beyond_what_is_published_changes_nothing() -> None:
    there = frontier((0, 50, 45), (0, 50, 45))
    assert capped(there, (Learned(60, 55), Learned(70, 60))).partitions == there.partitions


def test_an_end_is_reached_by_records_for_commit_markers_are_never_read() -> None:
    assert reached((Learned(48, 45),), (Learned(50, 45),))
    assert not reached((Learned(48, 44),), (Learned(50, 45),))
    assert reached((Learned(48, 44),), None)


def test_the_window_of_a_range_holds_no_more_than_it_may() -> None:
    begins, learned = (Learned(10, 8), Learned(0, 0)), (Learned(110, 88), Learned(100, 80))
    assert window_of_range(begins, learned, max_records=1000) == (10, 0)
    assert window_of_range(begins, learned, max_records=80) == (60, 50)
    assert window_of_range(begins, begins, max_records=80) == (10, 0)


def test_offsets_that_are_gone_are_passed_over() -> None:
    places = (Learned(10, 8), Learned(20, 15))
    assert skip_removed(places, frontier((12, 50, 40), (5, 50, 40))) == (Learned(12, 8), Learned(20, 15))


def test_a_fresh_job_has_learned_more_from_its_first_round_on() -> None:
    fresh = Progress(lineage="l", learned=(Learned(0, 0),), window_begins=(0,))
    assert not learned_more(fresh, None)
    assert learned_more(replace(fresh, rounds=1), None)
    assert learned_more(replace(fresh, lineage="another", rounds=1), HEAD)

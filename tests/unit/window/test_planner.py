from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtrain.types import (
    Frontier,
    Learned,
    OffsetRange,
    PartitionFrontier,
    Planned,
    PlanRequest,
    PlanSettings,
    Wait,
)
from streamtrain.window.planner import plan, replay_rows, round_seed, share_out, spread, window_begins

SETTINGS = PlanSettings(max_wait_s=0.1, max_records=100, batch_size=32, replay_ratio=1.0, seed=7)


def frontier(*partitions: tuple[int, int | None], begins: Sequence[int] | None = None) -> Frontier:
    starts = begins or [0] * len(partitions)
    return Frontier(
        topic="t",
        epoch=0,
        partitions=tuple(PartitionFrontier(b, end, count) for b, (end, count) in zip(starts, partitions, strict=True)),
        as_of=0.0,
    )


def request(
    front: Frontier, planned: Sequence[Learned] | None = None, *, waiting_since: float | None = 0.0, now: float = 10.0
) -> PlanRequest:
    places = tuple(planned or (Learned(0, 0),) * len(front.partitions))
    return PlanRequest(
        number=3,
        planned=places,
        frontier=front,
        window_begins=(0,) * len(places),
        settings=SETTINGS,
        waiting_since=waiting_since,
        now=now,
    )


def planned(asked: PlanRequest) -> Planned:
    decision = plan(asked)
    assert isinstance(decision, Planned)
    return decision


def test_nothing_published_is_waited_for_without_a_deadline() -> None:
    assert plan(request(frontier((0, 0), (0, 0)))) == Wait(until=None)


def test_offsets_without_records_make_no_round() -> None:
    """Commit markers move the end of a partition; there is nothing to learn in them."""
    assert plan(request(frontier((9, 5)), [Learned(7, 5)])) == Wait(until=None)


@pytest.mark.parametrize(("watermark", "next_absent", "cut"), [(11, 10, True), (10, 10, False), (11, None, False)])
def test_an_idle_stream_gets_a_round_without_records_once_a_label_is_absent(
    watermark: int, next_absent: int | None, cut: bool
) -> None:
    asked = replace(request(frontier((9, 5)), [Learned(9, 5)]), watermark=watermark, next_absent=next_absent)
    if not cut:
        assert plan(asked) == Wait(until=None)
        return
    decision = planned(asked)
    assert (decision.round.fresh[0].span, decision.round.replay, decision.round.watermark) == (0, (0,), 11)
    assert decision.planned == asked.planned


def test_every_round_carries_the_watermark() -> None:
    assert planned(replace(request(frontier((80, 80))), watermark=7)).round.watermark == 7


def test_few_records_wait_for_company_until_max_wait_has_passed() -> None:
    asked = request(frontier((5, 5)), waiting_since=9.95)
    assert plan(asked) == Wait(until=pytest.approx(10.05))
    assert isinstance(plan(replace(asked, now=10.06)), Planned)


def test_records_seen_just_now_wait_from_now() -> None:
    assert plan(request(frontier((5, 5)), waiting_since=None)) == Wait(until=pytest.approx(10.1))


def test_a_full_round_is_cut_at_once() -> None:
    decision = planned(request(frontier((80, 80), (80, 80)), waiting_since=None))
    assert [r.span for r in decision.round.fresh] == [50, 50]


def test_a_small_partition_is_learned_in_full_beside_a_large_one() -> None:
    decision = planned(request(frontier((1000, 1000), (10, 10), (1000, 1000))))
    assert [r.span for r in decision.round.fresh] == [45, 10, 45]


def test_the_count_is_exact_where_a_round_ends_at_the_published_end() -> None:
    assert planned(request(frontier((30, 20)))).planned == (Learned(30, 20),)


def test_an_unknown_count_is_not_taken_for_zero() -> None:
    assert [r.span for r in planned(request(frontier((30, None)))).round.fresh] == [30]


def test_replay_fills_the_last_step_of_a_slow_stream() -> None:
    assert replay_rows(5, SETTINGS) == 27  # 5 + 5 rows would leave 22 of 32 places empty
    assert replay_rows(64, SETTINGS) == 64
    assert replay_rows(5, replace(SETTINGS, replay_ratio=0.0)) == 0


def test_the_window_never_begins_after_what_is_learned_next() -> None:
    asked = replace(request(frontier((50, 50), (50, 50)), [Learned(10, 10), Learned(40, 40)]), window_begins=(20, 20))
    assert planned(asked).round.window_begins == (10, 20)


def test_replay_is_asked_of_partitions_in_proportion_to_what_they_remember() -> None:
    asked = replace(request(frontier((30, 30), (10, 10), (0, 0))), number=0)
    assert planned(asked).round.replay == (42, 14, 0)  # 40 fresh, and 56 more to make three steps of 32


def test_rounds_have_seeds_of_their_own_that_do_not_depend_on_when_they_are_cut() -> None:
    assert round_seed(7, 3) == round_seed(7, 3)
    assert len({round_seed(seed, number) for seed in range(20) for number in range(20)}) == 400
    assert all(0 <= round_seed(1, number) < 2**63 for number in range(100))


@dataclass
class Log:
    """A partition as it really is: True for a record, False for a commit marker."""

    entries: list[bool]

    def __post_init__(self) -> None:
        self._counts = [0, *accumulate(self.entries)]

    def count(self, offset: int) -> int:
        return self._counts[offset]


logs = st.lists(st.lists(st.booleans(), max_size=40).map(Log), min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(
    logs,
    st.integers(1, 50),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
)
def test_rounds_tile_what_is_published(
    partitions: list[Log], max_records: int, batch_size: int, ratio: float, ahead: int, random: Random
) -> None:
    """However records and markers are mixed, however the data comes in, and with up to two rounds planned before
    the first one's true counts are known: no gap, no overlap, no empty round, no more than the cap, all learned."""
    rounds = PlanSettings(max_wait_s=0.1, max_records=max_records, batch_size=batch_size, replay_ratio=ratio, seed=1)
    visible = [0] * len(partitions)
    learned = [Learned(0, 0) for _ in partitions]
    places = list(learned)
    in_flight: list[Planned] = []
    number = 0
    for step in range(1000):
        for p, log in enumerate(partitions):
            visible[p] = min(len(log.entries), visible[p] + (random.randint(0, 20) if step % 3 else 1))
        now = frontier(*((end, log.count(end)) for end, log in zip(visible, partitions, strict=True)))
        asked = PlanRequest(number, tuple(places), now, (0,) * len(places), rounds, 0.0, 1.0)
        decision = plan(asked)
        assert decision == plan(asked)
        if isinstance(decision, Planned):
            cut = decision.round
            number += 1
            assert cut.number == asked.number
            assert [(r.begin, r.end) for r in cut.fresh] == [
                (before.offset, after.offset) for before, after in zip(places, decision.planned, strict=True)
            ]
            assert all(b.offset <= a.offset <= end for b, a, end in zip(places, decision.planned, visible, strict=True))
            records = [log.count(r.end) - log.count(r.begin) for log, r in zip(partitions, cut.fresh, strict=True)]
            assert sum(r.span for r in cut.fresh) > 0
            assert sum(records) <= max_records
            if not in_flight and ratio:
                fresh = sum(a.count - b.count for a, b in zip(decision.planned, places, strict=True))
                assert (sum(cut.replay) + fresh) % batch_size == 0
            assert ratio or sum(cut.replay) == 0
            in_flight.append(decision)
            places = list(decision.planned)
        if in_flight and (len(in_flight) > ahead or isinstance(decision, Wait)):
            done = in_flight.pop(0)
            true = [Learned(r.end, log.count(r.end)) for r, log in zip(done.round.fresh, partitions, strict=True)]
            learned = true
            places = (
                [
                    Learned(place.offset, place.count + is_.count - was.count)
                    for place, is_, was in zip(places, true, done.planned, strict=True)
                ]
                if in_flight
                else list(true)
            )
        elif isinstance(decision, Wait) and visible == [len(log.entries) for log in partitions]:
            break
    assert [place.count for place in learned] == [log.count(len(log.entries)) for log in partitions]


@given(st.integers(0, 200), st.lists(st.integers(0, 100), max_size=12))
def test_shares_are_max_min_fair(total: int, wishes: list[int]) -> None:
    shares = share_out(total, wishes)
    assert all(0 <= share <= wish for share, wish in zip(shares, wishes, strict=True))
    assert sum(shares) == min(total, sum(wishes))
    unmet = [share for share, wish in zip(shares, wishes, strict=True) if share < wish]
    assert not unmet or max(shares) <= min(unmet) + 1


@given(st.integers(0, 10_000), st.lists(st.integers(0, 1000), min_size=1, max_size=12), st.integers(0, 100))
def test_a_spread_adds_up_and_keeps_to_its_weights(total: int, weights: list[int], first: int) -> None:
    shares = spread(total, weights, first=first)
    whole = sum(weights)
    assert sum(shares) == (total if whole else 0)
    assert all(abs(share - total * weight / whole) <= 1 for share, weight in zip(shares, weights, strict=True) if whole)
    assert all(share == 0 for share, weight in zip(shares, weights, strict=True) if weight == 0)


def test_a_window_begins_where_its_duration_does() -> None:
    assert window_begins([10, 20], frontier((100, 100), (100, 100)), max_records=1000) == (10, 20)


def test_a_window_that_would_hold_too_many_records_begins_later_in_every_partition() -> None:
    begins = window_begins([0, 0], frontier((300, 300), (100, 100)), max_records=200)
    assert begins == (150, 50)


def test_markers_do_not_make_the_window_smaller() -> None:
    """Every second offset is a commit marker, so 200 offsets hold 100 records."""
    assert window_begins([0], frontier((200, 100)), max_records=100) == (0,)


def test_a_window_stays_between_log_start_and_end() -> None:
    front = frontier((100, 100), (100, 100), begins=[30, 0])
    assert window_begins([10, 200], front, max_records=1000) == (30, 100)


def test_dead_letters_that_were_replayed_make_a_round_without_records() -> None:
    ranges = (OffsetRange("t.job.replay.0", 0, 0, 2, 5), OffsetRange("t.job.replay.0", 0, 1, 0, 0))
    asked = replace(request(frontier((0, 0), (0, 0))), redriven=ranges)
    round_ = planned(asked).round
    assert round_.redriven == ranges
    assert [part.span for part in round_.fresh] == [0, 0]


def test_dead_letters_that_were_replayed_are_learned_with_what_is_new() -> None:
    ranges = (OffsetRange("t.job.replay.0", 0, 0, 2, 5),)
    assert planned(replace(request(frontier((0, 9))), redriven=ranges)).round.redriven == ranges

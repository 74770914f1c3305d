"""Which replayed dead letters the next round learns."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from streamtrain.control.progress import Progress
from streamtrain.control.redrive import Redrive
from streamtrain.errors import ContinuityError
from streamtrain.types import FRESHNESS_BUCKETS_MS, Learned, OffsetRange, Round, RoundCounts, RoundReport
from tests.fakes.control import FakeOffsets

TOPIC = "t.job.replay.0"
PROGRESS = Progress(lineage="l", learned=(Learned(30, 25), Learned(40, 35)), window_begins=(0, 0))


@pytest.fixture
def offsets() -> FakeOffsets:
    return FakeOffsets(2, topic=TOPIC)


def redrive(offsets: FakeOffsets, *, limit: int = 100, holds: bool = False) -> Redrive:
    return Redrive(offsets=offsets, limit=limit, holds=holds)


def a_round(*ranges: OffsetRange) -> Round:
    fresh = tuple(
        OffsetRange("t", 0, number, place.offset, place.offset) for number, place in enumerate(PROGRESS.learned)
    )
    return Round(0, fresh, (0, 0), (0, 0), seed=0, batch_size=8, redriven=ranges)


def part(number: int, begin: int, end: int) -> OffsetRange:
    return OffsetRange(TOPIC, 0, number, begin, end)


async def test_a_lineage_that_begins_has_to_do_with_what_is_replayed_from_now_on(offsets: FakeOffsets) -> None:
    offsets.ends = [5, 7]
    asked = redrive(offsets)
    progress = await asked.begin(PROGRESS, fresh=True)
    assert (progress.begins, progress.redriven) == ((30, 40), (5, 7))
    assert await asked.ranges() == ()
    offsets.ends = [9, 9]
    again = await asked.begin(PROGRESS, fresh=True)  # a generation that fails before the first manifest
    assert again.redriven == (5, 7)


async def test_a_generation_goes_on_where_the_head_stands(offsets: FakeOffsets) -> None:
    offsets.ends = [5, 7]
    head = replace(PROGRESS, begins=(1, 2), redriven=(5, 3))
    asked = redrive(offsets)
    assert await asked.begin(head, fresh=False) == head
    assert await asked.ranges() == (part(0, 5, 5), part(1, 3, 7))


async def test_a_head_of_an_earlier_release_says_nothing_of_it(offsets: FakeOffsets) -> None:
    offsets.ends = [5, 7]
    progress = await redrive(offsets).begin(PROGRESS, fresh=False)
    assert (progress.begins, progress.redriven) == ((), (5, 7))


async def test_letters_that_have_expired_are_passed_over(offsets: FakeOffsets) -> None:
    offsets.begins, offsets.ends = [4, 0], [6, 0]
    asked = redrive(offsets)
    progress = await asked.begin(replace(PROGRESS, redriven=(2, 0)), fresh=False)
    assert progress.redriven == (4, 0)
    assert await asked.ranges() == (part(0, 4, 6), part(1, 0, 0))


async def test_each_offset_is_in_one_round_and_no_round_is_larger_than_the_limit(offsets: FakeOffsets) -> None:
    offsets.ends = [5, 7]
    asked = redrive(offsets, limit=4)
    await asked.begin(replace(PROGRESS, redriven=(0, 0)), fresh=False)
    seen: list[tuple[OffsetRange, ...]] = []
    while ranges := await asked.ranges():
        assert await asked.ranges() == ranges  # until a round has taken them
        asked.took(a_round(*ranges))
        asked.took(a_round())
        seen.append(ranges)
    spans = [[(each.begin, each.end) for each in ranges] for ranges in seen]
    assert spans == [[(0, 4), (0, 0)], [(4, 5), (0, 3)], [(5, 5), (3, 7)]]


async def test_a_lineage_beside_the_job_leaves_them_until_it_is_the_job(offsets: FakeOffsets) -> None:
    beside = redrive(offsets, holds=True)
    progress = await beside.begin(PROGRESS, fresh=True)
    offsets.publish(4)
    assert await beside.ranges() == ()
    promoted = redrive(offsets)
    await promoted.begin(progress, fresh=False)
    assert await promoted.ranges() == (part(0, 0, 2), part(1, 0, 2))


async def test_it_wakes_once_more_is_replayed(offsets: FakeOffsets) -> None:
    asked = redrive(offsets)
    await asked.begin(PROGRESS, fresh=True)
    await asked.ranges()
    waiting = asyncio.create_task(asked.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    offsets.publish(1)
    await asyncio.wait_for(waiting, 5)


def a_report(redriven: dict[int, int]) -> RoundReport:
    return RoundReport(
        round=0,
        learned={},
        counts=RoundCounts(),
        steps=0,
        scores={},
        dead_letter_reasons={},
        freshness_ms=(0,) * (len(FRESHNESS_BUCKETS_MS) + 1),
        timings={},
        redriven=redriven,
    )


def test_what_a_report_has_read_of_them_is_progress() -> None:
    before = replace(PROGRESS, redriven=(5, 3))
    after = before.after(a_round(part(0, 5, 5), part(1, 3, 7)), a_report({1: 7}))
    assert after.redriven == (5, 7)


@pytest.mark.parametrize("reported", [{}, {1: 6}])
def test_a_report_that_leaves_some_out_is_an_error(reported: dict[int, Any]) -> None:
    with pytest.raises(ContinuityError, match="was to learn"):
        replace(PROGRESS, redriven=(5, 3)).after(a_round(part(0, 5, 5), part(1, 3, 7)), a_report(reported))

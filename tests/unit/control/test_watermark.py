"""The watermark: no change before it may be unlearned."""

from __future__ import annotations

from streamtrain.control.watermark import Watermark
from streamtrain.types import Frontier, Learned, PartitionFrontier


def frontier(watermark: int, *published: int | None) -> Frontier:
    parts = tuple(PartitionFrontier(0, 10**6, count) for count in published)
    return Frontier("t", 0, parts, as_of=0.0, watermark=watermark)


def learned(*counts: int) -> list[Learned]:
    return [Learned(2 * count, count) for count in counts]


def test_it_follows_the_published_cluster_time_while_all_is_learned() -> None:
    mark = Watermark(5)
    mark.advance(frontier(10, 3, 4), learned(3, 4))
    assert mark.value == 10
    mark.advance(frontier(12, 3, 4), learned(3, 4))  # a position without records: the stream is idle
    assert mark.value == 12


def test_it_waits_for_the_last_record_that_was_published_by_then() -> None:
    mark = Watermark(0)
    mark.advance(frontier(10, 3, 4), learned(0, 0))
    mark.advance(frontier(20, 8, 4), learned(3, 3))
    assert mark.value == 0
    mark.advance(frontier(20, 8, 4), learned(3, 4))
    assert mark.value == 10
    mark.advance(frontier(30, 9, 9), learned(8, 4))
    assert mark.value == 20


def test_what_is_not_known_holds_it_back() -> None:
    mark = Watermark(7)
    mark.advance(frontier(10, 3, None), learned(3, 4))
    assert mark.value == 7
    mark.advance(frontier(0, 3, 4), learned(3, 4))
    assert mark.value == 7
    mark = Watermark(7)
    mark.advance(frontier(6, 3, 4), learned(3, 4))
    assert mark.value == 7


def test_a_job_that_is_far_behind_remembers_only_so_much() -> None:
    mark = Watermark(0)
    for time in range(1, 10_000):
        mark.advance(frontier(time, time), learned(0))
    assert len(mark._marks) < 100
    mark.advance(frontier(10_000, 10_000), learned(50))
    assert mark.value == 50
    mark.advance(frontier(10_000, 10_000), learned(10_000))
    assert mark.value == 10_000

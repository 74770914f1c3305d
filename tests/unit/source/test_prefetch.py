"""The queue between MongoDB and Kafka: what it holds is bounded, in order, and ends with what went wrong."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.source.change_stream import Batch
from streamtrain.source.prefetch import EVENT_OVERHEAD_BYTES, MOST_EVENTS, Prefetch
from streamtrain.types import ChangeEvent, Operation

KIB = 1024
EVERYTHING = {"records": 10**9, "size": 10**12}


def batch(events: int, size: int) -> Batch:
    change = ChangeEvent(b"", Operation.INSERT, "a.b", b"", b"", 1, None)
    return Batch([change] * events, [], [], b"", size)


def cost(b: Batch) -> int:
    return b.size + EVENT_OVERHEAD_BYTES * len(b.changes)


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(100, 40_000)), max_size=60), st.integers(64, 4_096))
async def test_it_never_holds_more_than_its_limit_once_event_sizes_are_known(
    replies: list[tuple[int, int]], limit_kib: int
) -> None:
    limit = limit_kib * KIB
    queue = Prefetch(limit=limit)
    largest = 0
    for wanted, event_bytes in replies:
        while queue.held > limit // 2:
            await queue.take(**EVERYTHING)
            queue.published()
        asked = await queue.room()
        reply = batch(min(wanted, asked), min(wanted, asked) * event_bytes)
        before = queue.held
        queue.put(reply)
        if event_bytes <= largest:  # larger events than any before come as a surprise, once
            assert queue.held <= limit or len(reply.changes) == 1
        assert queue.held == before + cost(reply)
        largest = event_bytes


async def test_reading_waits_until_enough_has_been_published() -> None:
    queue = Prefetch(limit=100 * KIB)
    queue.put(batch(1, 60 * KIB))
    waiting = asyncio.create_task(queue.room())
    taken = await queue.take(**EVERYTHING)
    await asyncio.sleep(0)
    assert not waiting.done()  # taken is not published
    queue.published()
    assert await waiting >= 1
    assert [len(b.changes) for b in taken] == [1]
    following = asyncio.create_task(queue.take(**EVERYTHING))
    await asyncio.sleep(0)
    queue.stop()
    assert await following == []


async def test_a_transaction_takes_what_is_queued_up_to_its_bounds() -> None:
    queue = Prefetch(limit=10**9)
    for events in (500, 600, 700, 1):
        queue.put(batch(events, events * 100))
    assert [len(b.changes) for b in await queue.take(records=1_000, size=10**9)] == [500, 600]
    assert [len(b.changes) for b in await queue.take(records=10**9, size=70_000)] == [700]
    assert [len(b.changes) for b in await queue.take(**EVERYTHING)] == [1]


async def test_a_failure_comes_after_everything_that_was_read_before_it() -> None:
    queue = Prefetch(limit=10**9)
    queue.put(batch(3, 300))
    queue.finish(OSError("cut"))
    assert len(await queue.take(**EVERYTHING)) == 1
    with pytest.raises(OSError, match="cut"):
        await queue.take(**EVERYTHING)


async def test_a_reply_is_asked_for_with_fewer_events_the_larger_they_are() -> None:
    queue = Prefetch(limit=32 * 1024 * KIB)
    queue.put(batch(100, 100 * 300))
    for _ in range(100):
        queue.put(batch(100, 100 * 300))
        await queue.take(**EVERYTHING)
        queue.published()
    assert await queue.room() == MOST_EVENTS
    queue.put(batch(1, 1024 * KIB))
    assert await queue.room() == 3

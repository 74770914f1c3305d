"""Where a source stands after a batch: at its last event, behind it, or at the end of its collection."""

from __future__ import annotations

import bson
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.clock import FakeClock
from streamtrain.source.change_stream import Batch
from streamtrain.source.events import CollectionEvent
from streamtrain.source.position import may_follow
from streamtrain.source.progress import POSITION_EVERY_S, Progress, advance
from streamtrain.source.status import SourceState
from streamtrain.types import ChangeEvent, Operation, Position, PositionKind

START_TIME = 1_700_000_000 << 32


def token(time: int, rest: str = "") -> bytes:
    return bson.encode({"_data": f"82{time:016X}{rest}"})


def change(time: int) -> ChangeEvent:
    return ChangeEvent(token(time, "2B022C04"), Operation.INSERT, "a.b", b"", b"doc", time, None)


def start() -> Position:
    return Position("s", PositionKind.START, b"", START_TIME, b"", (3, 4), "c", "p", ("a.b",), 7)


def test_behind_an_event_when_the_batch_ends_with_it() -> None:
    event = change(START_TIME + 5)
    after = advance(start(), [Batch([event], [], [], event.token, 10)])
    assert (after.kind, after.token, after.last_token) == (PositionKind.EVENT, event.token, event.token)
    assert after.cluster_time == START_TIME + 5
    assert (after.counts, after.publisher_epoch) == ((3, 4), 7)


def test_behind_the_batch_when_the_server_has_looked_further() -> None:
    event, further = change(START_TIME + 5), token(START_TIME + 9)
    after = advance(start(), [Batch([event], [], [], further, 10)])
    assert (after.kind, after.token, after.last_token) == (PositionKind.POST_BATCH, further, event.token)
    assert after.cluster_time == START_TIME + 9


def test_an_empty_batch_moves_the_position_and_keeps_the_last_token() -> None:
    event = change(START_TIME + 5)
    first = advance(start(), [Batch([event], [], [], event.token, 10)])
    after = advance(first, [Batch([], [], [], token(START_TIME + 90), 0)])
    assert (after.kind, after.last_token) == (PositionKind.POST_BATCH, event.token)


def test_a_server_without_post_batch_tokens_is_followed_by_its_events() -> None:
    event = change(START_TIME + 5)
    assert advance(start(), [Batch([event], [], [], b"", 10)]).token == event.token
    assert advance(start(), [Batch([], [], [], b"", 0)]) == start()


def test_an_invalidate_is_where_its_stream_ends() -> None:
    event = change(START_TIME + 5)
    end = CollectionEvent("invalidate", "", token(START_TIME + 6, "2B"), START_TIME + 6, 1)
    after = advance(start(), [Batch([event], [end], [], token(START_TIME + 7), 10)])
    assert (after.kind, after.token, after.last_token) == (PositionKind.INVALIDATE, end.token, event.token)


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3), st.integers(-20, 20)), min_size=1, max_size=20))
def test_a_position_never_goes_backwards(batches: list[tuple[list[int], int]]) -> None:
    """Not even where a server's post-batch tokens do; a change is never left out."""
    position, time = start(), START_TIME
    for steps, post_batch in batches:
        changes = [change(time := time + step + 1) for step in steps]
        after = advance(position, [Batch(changes, [], [], token(max(time, time + post_batch)), 10)])
        empty = advance(after, [Batch([], [], [], token(START_TIME + post_batch), 0)])
        assert may_follow(after, position)
        assert may_follow(empty, after)
        assert not changes or after.last_token == changes[-1].token
        position, time = empty, max(time, empty.cluster_time)


def test_positions_of_empty_batches_are_saved_now_and_then_only() -> None:
    clock = FakeClock()
    progress = Progress(source="progress-test", namespace="a.b", clock=clock)
    progress.resumed(start())
    empty = Batch([], [], [], token(START_TIME + 5), 0)
    assert not progress.due(empty)
    clock.advance(POSITION_EVERY_S)
    assert progress.due(empty)
    progress.committed(advance(start(), [empty]), [], 0)
    clock.advance(2 * POSITION_EVERY_S)
    assert not progress.due(empty)  # nothing new in it


def test_the_status_tells_what_has_been_published_and_how_old_the_position_is() -> None:
    clock = FakeClock(start=1_700_000_000.0)
    progress = Progress(source="progress-test", namespace="a.b", clock=clock)
    assert (progress.status().state, progress.status().position_age_s) == (SourceState.STARTING, None)
    progress.resumed(start())
    progress.state(SourceState.STREAMING)
    event = change(START_TIME)
    progress.committed(advance(start(), [Batch([event], [], [], event.token, 50)]), [event], 50)
    clock.advance(3.0)
    status = progress.status()
    assert (status.state, status.events, status.bytes, status.transactions) == (SourceState.STREAMING, 1, 50, 1)
    assert status.position_age_s == 3.0
    assert status.last_event_ms == 1_700_000_000_000

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.errors import SourceError
from streamtrain.source import position
from streamtrain.types import Position, PositionKind

tokens = st.just(b"") | st.text("0123456789ABCDEF", min_size=2, max_size=40).map(lambda s: bson.encode({"_data": s}))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
positions = st.builds(
    Position,
    stream=texts,
    kind=st.sampled_from(PositionKind),
    token=tokens,
    cluster_time=st.integers(0, 2**64 - 1),
    last_token=tokens,
    counts=st.lists(st.integers(0, 2**63 - 1), max_size=5).map(tuple),
    cluster=texts,
    pipeline=texts,
    namespaces=st.lists(texts, max_size=3).map(tuple),
    publisher_epoch=st.integers(0, 2**31),
    topic_epoch=st.integers(0, 2**31),
)


def at(seconds: int, data: str | None = None) -> Position:
    return Position(
        stream="flights",
        kind=PositionKind.EVENT if data else PositionKind.START,
        token=bson.encode({"_data": data}) if data else b"",
        cluster_time=seconds << 32,
        last_token=b"",
        counts=(1, 2),
        cluster="c",
        pipeline="p",
        namespaces=("air.flights",),
        publisher_epoch=1,
    )


@given(positions)
def test_what_is_encoded_is_decoded(given_position):
    assert position.decode(position.encode(given_position)) == given_position


def test_a_newer_format_says_upgrade():
    raw = bson.encode({**bson.decode(position.encode(at(1))), "v": 2})
    with pytest.raises(SourceError, match="upgrade"):
        position.decode(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"text",
        bson.encode({}),
        bson.encode({"v": 1}),
        bson.encode({"v": "1"}),
        bson.encode({**bson.decode(position.encode(at(1))), "counts": "many"}),
        bson.encode({**bson.decode(position.encode(at(1))), "cluster_time": 5}),
    ],
)
def test_what_is_no_position_is_an_error_not_a_crash(raw):
    with pytest.raises(SourceError):
        position.decode(raw)


@pytest.mark.parametrize(
    ("after", "before", "allowed"),
    [
        (at(2, "8200000002"), at(1, "8200000001"), True),
        (at(1, "8200000001"), at(1, "8200000001"), True),
        (at(1, "8200000001"), at(2, "8200000002"), False),
        # Within one cluster time the tokens tell.
        (at(2, "8200000002A"), at(2, "8200000002B"), False),
        (at(2, "8200000002B"), at(2, "8200000002A"), True),
        # A start position has no token.
        (at(2, "8200000002"), at(1), True),
        (at(2, "8200000002"), at(3), False),
        (at(2), at(3, "8200000003"), False),
    ],
)
def test_a_position_follows_only_what_is_no_later(after, before, allowed):
    assert position.may_follow(after, before) is allowed


@given(st.lists(st.integers(0, 99), min_size=3, max_size=3))
def test_the_order_of_positions_is_total(times):
    first, second, third = (at(time, f"82{time:08X}") for time in times)
    assert position.may_follow(first, second) or position.may_follow(second, first)
    if position.may_follow(third, second) and position.may_follow(second, first):
        assert position.may_follow(third, first)

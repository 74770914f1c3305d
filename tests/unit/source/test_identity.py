"""A position is resumed only where it was made."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.errors import ForeignPositionError
from streamtrain.source.identity import Identity, pipeline_hash, verify
from streamtrain.types import Position, PositionKind

HASH = pipeline_hash("air", "flights")
HERE = Identity("rs0", cluster="aa" * 12, collection="bb" * 16)


def check(saved: Identity, now: Identity, kind: PositionKind = PositionKind.EVENT) -> None:
    position = Position("s", kind, b"", 1, b"", (0,), str(saved), HASH, ("air.flights",), 0)
    verify(position, identity=now, pipeline=HASH, namespace="air.flights")


@given(st.builds(Identity, st.text(min_size=1), st.sampled_from(["", "ab" * 12]), st.sampled_from(["", "cd" * 16])))
def test_an_identity_survives_being_written(identity: Identity) -> None:
    assert Identity.parse(str(identity)) == identity


def test_what_may_not_be_read_any_more_stays_known() -> None:
    now = Identity("rs0", collection="cc" * 16)
    assert now.completed(str(HERE)) == Identity("rs0", HERE.cluster, "cc" * 16)


def test_the_same_cluster_is_accepted_and_also_when_less_of_it_can_be_read() -> None:
    check(HERE, HERE)
    check(HERE, replace(HERE, cluster=""))
    check(replace(HERE, cluster="", collection=""), HERE)


def test_a_collection_that_was_resharded_keeps_its_cluster() -> None:
    check(HERE, replace(HERE, collection="cc" * 16))


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        (HERE, replace(HERE, cluster="ee" * 12)),
        (replace(HERE, cluster=""), replace(HERE, cluster="", collection="cc" * 16)),
        (Identity("rs0"), Identity("rs1")),
        (Identity("rs0"), Identity("sharded")),
    ],
)
def test_another_cluster_is_refused(saved: Identity, now: Identity) -> None:
    with pytest.raises(ForeignPositionError, match="belongs elsewhere"):
        check(saved, now)


def test_after_an_invalidate_the_collection_may_be_a_new_one() -> None:
    unknown = replace(HERE, cluster="")
    check(unknown, replace(unknown, collection="cc" * 16), PositionKind.INVALIDATE)


def test_another_collection_is_refused() -> None:
    position = Position("s", PositionKind.EVENT, b"", 1, b"", (0,), str(HERE), HASH, ("air.flights",), 0)
    with pytest.raises(ForeignPositionError, match=r"follows air\.flights, its configuration says air\.trips"):
        verify(position, identity=HERE, pipeline=pipeline_hash("air", "trips"), namespace="air.trips")

"""What a job takes of its source's records, and how much it lets each count."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import bson
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtrain import config
from streamtrain.trainer.decode import BAD, LABELLED, WAITING, Decoder
from streamtrain.trainer.forgotten import Forgotten
from streamtrain.trainer.identity import agree
from streamtrain.trainer.records import Records
from streamtrain.trainer.selection import TO_DECODE, Selection
from streamtrain.trainer.taking import DELETED, FILTERED, FORGOTTEN, SKIPPED

JOB = {
    "name": "ctr",
    "source": "clicks",
    "features": [{"field": "x", "dtype": "float64"}],
    "labels": [{"field": "y", "dtype": "int32", "task": "classification", "classes": 3}],
}


def job_of(**changes: Any) -> config.Job:
    return config.Job.model_validate({**JOB, **changes})


def records_of(
    keys: Sequence[bytes],
    *,
    operations: str = "",
    values: Sequence[bytes] = (),
    document_keys: Sequence[bytes] = (),
    first: int = 0,
) -> Records:
    n = len(keys)
    return Records(
        partition=0,
        sequence=np.arange(n),
        offsets=np.arange(first, first + n),
        operations=(operations or "i" * n).encode(),
        namespaces=[b"d.c"] * n,
        keys=list(keys),
        document_keys=list(document_keys or keys),
        cluster_times=np.arange(n),
        wall_times_ms=np.zeros(n, np.int64),
        values=list(values or [b"?"] * n),
    )


def key(number: int) -> bytes:
    return bson.encode({"_id": number})


def test_what_need_not_be_decoded_is_known_before() -> None:
    selection = Selection.of(job_of(filter={"x": {"$gte": 0}}))
    values = [bson.encode({"x": 1}), bson.encode({"x": -1}), b"", b"", bson.encode({"x": 1})[:-2], bson.encode({})]
    records = records_of([key(n) for n in range(6)], operations="iiduuu", values=values)
    assert selection.outcomes(records).tolist() == [TO_DECODE, FILTERED, DELETED, SKIPPED, BAD, FILTERED]


@pytest.mark.parametrize("partitions", [1, 3, 8, 64])
def test_each_partition_holds_out_about_its_share(partitions: int) -> None:
    keys = [key(number) for number in range(40_000)]
    mine = [k for k in keys if zlib.crc32(k) % partitions == 0]
    held = Selection(holdout=0.1).held(records_of(mine))
    assert held is not None
    spread = 4 * (0.1 * 0.9 / len(mine)) ** 0.5
    assert abs(held.mean() - 0.1) < spread


def test_what_a_small_share_holds_out_a_larger_one_does_too() -> None:
    records = records_of([key(number) for number in range(5_000)])
    small, large = Selection(holdout=0.01).held(records), Selection(holdout=0.2).held(records)
    assert small is not None
    assert large is not None
    assert 0 < small.sum() < large.sum()
    assert not (small & ~large).any()


def test_the_documents_that_are_held_out_are_the_same_for_good() -> None:
    held = Selection(holdout=0.02).held(records_of([key(number) for number in range(400)]))
    assert held is not None
    assert np.flatnonzero(held).tolist() == HELD_OF_400
    assert Selection().held(records_of([key(1)])) is None


HELD_OF_400 = [12, 53, 117, 191, 251, 274, 316, 329, 389]


def test_weights_of_documents_and_of_classes_are_multiplied() -> None:
    job = job_of(weight={"field": "w", "missing": 0.5, "classes": {1: 3.0, 2: 0.0}})
    documents = [
        bson.encode({"x": 1.0, "y": y, **w})
        for y, w in [(0, {"w": 2}), (1, {"w": 2.5}), (1, {}), (2, {"w": 7}), (0, {"w": None}), (0, {"w": 0})]
    ]
    decoded = Decoder.of(job).decode(documents)
    assert decoded.weights is not None
    assert decoded.weights.tolist() == [2.0, 2.5, 0.5, 7.0, 0.5, 0.0]
    assert Selection.of(job).weights(decoded.labels, decoded.weights).tolist() == [2.0, 7.5, 1.5, 0.0, 0.5, 0.0]
    assert (decoded.outcome == LABELLED).all()


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (-1, "range:w"),
        (2e9, "range:w"),
        ("a", "type:w"),
        (float("nan"), "non-finite:w"),
        (float("inf"), "non-finite:w"),
    ],
)
def test_a_weight_that_is_none_makes_a_dead_letter_once_the_label_is_there(weight: Any, reason: str) -> None:
    decoder = Decoder.of(job_of(weight="w"))
    decoded = decoder.decode([bson.encode({"x": 1.0, "y": 1, "w": weight}), bson.encode({"x": 1.0, "w": weight})])
    assert decoded.outcome.tolist() == [BAD, WAITING]
    assert decoded.reasons == {0: reason}


def test_weights_come_through_batches_of_any_size() -> None:
    documents = [bson.encode({"x": 1.0, "y": 1, "w": number}) for number in range(9_000)]
    decoded = Decoder.of(job_of(weight="w")).decode(documents)
    assert decoded.weights is not None
    assert decoded.weights.tolist() == list(range(9_000))


# ------------------------------------------------------------------------------------------- what is to be forgotten


def document_key(number: int, shard: int | None) -> bytes:
    return bson.encode({"_id": number} if shard is None else {"shard": shard, "_id": number})


EVENTS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([None, None, 1, 2]), st.sampled_from("iud")), max_size=40
)


@given(EVENTS, st.data())
@settings(deadline=None)
def test_a_record_is_forgotten_if_and_only_if_its_document_is_deleted_behind_it(
    events: list[tuple[int, int | None, str]], data: st.DataObject
) -> None:
    documents = [document_key(number, shard) for number, shard, _ in events]
    records = records_of(
        [key(number) for number, _, _ in events],
        operations="".join(operation for _, _, operation in events),
        document_keys=documents,
    )
    cut = data.draw(st.integers(0, len(events)))
    forgotten = Forgotten()
    for part in (slice(0, cut), slice(cut, None)):
        chunk = records.part(0, part)
        forgotten.add(chunk, np.flatnonzero(np.frombuffer(chunk.operations, np.uint8) == ord("d")))
    expected = [
        any(
            operation == "d" and number == events[at][0] and agree(key(number), documents[at], other)
            for (number, _, operation), other in zip(events[at + 1 :], documents[at + 1 :], strict=True)
        )
        for at in range(len(events))
    ]
    assert forgotten.among(records).tolist() == expected


def test_a_retrain_forgets_deletes_and_what_the_filter_turned_away_later() -> None:
    selection = Selection.of(job_of(filter={"x": {"$gte": 0}}))
    good, bad = bson.encode({"x": 1}), bson.encode({"x": -1})
    numbers = [1, 2, 3, 2, 1, 1, 3]
    records = records_of(
        [key(n) for n in numbers], operations="iiiudiu", values=[good, good, good, bad, b"", good, good]
    )
    assert selection.foresees
    selection.foresee(records)
    expected = [FORGOTTEN, FORGOTTEN, TO_DECODE, FILTERED, DELETED, TO_DECODE, TO_DECODE]
    assert selection.outcomes(records).tolist() == expected


def test_with_kept_deletes_only_the_filter_makes_a_retrain_look_ahead() -> None:
    assert not Selection.of(job_of(on_delete="keep")).foresees
    selection = Selection.of(job_of(on_delete="keep", filter={"x": 1}))
    good = bson.encode({"x": 1})
    records = records_of([key(1), key(1), key(2), key(2)], operations="idiu", values=[good, b"", good, bson.encode({})])
    selection.foresee(records)
    assert selection.outcomes(records).tolist() == [TO_DECODE, DELETED, FORGOTTEN, FILTERED]

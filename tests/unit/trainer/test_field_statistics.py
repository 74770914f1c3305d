"""What a round's documents hold in their fields is counted by kind, the same however they are cut and shared out."""

from __future__ import annotations

from typing import Any

import bson
import numpy as np
import pytest
from bson import Decimal128, Int64
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.trainer.decode import Decoder
from streamtrain.trainer.field_statistics import LEARNING_VALUES, LIFE_VALUES, SLOTS, FieldStatistics, Segment
from streamtrain.types import DType, Feature, FieldCounts, Label, Schema, Task

SCHEMA = Schema(
    features=(
        Feature("x", DType.FLOAT32, missing=0.0),
        Feature("n", DType.INT64, missing=0),
        Feature("word", DType.STRING, missing=""),
        Feature("v", DType.FLOAT32, length=2, missing=0.0),
        Feature("b", DType.BOOL, missing=False),
    ),
    labels=(Label("y", DType.FLOAT32, Task.REGRESSION),),
)
USUAL = {"x": 1.0, "n": Int64(1), "word": "a", "v": [1.0, 1.0], "b": True, "y": 1.0}


def documents(values: list[Any], field: str) -> list[dict[str, Any]]:
    return [{**USUAL, field: value} for value in values]


def observed(statistics: FieldStatistics, parts: dict[int, list[dict[str, Any]]]) -> None:
    """A chunk of documents by partition."""
    segments, raw = [], []
    for partition, found in parts.items():
        segments.append(Segment(partition, len(raw), len(raw) + len(found)))
        raw += [bson.encode(document) for document in found]
    statistics.observe(Decoder(SCHEMA).decode(raw), segments)


def round_of(statistics: FieldStatistics, found: list[dict[str, Any]]) -> dict[str, FieldCounts]:
    observed(statistics, {0: found})
    return statistics.end_round()


@pytest.fixture
def statistics() -> FieldStatistics:
    """That has seen a hundred usual documents."""
    made = FieldStatistics(SCHEMA, (0, 1))
    round_of(made, [USUAL] * LEARNING_VALUES)
    return made


def test_usual_documents_give_no_counts(statistics: FieldStatistics) -> None:
    assert round_of(statistics, [USUAL] * 10) == {}


@pytest.mark.parametrize(
    ("field", "value", "counts"),
    [
        ("x", None, FieldCounts(missing=1)),
        ("x", float("nan"), FieldCounts(missing=1)),
        ("x", 1, FieldCounts(coerced=1)),
        ("x", Int64(1), FieldCounts(coerced=1)),
        ("x", Decimal128("1"), FieldCounts(coerced=1)),
        ("x", 1e300, FieldCounts(out_of_range=1)),
        ("x", "text", None),
        ("n", 1, None),
        ("n", 1.0, FieldCounts(coerced=1)),
        ("n", Decimal128("1"), FieldCounts(coerced=1)),
        ("n", 1e30, FieldCounts(out_of_range=1)),
        ("n", 1.5, FieldCounts(out_of_range=1)),
        ("word", "b", FieldCounts(unseen=1)),
        ("word", None, FieldCounts(missing=1)),
        ("v", [1.0, None], FieldCounts(missing=1)),
        ("v", [1.0, 1e300], FieldCounts(out_of_range=1)),
        ("b", None, FieldCounts(missing=1)),
        ("y", None, FieldCounts(missing=1)),
        ("y", 1, FieldCounts(coerced=1)),
        ("y", 1e30, FieldCounts(out_of_range=1)),
    ],
)
def test_a_value_counts_as_what_it_is(
    statistics: FieldStatistics, field: str, value: Any, counts: FieldCounts | None
) -> None:
    found = round_of(statistics, documents([value], field))
    assert found == ({} if counts is None else {field: counts})


def test_a_field_that_is_absent_is_missing(statistics: FieldStatistics) -> None:
    found = round_of(statistics, [{"y": 1.0, "word": "a"}])
    assert found == dict.fromkeys(("x", "n", "v", "b"), FieldCounts(missing=1))


def test_a_number_is_out_of_range_when_it_is_further_outside_than_what_was_seen_is_wide() -> None:
    statistics = FieldStatistics(SCHEMA, (0,))
    seen = np.linspace(10.0, 20.0, LEARNING_VALUES).tolist()
    assert "x" not in round_of(statistics, documents(seen, "x"))  # nothing to compare with
    assert "x" not in round_of(statistics, documents([1.0, 29.0], "x"))
    # now 1 to 29 are known
    assert round_of(statistics, documents([-30.0, 60.0, 55.0, 15.0], "x"))["x"] == FieldCounts(out_of_range=2)
    assert "x" not in round_of(statistics, documents([-30.0, 60.0], "x"))  # no longer


def test_a_vector_is_out_of_range_with_any_of_its_elements(statistics: FieldStatistics) -> None:
    assert round_of(statistics, documents([[1.0, 9.0], [1.0, 1.0]], "v"))["v"] == FieldCounts(out_of_range=1)


def test_a_word_is_unseen_once(statistics: FieldStatistics) -> None:
    assert round_of(statistics, documents(["b", "c", "b"], "word"))["word"] == FieldCounts(unseen=2)
    assert "word" not in round_of(statistics, documents(["b", "a", "c"], "word"))


def test_words_that_have_not_been_seen_for_long_are_forgotten(statistics: FieldStatistics) -> None:
    old = documents([f"old{i}" for i in range(100)], "word")
    round_of(statistics, old)
    assert "word" not in round_of(statistics, old)
    for life in range(2):
        round_of(statistics, documents([f"{life}-{i}" for i in range(SLOTS)], "word"))
    found = round_of(statistics, old)["word"].unseen
    assert 20 <= found <= 60  # the slots of the others are taken


def test_numbers_that_have_not_been_seen_for_long_are_forgotten(statistics: FieldStatistics) -> None:
    assert round_of(statistics, documents([1e6], "x"))["x"].out_of_range == 1
    assert "x" not in round_of(statistics, documents([1e6], "x"))
    usual = Decoder(SCHEMA).decode([bson.encode(USUAL)] * 1000)
    for _ in range(2):
        for _ in range(LIFE_VALUES // 1000):
            statistics.observe(usual, [Segment(0, 0, 1000)])
        statistics.end_round()
    assert round_of(statistics, documents([1e6], "x"))["x"].out_of_range == 1


WORDS = st.sampled_from(["a", "b", "c", "d", "e"])
NUMBERS = st.sampled_from([0.0, 1.0, 2.0, 100.0, None, 3])
DOCUMENTS = st.lists(st.tuples(WORDS, NUMBERS).map(lambda pair: {**USUAL, "word": pair[0], "x": pair[1]}), max_size=30)


@given(rounds=st.lists(st.tuples(DOCUMENTS, DOCUMENTS), max_size=4), cut=st.integers(1, 7))
def test_counts_do_not_depend_on_chunks_or_on_the_number_of_workers(
    rounds: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]], cut: int
) -> None:
    together = FieldStatistics(SCHEMA, (0, 1))
    apart = [FieldStatistics(SCHEMA, (0,)), FieldStatistics(SCHEMA, (1,))]
    for both in rounds:
        observed(together, dict(enumerate(both)))
        expected = together.end_round()
        found: dict[str, FieldCounts] = {}
        for partition, (own, statistics) in enumerate(zip(both, apart, strict=True)):
            for begin in range(0, len(own), cut):
                observed(statistics, {partition: own[begin : begin + cut]})
            for field, counts in statistics.end_round().items():
                found[field] = found.get(field, FieldCounts()) + counts
        assert found == expected

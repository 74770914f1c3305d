from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId

from streamtrain.errors import UsageError
from streamtrain.init.feature import Chosen, LeftOut, feature
from streamtrain.init.suggestion import MOST_FEATURES, suggest
from tests.unit.init.looked import profile, seen


def of(values: list[Any]) -> Chosen | LeftOut:
    """The feature that a field with these values becomes; `...` is a document without it."""
    found = profile([{} if value is ... else {"f": value} for value in values])
    return feature(found.fields["f"], found)


def spec(values: list[Any]) -> dict[str, Any]:
    found = of(values)
    assert isinstance(found, Chosen), found
    return {key: value for key, value in found.spec().items() if key != "field"}


def why(values: list[Any]) -> str:
    found = of(values)
    assert isinstance(found, LeftOut), found
    return found.why


def packed(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


NUMBERS = [float(n) for n in range(100)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (NUMBERS, {"dtype": "float32"}),
        ([1, 2.5, Int64(3), Decimal128("4.5")] * 10, {"dtype": "float32"}),
        ([*NUMBERS, ...], {"dtype": "float32", "missing": 49}),
        ([0.25, 0.5, 0.75, None] * 10, {"dtype": "float32", "missing": 0.5}),
        ([1.5, 2.5, 3.5, float("nan")] * 10, {"dtype": "float32", "missing": 2.5}),
        ([2.0**40 * n for n in range(50)], {"dtype": "float64"}),
        ([1e300 * n for n in range(50)], {"dtype": "float64"}),
        ([True, False] * 20, {"dtype": "bool"}),
        ([True, True, False, ...] * 20, {"dtype": "bool", "missing": True}),
        ([True, ...] * 20, {"dtype": "bool", "missing": False}),
        (["a", "b", "c"] * 20, {"dtype": "string"}),
        (["a", "b", None] * 20, {"dtype": "string", "missing": ""}),
        ([[1, 2.5, 3]] * 20, {"dtype": "float32", "length": 3}),
        ([[1.5, 2.5], ...] * 20, {"dtype": "float32", "length": 2, "missing": 0}),
        ([Binary(packed(0.5, -1.5, 3.0))] * 20, {"dtype": "float32", "length": 3, "encoding": "binary"}),
        ([Binary(b"\x27\x00" + packed(0.5, 1.5), 9)] * 20, {"dtype": "float32", "length": 2, "encoding": "binary"}),
        ([datetime(2026, 1, 1 + n, tzinfo=UTC) for n in range(28)], {"dtype": "datetime"}),
    ],
)
def test_what_documents_hold_says_what_the_model_gets(values: list[Any], expected: dict[str, Any]) -> None:
    assert spec(values) == expected


def test_many_categories_get_buckets_of_their_own() -> None:
    few, many = (of([f"c{n % count}" for n in range(2000)]) for count in (100, 900))
    assert isinstance(few, Chosen)
    assert isinstance(many, Chosen)
    assert (few.buckets, many.buckets) == (None, 2048)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([7] * 50, "was the same number"),
        (["a"] * 50, "was the same text"),
        ([True] * 50, "was always true"),
        ([None] * 50, "was null in every document"),
        ([float("inf")] * 50, "was never a finite number"),
        ([1, "a"] * 25, "holds several types (number in 50.0%, string in 50.0%)"),
        ([{"x": 1}, 5] * 25, "holds several types"),
        ([f"u{n}" for n in range(100)], "an identifier or free text: 100 different ones"),
        ([f"{n}.5" for n in range(100)], "holds numbers written as texts"),
        ([f"2026-01-{1 + n % 28:02d}T00:{n % 60:02d}" for n in range(100)], "holds times written as texts"),
        ([f"the {n} quick brown fox jumps over the lazy dog again" for n in range(9)] * 9, "holds free text"),
        ([Int64(2**60 + n) for n in range(50)], "holds numbers too large to be exact"),
        ([[1, 2], [1]] * 25, "lists of 1 to 2 numbers"),
        ([[{"a": 1}]] * 50, "lists of 1 to 1 elements that hold object"),
        ([[]] * 50, "lists without elements"),
        ([[float("nan")]] * 50, "lists with elements that are no finite numbers"),
        ([[0.5] * 2000] * 20, "a vector of 2,000 numbers"),
        ([Binary(b"abc")] * 50, "binary data that is no float32 vector"),
        ([ObjectId() for _ in range(50)], "holds object ids"),
        ([1.5, *[...] * 99], "is in 1.0% of the documents only"),
    ],
)
def test_what_no_model_can_use_is_left_out_with_the_reason(values: list[Any], told: str) -> None:
    assert why(values).startswith(told)


def test_numbers_that_are_called_like_identifiers_and_are_all_different_are_left_out() -> None:
    documents = [{"x": n % 5, "user_id": 7919 * n, "store_id": n % 9, "y": n % 2} for n in range(200)]
    found = suggest(seen(documents))
    assert [each.field for each in found.features] == ["x", "store_id"]


def test_a_few_documents_say_nothing_about_constants() -> None:
    found = suggest(seen([{"x": 1.0, "y": 2.0}]), label="y")
    assert [each.field for each in found.features] == ["x"]


def test_a_feature_that_gives_the_label_away_is_remarked_on() -> None:
    documents = [{"x": float(n % 13), "fee": 0.2 * (n % 17) + 1, "price": n % 17, "y": float("nan")} for n in range(90)]
    told = {each.field: each.told for each in suggest(seen(documents), label="price").features}
    assert told["fee"].endswith("follows price almost exactly (r = 1.000): is it known before?")
    assert "follows" not in told["x"]


def test_numbers_of_any_size_are_compared_without_a_warning() -> None:
    documents = [{"huge": 1e308 * (n % 5), "tiny": 1e-308 * (n % 7), "same": 1, "y": n % 2} for n in range(90)]
    found = suggest(seen(documents)).features
    assert [each.field for each in found] == ["huge", "tiny"]


def test_names_that_are_data_are_one_line() -> None:
    documents = [{"x": n % 9, "y": n % 2, "seen": {f"user{n}": 1}} for n in range(100)]
    (counts,) = [each for each in suggest(seen(documents)).left_out if each.field != "_id"]
    assert (counts.field, counts.why) == ("seen.*", "100 names, each in few documents: names that are data")


def test_names_that_no_path_can_say_are_left_out() -> None:
    documents = [{"a.b": n, "": n, "c": {"d.e": n}, "x/z": n, "x": n % 9, "y": n % 2} for n in range(50)]
    found = suggest(seen(documents))
    assert [each.field for each in found.features] == ["x"]
    assert {each.field for each in found.left_out} == {"a.b", "", "c.d.e", "x/z"}


def test_no_more_features_are_taken_than_the_built_in_model_takes_well() -> None:
    documents = [{f"f{i}": (n * i) % 17 for i in range(300)} | {"y": n % 2} for n in range(30)]
    found = suggest(seen(documents))
    assert len(found.features) == MOST_FEATURES
    assert found.left_out[-1].why.startswith("beyond 100 features")


def test_documents_with_nothing_to_predict_from_are_refused_with_the_reasons() -> None:
    with pytest.raises(UsageError, match="has no field to predict 'y' from") as told:
        suggest(seen([{"_id": n, "y": n % 2, "kind": "same"} for n in range(50)]))
    assert "kind: was the same text" in told.value.message


def test_memory_is_bounded_whatever_the_documents_hold() -> None:
    documents = ({f"k{n}-{i}": f"{n}{i}" for i in range(2000)} | {"y": n % 2, "x": n} for n in range(20))
    found = profile(documents)
    assert len(found.fields) == 3000
    assert found.untold > 30_000

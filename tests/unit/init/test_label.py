from __future__ import annotations

from typing import Any

import pytest

from streamtrain.errors import UsageError
from streamtrain.init.label import ENOUGH, Candidate, candidates
from streamtrain.init.suggestion import Seen, suggest
from streamtrain.types import DType, Task
from tests.unit.init.looked import seen


def among(looked: Seen) -> dict[str, Candidate]:
    return {each.field: each for each in candidates(looked.profile, looked.newest, looked.habits)}


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"_id": number, "items": number % 7, "price": 1.5 * number, **more}


OLD = [order(n, took=n % 40) for n in range(300)]
NEW = [order(n) for n in range(300, 360)]


def test_a_field_that_new_documents_lack_is_what_is_predicted() -> None:
    looked = seen(OLD + NEW, newest=NEW)
    found = suggest(looked).label
    assert (found.field, found.late, found.task) == ("took", True, Task.REGRESSION)
    assert found.reasons == ("is in 83% of all documents and in 0% of the newest",)


def test_a_field_that_only_updates_set_is_late_however_old_the_documents_are() -> None:
    events = [{"operationType": "insert", "fullDocument": document} for document in NEW]
    events += [{"operationType": "update", "updateDescription": {"updatedFields": {"took": 3}}}] * 50
    found = among(seen(OLD, newest=OLD[-50:], events=events))["took"]
    assert found.late
    assert found.reasons[0] == "was set by 50 updates and brought by none of the inserts"


@pytest.mark.parametrize("name", ["label", "is_fraud", "hasChurned", "outcome.converted", "y"])
def test_a_field_that_is_called_like_a_label_is_one(name: str) -> None:
    parts = name.split(".")
    documents = [{"x": n % 9, parts[0]: {parts[1]: n % 2} if len(parts) > 1 else n % 2} for n in range(100)]
    assert suggest(seen(documents)).label.field == name


def test_an_identifier_or_a_time_is_no_label_by_its_name() -> None:
    found = among(seen([{"x": n, "result_id": n, "delay": n} for n in range(100)]))
    assert found["result_id"].score < ENOUGH


@pytest.mark.parametrize(
    ("values", "task", "dtype", "classes"),
    [
        ([True, False], Task.CLASSIFICATION, DType.BOOL, 2),
        ([0, 1], Task.CLASSIFICATION, DType.INT32, 2),
        ([0.0, 1.0, 2.0], Task.CLASSIFICATION, DType.INT32, 3),
        ([1, 2, 3], Task.CLASSIFICATION, DType.INT32, 4),
        ([-1, 1], Task.REGRESSION, DType.FLOAT32, 2),
        ([0.5, 1.5], Task.REGRESSION, DType.FLOAT32, 2),
        ([-4, 7, 900], Task.REGRESSION, DType.FLOAT32, 2),
        (list(range(0, 3000, 50)), Task.REGRESSION, DType.FLOAT32, 2),
    ],
)
def test_the_values_say_whether_it_is_a_classification(
    values: list[Any], task: Task, dtype: DType, classes: int
) -> None:
    found = among(seen([{"x": n, "target": values[n % len(values)]} for n in range(600)]))["target"]
    assert (found.task, found.dtype, found.classes) == (task, dtype, classes)


def test_ratings_are_amounts_rather_than_classes() -> None:
    assert among(seen([{"x": n, "stars": 1 + n % 5} for n in range(300)]))["stars"].task is Task.REGRESSION


def test_a_yes_that_comes_or_does_not_has_a_value_for_its_absence() -> None:
    old = [{"x": n, **({"clicked": True} if n % 5 == 0 else {})} for n in range(500)]
    found = suggest(seen(old, newest=[{"x": n} for n in range(50)])).label
    assert (found.field, found.absent_value, found.dtype) == ("clicked", 0, DType.BOOL)


def test_a_field_that_always_holds_the_same_is_not_taken() -> None:
    with pytest.raises(UsageError, match="no field of"):
        suggest(seen([{"x": n, "label": 1} for n in range(100)]))


def test_without_a_likely_label_those_that_can_be_one_are_named() -> None:
    with pytest.raises(UsageError, match="looks like what is to be predicted") as told:
        suggest(seen([{"_id": n, "a": n, "b": {"c": n / 2}, "text": "x"} for n in range(100)]))
    assert told.value.hint == "name it: --label FIELD; those that can be one: a, b.c"


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("species", "--label species: holds texts: write a number for each class beside them"),
        ("nothing", "--label nothing: is in none of 100 documents of shop.orders"),
        ("deep", "--label deep: holds a document: name a field inside it"),
        ("_id", "--label _id: is the document's key"),
        ("mixed", "--label mixed: holds several types (string in 50.0%, number in 50.0%)"),
        ("far", "--label far: holds numbers up to 1e+20"),
        ("never", "--label never: holds nothing but null"),
        ("nan", "--label nan: holds no finite number"),
    ],
)
def test_a_field_that_cannot_be_a_label_is_refused_with_the_reason(label: str, told: str) -> None:
    document = {"species": "s", "deep": {"a": 1}, "far": 1e20, "never": None, "nan": float("nan")}
    documents = [{"_id": n, **document, "mixed": n if n % 2 else "x", "x": n} for n in range(100)]
    with pytest.raises(UsageError) as error:
        suggest(seen(documents), label=label)
    assert error.value.message.startswith(told)
    assert "those that can be one: deep.a, x" in error.value.hint


def test_what_comes_with_the_label_is_no_feature_and_what_else_could_be_it_is_named() -> None:
    old = [order(n, delay=n % 40, duration=n % 9) for n in range(300)]
    found = suggest(seen(old + NEW, newest=NEW))
    assert (found.label.field, [each.field for each in found.others]) == ("delay", ["duration"])
    assert [each.field for each in found.features] == ["items", "price"]
    assert "not known when delay is predicted" in {each.field: each.why for each in found.left_out}["duration"]


def test_features_that_change_while_the_label_is_awaited_are_taken_from_the_first_version() -> None:
    events = [{"operationType": "insert", "fullDocument": document} for document in NEW]
    update = {"operationType": "update", "updateDescription": {"updatedFields": {"took": 3, "price": 2.0}}}
    looked = seen(OLD + NEW, newest=NEW, events=[*events, *[update] * 30])
    assert suggest(looked).changing == ("price",)

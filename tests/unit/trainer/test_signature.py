"""What an exported model's arguments and answers are called."""

from __future__ import annotations

import pytest

from streamtrain.trainer.signature import Classes, Value, signature_of
from streamtrain.types import DType, Feature, Label, Schema, Task


def arguments(*fields: str) -> list[str]:
    schema = Schema(features=tuple(Feature(field, DType.FLOAT32) for field in fields), labels=())
    return list(signature_of(schema).inputs.values())


@pytest.mark.parametrize(
    ("field", "argument"),
    [
        ("dep_delay", "dep_delay"),
        ("depDelay", "depDelay"),
        ("weather.wind", "weather_wind"),
        ("größe", "gr__e"),
        ("class", "field_class"),
        ("self", "field_self"),
        ("_id", "field__id"),
        ("0", "field_0"),
    ],
)
def test_an_argument_is_called_after_its_field(field: str, argument: str) -> None:
    assert arguments(field) == [argument]


def test_fields_that_meet_in_one_name_are_numbered_and_who_had_it_keeps_it() -> None:
    assert arguments("a.b", "a_b", "a-b") == ["a_b_2", "a_b", "a_b_3"]


def test_fields_that_differ_by_case_only_are_told_apart() -> None:
    assert arguments("Wind", "wind") == ["Wind", "wind_2"]


def test_a_name_made_of_two_fields_is_not_one_that_is_there() -> None:
    assert arguments("a.b", "a_b", "a_b_2") == ["a_b_3", "a_b", "a_b_2"]


def test_answers_are_a_value_or_a_class_with_its_probabilities() -> None:
    schema = Schema(
        features=(),
        labels=(
            Label("delay.arrival", DType.FLOAT32, Task.REGRESSION),
            Label("kind", DType.INT32, Task.CLASSIFICATION, classes=3),
        ),
    )
    assert signature_of(schema).outputs == {
        "delay.arrival": Value("delay_arrival"),
        "kind": Classes("kind", "kind_probabilities"),
    }

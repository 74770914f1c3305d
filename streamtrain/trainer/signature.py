"""What an exported model is asked and what it answers, by name. Pure: names are decided here and nowhere else."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamtrain.types import Schema, Task

NAME = "serving_default"
_ILLEGAL = re.compile(r"[^0-9A-Za-z_]")  # TensorFlow would replace it as well, but says nothing when two names meet


@dataclass(frozen=True, slots=True)
class Value:
    """The name of a regression's prediction, [batch]."""

    name: str


@dataclass(frozen=True, slots=True)
class Classes:
    """The names of what is said of a classification. name: the likeliest class, int64 [batch]. probabilities: of each
    class, [batch, classes], also where there are two."""

    name: str
    probabilities: str


@dataclass(frozen=True, slots=True)
class Signature:
    """inputs: the argument of each feature field. outputs: what is answered for each label field."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, Value | Classes]


def signature_of(schema: Schema) -> Signature:
    """Arguments and answers are called after their fields, with `_` for what a name cannot hold: `weather.wind` is
    `weather_wind` (and `class`, a word of Python's, is `field_class`). Where two fields meet in one name, the later
    ones get a number."""
    arguments = _names([feature.field for feature in schema.features])
    wanted = [
        name
        for label in schema.labels
        for name in ([label.field] if label.task is Task.REGRESSION else [label.field, f"{label.field}_probabilities"])
    ]
    names = iter(_names(wanted))
    outputs: dict[str, Value | Classes] = {
        label.field: Value(next(names)) if label.task is Task.REGRESSION else Classes(next(names), next(names))
        for label in schema.labels
    }
    return Signature(
        inputs=dict(zip((feature.field for feature in schema.features), arguments, strict=True)), outputs=outputs
    )


def _names(wanted: Sequence[str]) -> list[str]:
    """In their order; those that are legal as they stand keep their name."""
    taken: set[str] = set()
    found: dict[int, str] = {}
    for index, name in sorted(enumerate(wanted), key=lambda each: _legal(each[1]) != each[1]):
        legal, number = _legal(name), 2
        candidate = legal
        while candidate.lower() in taken:  # a graph does not tell `Raw` from `raw`
            candidate, number = f"{legal}_{number}", number + 1
        taken.add(candidate.lower())
        found[index] = candidate
    return [found[index] for index in range(len(wanted))]


def _legal(name: str) -> str:
    legal = _ILLEGAL.sub("_", name)
    taken = keyword.iskeyword(legal) or legal == "self"
    return legal if legal[:1].isalpha() and not taken else f"field_{legal}"

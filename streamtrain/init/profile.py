"""A sample of documents, path by path. Nested documents are walked into, arrays are not: a feature's path ends where
a value, or a list of values, begins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from streamtrain.init.field import Field

MOST_FIELDS = 3000
DEEPEST = 20
_MOST_UNREACHABLE = 200
_ROWS = 500
_ROW_NUMBERS = 300
_FEWEST_PAIRS = 30


class Profile:
    """fields: in the order in which they were first seen. unreachable: names that no dotted path can say, and why.
    untold: values at paths beyond MOST_FIELDS. rows: the numbers and booleans of the first documents, side by side."""

    def __init__(self) -> None:
        self.documents = 0
        self.bytes = 0
        self.fields: dict[str, Field] = {}
        self.unreachable: dict[str, str] = {}
        self.untold = 0
        self.rows: list[dict[str, float]] = []

    def add(self, document: Mapping[str, Any], *, size: int = 0) -> None:
        self.documents += 1
        self.bytes += size
        row: dict[str, float] = {}
        for path, value in leaves(document, self.unreachable):
            field = self.fields.get(path)
            if field is None:
                if len(self.fields) >= MOST_FIELDS:
                    self.untold += 1
                    continue
                field = self.fields[path] = Field(path)
            field.add(value)
            if isinstance(value, (bool, int, float)) and len(row) < _ROW_NUMBERS:
                row[path] = float(value)
        if len(self.rows) < _ROWS:
            self.rows.append(row)

    def inner(self, path: str) -> bool:
        """Whether the path only ever leads to others."""
        field = self.fields[path]
        return set(field.families) == {"object"} and any(
            other.startswith(f"{path}.") for other in (*self.fields, *self.unreachable)
        )

    def rate(self, path: str) -> float:
        """Share of the documents that hold something at the path."""
        field = self.fields.get(path)
        return 0.0 if field is None or not self.documents else field.present / self.documents

    def correlation(self, one: str, other: str) -> float | None:
        """Pearson's, of the documents that hold a number at both; None where too few do or nothing varies."""
        pairs = [(row[one], row[other]) for row in self.rows if one in row and other in row]
        values = np.array([pair for pair in pairs if math.isfinite(pair[0]) and math.isfinite(pair[1])])
        if len(values) < _FEWEST_PAIRS:
            return None
        scaled = values / np.maximum(np.abs(values).max(axis=0), 1e-300)
        spread = scaled.std(axis=0)
        if (spread < 1e-9).any():
            return None
        return float(((scaled - scaled.mean(axis=0)) / spread).prod(axis=1).mean())


def leaves(document: Mapping[str, Any], unreachable: dict[str, str] | None = None) -> Iterator[tuple[str, Any]]:
    """Every dotted path with its value, a nested document before what is in it."""
    refused = {} if unreachable is None else unreachable
    stack: list[tuple[str, int, Iterator[tuple[str, Any]]]] = [("", 0, iter(document.items()))]
    while stack:
        prefix, depth, items = stack[-1]
        for name, value in items:
            path = f"{prefix}{name}"
            if why := _unreachable(name):
                _refuse(refused, path, why)
                continue
            yield path, value
            if isinstance(value, Mapping) and value:
                if depth >= DEEPEST:
                    _refuse(refused, path, f"is nested deeper than {DEEPEST} levels")
                    continue
                stack.append((f"{path}.", depth + 1, iter(value.items())))
                break
        else:
            stack.pop()


def _unreachable(name: str) -> str | None:
    if not name:
        return "has an empty name, which no path can say"
    if "." in name:
        return "has a dot in its name, which a path takes for nesting"
    if "\ufffd" in name:
        return "has a name that is no UTF-8"
    return None


def _refuse(refused: dict[str, str], path: str, why: str) -> None:
    if path in refused or len(refused) < _MOST_UNREACHABLE:
        refused[path] = why

"""What a dotted path of a MongoDB query leads to in a decoded document, through arrays of documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bson import DBRef

from streamtrain.bson_order import MISSING

Found = list[Any]


def found_at(document: Any, parts: Sequence[str]) -> tuple[Found, Found]:
    """The values at a path, and those with the members of the arrays among them that queries enter."""
    whole: Found = []
    members: Found = []
    for value, entered in _walk(document, parts, 0):
        whole.append(value)
        if entered:
            members.extend(value)
    return whole, [*members, *whole] if members else whole


def _walk(value: Any, parts: Sequence[str], depth: int) -> Iterator[tuple[Any, bool]]:
    """The values at a path, MISSING where it ends too early, each with whether it is an array to be entered. An array
    on the way is entered by member, and by position where the path names one; one without any fitting member leads
    nowhere, not even to a missing value."""
    while depth < len(parts):
        value = member(value, parts[depth])
        depth += 1
        if isinstance(value, list):
            if depth == len(parts):
                yield value, True
            else:
                yield from _walk_array(value, parts, depth)
            return
    yield value, False


def _walk_array(array: list[Any], parts: Sequence[str], depth: int) -> Iterator[tuple[Any, bool]]:
    for place, item in enumerate(array):
        if isinstance(item, Mapping):
            yield from _walk(item, parts, depth)
        if parts[depth] == str(place):
            if depth + 1 == len(parts):
                yield item, False
            elif isinstance(item, (Mapping, list)):
                yield from _walk(item, parts, depth + 1)


def member(container: Any, name: str) -> Any:
    if isinstance(container, Mapping):
        return container.get(name, MISSING)
    if isinstance(container, list) and name.isdecimal() and str(int(name)) == name and int(name) < len(container):
        return container[int(name)]
    if isinstance(container, DBRef):
        return container.as_doc().get(name, MISSING)
    return MISSING

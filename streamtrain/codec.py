"""Dataclasses to BSON-ready documents and back: what messages, manifests and positions are stored as."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_document(value: Any) -> dict[str, Any]:
    """A document of plain BSON types; mapping keys become strings, tuples lists, enums their values."""
    document = _plain(_adapter(type(value)).dump_python(value))  # type: ignore[arg-type]
    assert isinstance(document, dict)
    return document


def from_document(kind: type[T], document: Mapping[str, Any]) -> T:
    """The dataclass that `to_document` was given. Raises pydantic.ValidationError when it does not fit."""
    result: T = _adapter(kind).validate_python(document)  # type: ignore[arg-type]
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value

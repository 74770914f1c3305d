"""BSON values as settings write them: YAML's own types, and Extended JSON's notation for those that YAML lacks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from bson import json_util
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from bson.regex import Regex

from streamtrain.errors import FilterError

Place = tuple[str | int, ...]

_NAMES: Final = frozenset(
    {
        "$oid", "$date", "$numberInt", "$numberLong", "$numberDouble", "$numberDecimal", "$timestamp", "$binary",
        "$uuid", "$minKey", "$maxKey", "$regularExpression",
    }
)  # fmt: skip
_JSON: Final = json_util.JSONOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, json_mode=json_util.JSONMode.CANONICAL
)


def is_literal(value: Mapping[str, Any]) -> bool:
    """Whether a mapping is Extended JSON's notation of a value."""
    return len(value) == 1 and next(iter(value)) in _NAMES


def literal(value: Any, at: Place) -> Any:
    """The value that stands at `at`. Raises FilterError."""
    if isinstance(value, Mapping):
        if is_literal(value):
            try:
                read = json_util.object_hook(dict(value), _JSON)
            except (BSONError, ValueError, TypeError, KeyError, ArithmeticError) as error:
                raise FilterError(at, f"{next(iter(value))}: {error}") from None
            return checked(read, at) if isinstance(read, Regex) else read
        if wrong := next((name for name in value if str(name).startswith("$")), None):
            raise FilterError((*at, wrong), f"{wrong!r} inside a value")
        return {name: literal(item, (*at, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [literal(item, (*at, place)) for place, item in enumerate(value)]
    return value


def checked(pattern: Regex[Any], at: Place) -> Regex[str]:
    """The pattern, if it is one. Raises FilterError."""
    try:
        re.compile(pattern.pattern, pattern.flags)
    except re.error as error:
        raise FilterError(at, f"no regular expression: {error}") from None
    return pattern

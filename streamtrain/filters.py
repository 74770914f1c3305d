"""A job's filter: a MongoDB query, compiled once to a test of decoded documents. It must answer as MongoDB would, and
refuse, with the place of the mistake, what it cannot answer."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from bson import DBRef, json_util
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from bson.regex import Regex

from streamtrain.bson_order import (
    MAX_RANK,
    MIN_RANK,
    MISSING,
    TYPES,
    is_nan,
    is_number,
    number_of,
    order_key,
    rank,
    type_of,
)
from streamtrain.errors import FilterError

Place = tuple[str | int, ...]
Found = list[Any]

# A test of what a path leads to: the values themselves, and those with the members of arrays that stand at its end.
Condition = Callable[[Found, Found], bool]
Predicate = Callable[[Any], bool]

_LOGIC: Final = ("$and", "$or", "$nor")
_OPTIONS: Final = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}
_NUMBERS: Final = frozenset({1, 16, 18, 19})
# Extended JSON's ways to write what YAML has no type for.
_LITERALS: Final = frozenset(
    {
        "$oid", "$date", "$numberInt", "$numberLong", "$numberDouble", "$numberDecimal", "$timestamp", "$binary",
        "$uuid", "$minKey", "$maxKey", "$regularExpression",
    }
)  # fmt: skip


class Filter:
    """fields: the top-level fields that the answer depends on. Raises FilterError."""

    def __init__(self, query: Mapping[str, Any]) -> None:
        self._predicate = _query(query, ())
        self.fields = tuple(sorted(set(_fields(query))))

    def matches(self, document: Mapping[str, Any]) -> bool:
        """document: as bson.decode gives it, with dates as DatetimeMS."""
        return self._predicate(document)


def _fields(query: Mapping[str, Any]) -> Iterator[str]:
    for name, condition in query.items():
        if name in _LOGIC:
            for part in condition:
                yield from _fields(part)
        elif not name.startswith("$"):
            yield name.partition(".")[0]


def _query(query: Any, at: Place) -> Predicate:
    if not isinstance(query, Mapping):
        raise FilterError(at, "must be a mapping of fields to conditions")
    tests = [_clause(name, condition, (*at, name)) for name, condition in query.items() if name != "$comment"]
    if len(tests) == 1:
        return tests[0]
    return lambda document: all(test(document) for test in tests)


def _clause(name: str, condition: Any, at: Place) -> Predicate:
    if name in _LOGIC:
        return _logic(name, condition, at)
    if name.startswith("$"):
        raise FilterError(at, f"unknown operator {name!r} where a field is expected{_suggestion(name, _LOGIC)}")
    if not name or "" in name.split("."):
        raise FilterError(at, f"{name!r} is no path of a field")
    test = _condition(condition, at)
    parts = name.split(".")
    if len(parts) > 1:
        return lambda document: test(*_found(document, parts))

    def of_field(document: Any) -> bool:
        value = _member(document, name)
        whole = [value]
        return test(whole, [*value, value] if isinstance(value, list) else whole)

    return of_field


def _logic(name: str, condition: Any, at: Place) -> Predicate:
    if not isinstance(condition, list) or not condition:
        raise FilterError(at, f"{name} needs a list of at least one query")
    members = [_query(part, (*at, place)) for place, part in enumerate(condition)]
    if name == "$and":
        return lambda document: all(member(document) for member in members)
    if name == "$or":
        return lambda document: any(member(document) for member in members)
    return lambda document: not any(member(document) for member in members)


# --------------------------------------------------------------------------- what a path leads to


def _found(document: Any, parts: Sequence[str]) -> tuple[Found, Found]:
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
        value = _member(value, parts[depth])
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


def _member(container: Any, name: str) -> Any:
    if isinstance(container, Mapping):
        return container.get(name, MISSING)
    if isinstance(container, list) and name.isdecimal() and str(int(name)) == name and int(name) < len(container):
        return container[int(name)]
    if isinstance(container, DBRef):
        return container.as_doc().get(name, MISSING)
    return MISSING


# --------------------------------------------------------------------------- conditions


def _condition(condition: Any, at: Place) -> Condition:
    if not _is_operators(condition):
        value = _literal(condition, at)
        return _any(_matching(value) if isinstance(value, Regex) else _equal(value))
    tests = []
    for name, argument in condition.items():
        place = (*at, name)
        if not name.startswith("$"):
            raise FilterError(place, f"{name!r} stands beside operators")
        if name not in _OPERATORS:
            raise FilterError(place, f"unknown operator {name!r}{_suggestion(name, _OPERATORS)}")
        if name == "$options":
            if "$regex" not in condition:
                raise FilterError(place, "$options needs a $regex beside it")
            continue
        if name == "$regex":
            tests.append(_any(_matching(_pattern(argument, condition.get("$options", ""), place))))
        else:
            tests.append(_OPERATORS[name](argument, place))
    if len(tests) == 1:
        return tests[0]
    return lambda whole, found: all(test(whole, found) for test in tests)


def _is_operators(condition: Any) -> bool:
    """Whether a condition is made of operators, and is not a value to be equal to."""
    if not isinstance(condition, Mapping) or not condition:
        return False
    names = [str(name) for name in condition]
    return any(name.startswith("$") for name in names) and not _is_literal(condition)


def _is_literal(condition: Mapping[str, Any]) -> bool:
    return len(condition) == 1 and next(iter(condition)) in _LITERALS


def _any(test: Predicate) -> Condition:
    return lambda _, found: any(map(test, found))


def _none(test: Condition) -> Condition:
    return lambda whole, found: not test(whole, found)


def _equal(wanted: Any) -> Predicate:
    if wanted is None:
        return lambda value: value is None or value is MISSING
    if isinstance(wanted, bool):
        return lambda value: value is wanted
    if type(wanted) is str:
        return lambda value: type(value) is str and value == wanted
    if is_number(wanted) and not is_nan(wanted):
        number = number_of(wanted)
        return lambda value: is_number(value) and not is_nan(value) and bool(number_of(value) == number)
    key = order_key(wanted)
    return lambda value: value is not MISSING and order_key(value) == key


def _ordered(compare: Callable[[Any, Any], bool], *, or_equal: bool) -> Callable[[Any, Place], Condition]:
    def made(argument: Any, at: Place) -> Condition:
        bound = _literal(argument, at)
        if isinstance(bound, Regex):
            raise FilterError(at, "a pattern has no order")
        return _any(_compared(bound, compare, or_equal=or_equal))

    return made


def _compared(bound: Any, compare: Callable[[Any, Any], bool], *, or_equal: bool) -> Predicate:
    """Values compare with those of their own kind only, but for the ends of the order."""
    if bound is None or is_nan(bound):
        return _equal(bound) if or_equal else lambda _: False
    if is_number(bound):
        number = number_of(bound)
        return lambda value: is_number(value) and not is_nan(value) and compare(number_of(value), number)
    key, place = order_key(bound), rank(bound)
    everything = place in (MIN_RANK, MAX_RANK)
    return lambda value: (
        value is not MISSING and (everything or rank(value) == place) and compare(order_key(value), key)
    )


def _in(argument: Any, at: Place) -> Condition:
    if not isinstance(argument, list):
        raise FilterError(at, "needs a list")
    wanted = [_literal(item, (*at, place)) for place, item in enumerate(argument)]
    keys = {order_key(item) for item in wanted if not isinstance(item, Regex) and item is not None}
    others = [_matching(item) for item in wanted if isinstance(item, Regex)]
    if None in wanted:
        others.append(_equal(None))
    return _any(
        lambda value: (value is not MISSING and order_key(value) in keys) or any(test(value) for test in others)
    )


def _not(argument: Any, at: Place) -> Condition:
    value = _literal(argument, at) if not _is_operators(argument) else None
    if isinstance(value, Regex):
        return _none(_any(_matching(value)))
    if value is not None or not _is_operators(argument):
        raise FilterError(at, "needs operators, such as {$gt: 1}, or a pattern; for a value there is $ne")
    return _none(_condition(argument, at))


def _exists(argument: Any, at: Place) -> Condition:
    if not isinstance(argument, (bool, int)):
        raise FilterError(at, "needs true or false")
    wanted = bool(argument)
    return lambda whole, _: any(value is not MISSING for value in whole) == wanted


def _type(argument: Any, at: Place) -> Condition:
    numbers: set[int] = set()
    for kind in argument if isinstance(argument, list) else [argument]:
        if isinstance(kind, str) and kind == "number":
            numbers |= _NUMBERS
        elif isinstance(kind, str) and kind in TYPES:
            numbers.add(TYPES[kind])
        elif isinstance(kind, int) and not isinstance(kind, bool) and kind in TYPES.values():
            numbers.add(kind)
        else:
            raise FilterError(at, f"{kind!r} is no BSON type{_suggestion(str(kind), ('number', *TYPES))}")
    if not numbers:
        raise FilterError(at, "needs a type")
    return _any(lambda value: value is not MISSING and type_of(value) in numbers)


def _size(argument: Any, at: Place) -> Condition:
    if not isinstance(argument, int) or isinstance(argument, bool) or argument < 0:
        raise FilterError(at, "needs a number of elements")
    return lambda whole, _: any(isinstance(value, list) and len(value) == argument for value in whole)


def _mod(argument: Any, at: Place) -> Condition:
    numbers = argument if isinstance(argument, list) else []
    if len(numbers) != 2 or not all(map(_fits_int64, numbers)) or int(numbers[0]) == 0:
        raise FilterError(at, "needs a divisor, which is not 0, and a remainder, as in [10, 0]")
    divisor, remainder = int(numbers[0]), int(numbers[1])

    def test(value: Any) -> bool:
        if not _fits_int64(value):
            return False
        truncated = int(number_of(value))  # the remainder has the sign of the number, as in C
        return abs(truncated) % abs(divisor) * (1 if truncated >= 0 else -1) == remainder

    return _any(test)


def _fits_int64(value: Any) -> bool:
    """Whether a value is a number that is an int64 once its fraction is cut off."""
    return is_number(value) and not is_nan(value) and bool(-(2**63) <= number_of(value) < 2**63)


def _all(argument: Any, at: Place) -> Condition:
    if not isinstance(argument, list):
        raise FilterError(at, "needs a list")
    tests = []
    for place, item in enumerate(argument):
        if _is_operators(item) and list(item) != ["$elemMatch"]:
            raise FilterError((*at, place), "holds values, or $elemMatch")
        tests.append(_condition(item, (*at, place)))
    return lambda whole, found: bool(tests) and all(test(whole, found) for test in tests)


def _elem_match(argument: Any, at: Place) -> Condition:
    if not isinstance(argument, Mapping) or _is_literal(argument):
        raise FilterError(at, "needs a query, or operators")
    if _is_operators(argument) and not any(name in _LOGIC for name in argument):
        condition = _condition(argument, at)
        return lambda whole, _: any(
            isinstance(array, list) and any(condition([item], [item]) for item in array) for array in whole
        )
    query = _query(argument, at)
    return lambda whole, _: any(
        isinstance(array, list) and any(isinstance(item, (Mapping, list)) and query(item) for item in array)
        for array in whole
    )


def _matching(pattern: Regex[str]) -> Predicate:
    compiled = re.compile(pattern.pattern, pattern.flags)

    def test(value: Any) -> bool:
        if isinstance(value, Regex):
            return (value.pattern, value.flags) == (pattern.pattern, pattern.flags)
        return isinstance(value, str) and compiled.search(value) is not None

    return test


def _pattern(argument: Any, options: Any, at: Place) -> Regex[str]:
    literal = _literal(argument, at)
    if not isinstance(options, str) or any(letter not in _OPTIONS for letter in options):
        raise FilterError((*at[:-1], "$options"), f"{options!r}: the options are some of i, m, s and x")
    if isinstance(literal, Regex):
        return literal
    if not isinstance(literal, str):
        raise FilterError(at, "needs a pattern")
    flags = 0
    for letter in options:
        flags |= _OPTIONS[letter]
    return _checked(Regex(literal, flags), at)


def _checked(pattern: Regex[Any], at: Place) -> Regex[str]:
    try:
        re.compile(pattern.pattern, pattern.flags)
    except re.error as error:
        raise FilterError(at, f"no regular expression: {error}") from None
    return pattern


def _literal(value: Any, at: Place) -> Any:
    """The BSON value that the settings name, with Extended JSON's notation where YAML has no such type."""
    if isinstance(value, Mapping):
        if _is_literal(value):
            try:
                read = json_util.object_hook(dict(value), _JSON)
            except (BSONError, ValueError, TypeError, KeyError, ArithmeticError) as error:
                raise FilterError(at, f"{next(iter(value))}: {error}") from None
            return _checked(read, at) if isinstance(read, Regex) else read
        if wrong := next((name for name in value if str(name).startswith("$")), None):
            raise FilterError((*at, wrong), f"{wrong!r} inside a value")
        return {name: _literal(item, (*at, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_literal(item, (*at, place)) for place, item in enumerate(value)]
    return value


_JSON: Final = json_util.JSONOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, json_mode=json_util.JSONMode.CANONICAL
)

_OPERATORS: Final[dict[str, Callable[[Any, Place], Condition]]] = {
    "$eq": lambda argument, at: _any(_equal_to(argument, at)),
    "$ne": lambda argument, at: _none(_any(_equal_to(argument, at))),
    "$gt": _ordered(lambda a, b: bool(a > b), or_equal=False),
    "$gte": _ordered(lambda a, b: bool(a >= b), or_equal=True),
    "$lt": _ordered(lambda a, b: bool(a < b), or_equal=False),
    "$lte": _ordered(lambda a, b: bool(a <= b), or_equal=True),
    "$in": _in,
    "$nin": lambda argument, at: _none(_in(argument, at)),
    "$not": _not,
    "$exists": _exists,
    "$type": _type,
    "$regex": _all,  # these two are made together, by `_condition`
    "$options": _all,
    "$size": _size,
    "$mod": _mod,
    "$all": _all,
    "$elemMatch": _elem_match,
}


def _equal_to(argument: Any, at: Place) -> Predicate:
    value = _literal(argument, at)
    if isinstance(value, Regex):
        raise FilterError(at, "compares with a pattern; $regex matches it")
    return _equal(value)


def _suggestion(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"

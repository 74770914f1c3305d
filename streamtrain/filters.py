"""A job's filter: a MongoDB query, compiled once to a test of decoded documents. It must answer as MongoDB would, and
refuse, with the place of the mistake, what it cannot answer."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from bson.regex import Regex

from streamtrain.bson_literals import Place, checked, is_literal, literal
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
from streamtrain.bson_paths import Found, found_at, member
from streamtrain.errors import FilterError

Predicate = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of what a path leads to. many: of the values themselves, and of those with the members of the arrays among
    them. one: the same, quickly, of a single value that is no array."""

    one: Predicate
    many: Callable[[Found, Found], bool]


_LOGIC: Final = ("$and", "$or", "$nor")
_OPTIONS: Final = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}
_NUMBERS: Final = frozenset({1, 16, 18, 19})


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
    one, many = test.one, test.many
    if len(parts) > 1:
        return lambda document: many(*found_at(document, parts))

    def of_field(document: Any) -> bool:
        value = document.get(name, MISSING) if isinstance(document, dict) else member(document, name)
        return many([value], [*value, value]) if isinstance(value, list) else one(value)

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


def _condition(condition: Any, at: Place) -> Condition:
    if not _is_operators(condition):
        value = literal(condition, at)
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
    return Condition(
        one=lambda value: all(test.one(value) for test in tests),
        many=lambda whole, found: all(test.many(whole, found) for test in tests),
    )


def _is_operators(condition: Any) -> bool:
    """Whether a condition is made of operators, and is not a value to be equal to."""
    if not isinstance(condition, Mapping) or not condition:
        return False
    names = [str(name) for name in condition]
    return any(name.startswith("$") for name in names) and not is_literal(condition)


def _any(test: Predicate) -> Condition:
    return Condition(one=test, many=lambda _, found: any(map(test, found)))


def _none(test: Condition) -> Condition:
    one, many = test.one, test.many
    return Condition(one=lambda value: not one(value), many=lambda whole, found: not many(whole, found))


def _arrays(test: Callable[[list[Any]], bool]) -> Condition:
    """Of the arrays that the path leads to, as they are."""
    return Condition(
        one=lambda _: False,
        many=lambda whole, _: any(isinstance(value, list) and test(value) for value in whole),
    )


def _equal(wanted: Any) -> Predicate:
    if wanted is None:
        return lambda value: value is None or value is MISSING
    if isinstance(wanted, bool):
        return lambda value: value is wanted
    if type(wanted) is str:
        return lambda value: type(value) is str and value == wanted
    if is_number(wanted) and not is_nan(wanted):
        return _number(operator.eq, number_of(wanted))
    key = order_key(wanted)
    return lambda value: value is not MISSING and order_key(value) == key


def _number(compare: Callable[[Any, Any], Any], number: int | float | Decimal) -> Predicate:
    quick = not isinstance(number, Decimal)

    def test(value: Any) -> bool:
        kind = type(value)
        if quick and (kind is float or kind is int):  # not a number compares with nothing
            return bool(compare(value, number))
        return is_number(value) and not is_nan(value) and bool(compare(number_of(value), number))

    return test


def _ordered(compare: Callable[[Any, Any], Any], *, or_equal: bool) -> Callable[[Any, Place], Condition]:
    def made(argument: Any, at: Place) -> Condition:
        bound = literal(argument, at)
        if isinstance(bound, Regex):
            raise FilterError(at, "a pattern has no order")
        return _any(_compared(bound, compare, or_equal=or_equal))

    return made


def _compared(bound: Any, compare: Callable[[Any, Any], Any], *, or_equal: bool) -> Predicate:
    """Values compare with those of their own kind only, but for the ends of the order."""
    if bound is None or is_nan(bound):
        return _equal(bound) if or_equal else lambda _: False
    if is_number(bound):
        return _number(compare, number_of(bound))
    key, place = order_key(bound), rank(bound)
    everything = place in (MIN_RANK, MAX_RANK)
    return lambda value: (
        value is not MISSING and (everything or rank(value) == place) and bool(compare(order_key(value), key))
    )


def _in(argument: Any, at: Place) -> Condition:
    if not isinstance(argument, list):
        raise FilterError(at, "needs a list")
    wanted = [literal(item, (*at, place)) for place, item in enumerate(argument)]
    strings = {item for item in wanted if type(item) is str}
    keys = {order_key(item) for item in wanted if not isinstance(item, Regex) and item is not None}
    patterns = [_matching(item) for item in wanted if isinstance(item, Regex)]
    nothing = None in wanted

    def test(value: Any) -> bool:
        if type(value) is str:
            return value in strings or any(pattern(value) for pattern in patterns)
        if value is MISSING or value is None:
            return nothing
        return order_key(value) in keys or any(pattern(value) for pattern in patterns)

    return _any(test)


def _not(argument: Any, at: Place) -> Condition:
    value = literal(argument, at) if not _is_operators(argument) else None
    if isinstance(value, Regex):
        return _none(_any(_matching(value)))
    if value is not None or not _is_operators(argument):
        raise FilterError(at, "needs operators, such as {$gt: 1}, or a pattern; for a value there is $ne")
    return _none(_condition(argument, at))


def _exists(argument: Any, at: Place) -> Condition:
    if not isinstance(argument, (bool, int)):
        raise FilterError(at, "needs true or false")
    wanted = bool(argument)
    return Condition(
        one=lambda value: (value is not MISSING) == wanted,
        many=lambda whole, _: any(value is not MISSING for value in whole) == wanted,
    )


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
    return _arrays(lambda array: len(array) == argument)


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
    return Condition(
        one=lambda value: bool(tests) and all(test.one(value) for test in tests),
        many=lambda whole, found: bool(tests) and all(test.many(whole, found) for test in tests),
    )


def _elem_match(argument: Any, at: Place) -> Condition:
    if not isinstance(argument, Mapping) or is_literal(argument):
        raise FilterError(at, "needs a query, or operators")
    if _is_operators(argument) and not any(name in _LOGIC for name in argument):
        condition = _condition(argument, at)
        return _arrays(lambda array: any(condition.many([item], [item]) for item in array))
    query = _query(argument, at)
    return _arrays(lambda array: any(isinstance(item, (Mapping, list)) and query(item) for item in array))


def _matching(pattern: Regex[str]) -> Predicate:
    compiled = re.compile(pattern.pattern, pattern.flags)

    def test(value: Any) -> bool:
        if isinstance(value, Regex):
            return (value.pattern, value.flags) == (pattern.pattern, pattern.flags)
        return isinstance(value, str) and compiled.search(value) is not None

    return test


def _pattern(argument: Any, options: Any, at: Place) -> Regex[str]:
    value = literal(argument, at)
    if not isinstance(options, str) or any(letter not in _OPTIONS for letter in options):
        raise FilterError((*at[:-1], "$options"), f"{options!r}: the options are some of i, m, s and x")
    if isinstance(value, Regex):
        return value
    if not isinstance(value, str):
        raise FilterError(at, "needs a pattern")
    flags = 0
    for letter in options:
        flags |= _OPTIONS[letter]
    return checked(Regex(value, flags), at)


_OPERATORS: Final[dict[str, Callable[[Any, Place], Condition]]] = {
    "$eq": lambda argument, at: _any(_equal_to(argument, at)),
    "$ne": lambda argument, at: _none(_any(_equal_to(argument, at))),
    "$gt": _ordered(operator.gt, or_equal=False),
    "$gte": _ordered(operator.ge, or_equal=True),
    "$lt": _ordered(operator.lt, or_equal=False),
    "$lte": _ordered(operator.le, or_equal=True),
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
    value = literal(argument, at)
    if isinstance(value, Regex):
        raise FilterError(at, "compares with a pattern; $regex matches it")
    return _equal(value)


def _suggestion(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"

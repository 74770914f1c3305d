"""Query filters compiled to predicates over decoded documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from bson.regex import Regex

from streamtrain.sandbox.mongo import values
from streamtrain.sandbox.mongo.expressions import Scope, compile_expression, truthy
from streamtrain.sandbox.mongo.failure import CommandError
from streamtrain.sandbox.mongo.values import MISSING

Predicate = Callable[[Mapping[str, Any]], bool]
Test = Callable[[Any], bool]


def compile_filter(query: Mapping[str, Any], scope: Scope) -> Predicate:
    """A predicate for a filter. Raises CommandError for an operator that is unknown here."""
    tests = [_clause(name, condition, scope) for name, condition in query.items() if name != "$comment"]
    if len(tests) == 1:
        return tests[0]
    return lambda document: all(test(document) for test in tests)


def _clause(name: str, condition: Any, scope: Scope) -> Predicate:
    if name in ("$and", "$or", "$nor"):
        if not isinstance(condition, list) or not condition:
            raise CommandError(
                2,
                f"{name} must be an array"
                if not isinstance(condition, list)
                else "$and/$or/$nor must be a nonempty array",
            )
        members = [compile_filter(part, scope) for part in condition]
        if name == "$and":
            return lambda document: all(member(document) for member in members)
        if name == "$or":
            return lambda document: any(member(document) for member in members)
        return lambda document: not any(member(document) for member in members)
    if name == "$expr":
        expression = compile_expression(condition, scope)
        return lambda document: truthy(expression(document))
    if name.startswith("$"):
        raise CommandError(2, f"unknown top level operator: {name}")
    test = compile_condition(condition, scope)
    parts = name.split(".")
    if len(parts) == 1:
        return lambda document: test([document.get(name, MISSING)])
    return lambda document: test(list(values.found(document, parts)))


def compile_condition(condition: Any, scope: Scope) -> Callable[[list[Any]], bool]:
    """A test of the values that a path leads to."""
    if (
        isinstance(condition, Mapping)
        and condition
        and next(iter(condition)).startswith("$")
        and "$ref" not in condition
    ):
        tests = []
        for name, argument in condition.items():
            if name == "$options":
                continue
            options = str(condition.get("$options", "")) if name == "$regex" else ""
            tests.append(_operator(name, argument, options, scope))
        return lambda found: all(test(found) for test in tests)
    if isinstance(condition, Regex):
        return _any(_matches(condition, ""))
    return _any(_equals(condition))


def _operator(name: str, argument: Any, options: str, scope: Scope) -> Callable[[list[Any]], bool]:
    if name == "$eq":
        return _any(_equals(argument))
    if name == "$ne":
        return _none(_any(_equals(argument)))
    if name in _ORDERED:
        return _any(_ordered(_ORDERED[name], argument))
    if name in ("$in", "$nin"):
        if not isinstance(argument, list):
            raise CommandError(2, f"{name} needs an array")
        test = _any(_in(argument))
        return test if name == "$in" else _none(test)
    if name == "$exists":
        wanted = truthy(argument)
        return lambda found: any(value is not MISSING for value in found) == wanted
    if name == "$not":
        return _none(compile_condition(argument, scope))
    if name == "$regex":
        return _any(_matches(argument, options))
    if name == "$type":
        return _any(_type(argument))
    if name == "$size":
        return lambda found: any(isinstance(value, list) and len(value) == argument for value in found)
    if name == "$mod":
        divisor, remainder = argument
        return _any(lambda value: _remainder(value, int(divisor)) == int(remainder))
    if name == "$all":
        tests = [compile_condition(item, scope) for item in argument]
        return lambda found: bool(tests) and all(test(found) for test in tests)
    if name == "$elemMatch":
        return _elem_match(argument, scope)
    if name == "$comment":
        return lambda _: True
    raise CommandError(2, f"unknown operator: {name}")


def _remainder(value: Any, divisor: int) -> int | None:
    """As in C: it has the sign of the value; None for what is no int64."""
    if not values.is_number(value):
        return None
    number = values.number_of(value)
    if number != number or not values.INT64_MIN <= number <= values.INT64_MAX:
        return None
    whole = int(number)
    return abs(whole) % abs(divisor) * (1 if whole >= 0 else -1)


_ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
}


def _any(test: Test) -> Callable[[list[Any]], bool]:
    return lambda found: any(test(value) or (_is_entered(value) and any(map(test, value))) for value in found)


def _is_entered(value: Any) -> bool:
    return isinstance(value, list) and not isinstance(value, values.Entire)


def _none(test: Callable[[list[Any]], bool]) -> Callable[[list[Any]], bool]:
    return lambda found: not test(found)


def _equals(wanted: Any) -> Test:
    if isinstance(wanted, str):
        return lambda value: isinstance(value, str) and value == wanted
    key = values.sort_key(wanted)
    return lambda value: values.sort_key(value) == key


def _in(wanted: list[Any]) -> Test:
    keys = {values.sort_key(item) for item in wanted if not isinstance(item, Regex)}
    patterns = [_matches(item, "") for item in wanted if isinstance(item, Regex)]
    return lambda value: values.sort_key(value) in keys or any(pattern(value) for pattern in patterns)


def _ordered(compare: Callable[[Any, Any], bool], bound: Any) -> Test:
    key, place = values.sort_key(bound), values.rank(bound)
    nan = key == (10, 0)

    def test(value: Any) -> bool:
        if values.rank(value) != place and place not in (0, 127):  # types bracket: 5 < "a" is false, and so is 5 > "a"
            return False
        other = values.sort_key(value)
        if nan or other == (10, 0):
            return other == key and compare(1, 1)
        return compare(other, key)

    return test


def _matches(pattern: Any, options: str) -> Test:
    if isinstance(pattern, Regex):
        compiled = re.compile(pattern.pattern, pattern.flags)
    else:
        flags = 0
        for letter in options:
            flags |= {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}.get(letter, 0)
        compiled = re.compile(pattern, flags)
    return lambda value: isinstance(value, str) and compiled.search(value) is not None


def _type(wanted: Any) -> Test:
    numbers: set[int] = set()
    for item in wanted if isinstance(wanted, list) else [wanted]:
        if item == "number":
            numbers |= {1, 16, 18, 19}
        elif isinstance(item, str):
            if item not in values.TYPES:
                raise CommandError(2, f"Unknown type name alias: {item}")
            numbers.add(values.TYPES[item])
        else:
            numbers.add(int(item))
    return lambda value: value is not MISSING and values.type_of(value) in numbers


def _elem_match(argument: Mapping[str, Any], scope: Scope) -> Callable[[list[Any]], bool]:
    if (
        argument
        and next(iter(argument)).startswith("$")
        and next(iter(argument)) not in ("$and", "$or", "$nor", "$expr")
    ):
        condition = compile_condition(argument, scope)
        return lambda found: any(isinstance(v, list) and any(condition([_whole(item)]) for item in v) for v in found)
    predicate = compile_filter(argument, scope)
    return lambda found: any(
        isinstance(v, list) and any(isinstance(item, (Mapping, list)) and predicate(_named(item)) for item in v)
        for v in found
    )


def _whole(item: Any) -> Any:
    return values.Entire(item) if isinstance(item, list) else item


def _named(item: Any) -> Mapping[str, Any]:
    return {str(place): member for place, member in enumerate(item)} if isinstance(item, list) else item


def equality_on(query: Mapping[str, Any], field: str) -> Any:
    """The value that a filter fixes `field` to, or MISSING: what decides whether an index can answer."""
    condition = query.get(field, MISSING)
    if condition is MISSING or isinstance(condition, (Regex, list)) or condition is None:
        return MISSING
    if isinstance(condition, Mapping):
        if list(condition) == ["$eq"] and not isinstance(condition["$eq"], (list, Regex)):
            return condition["$eq"]
        if any(name.startswith("$") for name in condition):
            return MISSING
    return condition

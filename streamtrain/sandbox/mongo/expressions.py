"""Aggregation expressions compiled to functions of a document; their results have the types that MongoDB gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from bson import DatetimeMS, Int64, Timestamp
from bson.decimal128 import Decimal128

from streamtrain.sandbox.mongo import values
from streamtrain.sandbox.mongo.failure import CommandError
from streamtrain.sandbox.mongo.values import MISSING

Expression = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Scope:
    """What expressions may refer to beside the document: the server's time at which the command runs, and variables."""

    now: DatetimeMS
    cluster_time: Timestamp
    variables: dict[str, Any] = field(default_factory=dict)


def truthy(value: Any) -> bool:
    if value is None or value is MISSING or value is False:
        return False
    return not (values.is_number(value) and values.number_of(value) == 0)


def compile_expression(spec: Any, scope: Scope) -> Expression:
    """Raises CommandError for an expression that the sandbox does not know."""
    if isinstance(spec, str) and spec.startswith("$$"):
        return _variable(spec[2:], scope)
    if isinstance(spec, str) and spec.startswith("$"):
        path = spec[1:]
        if "." in path:
            return lambda document: values.get(document, path)
        return lambda document: document.get(path, MISSING)
    if isinstance(spec, list):
        items = [compile_expression(item, scope) for item in spec]
        return lambda document: [_present(item(document)) for item in items]
    if isinstance(spec, Mapping):
        if len(spec) == 1 and next(iter(spec)).startswith("$"):
            [(name, argument)] = spec.items()
            return _operator(name, argument, scope)
        fields = {name: compile_expression(value, scope) for name, value in spec.items()}
        return lambda document: {n: v for n, e in fields.items() if (v := e(document)) is not MISSING}
    return lambda _: spec


def _present(value: Any) -> Any:
    return None if value is MISSING else value


def _variable(name: str, scope: Scope) -> Expression:
    head, _, path = name.partition(".")
    if head in ("ROOT", "CURRENT"):
        return (lambda document: values.get(document, path)) if path else (lambda document: document)
    if head == "NOW":
        return lambda _: scope.now
    if head == "CLUSTER_TIME":
        return lambda _: scope.cluster_time
    if head == "REMOVE":
        return lambda _: MISSING
    if head not in scope.variables:
        raise CommandError(17276, f"Use of undefined variable: {head}")
    variables = scope.variables
    return lambda _: values.get(variables[head], path) if path else variables[head]


def _operator(name: str, argument: Any, scope: Scope) -> Expression:
    if name in ("$literal", "$const"):
        return lambda _: argument
    if name in _COMPOSED:
        return _COMPOSED[name](argument, scope)
    if name not in _PLAIN:
        raise CommandError(168, f"Unrecognized expression '{name}'")
    function = _PLAIN[name]
    operands = argument if isinstance(argument, list) else [argument]
    compiled = [compile_expression(item, scope) for item in operands]
    return lambda document: function(*(item(document) for item in compiled))


# --- operators that look at their argument's shape ---


def _cond(argument: Any, scope: Scope) -> Expression:
    parts = [argument[k] for k in ("if", "then", "else")] if isinstance(argument, Mapping) else argument
    test, then, other = (compile_expression(part, scope) for part in parts)
    return lambda document: then(document) if truthy(test(document)) else other(document)


def _switch(argument: Mapping[str, Any], scope: Scope) -> Expression:
    branches = [
        (compile_expression(b["case"], scope), compile_expression(b["then"], scope)) for b in argument["branches"]
    ]
    default = compile_expression(argument["default"], scope) if "default" in argument else None

    def switch(document: Mapping[str, Any]) -> Any:
        for case, then in branches:
            if truthy(case(document)):
                return then(document)
        if default is None:
            raise CommandError(
                40066, "$switch could not find a matching branch for an input, and no default was specified."
            )
        return default(document)

    return switch


def _if_null(argument: list[Any], scope: Scope) -> Expression:
    compiled = [compile_expression(item, scope) for item in argument]

    def if_null(document: Mapping[str, Any]) -> Any:
        value: Any = MISSING
        for item in compiled:
            value = item(document)
            if value is not None and value is not MISSING:
                return value
        return value

    return if_null


def _and(argument: Any, scope: Scope) -> Expression:
    compiled = [compile_expression(item, scope) for item in (argument if isinstance(argument, list) else [argument])]
    return lambda document: all(truthy(item(document)) for item in compiled)


def _or(argument: Any, scope: Scope) -> Expression:
    compiled = [compile_expression(item, scope) for item in (argument if isinstance(argument, list) else [argument])]
    return lambda document: any(truthy(item(document)) for item in compiled)


def _let(argument: Mapping[str, Any], scope: Scope) -> Expression:
    variables = {name: compile_expression(value, scope) for name, value in argument["vars"].items()}

    def let(document: Mapping[str, Any]) -> Any:
        bound = {**scope.variables, **{name: value(document) for name, value in variables.items()}}
        return compile_expression(argument["in"], Scope(scope.now, scope.cluster_time, bound))(document)

    return let


def _over(argument: Mapping[str, Any], scope: Scope, *, body: str) -> Expression:
    source, name = compile_expression(argument["input"], scope), argument.get("as", "this")

    def over(document: Mapping[str, Any]) -> Any:
        items = source(document)
        if items is None or items is MISSING:
            return None
        results = []
        for item in items:
            inner = Scope(scope.now, scope.cluster_time, {**scope.variables, name: item})
            result = compile_expression(argument[body], inner)(document)
            if body == "in":
                results.append(_present(result))
            elif truthy(result):
                results.append(item)
        return results

    return over


_COMPOSED: dict[str, Callable[[Any, Scope], Expression]] = {
    "$cond": _cond, "$switch": _switch, "$ifNull": _if_null, "$and": _and, "$or": _or, "$let": _let,
    "$map": lambda a, s: _over(a, s, body="in"), "$filter": lambda a, s: _over(a, s, body="cond"),
}  # fmt: skip


# --- operators of values ---


def _arithmetic(name: str, combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def apply(*operands: Any) -> Any:
        if any(value is None or value is MISSING for value in operands):
            return None
        result = operands[0]
        for operand in operands[1:]:
            result = _combined(name, combine, result, operand)
        return result

    return apply


def _combined(name: str, combine: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    for value in (left, right):
        if not values.is_number(value) and not isinstance(value, DatetimeMS):
            raise CommandError(
                14, f"{name} only supports numeric or date types, not {values.NAMES[values.type_of(value)]}"
            )
    if isinstance(left, DatetimeMS) or isinstance(right, DatetimeMS):
        result = combine(*(int(v) if isinstance(v, DatetimeMS) else values.number_of(v) for v in (left, right)))
        both = isinstance(left, DatetimeMS) and isinstance(right, DatetimeMS)
        return Int64(result) if both else DatetimeMS(round(result))
    return number_result(combine, left, right)


def number_result(combine: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Two numbers combined; decimal wins over double, double over long, long over int."""
    if isinstance(left, Decimal128) or isinstance(right, Decimal128):
        operands = [v.to_decimal() if isinstance(v, Decimal128) else Decimal(str(v)) for v in (left, right)]
        return Decimal128(combine(*operands))
    if isinstance(left, float) or isinstance(right, float):
        return float(combine(float(left), float(right)))
    result = combine(int(left), int(right))
    long = values.type_of(left) == 18 or values.type_of(right) == 18
    if not values.INT64_MIN <= result <= values.INT64_MAX:
        return float(result)
    return values.as_bson_int(result, long=long)


def _divide(left: Any, right: Any) -> Any:
    if left is None or right is None or left is MISSING or right is MISSING:
        return None
    if values.number_of(right) == 0:
        raise CommandError(2, "can't $divide by zero")
    if isinstance(left, Decimal128) or isinstance(right, Decimal128):
        return number_result(lambda a, b: a / b, left, right)
    return float(left) / float(right)


def _extreme(pick: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*operands: Any) -> Any:
        items = operands[0] if len(operands) == 1 and isinstance(operands[0], list) else operands
        present = [value for value in items if value is not None and value is not MISSING]
        return pick(present, key=values.sort_key) if present else None

    return apply


def _compare(test: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    def apply(left: Any, right: Any) -> bool:
        return test(_missing_first(left), _missing_first(right))

    return apply


def _missing_first(value: Any) -> tuple[Any, ...]:
    return (1,) if value is MISSING else values.sort_key(value)


def _cmp(left: Any, right: Any) -> int:
    a, b = _missing_first(left), _missing_first(right)
    return (a > b) - (a < b)


def _concat(*operands: Any) -> Any:
    return None if any(v is None or v is MISSING for v in operands) else "".join(operands)


def _size(value: Any) -> int:
    if not isinstance(value, list):
        raise CommandError(17124, "The argument to $size must be an array")
    return len(value)


def _slice(items: Any, *bounds: Any) -> Any:
    if not isinstance(items, list):
        return None
    if len(bounds) == 1:
        return items[: bounds[0]] if bounds[0] >= 0 else items[bounds[0] :]
    begin = bounds[0] if bounds[0] >= 0 else max(0, len(items) + bounds[0])
    return items[begin : begin + bounds[1]]


def _element_at(items: Any, index: Any) -> Any:
    if not isinstance(items, list):
        return None
    return items[int(index)] if -len(items) <= index < len(items) else MISSING


def _concat_arrays(*operands: Any) -> Any:
    if any(v is None or v is MISSING for v in operands):
        return None
    return [item for operand in operands for item in operand]


def _merge_objects(*operands: Any) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for operand in operands:
        merged.update(operand or {})
    return merged


def _to_long(value: Any) -> Any:
    return (
        None
        if value is None or value is MISSING
        else Int64(int(values.number_of(value)) if values.is_number(value) else int(value))
    )


def _type_name(value: Any) -> str:
    return "missing" if value is MISSING else values.NAMES[values.type_of(value)]


def _sum(*operands: Any) -> Any:
    items = operands[0] if len(operands) == 1 and isinstance(operands[0], list) else operands
    total: Any = 0
    for item in items:
        if values.is_number(item):
            total = number_result(lambda a, b: a + b, total, item)
    return total


_PLAIN: dict[str, Callable[..., Any]] = {
    "$add": _arithmetic("$add", lambda a, b: a + b),
    "$subtract": _arithmetic("$subtract", lambda a, b: a - b),
    "$multiply": _arithmetic("$multiply", lambda a, b: a * b),
    "$mod": _arithmetic("$mod", lambda a, b: a % b if a >= 0 else -(-a % b)),
    "$divide": _divide,
    "$abs": lambda v: None if v is None or v is MISSING else number_result(lambda a, _: abs(a), v, 0),
    "$max": _extreme(max),
    "$min": _extreme(min),
    "$sum": _sum,
    "$eq": _compare(lambda a, b: a == b),
    "$ne": _compare(lambda a, b: a != b),
    "$gt": _compare(lambda a, b: a > b),
    "$gte": _compare(lambda a, b: a >= b),
    "$lt": _compare(lambda a, b: a < b),
    "$lte": _compare(lambda a, b: a <= b),
    "$cmp": _cmp,
    "$not": lambda v: not truthy(v),
    "$in": lambda v, items: any(values.equal(v, item) for item in items),
    "$concat": _concat,
    "$toLower": lambda v: (v or "").lower(),
    "$toUpper": lambda v: (v or "").upper(),
    "$strLenBytes": lambda v: len(v.encode()),
    "$size": _size,
    "$slice": _slice,
    "$arrayElemAt": _element_at,
    "$concatArrays": _concat_arrays,
    "$isArray": lambda v: isinstance(v, list),
    "$mergeObjects": _merge_objects,
    "$toLong": _to_long,
    "$type": _type_name,
}

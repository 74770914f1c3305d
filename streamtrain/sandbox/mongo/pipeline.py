"""Aggregation stages over decoded documents, and projections, which finds share with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from streamtrain.sandbox.mongo import values
from streamtrain.sandbox.mongo.expressions import Expression, Scope, compile_expression, number_result, truthy
from streamtrain.sandbox.mongo.failure import CommandError
from streamtrain.sandbox.mongo.matcher import compile_filter
from streamtrain.sandbox.mongo.values import MISSING

Document = dict[str, Any]
Stage = Callable[[Iterable[Document]], Iterator[Document]]
Change = Callable[[Document], Document]

_PER_DOCUMENT = ("$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith", "$redact")


def compile_pipeline(pipeline: list[Any], scope: Scope) -> Stage:
    stages = [_stage(spec, scope) for spec in pipeline]

    def run(documents: Iterable[Document]) -> Iterator[Document]:
        flow: Iterable[Document] = documents
        for stage in stages:
            flow = stage(flow)
        return iter(flow)

    return run


def compile_transform(
    pipeline: list[Any], scope: Scope, *, allowed: tuple[str, ...] = _PER_DOCUMENT
) -> Callable[[Document], Document | None]:
    """A pipeline of stages that look at one document at a time; None where a $match drops it."""
    steps: list[tuple[bool, Any]] = []
    for spec in pipeline:
        name, argument = stage_name(spec)
        if name not in allowed:
            raise _unrecognised(name)
        steps.append(
            (True, compile_filter(argument, scope)) if name == "$match" else (False, _change(name, argument, scope))
        )

    def transform(document: Document) -> Document | None:
        for is_match, step in steps:
            if is_match:
                if not step(document):
                    return None
            else:
                document = step(document)
        return document

    return transform


def stage_name(spec: Any) -> tuple[str, Any]:
    if not isinstance(spec, Mapping) or len(spec) != 1:
        raise CommandError(40323, "A pipeline stage specification object must contain exactly one field.")
    [(name, argument)] = spec.items()
    return name, argument


def _unrecognised(name: str) -> CommandError:
    if name == "$changeStream":
        return CommandError(40602, "$changeStream is only valid as the first stage in a pipeline.")
    return CommandError(40324, f"Unrecognized pipeline stage name: '{name}'")


def _stage(spec: Any, scope: Scope) -> Stage:
    name, argument = stage_name(spec)
    if name == "$match":
        predicate = compile_filter(argument, scope)
        return lambda documents: (d for d in documents if predicate(d))
    if name in _PER_DOCUMENT:
        change = _change(name, argument, scope)
        return lambda documents: (change(d) for d in documents)
    if name not in _WHOLE:
        raise _unrecognised(name)
    return _WHOLE[name](argument, scope)


def _change(name: str, argument: Any, scope: Scope) -> Change:
    if name == "$project":
        return compile_projection(argument, scope, stage=True)
    if name in ("$addFields", "$set"):
        return _add_fields(argument, scope)
    if name == "$unset":
        fields = argument if isinstance(argument, list) else [argument]
        return compile_projection(dict.fromkeys(fields, 0), scope, stage=True)
    if name in ("$replaceRoot", "$replaceWith"):
        root = compile_expression(argument["newRoot"] if name == "$replaceRoot" else argument, scope)
        return lambda document: dict(root(document))
    raise _unrecognised(name)


def _add_fields(fields: Mapping[str, Any], scope: Scope) -> Change:
    compiled = [(path.split("."), _nested(value, scope)) for path, value in fields.items()]

    def change(document: Document) -> Document:
        result = dict(document)
        for parts, expression in compiled:
            _assign(result, parts, expression(document), document)
        return result

    return change


def _nested(value: Any, scope: Scope) -> Expression:
    return compile_expression(value, scope)


def _assign(result: Document, parts: list[str], value: Any, original: Any) -> None:
    if len(parts) == 1:
        if value is MISSING:
            if not isinstance(original, Mapping) or parts[0] not in original:
                return
            result.pop(parts[0], None)
            return
        old = result.get(parts[0])
        if isinstance(value, dict) and isinstance(old, dict) and value is not old:
            merged = dict(old)
            merged.update(value)
            value = merged
        result[parts[0]] = value
        return
    inner = result.get(parts[0])
    if isinstance(inner, list):
        copies = [dict(item) if isinstance(item, Mapping) else {} for item in inner]
        for item in copies:
            _assign(item, parts[1:], value, item)
        result[parts[0]] = copies
        return
    copy = dict(inner) if isinstance(inner, Mapping) else {}
    _assign(copy, parts[1:], value, inner)
    result[parts[0]] = copy


# --- projections ---


def compile_projection(spec: Mapping[str, Any], scope: Scope, *, stage: bool = False) -> Change:
    """Inclusions, exclusions and computed fields, dotted or nested. Raises CommandError 31254 when they are mixed."""
    flat = dict(_flatten(spec, ""))
    if stage and not flat:
        raise CommandError(51272, "projection specification must have at least one field")
    include_id = truthy(flat.get("_id", 1)) if not isinstance(flat.get("_id"), (str, Mapping)) else True
    others = {path: value for path, value in flat.items() if path != "_id"}
    excluding = {path for path, value in others.items() if _is_flag(value) and not truthy(value)}
    computed = {path: value for path, value in others.items() if not _is_flag(value)}
    if "_id" in flat and not _is_flag(flat["_id"]):
        computed["_id"] = flat["_id"]
    including = [path for path in others if path not in excluding]
    if excluding and including:
        raise CommandError(31254, f"Cannot do exclusion on field {sorted(excluding)[0]} in inclusion projection")
    if excluding or (not including and not include_id):
        paths = [path.split(".") for path in excluding] + ([] if include_id else [["_id"]])
        return lambda document: _without(document, paths)
    expressions = [(path.split("."), compile_expression(value, scope)) for path, value in computed.items()]
    wanted = [path.split(".") for path in including if path not in computed] + (
        [["_id"]] if include_id and "_id" not in computed else []
    )
    if not including and "_id" not in computed:
        if "_id" not in flat:
            return dict
        return lambda document: dict(_only(document, [["_id"]]))

    def project(document: Document) -> Document:
        result: Document = _only(document, wanted)
        for parts, expression in expressions:
            value = expression(document)
            if value is not MISSING:
                _assign(result, parts, value, result)
        return result

    return project


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or values.is_number(value)


def _flatten(spec: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in spec.items():
        if isinstance(value, Mapping) and not any(key.startswith("$") for key in value):
            if not value:
                raise CommandError(51270, "An empty sub-projection is not a valid value.")
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _without(document: Any, paths: list[list[str]]) -> Any:
    if isinstance(document, list):
        return [_without(item, paths) for item in document]
    if not isinstance(document, Mapping):
        return document
    gone = {path[0] for path in paths if len(path) == 1}
    result: Document = {}
    for name, value in document.items():
        if name in gone:
            continue
        inner = [path[1:] for path in paths if path[0] == name]
        result[name] = _without(value, inner) if inner else value
    return result


def _only(document: Any, paths: list[list[str]]) -> Any:
    result: Document = {}
    for name, value in document.items():
        inner = [path[1:] for path in paths if path[0] == name]
        if not inner:
            continue
        if [] in inner:
            result[name] = value
        elif isinstance(value, Mapping):
            result[name] = _only(value, inner)
        elif isinstance(value, list):
            result[name] = [_only(item, inner) for item in value if isinstance(item, Mapping)]
    return result


# --- stages that look at all documents ---


def sort_documents(documents: Iterable[Document], order: Mapping[str, Any]) -> list[Document]:
    """Sorted by dotted fields; an array counts by its least (ascending) or greatest (descending) member."""
    result = list(documents)
    for path, direction in reversed(list(order.items())):
        if path == "$natural":
            if direction < 0:
                result.reverse()
            continue
        parts, descending = path.split("."), direction < 0

        def key(document: Document, parts: list[str] = parts, descending: bool = descending) -> Any:
            found: list[Any] = []
            for value in values.leaves(document, parts):
                found += value if isinstance(value, list) and value else [value]
            keys = [values.sort_key(None if v is MISSING or v == [] else v) for v in found]
            return max(keys) if descending else min(keys)

        result.sort(key=key, reverse=descending)
    return result


def _group(argument: Mapping[str, Any], scope: Scope) -> Stage:
    key = compile_expression(argument["_id"], scope)
    fields: list[tuple[str, Callable[[list[Any]], Any], Expression]] = []
    for name, spec in argument.items():
        if name == "_id":
            continue
        [(operator, operand)] = spec.items()
        if operator not in _ACCUMULATORS:
            raise CommandError(15952, f"unknown group operator '{operator}'")
        expression = compile_expression(1 if operator == "$count" else operand, scope)
        fields.append((name, _ACCUMULATORS[operator], expression))

    def group(documents: Iterable[Document]) -> Iterator[Document]:
        groups: dict[Any, tuple[Any, list[list[Any]]]] = {}
        for document in documents:
            value = key(document)
            value = None if value is MISSING else value
            _, columns = groups.setdefault(values.sort_key(value), (value, [[] for _ in fields]))
            for column, (_, _, expression) in zip(columns, fields, strict=True):
                column.append(expression(document))
        for value, columns in groups.values():
            yield {"_id": value, **{f[0]: f[1](column) for f, column in zip(fields, columns, strict=True)}}

    return group


def _total(column: list[Any]) -> Any:
    total: Any = 0
    for value in column:
        if values.is_number(value):
            total = number_result(lambda a, b: a + b, total, value)
    return total


def _average(column: list[Any]) -> Any:
    numbers = [float(values.number_of(v)) for v in column if values.is_number(v)]
    return sum(numbers) / len(numbers) if numbers else None


def _pick(pick: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    def apply(column: list[Any]) -> Any:
        present = [v for v in column if v is not None and v is not MISSING]
        return pick(present, key=values.sort_key) if present else None

    return apply


def _distinct(column: list[Any]) -> list[Any]:
    return list({values.sort_key(v): v for v in column if v is not MISSING}.values())


_ACCUMULATORS: dict[str, Callable[[list[Any]], Any]] = {
    "$sum": _total,
    "$count": _total,
    "$avg": _average,
    "$min": _pick(min),
    "$max": _pick(max),
    "$first": lambda column: None if column[0] is MISSING else column[0],
    "$last": lambda column: None if column[-1] is MISSING else column[-1],
    "$push": lambda column: [v for v in column if v is not MISSING],
    "$addToSet": _distinct,
}


def _limit(count: int, _: Scope) -> Stage:
    def limit(documents: Iterable[Document]) -> Iterator[Document]:
        for i, document in enumerate(documents):
            if i >= count:
                return
            yield document

    return limit


def _skip(count: int, _: Scope) -> Stage:
    return lambda documents: (d for i, d in enumerate(documents) if i >= count)


def _count(name: str, _: Scope) -> Stage:
    def count(documents: Iterable[Document]) -> Iterator[Document]:
        total = sum(1 for _ in documents)
        if total:
            yield {name: total}

    return count


def _sample(argument: Mapping[str, Any], _: Scope) -> Stage:
    def sample(documents: Iterable[Document]) -> Iterator[Document]:
        everything = list(documents)
        return iter(random.sample(everything, min(int(argument["size"]), len(everything))))

    return sample


def _unwind(argument: Any, _: Scope) -> Stage:
    spec = argument if isinstance(argument, Mapping) else {"path": argument}
    path, keep = spec["path"].removeprefix("$"), spec.get("preserveNullAndEmptyArrays", False)
    parts = path.split(".")

    def unwind(documents: Iterable[Document]) -> Iterator[Document]:
        for document in documents:
            items = values.get(document, path)
            if isinstance(items, list) and items:
                for item in items:
                    result = _without(document, [parts])
                    _assign(result, parts, item, result)
                    yield result
            elif not isinstance(items, list) and items is not MISSING and items is not None:
                yield document
            elif keep:
                yield _without(document, [parts]) if isinstance(items, list) else document

    return unwind


_WHOLE: dict[str, Callable[[Any, Scope], Stage]] = {
    "$group": _group,
    "$sort": lambda order, _: lambda documents: iter(sort_documents(documents, order)),
    "$limit": _limit,
    "$skip": _skip,
    "$count": _count,
    "$sample": _sample,
    "$unwind": _unwind,
}

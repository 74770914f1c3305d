"""Updates of decoded documents: operators, replacements and pipelines, each with the update description it leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamtrain.sandbox.mongo import raw, values
from streamtrain.sandbox.mongo.expressions import Scope, number_result
from streamtrain.sandbox.mongo.failure import CommandError
from streamtrain.sandbox.mongo.matcher import compile_condition, compile_filter
from streamtrain.sandbox.mongo.values import MISSING

_OPERATORS = ("$set", "$unset", "$inc", "$mul", "$min", "$max", "$rename", "$setOnInsert", "$currentDate", "$push",
              "$addToSet", "$pop", "$pull", "$pullAll", "$bit")  # fmt: skip

MAX_BACKFILL = 1_500_000


@dataclass(slots=True)
class Description:
    """What an update event says about a change."""

    updated: dict[str, Any] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    truncated: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.updated or self.removed or self.truncated)

    def size(self) -> int:
        """About what the change takes in an oplog entry."""
        return len(raw.encode({"d": dict.fromkeys(self.removed, False), "u": self.updated, "t": self.truncated}))

    def document(self) -> dict[str, Any]:
        return {"updatedFields": self.updated, "removedFields": self.removed, "truncatedArrays": self.truncated}


def apply_operators(document: dict[str, Any], spec: Mapping[str, Any], scope: Scope, *, inserting: bool) -> Description:
    """Change `document` in place, paths in the server's order. Raises CommandError and may leave it half changed."""
    tasks: list[tuple[str, str, Any]] = []
    for name, fields in spec.items():
        if name not in _OPERATORS:
            raise CommandError(
                9,
                f"Unknown modifier: {name}. Expected a valid update modifier or pipeline-style update specified as an "
                "array",
            )
        if not isinstance(fields, Mapping):
            raise CommandError(
                9, f"Modifiers operate on fields but we found type {values.NAMES[values.type_of(fields)]} instead."
            )
        if name == "$setOnInsert" and not inserting:
            continue
        tasks.extend((path, name, argument) for path, argument in fields.items())
        if name == "$rename":
            tasks.extend((argument, "$renamed", path) for path, argument in fields.items())
    _refuse_conflicts([path for path, _, _ in tasks])
    tasks.sort(key=lambda task: path_order(task[0]))
    if any(name == "$rename" for _, name, _ in tasks):  # the values are read before anything moves
        before = copy.deepcopy(document)
        tasks = [(p, n, values.get(before, a) if n == "$renamed" else a) for p, n, a in tasks]
    description = Description()
    for path, name, argument in tasks:
        if path == "" or path.startswith(".") or path.endswith("."):
            raise CommandError(56, "An empty update path is not valid.")
        _apply(document, path, name, argument, scope, description)
    return description


def path_order(path: str) -> list[tuple[int, int, str]]:
    """The order in which the server applies changes: by path, positions as numbers."""
    return [(0, int(part), "") if values.is_position(part) else (1, 0, part) for part in path.split(".")]


def _refuse_conflicts(paths: list[str]) -> None:
    seen: set[str] = set()
    for path in sorted(paths, key=len):
        parts = path.split(".")
        for i in range(1, len(parts) + 1):
            if ".".join(parts[:i]) in seen:
                raise CommandError(40, f"Updating the path '{path}' would create a conflict at '{'.'.join(parts[:i])}'")
        seen.add(path)


def _apply(
    document: dict[str, Any], path: str, name: str, argument: Any, scope: Scope, description: Description
) -> None:
    parts = path.split(".")
    if name in ("$unset", "$rename"):
        if _remove(document, parts):
            description.removed.append(path)
        return
    if name == "$renamed" and argument is MISSING:
        return
    before = _value_at(document, parts)
    after = _CHANGES[name](before, argument, scope, path)
    if after is MISSING or values.identical(before, after):
        return
    _put(document, parts, after)
    if name == "$push" and isinstance(before, list) and after[: len(before)] == before and len(before) < len(after):
        description.updated.update({f"{path}.{i}": after[i] for i in range(len(before), len(after))})
    else:
        description.updated[path] = after


def _value_at(document: Any, parts: list[str]) -> Any:
    for part in parts:
        if isinstance(document, Mapping):
            document = document.get(part, MISSING)
        elif isinstance(document, list):
            document = document[int(part)] if values.is_position(part) and int(part) < len(document) else MISSING
        else:
            return MISSING
    return document


def _put(document: Any, parts: list[str], value: Any) -> None:
    for i, part in enumerate(parts[:-1]):
        inner = _value_at(document, [part])
        if inner is MISSING:
            inner = {}
            _set_member(document, part, inner, parts[:i])
        elif not isinstance(inner, (dict, list)):
            raise _not_viable(parts[i + 1], part, inner)
        document = inner
    _set_member(document, parts[-1], value, parts[:-1])


def _set_member(container: Any, part: str, value: Any, above: list[str]) -> None:
    if isinstance(container, dict):
        container[part] = value
        return
    if not values.is_position(part):
        raise _not_viable(part, above[-1], container)
    index = int(part)
    if index - len(container) > MAX_BACKFILL:
        raise CommandError(2, f"can't backfill more than {MAX_BACKFILL} elements")
    container.extend([None] * (index + 1 - len(container)))
    container[index] = value


def _not_viable(field_name: str, holder: str, value: Any) -> CommandError:
    return CommandError(28, f"Cannot create field '{field_name}' in element {{{holder}: {shell(value)}}}")


def shell(value: Any) -> str:
    """A value as the server's messages print it."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[ {', '.join(map(shell, value))} ]" if value else "[]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k}: {shell(v)}" for k, v in value.items()) + " }" if value else "{}"
    if values.type_of(value) == 7:
        return f"ObjectId('{value}')"
    return str(value)


def _remove(document: Any, parts: list[str]) -> bool:
    holder = _value_at(document, parts[:-1])
    if isinstance(holder, dict) and parts[-1] in holder:
        del holder[parts[-1]]
        return True
    if isinstance(holder, list) and values.is_position(parts[-1]) and int(parts[-1]) < len(holder):
        holder[int(parts[-1])] = None
        return True
    return False


# --- operators: (value before, argument, scope, path) -> value after, MISSING for no change ---


def _inc(before: Any, by: Any, path: str, name: str, combine: Callable[[Any, Any], Any]) -> Any:
    if not values.is_number(by):
        raise CommandError(
            14,
            f"Cannot {'increment' if name == '$inc' else 'multiply'} with non-numeric argument: "
            f"{{{path}: {shell(by)}}}",
        )
    if before is MISSING:
        return by if name == "$inc" else number_result(lambda a, b: a * b, by, 0)
    if not values.is_number(before):
        raise CommandError(
            14,
            f"Cannot apply {name} to a value of non-numeric type. The document has the field "
            f"'{path.split('.')[-1]}' of non-numeric type {values.NAMES[values.type_of(before)]}",
        )
    return number_result(combine, before, by)


def _current_date(argument: Any, scope: Scope) -> Any:
    kind = argument.get("$type") if isinstance(argument, Mapping) else "date"
    return scope.cluster_time if kind == "timestamp" else scope.now


def _array(before: Any, name: str, path: str) -> list[Any]:
    if before is MISSING:
        return []
    if not isinstance(before, list):
        raise CommandError(
            2, f"The field '{path}' must be an array but is of type {values.NAMES[values.type_of(before)]} in document"
        )
    return list(before)


def _push(before: Any, argument: Any, path: str) -> list[Any]:
    items = _array(before, "$push", path)
    if not (isinstance(argument, Mapping) and "$each" in argument):
        return [*items, argument]
    place = argument.get("$position", len(items))
    items[place:place] = argument["$each"]
    sort = argument.get("$sort")
    if isinstance(sort, Mapping):
        for name, direction in reversed(list(sort.items())):
            items.sort(key=lambda v, n=name: values.sort_key(_value_at(v, n.split("."))), reverse=direction < 0)  # type: ignore[misc]
    elif sort is not None:
        items.sort(key=values.sort_key, reverse=sort < 0)
    if "$slice" in argument:
        count = argument["$slice"]
        items = items[:count] if count >= 0 else items[count:]
    return items


def _add_to_set(before: Any, argument: Any, path: str) -> list[Any]:
    items = _array(before, "$addToSet", path)
    for item in argument["$each"] if isinstance(argument, Mapping) and "$each" in argument else [argument]:
        if not any(values.equal(item, other) for other in items):
            items.append(item)
    return items


def _pull(before: Any, argument: Any, scope: Scope, path: str) -> Any:
    if before is MISSING:
        return MISSING
    if isinstance(argument, Mapping) and not any(name.startswith("$") for name in argument):
        predicate = compile_filter(argument, scope)
        return [item for item in _array(before, "$pull", path) if not (isinstance(item, Mapping) and predicate(item))]
    test = compile_condition(argument, scope)
    return [item for item in _array(before, "$pull", path) if not test([item])]


def _bit(before: Any, argument: Mapping[str, int]) -> Any:
    number = 0 if before is MISSING else before
    for name, operand in argument.items():
        number = {"and": number & operand, "or": number | operand, "xor": number ^ operand}[name]
    return values.as_bson_int(number, long=values.type_of(before) == 18 if before is not MISSING else False)


def _extreme(before: Any, argument: Any, *, larger: bool) -> Any:
    if before is MISSING:
        return argument
    a, b = values.sort_key(before), values.sort_key(argument)
    return argument if (b > a if larger else b < a) else before


_CHANGES: dict[str, Callable[[Any, Any, Scope, str], Any]] = {
    "$set": lambda before, argument, scope, path: argument,
    "$setOnInsert": lambda before, argument, scope, path: argument,
    "$renamed": lambda before, argument, scope, path: argument,
    "$inc": lambda before, argument, scope, path: _inc(before, argument, path, "$inc", lambda a, b: a + b),
    "$mul": lambda before, argument, scope, path: _inc(before, argument, path, "$mul", lambda a, b: a * b),
    "$min": lambda before, argument, scope, path: _extreme(before, argument, larger=False),
    "$max": lambda before, argument, scope, path: _extreme(before, argument, larger=True),
    "$currentDate": lambda before, argument, scope, path: _current_date(argument, scope),
    "$push": lambda before, argument, scope, path: _push(before, argument, path),
    "$addToSet": lambda before, argument, scope, path: _add_to_set(before, argument, path),
    "$pop": lambda before, argument, scope, path: (
        MISSING
        if before is MISSING
        else _array(before, "$pop", path)[:-1]
        if argument > 0
        else _array(before, "$pop", path)[1:]
    ),
    "$pull": lambda before, argument, scope, path: _pull(before, argument, scope, path),
    "$pullAll": lambda before, argument, scope, path: (
        MISSING
        if before is MISSING
        else [v for v in _array(before, "$pullAll", path) if not any(values.equal(v, a) for a in argument)]
    ),
    "$bit": lambda before, argument, scope, path: _bit(before, argument),
}


# --- differences, for pipeline updates ---


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Description:
    """What changed between two documents: fields dotted into subdocuments, array members by position, truncations."""
    description = Description()
    _document_difference(before, after, "", description)
    return description


def _document_difference(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str, into: Description) -> None:
    into.removed.extend(prefix + name for name in before if name not in after)
    nested = []
    for name, value in after.items():
        old = before.get(name, MISSING)
        if values.identical(old, value):
            continue
        if (isinstance(old, Mapping) and isinstance(value, Mapping)) or (
            isinstance(old, list) and isinstance(value, list)
        ):
            nested.append(name)
        elif old is not MISSING:
            into.updated[prefix + name] = value
    into.updated.update({prefix + name: value for name, value in after.items() if name not in before})
    for name in nested:
        if isinstance(after[name], list):
            _array_difference(before[name], after[name], prefix + name, into)
        else:
            _document_difference(before[name], after[name], prefix + name + ".", into)


def _array_difference(before: list[Any], after: list[Any], path: str, into: Description) -> None:
    if len(after) < len(before):
        into.truncated.append({"field": path, "newSize": len(after)})
    for i, value in enumerate(after):
        if i >= len(before):
            into.updated[f"{path}.{i}"] = value
        elif values.identical(before[i], value):
            continue
        elif isinstance(before[i], Mapping) and isinstance(value, Mapping):
            _document_difference(before[i], value, f"{path}.{i}.", into)
        else:
            into.updated[f"{path}.{i}"] = value


def seed_from(query: Mapping[str, Any]) -> dict[str, Any]:
    """The document an upsert begins with: what the filter fixes by equality."""
    seed: dict[str, Any] = {}
    for name, condition in query.items():
        if name == "$and":
            for part in condition:
                seed.update(seed_from(part))
        elif not name.startswith("$"):
            if isinstance(condition, Mapping) and any(k.startswith("$") for k in condition):
                if "$eq" not in condition:
                    continue
                condition = condition["$eq"]
            _put(seed, name.split("."), condition)
    return seed

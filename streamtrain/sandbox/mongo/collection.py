"""A collection: raw documents by `_id`, in the order they were inserted, and its indexes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from streamtrain.sandbox.mongo import raw, values
from streamtrain.sandbox.mongo.expressions import Scope
from streamtrain.sandbox.mongo.failure import CommandError
from streamtrain.sandbox.mongo.matcher import compile_filter, equality_on
from streamtrain.sandbox.mongo.oplog import Namespace
from streamtrain.sandbox.mongo.updates import shell
from streamtrain.sandbox.mongo.values import MISSING

MAX_DOCUMENT = 16 * 1024 * 1024
ID_INDEX = {"v": 2, "key": {"_id": 1}, "name": "_id_"}


class Index:
    """A secondary index: documents by the value of its first field. It answers equality and refuses duplicates."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.fields: list[str] = list(spec["key"])
        self.unique = bool(spec.get("unique"))
        self._paths = [field.split(".") for field in self.fields]
        self._heads = {path[0].encode() for path in self._paths}
        self._by_first: dict[Any, dict[Hashable, None]] = {}

    def _fields_of(self, data: bytes) -> dict[str, Any]:
        return raw.decode(raw.document(*(data[e.begin : e.end] for e in raw.elements(data) if e.name in self._heads)))

    def _firsts(self, fields: Mapping[str, Any]) -> set[Any]:
        keys = set()
        for value in values.leaves(fields, self._paths[0]):
            keys.add(values.sort_key(value))
            if isinstance(value, list):
                keys.update(values.sort_key(item) for item in value)
        return keys

    def add(self, key: Hashable, data: bytes) -> None:
        for first in self._firsts(self._fields_of(data)):
            self._by_first.setdefault(first, {})[key] = None

    def discard(self, key: Hashable, data: bytes) -> None:
        for first in self._firsts(self._fields_of(data)):
            held = self._by_first.get(first)
            if held is not None:
                held.pop(key, None)
                if not held:
                    del self._by_first[first]

    def candidates(self, value: Any) -> list[Hashable]:
        return list(self._by_first.get(values.sort_key(value), ()))

    def refuse_duplicate(self, data: bytes, own: Hashable, documents: Mapping[Hashable, bytes], namespace: str) -> None:
        """Raises CommandError 11000 when another document has the same values."""
        fields = self._fields_of(data)
        mine = [values.get(fields, name) for name in self.fields]
        if self.spec.get("sparse") and all(value is MISSING for value in mine):
            return
        keys = [values.sort_key(value) for value in mine]
        for key in self.candidates(mine[0]):
            if key == own:
                continue
            other = self._fields_of(documents[key])
            if [values.sort_key(values.get(other, name)) for name in self.fields] == keys:
                value = {n: None if v is MISSING else v for n, v in zip(self.fields, mine, strict=True)}
                raise duplicate(namespace, self.name, self.spec["key"], value)


def duplicate(namespace: str, index: str, pattern: Mapping[str, Any], value: Mapping[str, Any]) -> CommandError:
    message = f"E11000 duplicate key error collection: {namespace} index: {index} dup key: {shell(value)}"
    return CommandError(11000, message, keyPattern=dict(pattern), keyValue=dict(value))


class Collection:
    def __init__(self, namespace: Namespace, options: dict[str, Any]) -> None:
        self.namespace = namespace
        self.options = options
        self.documents: dict[Hashable, bytes] = {}
        self.indexes: dict[str, Index] = {}
        self.bytes = 0

    @property
    def post_images(self) -> bool:
        return bool((self.options.get("changeStreamPreAndPostImages") or {}).get("enabled"))

    def check_unique(self, data: bytes, key: Hashable) -> None:
        for index in self.indexes.values():
            if index.unique:
                index.refuse_duplicate(data, key, self.documents, self.namespace.name)

    def put(self, key: Hashable, data: bytes) -> None:
        """Insert or replace, indexes included; whoever calls has checked uniqueness."""
        old = self.documents.get(key)
        for index in self.indexes.values():
            if old is not None:
                index.discard(key, old)
            index.add(key, data)
        self.bytes += len(data) - (len(old) if old is not None else 0)
        self.documents[key] = data

    def remove(self, key: Hashable) -> bytes:
        data = self.documents.pop(key)
        for index in self.indexes.values():
            index.discard(key, data)
        self.bytes -= len(data)
        return data

    def build_index(self, index: Index) -> None:
        for key, data in self.documents.items():
            if index.unique:
                index.refuse_duplicate(data, key, self.documents, self.namespace.name)
            index.add(key, data)
        self.indexes[index.name] = index

    def matching(self, query: Mapping[str, Any], scope: Scope) -> Iterator[tuple[Hashable, bytes]]:
        """Keys and raw documents that a filter selects; `_id` and indexed equality do not scan."""
        if not query:
            yield from list(self.documents.items())
            return
        wanted = equality_on(query, "_id")
        if wanted is not MISSING:
            key = raw.key_of_value(wanted)
            data = self.documents.get(key)
            if data is not None and (len(query) == 1 or compile_filter(query, scope)(raw.decode(data))):
                yield key, data
            elif data is None or len(query) == 1:
                compile_filter(query, scope)  # a wrong operator is an error even where nothing is found
            return
        predicate = compile_filter(query, scope)
        for key in self._candidates(query):
            data = self.documents.get(key)
            if data is not None and predicate(raw.decode(data)):
                yield key, data

    def _candidates(self, query: Mapping[str, Any]) -> Iterable[Hashable]:
        condition = query.get("_id")
        if isinstance(condition, Mapping) and list(condition) == ["$in"] and isinstance(condition["$in"], list):
            keys = {raw.key_of_value(value) for value in condition["$in"]}
            return sorted_ids(self.documents, keys)
        for index in self.indexes.values():
            value = equality_on(query, index.fields[0])
            if value is not MISSING and not index.spec.get("sparse") and "partialFilterExpression" not in index.spec:
                return index.candidates(value)
        return list(self.documents)


def sorted_ids(documents: Mapping[Hashable, bytes], keys: Iterable[Hashable]) -> list[Hashable]:
    """The keys that exist, in `_id` order, as a real `_id` index gives them."""
    found = [key for key in keys if key in documents]
    return sorted(found, key=lambda key: values.sort_key(id_value(documents[key])))


def id_value(data: bytes) -> Any:
    element = raw.id_element(data)
    assert element is not None
    return raw.decode(raw.document(data[element.begin : element.end]))["_id"]

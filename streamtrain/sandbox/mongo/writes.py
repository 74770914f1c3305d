"""Inserts, updates and deletes as their commands describe them, with a direct way for those that name an `_id`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from bson import ObjectId

from streamtrain.sandbox.mongo import raw, values
from streamtrain.sandbox.mongo.collection import MAX_DOCUMENT, Collection, duplicate, id_value
from streamtrain.sandbox.mongo.engine import Engine
from streamtrain.sandbox.mongo.expressions import Scope
from streamtrain.sandbox.mongo.failure import CommandError
from streamtrain.sandbox.mongo.matcher import compile_filter
from streamtrain.sandbox.mongo.oplog import description_element
from streamtrain.sandbox.mongo.pipeline import compile_transform, sort_documents
from streamtrain.sandbox.mongo.updates import apply_operators, difference, path_order, seed_from, shell
from streamtrain.sandbox.mongo.values import MISSING

_UPDATE_STAGES = ("$addFields", "$set", "$project", "$unset", "$replaceRoot", "$replaceWith")
_NOTHING_ELSE = raw.encode({"removedFields": [], "truncatedArrays": []})[4:-1]
_DIFF_OVERHEAD = 24
"""Bytes around a change in a real oplog entry."""


@dataclass(frozen=True, slots=True)
class Updated:
    matched: int
    modified: int
    upserted: Any = MISSING
    before: bytes | None = None
    after: bytes | None = None


class Writer:
    """The writes of one command on one collection; the collection comes into being with its first document."""

    def __init__(self, engine: Engine, db: str, coll: str, scope: Scope) -> None:
        self._engine, self._db, self._coll, self._scope = engine, db, coll, scope
        self._name = f"{db}.{coll}"

    @property
    def collection(self) -> Collection | None:
        return self._engine.collection(self._db, self._coll)

    def _created(self) -> Collection:
        return self.collection or self._engine.create(self._db, self._coll)

    # --- insert ---

    def insert(self, data: bytes) -> None:
        if len(data) > MAX_DOCUMENT:
            raise CommandError(2, f"object to insert too large. size in bytes: {len(data)}, max size: {MAX_DOCUMENT}")
        if data[5:9] == b"_id\x00" and data[4] == 7:  # an ObjectId: what most drivers make
            self._insert(data, data[4:21], data[4:5] + data[9:21])
            return
        element = raw.id_element(data)
        if element is None:
            self.insert(raw.document(b"\x07_id\x00" + ObjectId().binary, data[4:-1]))
            return
        if element.begin != 4:
            data = raw.document(data[element.begin : element.end], data[4 : element.begin], data[element.end : -1])
            element = raw.id_element(data)
            assert element is not None
        if element.kind in (4, 6, 11):
            name = {4: "array", 6: "undefined", 11: "regex"}[element.kind]
            raise CommandError(2, f"can't use {'an' if name[0] in 'aeiou' else 'a'} {name} for _id")
        self._insert(data, data[4 : element.end], raw.key_of(data, element.kind, element.value, element.end))

    def _insert(self, data: bytes, id_bytes: bytes, key: Hashable) -> None:
        collection = self.collection
        if collection is None:
            collection = self._created()
        if key in collection.documents:
            raise duplicate(self._name, "_id_", {"_id": 1}, {"_id": id_value(data)})
        if collection.indexes:
            collection.check_unique(data, key)
        if "validator" in collection.options:
            self._validate(collection, data)
        self._engine.insert(collection, key, id_bytes, data)

    def _validate(self, collection: Collection, data: bytes) -> None:
        validator = collection.options["validator"]
        if not validator or collection.options.get("validationAction") == "warn":
            return
        document = raw.decode(data)
        schema = validator.get("$jsonSchema", {})
        rest = {name: value for name, value in validator.items() if name != "$jsonSchema"}
        missing = [name for name in schema.get("required", []) if name not in document]
        if missing or not compile_filter(rest, self._scope)(document):
            raise CommandError(121, "Document failed validation")

    # --- update ---

    def update(
        self,
        query: Mapping[str, Any],
        change: Any,
        *,
        multi: bool = False,
        upsert: bool = False,
        sort: Mapping[str, Any] | None = None,
    ) -> Updated:
        """Raises CommandError; with `multi` those before the failing one stay changed."""
        apply = self._compile(change, multi)
        matched = modified = 0
        collection = self.collection
        if collection is not None:
            found = collection.matching(query, self._scope)
            chosen = found if multi else self._first(found, sort)
            for key, data in chosen:
                after = apply(collection, key, data)
                matched += 1
                modified += after is not None
                if not multi:
                    return Updated(1, modified, before=data, after=after if after is not None else data)
        if matched or not upsert:
            return Updated(matched, modified)
        data = self._upserted(query, change)
        self.insert(data)
        return Updated(1, 0, upserted=id_value(data), after=data)

    def _first(self, found: Any, sort: Mapping[str, Any] | None) -> list[tuple[Hashable, bytes]]:
        if sort:
            ordered = list(found)
            if not ordered:
                return []
            documents = [raw.decode(data) for _, data in ordered]
            best = sort_documents(documents, sort)[0]
            return [next(pair for pair, document in zip(ordered, documents, strict=True) if document is best)]
        for pair in found:
            return [pair]
        return []

    def _compile(self, change: Any, multi: bool) -> Callable[[Collection, Hashable, bytes], bytes | None]:
        """How to change one stored document: gives its new bytes, or None where nothing changes."""
        if isinstance(change, list):
            transform = compile_transform(change, self._scope, allowed=_UPDATE_STAGES)
            return lambda collection, key, data: self._by_pipeline(collection, key, data, transform)
        if not change or not next(iter(change)).startswith("$"):
            if multi:
                raise CommandError(9, "multi update is not supported for replacement-style update")
            return lambda collection, key, data: self._by_replacement(collection, key, data, change)
        plain = _plain_set(change)
        if plain is not None:
            return lambda collection, key, data: self._by_elements(collection, key, data, plain)
        return lambda collection, key, data: self._by_operators(collection, key, data, change)

    def _by_elements(
        self, collection: Collection, key: Hashable, data: bytes, wanted: dict[bytes, bytes]
    ) -> bytes | None:
        """`$set` of whole fields: no document is decoded."""
        after, changed = raw.with_elements(data, wanted)
        if not changed:
            return None
        self._check(collection, key, after)
        fields = raw.embedded(b"updatedFields", raw.document(*changed))
        self._engine.update(
            collection, key, after, raw.embedded(b"updateDescription", raw.document(fields, _NOTHING_ELSE))
        )
        return after

    def _by_operators(
        self, collection: Collection, key: Hashable, data: bytes, change: Mapping[str, Any]
    ) -> bytes | None:
        document = raw.decode(data)
        identity = document["_id"]
        description = apply_operators(document, change, self._scope, inserting=False)
        if not description:
            return None
        if "_id" not in document or not values.equal(document["_id"], identity):
            raise CommandError(66, "Performing an update on the path '_id' would modify the immutable field '_id'")
        heads = {path.partition(".")[0] for path in (*description.updated, *description.removed)}
        changed = {head: document[head] for head in document if head in heads}
        return self._store(
            collection, key, raw.with_fields(data, changed, heads - changed.keys()), description.document()
        )

    def _by_pipeline(
        self, collection: Collection, key: Hashable, data: bytes, transform: Callable[[dict[str, Any]], Any]
    ) -> bytes | None:
        document = raw.decode(data)
        after = _keep_id(document, transform(document))
        description = difference(document, after)
        if not description:
            return None
        if not values.equal(after["_id"], document["_id"]):
            raise CommandError(66, "Performing an update on the path '_id' would modify the immutable field '_id'")
        data = raw.encode(after)
        if description.size() + _DIFF_OVERHEAD >= len(
            data
        ):  # the server logs what is shorter: the change or the document
            self._check(collection, key, data)
            self._engine.replace(collection, key, data)
            return data
        return self._store(collection, key, data, description.document())

    def _by_replacement(
        self, collection: Collection, key: Hashable, data: bytes, change: Mapping[str, Any]
    ) -> bytes | None:
        identity = id_value(data)
        if "_id" in change and not values.equal(change["_id"], identity):
            raise CommandError(
                66,
                "After applying the update, the (immutable) field '_id' was found to have been altered to _id: "
                f"{shell(change['_id'])}",
            )
        replacement = raw.encode({"_id": identity, **{name: value for name, value in change.items() if name != "_id"}})
        self._check(collection, key, replacement)
        self._engine.replace(collection, key, replacement)
        return replacement

    def _store(self, collection: Collection, key: Hashable, data: bytes, description: dict[str, Any]) -> bytes:
        self._check(collection, key, data)
        self._engine.update(collection, key, data, description_element(description))
        return data

    def _check(self, collection: Collection, key: Hashable, data: bytes) -> None:
        if len(data) > MAX_DOCUMENT:
            raise CommandError(10334, f"Resulting document after update is larger than {MAX_DOCUMENT}")
        if collection.indexes:
            collection.check_unique(data, key)
        if "validator" in collection.options:
            self._validate(collection, data)

    def _upserted(self, query: Mapping[str, Any], change: Any) -> bytes:
        seed = seed_from(query)
        if isinstance(change, list):
            document = compile_transform(change, self._scope, allowed=_UPDATE_STAGES)(seed) or {}
        elif change and next(iter(change)).startswith("$"):
            document = seed
            apply_operators(document, change, self._scope, inserting=True)
        else:
            document = ({"_id": seed["_id"]} if "_id" in seed else {}) | dict(change)
        identity = document.get("_id", seed.get("_id", MISSING))
        if identity is MISSING:
            identity = ObjectId()
        if "_id" in seed and not values.equal(identity, seed["_id"]):
            raise CommandError(66, "Performing an update on the path '_id' would modify the immutable field '_id'")
        return raw.encode({"_id": identity, **{name: value for name, value in document.items() if name != "_id"}})

    # --- delete ---

    def delete(self, query: Mapping[str, Any], *, limit: int, sort: Mapping[str, Any] | None = None) -> list[bytes]:
        """The documents that were deleted."""
        collection = self.collection
        if collection is None:
            compile_filter(query, self._scope)
            return []
        found = collection.matching(query, self._scope)
        chosen = self._first(found, sort) if limit == 1 else list(found)
        return [self._engine.delete(collection, key) for key, _ in chosen]


def _plain_set(change: Mapping[str, Any]) -> dict[bytes, bytes] | None:
    """The elements that an update sets, where it does nothing but set whole fields other than `_id`."""
    fields = change.get("$set")
    if len(change) != 1 or not isinstance(fields, Mapping):
        return None
    if any("." in name or name[:1] in ("$", "") or name == "_id" for name in fields):
        return None
    return {name.encode(): raw.element(name, fields[name]) for name in sorted(fields, key=path_order)}


def _keep_id(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A pipeline that drops `_id` keeps it, in front."""
    return dict(after) if "_id" in after else {"_id": before["_id"], **after}

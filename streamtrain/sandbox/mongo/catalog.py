"""The commands on collections and indexes: create, drop, rename, collMod, listings and statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bson import Int64
from bson.binary import Binary

from streamtrain.sandbox.mongo import raw
from streamtrain.sandbox.mongo.collection import ID_INDEX, Collection
from streamtrain.sandbox.mongo.commands import DocumentCommands, Reply, Request
from streamtrain.sandbox.mongo.cursors import listing_reply
from streamtrain.sandbox.mongo.engine import Engine
from streamtrain.sandbox.mongo.failure import CommandError
from streamtrain.sandbox.mongo.matcher import compile_filter

_NOT_OPTIONS = ("create", "lsid", "txnNumber", "writeConcern", "comment", "maxTimeMS")
_MODIFIABLE = ("changeStreamPreAndPostImages", "validator", "validationLevel", "validationAction", "expireAfterSeconds")


class CatalogCommands:
    def __init__(self, engine: Engine, documents: DocumentCommands) -> None:
        self._engine, self._documents = engine, documents

    def handlers(self) -> dict[str, Callable[[Request], Reply]]:
        return {
            "create": self.create, "drop": self.drop, "dropDatabase": self.drop_database, "collMod": self.modify,
            "renameCollection": self.rename, "createIndexes": self.create_indexes, "dropIndexes": self.drop_indexes,
            "listIndexes": self.list_indexes, "listCollections": self.list_collections,
            "listDatabases": self.list_databases,
            "collStats": self.collection_stats, "dbStats": self.database_stats, "validate": self.validate,
        }  # fmt: skip

    def _existing(self, request: Request) -> Collection:
        collection = self._engine.collection(request.db, request.collection())
        if collection is None:
            raise CommandError(
                26,
                "ns not found" if request.name == "drop" else f"ns does not exist: {request.db}.{request.collection()}",
            )
        return collection

    def create(self, request: Request) -> Reply:
        coll = request.collection()
        options = {
            name: value for name, value in request.body.items() if name not in _NOT_OPTIONS and not name.startswith("$")
        }
        existing = self._engine.collection(request.db, coll)
        if existing is not None:
            if existing.options == options:
                return {"ok": 1.0}
            raise CommandError(48, f"Collection {request.db}.{coll} already exists.")
        self._engine.create(request.db, coll, options)
        return {"ok": 1.0}

    def drop(self, request: Request) -> Reply:
        collection = self._engine.collection(request.db, request.collection())
        if collection is None:
            return {"ok": 1.0}  # 7.0 says ok where older servers say "ns not found"
        self._engine.drop(collection)
        return {"nIndexesWas": len(collection.indexes) + 1, "ns": collection.namespace.name, "ok": 1.0}

    def drop_database(self, request: Request) -> Reply:
        if request.db in self._engine.databases:
            self._engine.drop_database(request.db)
            return {"dropped": request.db, "ok": 1.0}
        return {"ok": 1.0}

    def modify(self, request: Request) -> Reply:
        collection = self._existing(request)
        changes = {name: request.body[name] for name in _MODIFIABLE if name in request.body}
        self._engine.modify(collection, changes)
        return {"ok": 1.0}

    def rename(self, request: Request) -> Reply:
        if request.db != "admin":
            raise CommandError(13, "renameCollection may only be run against the admin database.")
        db, _, coll = request.collection().partition(".")
        to_db, _, to_coll = str(request.body["to"]).partition(".")
        collection = self._engine.collection(db, coll)
        if collection is None:
            raise CommandError(26, f"Source collection {db}.{coll} does not exist")
        if self._engine.collection(to_db, to_coll) is not None and not request.body.get("dropTarget"):
            raise CommandError(48, "target namespace exists")
        self._engine.rename(collection, to_db, to_coll)
        return {"ok": 1.0}

    # --- indexes ---

    def create_indexes(self, request: Request) -> Reply:
        coll = request.collection()
        collection = self._engine.collection(request.db, coll)
        created = collection is None
        if collection is None:
            collection = self._engine.create(request.db, coll)
        before = len(collection.indexes) + 1
        for spec in request.body["indexes"]:
            self._create_index(collection, spec)
        after = len(collection.indexes) + 1
        reply: dict[str, Any] = {
            "numIndexesBefore": before,
            "numIndexesAfter": after,
            "createdCollectionAutomatically": created,
        }
        if before == after:
            reply["note"] = "all indexes already exist"
        else:
            reply["commitQuorum"] = "votingMembers"
        return {**reply, "ok": 1.0}

    def _create_index(self, collection: Collection, spec: dict[str, Any]) -> None:
        if list(spec["key"]) == ["_id"]:
            return
        wanted = {"v": 2, "key": spec["key"], "name": spec["name"]} | {
            k: v for k, v in spec.items() if k not in ("key", "name", "v")
        }
        wanted = {name: value for name, value in wanted.items() if value is not False}
        for index in collection.indexes.values():
            same_key = list(index.spec["key"].items()) == list(wanted["key"].items())
            if index.spec == wanted or (
                same_key and index.name == wanted["name"] and _traits(index.spec) == _traits(wanted)
            ):
                return
            if index.name == wanted["name"]:
                code, what = (85, "options") if same_key else (86, "key specs")
                raise CommandError(
                    code,
                    f"An existing index has the name of the requested one, with different {what}: {index.name}",
                )
            if same_key and _traits(index.spec) == _traits(wanted):
                raise CommandError(85, f"Index already exists with a different name: {index.name}")
        self._engine.create_index(collection, wanted)

    def drop_indexes(self, request: Request) -> Reply:
        collection = self._existing(request)
        before = len(collection.indexes) + 1
        wanted = request.body.get("index")
        for name in list(collection.indexes) if wanted == "*" else wanted if isinstance(wanted, list) else [wanted]:
            if isinstance(name, dict):
                name = next((i.name for i in collection.indexes.values() if i.spec["key"] == name), "")
            if name not in collection.indexes:
                raise CommandError(27, f"index not found with name [{name}]")
            self._engine.drop_index(collection, name)
        return {"nIndexesWas": before, "ok": 1.0}

    def list_indexes(self, request: Request) -> Reply:
        collection = self._existing(request)
        specs = [ID_INDEX, *(index.spec for index in collection.indexes.values())]
        return listing_reply(collection.namespace.name, [raw.encode(spec) for spec in specs])

    # --- listings ---

    def list_collections(self, request: Request) -> Reply:
        predicate = compile_filter(request.body.get("filter") or {}, self._documents.scope())
        found = []
        for name, collection in sorted(self._engine.databases.get(request.db, {}).items()):
            kind = "view" if "viewOn" in collection.options else "collection"
            described = {
                "name": name,
                "type": kind,
                "options": collection.options,
                "info": {"readOnly": False, "uuid": Binary(collection.namespace.uuid, 4)},
                "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"},
            }
            if predicate(described):
                found.append({"name": name, "type": kind} if request.body.get("nameOnly") else described)
        namespace = f"{request.db}.$cmd.listCollections"
        return listing_reply(namespace, [raw.encode(document) for document in found])

    def list_databases(self, request: Request) -> Reply:
        predicate = compile_filter(request.body.get("filter") or {}, self._documents.scope())
        found: list[dict[str, Any]] = []
        total = 0
        for name in sorted({"admin", "config", "local", *self._engine.databases}):
            size = sum(c.bytes for c in self._engine.databases.get(name, {}).values())
            total += size
            described = {"name": name, "sizeOnDisk": Int64(size), "empty": size == 0}
            if predicate(described):
                found.append({"name": name} if request.body.get("nameOnly") else described)
        if request.body.get("nameOnly"):
            return {"databases": found, "ok": 1.0}
        return {"databases": found, "totalSize": Int64(total), "totalSizeMb": Int64(total >> 20), "ok": 1.0}

    def collection_stats(self, request: Request) -> Reply:
        coll = request.collection()
        name = f"{request.db}.{coll}"
        if name == "local.oplog.rs":
            oplog = self._engine.oplog
            return {
                "ns": name,
                "size": oplog.bytes,
                "count": len(oplog.entries),
                "capped": True,
                "max": -1,
                "maxSize": Int64(oplog.max_bytes),
                "ok": 1.0,
            }
        collection = self._engine.collection(request.db, coll)
        count, size = (len(collection.documents), collection.bytes) if collection else (0, 0)
        average = {"avgObjSize": size // count} if count else {}
        indexes = len(collection.indexes) + 1 if collection else 0
        return {
            "ns": name,
            "size": size,
            "count": count,
            **average,
            "storageSize": size,
            "capped": False,
            "nindexes": indexes,
            "ok": 1.0,
        }

    def database_stats(self, request: Request) -> Reply:
        collections = list(self._engine.databases.get(request.db, {}).values())
        objects, size = sum(len(c.documents) for c in collections), float(sum(c.bytes for c in collections))
        return {
            "db": request.db, "collections": len(collections), "views": 0, "objects": objects,
            "avgObjSize": size / objects if objects else 0.0, "dataSize": size, "storageSize": size,
            "indexes": sum(len(c.indexes) + 1 for c in collections), "indexSize": 0.0, "totalSize": size, "ok": 1.0,
        }  # fmt: skip

    def validate(self, request: Request) -> Reply:
        collection = self._existing(request)
        return {
            "ns": collection.namespace.name,
            "nrecords": len(collection.documents),
            "valid": True,
            "errors": [],
            "warnings": [],
            "ok": 1.0,
        }


def _traits(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        name: spec[name]
        for name in ("unique", "sparse", "partialFilterExpression", "expireAfterSeconds")
        if name in spec
    }

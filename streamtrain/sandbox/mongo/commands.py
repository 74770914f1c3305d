"""The commands on documents: find, aggregate, writes, findAndModify, count, distinct and cursors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bson import DatetimeMS, Int64, Timestamp

from streamtrain.sandbox.mongo import raw, values
from streamtrain.sandbox.mongo.authentication import Peer
from streamtrain.sandbox.mongo.change_streams import ChangeStream, parse_options
from streamtrain.sandbox.mongo.cursors import DEFAULT_FIRST, Cursor, Cursors, cursor_reply
from streamtrain.sandbox.mongo.engine import Engine
from streamtrain.sandbox.mongo.expressions import Scope
from streamtrain.sandbox.mongo.failure import CommandError
from streamtrain.sandbox.mongo.pipeline import compile_pipeline, compile_projection, sort_documents, stage_name
from streamtrain.sandbox.mongo.values import MISSING
from streamtrain.sandbox.mongo.writes import Writer

Reply = dict[str, Any] | bytes
Result = Reply | Awaitable[Reply]

AWAIT = 1.0
"""How long, in seconds, a getMore on a stream waits for events when it does not say."""
SETTLE = 0.005
"""How long a stream that has just answered with events waits for more: a busy one is read in batches."""
NO_LIMIT = 10**9


@dataclass(frozen=True, slots=True)
class Request:
    """A command as it arrived. `body` is its decoded document, `sequences` the documents that came beside it."""

    name: str
    db: str
    body: dict[str, Any]
    sequences: Mapping[str, list[bytes]]
    peer: Peer

    def collection(self) -> str:
        value = self.body[self.name]
        if not isinstance(value, str):
            raise CommandError(73, f"collection name has invalid type {values.NAMES[values.type_of(value)]}")
        if value == "":
            raise CommandError(73, f"Invalid namespace specified '{self.db}.'")
        return value

    def documents(self, field: str) -> list[bytes]:
        """The documents of a write command, wherever they came."""
        beside = self.sequences.get(field)
        return beside if beside is not None else [raw.encode(document) for document in self.body.get(field, [])]


class DocumentCommands:
    def __init__(self, engine: Engine, cursors: Cursors, *, replica_set: bool) -> None:
        self._engine, self._cursors, self._replica_set = engine, cursors, replica_set

    def handlers(self) -> dict[str, Callable[[Request], Result]]:
        return {
            "insert": self.insert, "update": self.update, "delete": self.delete, "findAndModify": self.find_and_modify,
            "find": self.find, "aggregate": self.aggregate, "getMore": self.get_more, "killCursors": self.kill_cursors,
            "count": self.count, "distinct": self.distinct,
        }  # fmt: skip

    def scope(self) -> Scope:
        last = self._engine.oplog.last
        return Scope(DatetimeMS(self._engine.wall()), Timestamp(last >> 32, last & 0xFFFFFFFF))

    # --- writes ---

    def insert(self, request: Request) -> Reply:
        writer = Writer(self._engine, request.db, request.collection(), self.scope())
        errors: list[dict[str, Any]] = []
        documents = request.documents("documents")
        ordered = request.body.get("ordered", True)
        done = 0
        for index, data in enumerate(documents):
            try:
                writer.insert(data)
            except CommandError as error:
                if self._engine.active is not None:
                    raise
                errors.append(error.write_error(index))
                if ordered:
                    break
            else:
                done += 1
        return self._written({"n": done}, errors)

    def _written(
        self, reply: dict[str, Any], errors: list[dict[str, Any]], upserted: list[dict[str, Any]] | None = None
    ) -> Reply:
        if upserted:
            reply["upserted"] = upserted
        if errors:
            reply["writeErrors"] = errors
        return {**reply, "ok": 1.0}

    def update(self, request: Request) -> Reply:
        writer = Writer(self._engine, request.db, request.collection(), self.scope())
        matched = modified = 0
        errors: list[dict[str, Any]] = []
        upserted: list[dict[str, Any]] = []
        for index, data in enumerate(request.documents("updates")):
            spec = raw.decode(data)
            try:
                if spec.get("arrayFilters"):
                    raise CommandError(9, "the sandbox does not support arrayFilters")
                result = writer.update(
                    spec["q"],
                    spec["u"],
                    multi=bool(spec.get("multi")),
                    upsert=bool(spec.get("upsert")),
                    sort=spec.get("sort"),
                )
            except CommandError as error:
                if self._engine.active is not None:
                    raise
                errors.append(error.write_error(index))
                if request.body.get("ordered", True):
                    break
                continue
            matched += result.matched
            modified += result.modified
            if result.upserted is not MISSING:
                upserted.append({"index": index, "_id": result.upserted})
        return self._written({"n": matched, "nModified": modified}, errors, upserted)

    def delete(self, request: Request) -> Reply:
        writer = Writer(self._engine, request.db, request.collection(), self.scope())
        deleted = 0
        errors: list[dict[str, Any]] = []
        for index, data in enumerate(request.documents("deletes")):
            spec = raw.decode(data)
            try:
                deleted += len(writer.delete(spec["q"], limit=int(spec.get("limit", 0))))
            except CommandError as error:
                if self._engine.active is not None:
                    raise
                errors.append(error.write_error(index))
                if request.body.get("ordered", True):
                    break
        return self._written({"n": deleted}, errors)

    def find_and_modify(self, request: Request) -> Reply:
        body, scope = request.body, self.scope()
        writer = Writer(self._engine, request.db, request.collection(), scope)
        query, sort = body.get("query") or {}, body.get("sort")
        shown = compile_projection(body["fields"], scope) if body.get("fields") else None

        def value(data: bytes | None) -> Any:
            if data is None:
                return None
            document = raw.decode(data)
            return shown(document) if shown else document

        if body.get("remove"):
            deleted = writer.delete(query, limit=1, sort=sort)
            return {"lastErrorObject": {"n": len(deleted)}, "value": value(deleted[0] if deleted else None), "ok": 1.0}
        if "update" not in body:
            raise CommandError(9, "Either an update or remove=true must be specified")
        result = writer.update(query, body["update"], upsert=bool(body.get("upsert")), sort=sort)
        last: dict[str, Any] = {"n": result.matched, "updatedExisting": result.before is not None}
        if result.upserted is not MISSING:
            last["upserted"] = result.upserted
        return {"lastErrorObject": last, "value": value(result.after if body.get("new") else result.before), "ok": 1.0}

    # --- reads ---

    def _stored(self, db: str, coll: str, query: Mapping[str, Any], scope: Scope) -> list[bytes]:
        if db == "local" and coll == "oplog.rs":
            entries = self._engine.oplog.entries
            documents = (
                {"ts": Timestamp(e.ts >> 32, e.ts & 0xFFFFFFFF), "op": e.operation, "ns": e.namespace.name}
                for e in entries
            )
            return [raw.encode(document) for document in documents]
        collection = self._engine.collection(db, coll)
        if collection is None:
            return []
        return [data for _, data in collection.matching(query, scope)]

    def find(self, request: Request) -> Reply:
        body, scope, coll = request.body, self.scope(), request.collection()
        query = body.get("filter") or {}
        if self._engine.collection(request.db, coll) is None:
            from streamtrain.sandbox.mongo.matcher import compile_filter

            compile_filter(query, scope)
        found = self._stored(request.db, coll, query, scope)
        if body.get("min") or body.get("max"):
            found = [data for data in found if _within(raw.decode(data), body.get("min") or {}, body.get("max") or {})]
        limit, skip = int(body.get("limit") or 0), int(body.get("skip") or 0)
        sort = body.get("sort")
        if sort == {"$natural": 1}:
            sort = None
        elif sort == {"$natural": -1}:
            sort = None
            found.reverse()
        if not sort and (skip or limit):
            found = found[skip : skip + limit if limit else None]
            skip = limit = 0
        if sort or body.get("projection"):
            documents = [raw.decode(data) for data in found]
            if sort:
                places = {id(document): i for i, document in enumerate(documents)}
                documents = sort_documents(documents, sort)[skip : skip + limit if limit else None]
                found = [found[places[id(document)]] for document in documents]
            if body.get("projection"):
                project = compile_projection(body["projection"], scope)
                found = [raw.encode(project(document)) for document in documents]
        batch_size = body.get("batchSize")
        return self._first_batch(f"{request.db}.{coll}", found, batch_size, single=bool(body.get("singleBatch")))

    def _first_batch(self, namespace: str, documents: list[bytes], batch_size: Any, *, single: bool = False) -> bytes:
        limit = DEFAULT_FIRST if batch_size is None else abs(int(batch_size))
        cursor = self._cursors.open(namespace, documents, now=self._now())
        batch = cursor.take(limit)
        if single or not cursor.documents:
            self._cursors.close(cursor.id)
            return cursor_reply(0, namespace, batch, first=True)
        return cursor_reply(cursor.id, namespace, batch, first=True)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def aggregate(self, request: Request) -> Reply:
        body, scope = request.body, self.scope()
        if "cursor" not in body:
            raise CommandError(9, "The 'cursor' option is required, except for aggregate with the explain argument")
        pipeline = body.get("pipeline", [])
        batch_size = (body["cursor"] or {}).get("batchSize")
        if pipeline and stage_name(pipeline[0])[0] == "$changeStream":
            return self._watch(request, pipeline, batch_size, scope)
        if body["aggregate"] == 1:
            name = stage_name(pipeline[0])[0] if pipeline else ""
            raise CommandError(73, f"{{aggregate: 1}} is not valid for '{name}'; a collection is required.")
        coll = request.collection()
        namespace = f"{request.db}.{coll}"
        if pipeline and stage_name(pipeline[0])[0] == "$collStats":
            collection = self._engine.collection(request.db, coll)
            count = len(collection.documents) if collection else 0
            size = collection.bytes if collection else 0
            return cursor_reply(
                0,
                namespace,
                [raw.encode({"ns": namespace, "count": count, "storageStats": {"size": size, "count": count}})],
                first=True,
            )
        query: Mapping[str, Any] = {}
        if pipeline and stage_name(pipeline[0])[0] == "$match":
            query, pipeline = pipeline[0]["$match"], pipeline[1:]
        run = compile_pipeline(pipeline, scope)
        stored = self._stored(request.db, coll, query, scope)
        results = [raw.encode(document) for document in run(map(raw.decode, stored))] if pipeline else stored
        return self._first_batch(namespace, results, batch_size)

    def count(self, request: Request) -> Reply:
        body, scope = request.body, self.scope()
        total = len(self._stored(request.db, request.collection(), body.get("query") or {}, scope))
        total = max(0, total - int(body.get("skip") or 0))
        limit = abs(int(body.get("limit") or 0))
        return {"n": min(total, limit) if limit else total, "ok": 1.0}

    def distinct(self, request: Request) -> Reply:
        scope, parts = self.scope(), request.body["key"].split(".")
        seen: dict[Any, Any] = {}
        for data in self._stored(request.db, request.collection(), request.body.get("query") or {}, scope):
            for leaf in values.leaves(raw.decode(data), parts):
                for value in leaf if isinstance(leaf, list) else [leaf]:
                    if value is not MISSING:
                        seen.setdefault(values.sort_key(value), value)
        return {"values": [seen[key] for key in sorted(seen)], "ok": 1.0}

    # --- change streams and cursors ---

    def _watch(self, request: Request, pipeline: list[Any], batch_size: Any, scope: Scope) -> Reply:
        if not self._replica_set:
            raise CommandError(40573, "The $changeStream stage is only supported on replica sets")
        options = parse_options(stage_name(pipeline[0])[1] or {})
        whole = request.body["aggregate"] == 1
        if options.cluster and not (whole and request.db == "admin"):
            raise CommandError(72, "allChangesForCluster: true is for the 'admin' database, without a collection name")
        if not options.cluster and request.db in ("admin", "local", "config"):
            raise CommandError(73, f"$changeStream may not be opened on the internal {request.db} database")
        coll = None if whole else request.collection()
        if coll is not None and coll.startswith("system."):
            raise CommandError(73, f"$changeStream may not be opened on the internal {request.db}.{coll} collection")
        watched = self._engine.collection(request.db, coll) if coll is not None else None
        if watched is not None and "viewOn" in watched.options:
            raise CommandError(166, f"Namespace {request.db}.{coll} is a view, not a collection")
        stream = ChangeStream(self._engine, None if options.cluster else request.db, coll, options, pipeline[1:], scope)
        namespace = f"{request.db}.{'$cmd.aggregate' if whole else coll}"
        batch = stream.read(DEFAULT_FIRST if batch_size is None else int(batch_size)) if batch_size != 0 else []
        cursor = self._cursors.open(namespace, [], stream, now=self._now())
        number = cursor.id
        if stream.invalidated:
            self._cursors.close(number)
            number = 0
        return cursor_reply(number, namespace, batch, first=True, token=stream.token_document())

    def get_more(self, request: Request) -> Result:
        number = int(request.body["getMore"])
        cursor = self._cursors.get(number)
        if cursor is None:
            raise CommandError(43, f"cursor id {number} not found")
        namespace = f"{request.db}.{request.body.get('collection')}"
        if namespace != cursor.namespace:
            raise CommandError(
                13,
                f"Requested getMore on namespace '{namespace}', but cursor belongs to a different namespace "
                f"{cursor.namespace}",
            )
        cursor.used = self._now()
        limit = int(request.body.get("batchSize") or NO_LIMIT)
        if cursor.stream is not None:
            return self._await_events(cursor, cursor.stream, limit, request.body.get("maxTimeMS"))
        batch = cursor.take(limit)
        if not cursor.documents:
            self._cursors.close(number)
            number = 0
        return cursor_reply(number, cursor.namespace, batch, first=False)

    async def _await_events(self, cursor: Cursor, stream: ChangeStream, limit: int, max_time_ms: Any) -> Reply:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (AWAIT if max_time_ms is None else int(max_time_ms) / 1000)
        cursor.busy = True
        try:
            batch = stream.read(limit)
            while not batch and not stream.invalidated and (left := deadline - loop.time()) > 0:
                stream.woken = loop.create_future()
                await asyncio.wait([stream.woken], timeout=left)
                stream.woken = None
                if self._cursors.get(cursor.id) is None:
                    raise CommandError(237, "operation was interrupted because a client killed the cursor")
                if loop.time() - stream.answered < 2 * SETTLE:
                    await asyncio.sleep(SETTLE)
                batch = stream.read(limit)
        except (CommandError, asyncio.CancelledError):  # the cursor dies with its operation
            self._cursors.close(cursor.id)
            raise
        finally:
            stream.woken = None
            cursor.busy = False
        if batch:
            stream.answered = loop.time()
        cursor.used = loop.time()
        number = cursor.id
        if stream.invalidated:
            self._cursors.close(number)
            number = 0
        return cursor_reply(number, cursor.namespace, batch, first=False, token=stream.token_document())

    def kill_cursors(self, request: Request) -> Reply:
        killed: list[Int64] = []
        absent: list[Int64] = []
        for number in request.body.get("cursors", []):
            (killed if self._cursors.close(int(number)) else absent).append(Int64(number))
        return {"cursorsKilled": killed, "cursorsNotFound": absent, "cursorsAlive": [], "cursorsUnknown": [], "ok": 1.0}


def _within(document: Mapping[str, Any], least: Mapping[str, Any], below: Mapping[str, Any]) -> bool:
    """The index bounds `min` (included) and `max` (excluded)."""
    own = values.sort_key
    return all(own(values.get(document, name)) >= own(bound) for name, bound in least.items()) and all(
        own(values.get(document, name)) < own(bound) for name, bound in below.items()
    )

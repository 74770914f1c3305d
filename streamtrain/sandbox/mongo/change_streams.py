"""Change streams: the oplog read from a position, narrowed to a scope and passed through the stream's pipeline.

Most pipelines are decided by operation and namespace alone, and their events leave as the bytes they were written as;
only what looks into an event decodes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bson import Timestamp

from streamtrain.sandbox.mongo import raw, tokens
from streamtrain.sandbox.mongo.engine import INTERNAL, Engine
from streamtrain.sandbox.mongo.expressions import Scope
from streamtrain.sandbox.mongo.failure import NON_RESUMABLE, CommandError
from streamtrain.sandbox.mongo.matcher import Predicate, compile_filter
from streamtrain.sandbox.mongo.oplog import ALWAYS, Entry, Namespace, event_bytes
from streamtrain.sandbox.mongo.pipeline import compile_transform, stage_name
from streamtrain.sandbox.mongo.updates import shell

MAX_EVENT = 16 * 1024 * 1024 + 16 * 1024
MAX_BATCH = 16 * 1024 * 1024
STAGES = ("$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith", "$redact")
_OPTIONS = ("resumeAfter", "startAfter", "startAtOperationTime", "fullDocument", "fullDocumentBeforeChange",
            "allChangesForCluster", "showExpandedEvents", "showRawUpdateDescription")  # fmt: skip
_HEADER = ("operationType", "ns", "ns.db", "ns.coll")
_FULL_DOCUMENT = ("default", "updateLookup", "whenAvailable", "required")


@dataclass(frozen=True, slots=True)
class Options:
    """What the `$changeStream` stage asks for."""

    full_document: str
    expanded: bool
    cluster: bool
    resume_after: Any = None
    start_after: Any = None
    start_at: Timestamp | None = None


def parse_options(spec: Mapping[str, Any]) -> Options:
    for name in spec:
        if name not in _OPTIONS:
            raise CommandError(40415, f"BSON field '$changeStream.{name}' is an unknown field.")
    full = spec.get("fullDocument", "default")
    if full not in _FULL_DOCUMENT:
        raise CommandError(
            2, f"Enumeration value '{full}' for field '$changeStream.fullDocument' is not a valid value."
        )
    before = spec.get("fullDocumentBeforeChange", "off")
    if before != "off":
        raise CommandError(72, "the sandbox keeps no pre-images: fullDocumentBeforeChange must be 'off'")
    positions = [name for name in ("resumeAfter", "startAfter", "startAtOperationTime") if name in spec]
    if len(positions) > 1:
        raise CommandError(40674, "Only one type of resume option is allowed, but multiple were found.")
    return Options(
        full_document=full,
        expanded=bool(spec.get("showExpandedEvents", False)),
        cluster=bool(spec.get("allChangesForCluster", False)),
        resume_after=spec.get("resumeAfter"),
        start_after=spec.get("startAfter"),
        start_at=spec.get("startAtOperationTime"),
    )


class ChangeStream:
    """One open stream. `db` None is the whole cluster, `coll` None a database."""

    def __init__(
        self, engine: Engine, db: str | None, coll: str | None, options: Options, pipeline: list[Any], scope: Scope
    ) -> None:
        self._engine, self._db, self._coll, self._options = engine, db, coll, options
        self._seen: dict[Namespace, bool] = {}
        self._shown: dict[tuple[str, Namespace], bool] = {}
        self._header: list[Predicate] = []
        self._description = True
        self._transform: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
        self._compile(pipeline, scope)
        self._pending: list[tuple[bytes, str]] = []
        self._absent: str | None = None
        self._bits: tuple[str, bytes] = ("", b"")
        self.invalidated = False
        self.woken: asyncio.Future[None] | None = None
        self.answered = 0.0
        """When the stream last answered with events, on the loop's clock."""
        self._place = engine.oplog.end
        self.token = tokens.high_water(engine.oplog.last + 1)
        self._start()

    # --- where it begins ---

    def _start(self) -> None:
        options = self._options
        if options.start_at is not None:
            ts = (options.start_at.time << 32) | options.start_at.inc
            self._require_history(ts)
            self._place, self.token = self._engine.oplog.place(ts), tokens.high_water(ts)
            return
        given = options.resume_after if options.resume_after is not None else options.start_after
        if given is None:
            return
        token = tokens.parse(given)
        if token.invalidate and options.resume_after is not None:
            raise CommandError(
                260,
                "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate "
                "notification.",
            )
        self._require_history(token.ts)
        self.token = token.text
        self._bits = (token.text, raw.element("_typeBits", given["_typeBits"]) if "_typeBits" in given else b"")
        if token.high_water:
            self._place = self._engine.oplog.place(token.ts)
            return
        entry = self._engine.oplog.at(token.ts, token.index)
        if entry is None or not self._visible(entry):
            self._absent = token.text
            self._place = self._engine.oplog.place(token.ts, token.index)
            return
        self._place = self._engine.oplog.place(token.ts, token.index) + 1
        if not token.invalidate and self._invalidates(entry):
            self._pending.append(self._invalidate(entry))

    def _require_history(self, ts: int) -> None:
        oplog = self._engine.oplog
        if oplog.lost and oplog.entries[0].ts > ts:
            raise CommandError(
                286,
                "Resume of change stream was not possible, as the resume point may no longer be in the oplog.",
                labels=NON_RESUMABLE,
            )

    # --- what it shows ---

    def _compile(self, pipeline: list[Any], scope: Scope) -> None:
        rest = list(pipeline)
        while rest:
            name, argument = stage_name(rest[0])
            if name != "$match" or not _header_only(argument):
                break
            self._header.append(compile_filter(argument, scope))
            rest.pop(0)
        if len(rest) == 1 and rest[0] in (
            {"$unset": "updateDescription"},
            {"$unset": ["updateDescription"]},
            {"$project": {"updateDescription": 0}},
        ):
            self._description = False
        elif rest:
            for spec in rest:
                name, _ = stage_name(spec)
                if (
                    name.startswith("$")
                    and name not in STAGES
                    and name
                    in (
                        "$group",
                        "$sort",
                        "$limit",
                        "$skip",
                        "$count",
                        "$sample",
                        "$unwind",
                        "$lookup",
                        "$out",
                        "$merge",
                        "$facet",
                    )
                ):
                    raise CommandError(20, f"{name} is not permitted in a $changeStream pipeline")
            self._transform = compile_transform(rest, scope, allowed=STAGES)

    def sees(self, namespace: Namespace) -> bool:
        """Whether writes to the namespace are in scope."""
        known = self._seen.get(namespace)
        if known is None:
            known = self._seen[namespace] = self._in_scope(namespace)
        return known

    def _in_scope(self, namespace: Namespace) -> bool:
        if self._db is None:
            return (
                namespace.db not in INTERNAL and namespace.db != "" and not (namespace.coll or "").startswith("system.")
            )
        if namespace.db != self._db:
            return False
        if self._coll is None:
            return not (namespace.coll or "").startswith("system.")
        return namespace.coll == self._coll

    def _visible(self, entry: Entry) -> bool:
        """Whether the entry is an event of this stream, the pipeline aside."""
        if entry.operation not in ALWAYS and (entry.operation == "noop" or not self._options.expanded):
            return False
        return self.sees(entry.namespace) or (entry.operation == "rename" and self._renames_to(entry))

    def _renames_to(self, entry: Entry) -> bool:
        to = raw.decode(raw.document(entry.extra))["to"]
        return self._coll is not None and to == {"db": self._db, "coll": self._coll}

    def _wanted(self, entry: Entry) -> bool:
        key = (entry.operation, entry.namespace)
        known = self._shown.get(key)
        if known is None:
            known = self._visible(entry)
            if known and self._header:
                ns = {"db": entry.namespace.db} | (
                    {"coll": entry.namespace.coll} if entry.namespace.coll is not None else {}
                )
                known = all(predicate({"operationType": entry.operation, "ns": ns}) for predicate in self._header)
            if entry.operation != "rename":
                self._shown[key] = known
        return known

    def _invalidates(self, entry: Entry) -> bool:
        if self._coll is not None:
            return entry.operation in ("drop", "rename")
        return self._db is not None and entry.operation == "dropDatabase"

    def _invalidate(self, entry: Entry) -> tuple[bytes, str]:
        token = tokens.event(entry.ts, entry.index, entry.namespace.token_uuid, b"", invalidate=True)
        event = {
            "_id": {"_data": token},
            "operationType": "invalidate",
            "clusterTime": Timestamp(entry.ts >> 32, entry.ts & 0xFFFFFFFF),
        }
        return raw.document(raw.encode(event)[4:-1], b"\x09wallTime\x00", raw.INT64.pack(entry.wall)), token

    def token_document(self) -> bytes:
        """The post-batch resume token."""
        text, bits = self._bits
        return tokens.document(self.token, bits if text == self.token else b"")

    # --- reading ---

    def read(self, limit: int) -> list[bytes]:
        """The next events, at most `limit` and 16 MB of them; moves `token` on. Raises CommandError."""
        batch: list[bytes] = []
        size = 0
        oplog = self._engine.oplog
        if self._place < oplog.base:
            raise CommandError(
                136,
                "Error in $cursor stage :: caused by :: CollectionScan died due to failure to restore tailable cursor "
                f"position. Last seen record id: RecordId({oplog.lost})",
            )
        if self._absent is not None:
            self._check_absent()
        if self._take_pending(batch, limit):
            return batch
        entries, at = oplog.entries, self._place - oplog.base
        count = len(entries)
        token, shown = self.token, self._shown
        last: Entry | None = None
        while at < count and len(batch) < limit:
            entry = entries[at]
            known = shown.get((entry.operation, entry.namespace))
            if known is None:
                known = self._wanted(entry)
            if known:
                event = self._event(entry)
                if event is not None:
                    if batch and size + len(event) > MAX_BATCH:
                        break
                    batch.append(event)
                    size += len(event)
                    token, last = entry.token, entry
            at += 1
            if (
                entry.operation in ("drop", "rename", "dropDatabase")
                and self._visible(entry)
                and self._invalidates(entry)
            ):
                self._pending.append(self._invalidate(entry))
                self._place, self.token = oplog.base + at, token
                self._take_pending(batch, limit)
                return batch
        self._place = oplog.base + at
        if last is not None:
            self._bits = (last.token, tokens.type_bits(last.key))
        if at == count:
            token = max(token, tokens.high_water(oplog.last))
        self.token = token
        return batch

    def _take_pending(self, batch: list[bytes], limit: int) -> bool:
        if not self._pending:
            return False
        if len(batch) < limit:
            event, self.token = self._pending.pop()
            batch.append(event)
            self.invalidated = True
        return True

    def _check_absent(self) -> None:
        """A token that no event of this stream has is noticed when the first event behind it is."""
        oplog = self._engine.oplog
        for entry in oplog.entries[self._place - oplog.base :]:
            if self._visible(entry):
                raise CommandError(
                    280,
                    f'cannot resume stream; the resume token was not found. {{_data: "{entry.token}"}}',
                    labels=NON_RESUMABLE,
                )

    def _event(self, entry: Entry) -> bytes | None:
        full, null = entry.document, False
        if entry.operation == "update" and self._options.full_document != "default":
            full, null = self._post_image(entry), True
        event = event_bytes(entry, full, null=null, description=self._description, uuid=self._options.expanded)
        if self._transform is not None:
            return self._transformed(event)
        if len(event) > MAX_EVENT:
            raise too_large(len(event))
        return event

    def _transformed(self, event: bytes) -> bytes | None:
        assert self._transform is not None
        decoded = raw.decode(event)
        changed = self._transform(decoded)
        if changed is None:
            return None
        if changed.get("_id") != decoded["_id"]:
            found = "{}" if "_id" not in changed else shell({"_id": changed["_id"]})
            raise CommandError(
                280,
                "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. "
                "Modifying the _id field of an event makes it impossible to resume the stream from that point. Only "
                "transformations that retain the unmodified _id field are allowed. Expected: "
                f"{shell({'_id': decoded['_id']})} but found: {found}",
                labels=NON_RESUMABLE,
            )
        result = event if changed is decoded else raw.encode(changed)
        if len(result) > MAX_EVENT:
            raise too_large(len(result))
        return result

    def _post_image(self, entry: Entry) -> bytes | None:
        if self._options.full_document == "updateLookup":
            return self._lookup(entry)
        if entry.post is None and self._options.full_document == "required":
            raise CommandError(
                47,
                "Change stream was configured to require a post-image for all update events, but the post-image was "
                f'not found for event: {{_data: "{entry.token}"}}',
                labels=NON_RESUMABLE,
            )
        return entry.post

    def _lookup(self, entry: Entry) -> bytes | None:
        collection = self._engine.collection(entry.namespace.db, entry.namespace.coll or "")
        if collection is None or collection.namespace.uuid != entry.namespace.uuid:
            return None
        key = entry.key
        return collection.documents.get(raw.key_of(key, key[0], 5, len(key)))


def too_large(size: int) -> CommandError:
    return CommandError(
        10334, f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and {MAX_EVENT}(16MB)"
    )


def _header_only(query: Any) -> bool:
    """Whether a filter looks only at what every event of an operation and a namespace has in common."""
    if not isinstance(query, Mapping):
        return False
    for name, condition in query.items():
        if name in ("$and", "$or", "$nor"):
            if not isinstance(condition, list) or not all(map(_header_only, condition)):
                return False
        elif name not in _HEADER:
            return False
    return True

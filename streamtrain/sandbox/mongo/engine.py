"""The store: databases of collections, and the one place where writes are applied, put in the oplog and journaled."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from streamtrain.sandbox.mongo import raw
from streamtrain.sandbox.mongo.collection import Collection, Index
from streamtrain.sandbox.mongo.failure import CommandError
from streamtrain.sandbox.mongo.journal import Journal, binary
from streamtrain.sandbox.mongo.oplog import Entry, Namespace, Oplog

INTERNAL = ("admin", "config", "local")


class Transaction:
    """The writes of a multi-document transaction: applied at once, undone at abort, shown to streams at commit."""

    def __init__(self, number: int, marks: bytes) -> None:
        self.number = number
        self.marks = marks
        self.entries: list[tuple[Entry, bytes]] = []
        self.undo: list[Callable[[], None]] = []
        self.state = "open"
        self.written: set[tuple[Namespace, Hashable]] = set()


class Engine:
    """Every method that writes ends in `_record`; `flush` makes what was written durable and wakes the streams."""

    def __init__(self, *, time: Callable[[], float], oplog_bytes: int, journal: Journal | None = None) -> None:
        self.time = time
        self.databases: dict[str, dict[str, Collection]] = {}
        self.oplog = Oplog(max_bytes=oplog_bytes, time=time)
        self.journal = journal
        self.retries: dict[bytes, tuple[int, bytes]] = {}
        """By session: the last retryable write's number and reply, so that a repeat is answered, not applied again."""
        self.active: Transaction | None = None
        self.on_write: Callable[[list[Namespace]], None] = lambda _: None
        self._open: list[Transaction] = []
        self._touched: dict[Namespace, None] = {}
        self._replaying = False
        self.identity = os.urandom(12)
        """What the replica set is told apart by; kept in the file."""
        if journal is not None:
            self._restore(journal)
        if not self.oplog.entries:
            self._note()

    # --- reading ---

    def collection(self, db: str, coll: str) -> Collection | None:
        return self.databases.get(db, {}).get(coll)

    def wall(self) -> int:
        return int(self.time() * 1000)

    # --- transactions ---

    def begin(self, transaction: Transaction) -> None:
        self._open.append(transaction)

    def _claim(self, collection: Collection, key: Hashable) -> None:
        """A document that another open transaction has written cannot be written in this one."""
        if not self._open:
            return
        place = (collection.namespace, key)
        for other in self._open:
            if other is not self.active and place in other.written:
                raise CommandError(
                    112,
                    "WriteConflict error: this operation conflicted with another operation. Please retry your "
                    "operation or multi-document transaction.",
                    labels=("TransientTransactionError",) if self.active is not None else (),
                )
        if self.active is not None:
            self.active.written.add(place)

    # --- documents ---

    def insert(self, collection: Collection, key: Hashable, id_bytes: bytes, data: bytes) -> None:
        self._claim(collection, key)
        collection.put(key, data)
        entry = Entry("insert", collection.namespace, 0, self.wall(), key=id_bytes, document=data)
        self._record(entry, b"\x03d\x00" + data, lambda: collection.remove(key))

    def update(self, collection: Collection, key: Hashable, data: bytes, description: bytes) -> None:
        """`description` is the element `updateDescription`."""
        self._claim(collection, key)
        old = collection.documents[key]
        collection.put(key, data)
        post = data if collection.post_images else None
        entry = Entry("update", collection.namespace, 0, self.wall(), key=_id_bytes(data), extra=description, post=post)
        self._record(entry, b"\x03d\x00" + data, lambda: collection.put(key, old))

    def replace(self, collection: Collection, key: Hashable, data: bytes) -> None:
        self._claim(collection, key)
        old = collection.documents[key]
        collection.put(key, data)
        entry = Entry("replace", collection.namespace, 0, self.wall(), key=_id_bytes(data), document=data)
        self._record(entry, b"\x03d\x00" + data, lambda: collection.put(key, old))

    def delete(self, collection: Collection, key: Hashable) -> bytes:
        self._claim(collection, key)
        data = collection.remove(key)
        id_bytes = _id_bytes(data)
        entry = Entry("delete", collection.namespace, 0, self.wall(), key=id_bytes)
        self._record(entry, b"\x03d\x00" + raw.document(id_bytes), lambda: collection.put(key, data))
        return data

    # --- the catalogue ---

    def create(
        self, db: str, coll: str, options: dict[str, Any] | None = None, *, identity: bytes | None = None
    ) -> Collection:
        namespace = Namespace(db, coll, identity or uuid.uuid4().bytes)
        collection = Collection(namespace, dict(options or {}))
        self.databases.setdefault(db, {})[coll] = collection
        described = {
            "operationDescription": {**collection.options, "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
        }
        entry = Entry("create", namespace, 0, self.wall(), extra=raw.encode(described)[4:-1])
        self._record(entry, binary(b"u", namespace.uuid) + raw.embedded(b"o", raw.encode(collection.options)))
        return collection

    def drop(self, collection: Collection) -> None:
        namespace = collection.namespace
        del self.databases[namespace.db][namespace.coll or ""]
        if not self.databases[namespace.db]:
            del self.databases[namespace.db]
        self._record(Entry("drop", namespace, 0, self.wall()), b"")

    def rename(self, collection: Collection, db: str, coll: str) -> None:
        """To another database the server copies: a temporary collection there takes the name, the source is dropped."""
        source = collection.namespace
        target = self.collection(db, coll)
        if db != source.db:
            if target is not None:
                self.drop(target)
            copied = self.create(db, f"tmp{uuid.uuid4().hex[:5]}.renameCollection", collection.options)
            for index in collection.indexes.values():
                self.create_index(copied, index.spec)
            for key, data in collection.documents.items():
                self._copy(copied, key, data)
            self.rename(copied, db, coll)
            self.drop(collection)
            return
        collections = self.databases[db]
        del collections[source.coll or ""]
        collection.namespace = Namespace(db, coll, source.uuid)
        collections[coll] = collection
        to: dict[str, Any] = {"to": {"db": db, "coll": coll}}
        entry = Entry("rename", source, 0, self.wall(), extra=raw.encode(to)[4:-1])
        self._touched[collection.namespace] = None
        self._record(entry, raw.string(b"to", coll))

    def _copy(self, collection: Collection, key: Hashable, data: bytes) -> None:
        """Put a document where it shows in no stream."""
        collection.put(key, data)
        if self.journal is not None:
            place = raw.string(b"b", collection.namespace.db), raw.string(b"n", collection.namespace.coll or "")
            self.journal.append(raw.document(raw.string(b"k", "copy"), *place, b"\x03d\x00" + data))

    def drop_database(self, db: str) -> None:
        for collection in list(self.databases.get(db, {}).values()):
            self.drop(collection)
        self._record(Entry("dropDatabase", Namespace(db, None, b""), 0, self.wall()), b"")

    def create_index(self, collection: Collection, spec: dict[str, Any]) -> None:
        collection.build_index(Index(spec))
        described = {"operationDescription": {"indexes": [spec]}}
        entry = Entry("createIndexes", collection.namespace, 0, self.wall(), extra=raw.encode(described)[4:-1])
        self._record(entry, raw.embedded(b"o", raw.encode(spec)))

    def drop_index(self, collection: Collection, name: str) -> None:
        spec = collection.indexes.pop(name).spec
        described = {"operationDescription": {"indexes": [spec]}}
        entry = Entry("dropIndexes", collection.namespace, 0, self.wall(), extra=raw.encode(described)[4:-1])
        self._record(entry, raw.string(b"i", name))

    def modify(self, collection: Collection, changes: dict[str, Any]) -> None:
        before = dict(collection.options)
        collection.options.update(changes)
        described = {"operationDescription": changes, "stateBeforeChange": {"collectionOptions": before}}
        entry = Entry("modify", collection.namespace, 0, self.wall(), extra=raw.encode(described)[4:-1])
        self._record(entry, raw.embedded(b"o", raw.encode(changes)))

    # --- the oplog ---

    def _note(self) -> None:
        self._record(Entry("noop", Namespace("", None, b""), 0, self.wall()), b"")

    def note(self) -> None:
        """A no-op entry, which moves the cluster time on: what a real primary writes when nothing else is."""
        self._note()

    def cut_oplog(self, keep: int = 0) -> None:
        self.oplog.cut(keep)
        if keep == 0:
            self._note()
        if self.journal is not None:
            self.journal.append(raw.document(raw.string(b"k", "cut"), b"\x10c\x00" + raw.INT32.pack(max(keep, 1))))

    def remember(self, session: bytes, number: int, reply: bytes) -> None:
        self.retries[session] = (number, reply)
        if self.journal is not None:
            self.journal.append(
                raw.document(
                    raw.string(b"k", "retry"),
                    binary(b"s", session),
                    b"\x12c\x00" + raw.INT64.pack(number),
                    raw.embedded(b"d", reply),
                )
            )

    def commit(self, transaction: Transaction) -> None:
        transaction.state = "committed"
        self._open.remove(transaction)
        if not transaction.entries:
            return
        ts = self.oplog.next_time()
        for index, (entry, record) in enumerate(transaction.entries):
            entry.ts, entry.index, entry.transaction = ts, index, transaction.marks
            self._write(entry, record)

    def abort(self, transaction: Transaction) -> None:
        transaction.state = "aborted"
        self._open.remove(transaction)
        for undo in reversed(transaction.undo):
            undo()

    def flush(self) -> None:
        if self.journal is not None:
            self.journal.flush()
        if self._touched:
            touched, self._touched = list(self._touched), {}
            self.on_write(touched)

    def _record(self, entry: Entry, record: bytes, undo: Callable[[], object] = lambda: None) -> None:
        if self._replaying:
            return
        if self.active is not None and entry.key:
            self.active.entries.append((entry, record))
            self.active.undo.append(lambda: void(undo))
            return
        entry.ts = self.oplog.next_time()
        self._write(entry, record)

    def _write(self, entry: Entry, record: bytes) -> None:
        self.oplog.append(entry)
        self._touched[entry.namespace] = None
        if self.journal is not None:
            extra = binary(b"e", entry.extra) if entry.operation == "update" else b""
            place = (
                b"\x10x\x00" + raw.INT32.pack(entry.index) + binary(b"q", entry.transaction)
                if entry.transaction
                else b""
            )
            head = b"".join(
                (
                    raw.string(b"k", entry.operation),
                    b"\x11t\x00",
                    raw.UINT64.pack(entry.ts),
                    b"\x09w\x00",
                    raw.INT64.pack(entry.wall),
                    raw.string(b"b", entry.namespace.db),
                    raw.string(b"n", entry.namespace.coll or ""),
                )
            )
            self.journal.append(raw.document(head, record, extra, place))

    # --- starting from a file ---

    def _restore(self, journal: Journal) -> None:
        self._replaying = True
        for record in journal.replay():
            kind = record["k"]
            if kind == "copy":
                copied, data = self.collection(record["b"], record["n"]), record["d"]
                element = raw.id_element(data)
                if copied is not None and element is not None:
                    copied.put(raw.key_of(data, element.kind, element.value, element.end), data)
            elif kind == "cut":
                self.oplog.cut(record["c"])
            elif kind == "identity":
                self.identity = record["u"]
            elif kind == "retry":
                self.retries[record["s"]] = (record["c"], record["d"])
            else:
                self._restore_write(record)
        self._replaying = False
        if not self.oplog.entries:
            journal.append(raw.document(raw.string(b"k", "identity"), binary(b"u", self.identity)))

    def _restore_write(self, record: dict[str, Any]) -> None:
        kind, db, coll = record["k"], record["b"], record["n"]
        collection = self.collection(db, coll)
        namespace = (
            collection.namespace if collection is not None else Namespace(db, coll or None, record.get("u", b""))
        )
        entry = Entry(
            kind, namespace, record["t"], record["w"], index=record.get("x", 0), transaction=record.get("q", b"")
        )
        data: bytes = record.get("d", b"")
        if data:
            entry.key = _id_bytes(data)
            entry.size += len(data)
            element = raw.id_element(data)
            assert element is not None
            assert collection is not None
            key = raw.key_of(data, element.kind, element.value, element.end)
            if kind == "delete":
                collection.remove(key)
            else:
                collection.put(key, data)
            if kind in ("insert", "replace"):
                entry.document = data
            if kind == "update":
                entry.extra = record["e"]
                entry.post = data if collection.post_images else None
        else:
            self._restore_catalogue(record, collection, entry)
        self.oplog.last = max(self.oplog.last, entry.ts)
        self.oplog.append(entry)

    def _restore_catalogue(self, record: dict[str, Any], collection: Collection | None, entry: Entry) -> None:
        kind, db, coll = record["k"], record["b"], record["n"]
        if kind == "create":
            entry.namespace = self.create(db, coll, raw.decode(record["o"]), identity=record["u"]).namespace
        elif collection is None:
            return
        elif kind == "drop":
            self.drop(collection)
        elif kind == "rename":
            entry.extra = raw.encode({"to": {"db": db, "coll": record["to"]}})[4:-1]
            self.rename(collection, db, record["to"])
        elif kind == "createIndexes":
            self.create_index(collection, raw.decode(record["o"]))
        elif kind == "dropIndexes":
            self.drop_index(collection, record["i"])
        elif kind == "modify":
            self.modify(collection, raw.decode(record["o"]))


def void(call: Callable[[], object]) -> None:
    call()


def _id_bytes(data: bytes) -> bytes:
    element = raw.id_element(data)
    assert element is not None
    return data[element.begin : element.end]


def open_engine(*, time: Callable[[], float], data_file: Path | None, oplog_bytes: int, fsync: bool) -> Engine:
    return Engine(time=time, oplog_bytes=oplog_bytes, journal=Journal(data_file, fsync=fsync) if data_file else None)

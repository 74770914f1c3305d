"""The oplog: what was written, in order, each entry kept as the pieces of the change event that it will be read as.

An entry is made at the write and never changed. Its token and event head are encoded once, by the first stream that
reads it; documents are shared with the collection, not copied.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from streamtrain.sandbox.mongo import raw, tokens

OPERATIONS = ("insert", "update", "replace", "delete", "drop", "rename", "dropDatabase", "create", "createIndexes",
              "dropIndexes", "modify", "noop")  # fmt: skip
ALWAYS = frozenset(("insert", "update", "replace", "delete", "drop", "rename", "dropDatabase"))
"""The operations that every stream shows; the others are for showExpandedEvents."""


class Namespace:
    """A collection under one name: what the entries written to it share."""

    __slots__ = ("coll", "db", "element", "name", "token_uuid", "uuid")

    def __init__(self, db: str, coll: str | None, uuid: bytes) -> None:
        self.db, self.coll, self.uuid = db, coll, uuid
        self.name = f"{db}.{coll}" if coll is not None else db
        fields = raw.string(b"db", db) + (raw.string(b"coll", coll) if coll is not None else b"")
        self.element = raw.embedded(b"ns", raw.document(fields))
        self.token_uuid = uuid.hex().upper()


class Entry:
    """One write. `document` is what an insert or replace wrote; `key` the `_id` element, `extra` further elements."""

    __slots__ = (
        "_head",
        "_tail",
        "_token",
        "document",
        "extra",
        "index",
        "key",
        "namespace",
        "operation",
        "post",
        "size",
        "transaction",
        "ts",
        "wall",
    )

    def __init__(
        self,
        operation: str,
        namespace: Namespace,
        ts: int,
        wall: int,
        *,
        key: bytes = b"",
        document: bytes | None = None,
        extra: bytes = b"",
        post: bytes | None = None,
        index: int = 0,
        transaction: bytes = b"",
    ) -> None:
        self.operation, self.namespace, self.ts, self.wall = operation, namespace, ts, wall
        self.key, self.document, self.extra, self.post = key, document, extra, post
        self.index, self.transaction = index, transaction
        self.size = 160 + len(key) + len(extra) + (len(document) if document is not None else 0)
        self._token: str | None = None
        self._head: bytes | None = None
        self._tail: bytes | None = None

    @property
    def token(self) -> str:
        token = self._token
        if token is None:
            token = self._token = tokens.event(self.ts, self.index, self.namespace.token_uuid, self.key)
        return token

    def head(self) -> bytes:
        """The elements before `fullDocument`."""
        head = self._head
        if head is None:
            head = self._head = b"".join(
                (
                    self.transaction,
                    b"\x03_id\x00",
                    tokens.document(self.token, tokens.type_bits(self.key)),
                    _OPERATION[self.operation],
                    b"\x11clusterTime\x00",
                    raw.UINT64.pack(self.ts),
                    b"\x09wallTime\x00",
                    raw.INT64.pack(self.wall),
                )
            )
        return head

    def tail(self) -> bytes:
        """The elements after `fullDocument`, without the update description and what other operations add."""
        tail = self._tail
        if tail is None:
            tail = self.namespace.element
            if self.key:
                tail = b"".join((tail, b"\x03documentKey\x00", raw.document(self.key)))
            self._tail = tail
        return tail


_OPERATION = {name: raw.string(b"operationType", name) for name in OPERATIONS}


def event_bytes(
    entry: Entry, full: bytes | None, *, null: bool = False, description: bool = True, uuid: bool = False
) -> bytes:
    """The event as a document; `full` is the document it shows, `null` says to show null where there is none."""
    head = entry.head()
    if uuid:
        at = head.rindex(b"\x09wallTime\x00")
        head = head[:at] + b"\x05collectionUUID\x00\x10\x00\x00\x00\x04" + entry.namespace.uuid + head[at:]
    shown = b"\x03fullDocument\x00" + full if full is not None else b"\x0afullDocument\x00" if null else b""
    tail, extra = entry.tail(), entry.extra if description else b""
    return b"".join(
        (raw.INT32.pack(5 + len(head) + len(shown) + len(tail) + len(extra)), head, shown, tail, extra, b"\x00")
    )


class Oplog:
    """The entries in memory, oldest first. `base` counts those that were cut off: positions in it never shift."""

    def __init__(self, *, max_bytes: int, time: Callable[[], float]) -> None:
        self.entries: list[Entry] = []
        self.base = 0
        self.max_bytes = max_bytes
        self.bytes = 0
        self._time = time
        self.last = (int(time()) << 32) | 1
        self.lost = 0
        """Every entry at or before this time is gone; 0 while history is whole since the server's beginning."""

    def next_time(self) -> int:
        """A new cluster time: above all before it, and not below the wall clock's second."""
        floor = (int(self._time()) << 32) | 1
        self.last = floor if floor > self.last else self.last + 1
        return self.last

    @property
    def end(self) -> int:
        return self.base + len(self.entries)

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.bytes += entry.size
        if self.bytes > self.max_bytes:
            self._trim()

    def _trim(self) -> None:
        count, freed = 0, 0
        target = self.max_bytes - self.max_bytes // 8
        while self.bytes - freed > target and count < len(self.entries) - 1:
            freed += self.entries[count].size
            count += 1
        self.cut(len(self.entries) - count)

    def cut(self, keep: int = 0) -> None:
        """Forget all but the newest `keep` entries, as a full oplog does."""
        count = len(self.entries) - keep
        if count <= 0:
            return
        self.lost = self.entries[count - 1].ts
        self.bytes -= sum(entry.size for entry in self.entries[:count])
        del self.entries[:count]
        self.base += count

    def place(self, ts: int, index: int = -1) -> int:
        """The position of the first entry at or after (ts, index)."""
        return self.base + bisect_left(self.entries, (ts, index), key=_order)

    def at(self, ts: int, index: int) -> Entry | None:
        place = self.place(ts, index) - self.base
        if place < len(self.entries):
            entry = self.entries[place]
            if entry.ts == ts and entry.index == index:
                return entry
        return None


def _order(entry: Entry) -> tuple[int, int]:
    return entry.ts, entry.index


def description_element(description: dict[str, Any]) -> bytes:
    return raw.element("updateDescription", description)

"""Raw change stream events, as the server sends them, to ChangeEvents. Fields may come in any order and
unknown ones may be among them; nothing but the few scalars that a ChangeEvent holds is ever decoded."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from streamtrain.errors import SourceError
from streamtrain.source.elements import INT32, elements
from streamtrain.source.shape import Shape
from streamtrain.types import ChangeEvent, Operation

_UINT64 = struct.Struct("<Q")
_INT64 = struct.Struct("<q")

_OPERATIONS = {
    b"insert": Operation.INSERT,
    b"update": Operation.UPDATE,
    b"replace": Operation.REPLACE,
    b"delete": Operation.DELETE,
}

# Type byte and name of the fields that are read; an event's `fullDocument` may also be null (then it is absent).
_TOKEN = b"\x03_id"
_OPERATION = b"\x02operationType"
_CLUSTER_TIME = b"\x11clusterTime"
_WALL_TIME = b"\x09wallTime"
_DOCUMENT = b"\x03fullDocument"
_NAMESPACE = b"\x03ns"
_DOCUMENT_KEY = b"\x03documentKey"

MOST_SHAPES = 6  # four operations on one collection, some with and some without their document

# A KeyString (the hex text of a token's `_data`) that begins with a timestamp: this byte, then 8 bytes of it.
_TOKEN_TIMESTAMP = "82"


@dataclass(frozen=True, slots=True)
class CollectionEvent:
    """What happened to a collection or database as a whole (`drop`, `rename`, `invalidate`, ...).

    after: how many document changes of the same batch come before it. token: raw BSON of its `_id`.
    """

    operation: str
    namespace: str
    token: bytes
    cluster_time: int
    after: int


@dataclass(frozen=True, slots=True)
class Parsed:
    """The events of one batch, in order. incomplete: places in `changes` of updates without their document."""

    changes: list[ChangeEvent]
    others: list[CollectionEvent]
    incomplete: list[int]


class EventParser:
    """Parses the batches of one stream.

    It remembers the shapes of the events before, most recently seen first, and walks over the elements of an
    event only when it has none of them.
    """

    def __init__(self) -> None:
        self._shapes: list[Shape] = []
        self._namespaces: dict[bytes, str] = {}

    def parse(self, batch: bytes) -> Parsed:
        """The events of `batch`, raw BSON documents one after the other. Raises SourceError when it is none."""
        changes: list[ChangeEvent] = []
        others: list[CollectionEvent] = []
        incomplete: list[int] = []
        at, end = 0, len(batch)
        try:
            while at < end:
                stop = at + INT32.unpack_from(batch, at)[0]
                event = self._cut(batch, at, stop) or self._walk(batch, at, len(changes))
                if isinstance(event, ChangeEvent):
                    if event.document is None and event.operation is Operation.UPDATE:
                        incomplete.append(len(changes))
                    changes.append(event)
                else:
                    others.append(event)
                at = stop
        except (ValueError, struct.error) as error:
            raise SourceError(f"a change event cannot be read: {error}") from error
        return Parsed(changes, others, incomplete)

    def _cut(self, batch: bytes, at: int, stop: int) -> ChangeEvent | None:
        for place, shape in enumerate(self._shapes):
            event = shape.cut(batch, at, stop)
            if event is not None:
                if place:
                    self._shapes.insert(0, self._shapes.pop(place))
                return event
        return None

    def _walk(self, batch: bytes, at: int, after: int) -> ChangeEvent | CollectionEvent:
        event = self._event(batch, at, after)
        if isinstance(event, ChangeEvent):
            shape = Shape.of(batch, at, event)
            if shape is not None:
                self._shapes.insert(0, shape)
                del self._shapes[MOST_SHAPES:]
        return event

    def _event(self, batch: bytes, at: int, after: int) -> ChangeEvent | CollectionEvent:
        token = key = document = wall_time = None
        operation, namespace, cluster_time = b"", "", 0
        for tag, begin, end in elements(batch, at):
            if tag == _TOKEN:
                token = batch[begin:end]
            elif tag == _OPERATION:
                operation = batch[begin + 4 : end - 1]
            elif tag == _CLUSTER_TIME:
                cluster_time = _UINT64.unpack_from(batch, begin)[0]
            elif tag == _WALL_TIME:
                wall_time = _INT64.unpack_from(batch, begin)[0]
            elif tag == _DOCUMENT:
                document = batch[begin:end]
            elif tag == _NAMESPACE:
                namespace = self._namespace(batch[begin:end])
            elif tag == _DOCUMENT_KEY:
                key = batch[begin:end]
        if token is None or not operation:
            raise ValueError("it has no _id or no operationType")
        kind = _OPERATIONS.get(operation)
        if kind is None:
            return CollectionEvent(operation.decode(), namespace, token, cluster_time, after)
        if key is None or not namespace or not cluster_time:
            raise ValueError(f"the {operation.decode()} has no documentKey, ns or clusterTime")
        return ChangeEvent(token, kind, namespace, key, document, cluster_time, wall_time)

    def _namespace(self, raw: bytes) -> str:
        found = self._namespaces.get(raw)
        if found is None:
            if len(self._namespaces) > 10_000:  # a database where collections come and go
                self._namespaces.clear()
            found = self._namespaces[raw] = ".".join(
                raw[begin + 4 : end - 1].decode()
                for tag, begin, end in elements(raw)
                if tag in (b"\x02db", b"\x02coll")
            )
        return found


def token_time(token: bytes) -> int | None:
    """The cluster time inside a resume token (raw BSON), None where its format is another one."""
    for tag, begin, end in elements(token):
        if tag == b"\x02_data":
            text = token[begin + 4 : end - 1].decode()
            if text.startswith(_TOKEN_TIMESTAMP) and len(text) >= 18:
                return int(text[2:18], 16)
    return None

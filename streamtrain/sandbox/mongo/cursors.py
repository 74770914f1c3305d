"""Open cursors: results of finds and aggregations that wait for getMore, and change streams."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from streamtrain.sandbox.mongo import raw
from streamtrain.sandbox.mongo.change_streams import ChangeStream

MAX_BATCH = 16 * 1024 * 1024
DEFAULT_FIRST = 101


@dataclass(slots=True)
class Cursor:
    """`documents` are what is left to give, last first, so that taking them is cheap."""

    id: int
    namespace: str
    documents: list[bytes] = field(default_factory=list)
    stream: ChangeStream | None = None
    busy: bool = False
    used: float = 0.0
    """When it was last asked, on the loop's clock."""

    def take(self, limit: int) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        while self.documents and len(batch) < limit:
            document = self.documents[-1]
            if batch and size + len(document) > MAX_BATCH:
                break
            size += len(document)
            batch.append(self.documents.pop())
        return batch


class Cursors:
    def __init__(self) -> None:
        self._open: dict[int, Cursor] = {}

    def open(self, namespace: str, documents: list[bytes], stream: ChangeStream | None = None, *, now: float) -> Cursor:
        number = random.getrandbits(62) | 1
        cursor = Cursor(number, namespace, documents[::-1], stream, used=now)
        self._open[number] = cursor
        return cursor

    def get(self, number: int) -> Cursor | None:
        return self._open.get(number)

    def close(self, number: int) -> bool:
        cursor = self._open.pop(number, None)
        if cursor is None:
            return False
        stream = cursor.stream
        if stream is not None and stream.woken is not None and not stream.woken.done():
            stream.woken.set_result(None)
        return True

    def close_idle(self, before: float) -> None:
        """Forget cursors that nobody has asked since `before`."""
        for number in [c.id for c in self._open.values() if c.used < before and not c.busy]:
            self.close(number)

    def waiting(self) -> Iterator[ChangeStream]:
        return (c.stream for c in self._open.values() if c.stream is not None and c.stream.woken is not None)

    def __len__(self) -> int:
        return len(self._open)


def cursor_reply(
    cursor_id: int, namespace: str, batch: list[bytes], *, first: bool, token: bytes | None = None
) -> bytes:
    """The reply of find, aggregate and getMore, without decoding what it carries."""
    parts = [raw.array(b"firstBatch" if first else b"nextBatch", batch)]
    if token is not None:
        parts.append(raw.embedded(b"postBatchResumeToken", token))
    parts += (b"\x12id\x00", raw.INT64.pack(cursor_id), raw.string(b"ns", namespace))
    return raw.document(raw.embedded(b"cursor", raw.document(*parts)), OK)


def listing_reply(namespace: str, documents: list[bytes]) -> bytes:
    """The reply of the commands that list things: all at once, and with the fields in another order."""
    parts = (b"\x12id\x00" + raw.INT64.pack(0), raw.string(b"ns", namespace), raw.array(b"firstBatch", documents))
    return raw.document(raw.embedded(b"cursor", raw.document(*parts)), OK)


OK = b"\x01ok\x00" + raw.DOUBLE.pack(1.0)

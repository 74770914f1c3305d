"""A collection's change stream as batches of raw events and the position behind each. It must never decide
what an error means, and never hold more than the one batch that it was asked for.

The stream is driven through `aggregate_raw_batches`: the driver keeps the session, pins getMores to the
server that has the cursor and kills it at the end, but does not make an object of every event. Per event of
373 bytes that takes 1.6 us of CPU, `watch` with raw documents 9.4 and with dicts 7.5. In return resuming is
ours (`source.py`), and the post-batch resume token is read from the attribute that pymongo's own change
streams read; a test fails if a pymongo release moves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson import Timestamp
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS, RawBSONDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.command_cursor import AsyncRawBatchCommandCursor
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from streamtrain import cancelling
from streamtrain.source.events import CollectionEvent, EventParser
from streamtrain.types import ChangeEvent, Position, PositionKind

# How much longer than `maxAwaitTimeMS` an answer may take before the connection counts as dead.
REPLY_DEADLINE_S = 30.0
CLOSE_DEADLINE_S = 2.0
CURSOR_NOT_FOUND = 43


@dataclass(frozen=True, slots=True)
class Batch:
    """What one answered getMore brought: maybe nothing but a token.

    token: raw BSON of the post-batch resume token, empty if there was none. size: bytes of the events.
    incomplete: places in `changes` of updates that came without their document.
    """

    changes: list[ChangeEvent]
    others: list[CollectionEvent]
    incomplete: list[int]
    token: bytes
    size: int


class ChangeStream:
    """One open change stream. `next` until it raises, then `close`; it is never reopened."""

    def __init__(
        self,
        *,
        collection: AsyncCollection[Any],
        full_document: str,
        position: Position,
        await_s: float,
    ) -> None:
        """full_document: `updateLookup`, `whenAvailable` or `required`. await_s: how long the server holds
        back the answer to a getMore while nothing happens."""
        self._collection = collection.with_options(
            codec_options=DEFAULT_RAW_BSON_OPTIONS, read_concern=ReadConcern("majority")
        )
        self._stage = {"fullDocument": full_document, **resume_option(position)}
        self._await_s = await_s
        self._parser = EventParser()
        self._cursor: AsyncRawBatchCommandCursor[Any] | None = None

    async def open(self) -> None:
        """Raises what pymongo raises, and TimeoutError."""
        async with asyncio.timeout(REPLY_DEADLINE_S):
            cursor: Any = await self._collection.aggregate_raw_batches(
                [{"$changeStream": self._stage}], maxAwaitTimeMS=int(self._await_s * 1000)
            )
        self._cursor = cursor

    async def next(self, most: int) -> Batch:
        """The next batch, of at most `most` events. Raises what pymongo raises, and TimeoutError."""
        cursor = self._cursor
        if cursor is None or not cursor.alive:
            raise OperationFailure("the server has closed the change stream", CURSOR_NOT_FOUND)
        cursor.batch_size(most)
        async with asyncio.timeout(self._await_s + REPLY_DEADLINE_S):
            raw = await cursor.try_next()
        cancelling.raise_if_lost()  # the reader would read on, and nobody would publish
        token = _raw_token(cursor._postbatchresumetoken)
        if raw is None:
            return Batch([], [], [], token, 0)
        parsed = self._parser.parse(raw)
        return Batch(parsed.changes, parsed.others, parsed.incomplete, token, len(raw))

    async def close(self) -> None:
        """Kills the cursor on the server if it can; never raises, never waits long."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            try:
                async with asyncio.timeout(CLOSE_DEADLINE_S):
                    await cursor.close()
            except (TimeoutError, PyMongoError):
                pass  # the server forgets an idle cursor after ten minutes


def resume_option(position: Position) -> Mapping[str, Any]:
    """Where the stream begins, as an option of `$changeStream`."""
    if position.kind is PositionKind.START:
        return {"startAtOperationTime": Timestamp(position.cluster_time >> 32, position.cluster_time & 0xFFFF_FFFF)}
    # Only `startAfter` may pass an invalidate event.
    option = "startAfter" if position.kind is PositionKind.INVALIDATE else "resumeAfter"
    return {option: RawBSONDocument(position.token)}


def _raw_token(token: Any) -> bytes:
    if token is None:
        return b""
    return bytes(token.raw) if isinstance(token, RawBSONDocument) else bson.encode(token)

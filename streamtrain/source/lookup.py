"""The last attempt to find the document of an update that came without it: by its documentKey. What is found
may be a later version; what is not found stays without a document and is counted by the reader."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS, RawBSONDocument
from pymongo import ReadPreference
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.read_concern import ReadConcern

from streamtrain.source.elements import INT32, elements
from streamtrain.types import ChangeEvent

CONCURRENT_LOOKUPS = 16
LOOKUP_DEADLINE_S = 30.0


async def complete(changes: list[ChangeEvent], places: Sequence[int], collection: AsyncCollection[Any]) -> None:
    """Gives the changes at `places` the document as it is now. Raises what pymongo raises, and TimeoutError."""
    target = collection.with_options(
        codec_options=DEFAULT_RAW_BSON_OPTIONS,
        read_concern=ReadConcern("majority"),
        read_preference=ReadPreference.PRIMARY,
    )
    by_key: dict[bytes, list[int]] = {}
    for place in places:
        by_key.setdefault(changes[place].document_key, []).append(place)
    keys = iter(by_key.items())

    async def worker() -> None:
        for key, wanted in keys:
            found = await target.find_one(RawBSONDocument(exactly(key)))
            if found is not None:
                for place in wanted:
                    changes[place] = changes[place]._replace(document=bytes(found.raw))

    try:
        async with asyncio.timeout(LOOKUP_DEADLINE_S), asyncio.TaskGroup() as group:
            for _ in range(min(CONCURRENT_LOOKUPS, len(by_key))):
                group.create_task(worker())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def exactly(document_key: bytes) -> bytes:
    """A raw filter that matches the values of a raw documentKey, whatever their types: each in an `$eq`."""
    parts = []
    for tag, begin, end in elements(document_key):
        equals = tag[:1] + b"$eq\x00" + document_key[begin:end]
        parts.append(b"\x03" + tag[1:] + b"\x00" + _document(equals))
    return _document(b"".join(parts))


def _document(content: bytes) -> bytes:
    return INT32.pack(len(content) + 5) + content + b"\x00"

"""A source at work on a sandbox server, and what its topic should hold: shared by the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import bson
from pymongo import MongoClient
from pymongo.collection import Collection

from streamtrain import config
from streamtrain.clock import Clock, SystemClock
from streamtrain.kafka import topics
from streamtrain.source import envelope
from streamtrain.source.envelope import Record
from streamtrain.source.publisher import Publisher
from streamtrain.source.source import PublisherPort, Source
from streamtrain.source.status import SourceState
from tests.contract.source.numbered_events import read

PARTITIONS = 3
SOURCE = "flights"
DATABASE, COLLECTION = "air", "flights"
PATIENCE_S = 30.0


def spec_of(uri: str, **options: Any) -> config.Source:
    fields = {"name": SOURCE, "uri": uri, "database": DATABASE, "collection": COLLECTION, "partitions": PARTITIONS}
    return config.Source(**{**fields, **options})


@asynccontextmanager
async def streaming(
    uri: str,
    *,
    kafka: config.Kafka | None = None,
    publisher: PublisherPort | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> AsyncIterator[Source]:
    """A source that streams, published to `kafka` or by `publisher`; it is stopped in the end."""
    clock = clock or SystemClock()
    if publisher is None:
        assert kafka is not None
        publisher = Publisher(kafka=kafka, source=SOURCE, partitions=PARTITIONS, clock=clock)
    source = Source(spec=spec_of(uri, **options), publisher=publisher, clock=clock)
    running = asyncio.create_task(source.run())
    try:
        await until(lambda: running.done() or source.status().state is SourceState.STREAMING)
        if running.done():
            await running
        yield source
        source.stop()
        await asyncio.wait_for(running, PATIENCE_S)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


class Writer:
    """Writes to the collection and remembers every change as (operation, document's BSON), by `_id`."""

    def __init__(self, uri: str) -> None:
        self.client: MongoClient[Any] = MongoClient(uri)
        self.collection: Collection[Any] = self.client[DATABASE][COLLECTION]
        self.changes: dict[bytes, list[tuple[str, bytes | None]]] = {}
        self.count = 0

    def __enter__(self) -> Writer:
        if COLLECTION not in self.client[DATABASE].list_collection_names():
            self.client[DATABASE].create_collection(COLLECTION)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def insert(self, document: dict[str, Any]) -> None:
        self.collection.insert_one(document)
        self._remember("i", document)

    def insert_many(self, documents: Sequence[dict[str, Any]]) -> None:
        self.collection.insert_many(documents)
        for document in documents:
            self._remember("i", document)

    def replace(self, document: dict[str, Any]) -> None:
        self.collection.replace_one({"_id": document["_id"]}, document)
        self._remember("r", document)

    def update(self, document: dict[str, Any]) -> None:
        """Sets the fields of `document`, which must leave the stored one equal to it."""
        self.collection.update_one(
            {"_id": document["_id"]}, {"$set": {k: v for k, v in document.items() if k != "_id"}}
        )
        self._remember("u", document)

    def delete(self, key: Any) -> None:
        self.collection.delete_one({"_id": key})
        self._remember("d", {"_id": key})

    def _remember(self, operation: str, document: dict[str, Any]) -> None:
        value = None if operation == "d" else bson.encode(document)
        self.changes.setdefault(bson.encode({"_id": document["_id"]}), []).append((operation, value))
        self.count += 1


async def topic(kafka: config.Kafka, *, at_least: int) -> list[Record]:
    """The records of the source's topic; their sequence in each partition is checked."""
    name = topics.source_topic(kafka.topic_prefix, SOURCE, 0)
    records = await read(kafka, name, partitions=PARTITIONS, at_least=at_least)
    numbers = dict.fromkeys(range(PARTITIONS), 0)
    decoded = []
    for record in records:
        found = envelope.decode(record.value, record.headers)
        assert record.partition == envelope.partition_of(record.key, PARTITIONS)
        assert found.n == numbers[record.partition]
        numbers[record.partition] += 1
        decoded.append(found)
    return decoded


async def check_topic(kafka: config.Kafka, writer: Writer) -> None:
    """Every change that was written is in the topic, once, in order for each document, with its exact bytes."""
    found: dict[bytes, list[tuple[str, bytes | None]]] = {}
    records = await topic(kafka, at_least=writer.count)
    for record in records:
        assert record.namespace == f"{DATABASE}.{COLLECTION}"
        found.setdefault(record.document_key, []).append((record.operation.value, record.document))
    assert found == writer.changes
    assert len(records) == writer.count

"""CPU per event of a whole source (read, parse, envelope, publish) beside the sum of the least that pymongo and
aiokafka need for the same events: a loop over `watch` with raw documents, and ready-made records sent in transactions.

    python benchmarks/source.py [--count 8000] [--bytes 250]
    python benchmarks/source.py --mongo-uri mongodb://... --kafka host:9092 --database bench --collection events

Without addresses it starts the sandbox's servers. It writes `count` documents into the collection first, and reads
that stretch of the oplog again and again; topics begin with `streamtrain-bench-`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import bson
import harness
import structlog
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from publisher import Prepared, prepare, publish_bare
from pymongo import AsyncMongoClient

from streamtrain import config
from streamtrain.clock import SystemClock
from streamtrain.kafka.topic_admin import ensure_topics
from streamtrain.sandbox.kafka_broker import KafkaBroker
from streamtrain.sandbox.mongo_server import MongoProcess
from streamtrain.source import preflight
from streamtrain.source.change_stream import ChangeStream
from streamtrain.source.producer import start_producer
from streamtrain.source.publisher import Publisher
from streamtrain.source.source import Source
from streamtrain.source.source_topic import source_topics
from streamtrain.types import ChangeEvent, Position

TARGET = 1.5
TRANSACTION = 2_000  # records, of the bare produce loop


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """`count` inserts in the oplog, behind the position `start`."""

    spec: config.Source
    start: Position
    count: int

    def named(self, name: str) -> Stretch:
        spec = self.spec.model_copy(update={"name": name})
        return Stretch(spec, dataclasses.replace(self.start, stream=name), self.count)


async def prefill(spec: config.Source, client: AsyncMongoClient[Any], *, count: int, size: int) -> Stretch:
    collection = client[spec.database][spec.collection]
    await collection.insert_one({"first": True})  # so that it exists
    facts = await preflight.check(spec, client)
    pad = "a" * max(0, size - len(bson.encode({"_id": bson.ObjectId(), "x": 1.5, "carrier": "AA", "pad": ""})))
    for begin in range(0, count, 1_000):
        rows = [{"x": float(i), "carrier": "AA", "pad": pad} for i in range(begin, min(begin + 1_000, count))]
        await collection.insert_many(rows)
    return Stretch(spec, preflight.start_position(spec, facts), count)


async def read_bare(client: AsyncMongoClient[Any], stretch: Stretch) -> int:
    spec, time = stretch.spec, stretch.start.cluster_time
    raw: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
    collection = client[spec.database].get_collection(spec.collection, codec_options=raw)
    read = 0
    async with await collection.watch(
        full_document="updateLookup", start_at_operation_time=bson.Timestamp(time >> 32, time & 0xFFFF_FFFF)
    ) as stream:
        async for _ in stream:
            read += 1
            if read >= stretch.count:
                return read
    raise AssertionError("the change stream ended")


async def events_of(client: AsyncMongoClient[Any], stretch: Stretch) -> list[ChangeEvent]:
    spec = stretch.spec
    stream = ChangeStream(
        collection=client[spec.database][spec.collection],
        full_document="updateLookup",
        position=stretch.start,
        await_s=1.0,
    )
    await stream.open()
    events: list[ChangeEvent] = []
    while len(events) < stretch.count:
        events += (await stream.next(2_000)).changes
    await stream.close()
    return events


class _Gate:
    """A publisher that is ready, with the position it resumes from, and says so before the source goes on."""

    def __init__(self, publisher: Publisher, stretch: Stretch) -> None:
        self._publisher = publisher
        self._stretch = stretch
        self._events = 0
        self.ready = asyncio.Event()
        self.opened = asyncio.Event()
        self.done = asyncio.Event()

    async def start(self) -> Position | None:
        assert not self.opened.is_set(), "the source had to start again"
        await self._publisher.start()
        position = await self._publisher.publish((), self._stretch.start)
        self.ready.set()
        await self.opened.wait()
        return position

    async def publish(self, events: Sequence[ChangeEvent], position: Position, /) -> Position:
        committed = await self._publisher.publish(events, position)
        self._events += len(events)
        if self._events >= self._stretch.count:
            self.done.set()
        return committed

    async def close(self) -> None:
        await self._publisher.close()


class SourceRuns:
    """Whole sources, each of a name of its own; what is measured is from the opening of the stream to the last
    commit, without what every start costs once."""

    def __init__(self, kafka: config.Kafka, stretch: Stretch) -> None:
        self._kafka = kafka
        self._stretch = stretch
        self._runs = 0
        self._running: tuple[Source, _Gate, asyncio.Task[None]] | None = None

    async def prepare(self) -> None:
        self._runs += 1
        stretch, clock = self._stretch.named(f"source-{self._runs}"), SystemClock()
        publisher = Publisher(
            kafka=self._kafka, source=stretch.spec.name, partitions=stretch.spec.partitions, clock=clock
        )
        gate = _Gate(publisher, stretch)
        source = Source(spec=stretch.spec, publisher=gate, clock=clock)
        task = asyncio.create_task(source.run())
        self._running = (source, gate, task)
        await _first(gate.ready.wait(), task)

    async def __call__(self) -> int:
        assert self._running is not None
        _, gate, task = self._running
        gate.opened.set()
        await _first(gate.done.wait(), task)
        return self._stretch.count

    async def finish(self) -> None:
        assert self._running is not None
        source, _, task = self._running
        source.stop()
        await task


async def _first(wanted: Awaitable[object], task: asyncio.Task[None]) -> None:
    """Waits for `wanted`, and not for ever if the source fails."""
    waiting = asyncio.ensure_future(wanted)
    await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        waiting.cancel()
        task.result()


async def compare(
    variants: dict[str, Callable[[], Awaitable[int]]], runs: SourceRuns, *, repeats: int
) -> dict[str, list[harness.Sample]]:
    samples: dict[str, list[harness.Sample]] = {name: [] for name in (*variants, "source")}
    for turn in range(repeats + 1):
        for name, work in variants.items():
            sample = await harness.measure(work)
            if turn:
                samples[name].append(sample)
        await runs.prepare()
        sample = await harness.measure(runs)
        await runs.finish()
        if turn:
            samples["source"].append(sample)
    return samples


async def run(options: argparse.Namespace, uri: str, servers: str) -> dict[str, Any]:
    spec = config.Source(
        name="bare",
        uri=uri,  # type: ignore[arg-type]
        database=options.database,
        collection=options.collection,
        partitions=options.partitions,
    )
    kafka = config.Kafka(bootstrap_servers=servers, topic_prefix=f"streamtrain-bench-{uuid.uuid4().hex[:8]}")
    async with preflight.connect(spec) as client:
        stretch = await prefill(spec, client, count=options.count, size=options.bytes)
        topics = source_topics(kafka, "bare", partitions=options.partitions, epoch=0)
        await ensure_topics(kafka, topics.all)
        events = await events_of(client, stretch)
        chunks: list[Prepared] = [
            prepare(events[begin : begin + TRANSACTION], options.partitions)
            for begin in range(0, len(events), TRANSACTION)
        ]
        async with _producing(kafka) as producer:
            samples = await compare(
                {
                    "read": lambda: read_bare(client, stretch),
                    "produce": lambda: publish_bare(producer, topics.records.name, chunks),
                },
                SourceRuns(kafka, stretch),
                repeats=options.repeats,
            )
    source = harness.best(samples["source"])
    limit = harness.best(samples["read"]).cpu_us + harness.best(samples["produce"]).cpu_us
    ratio = source.cpu_us / limit
    return {
        "unit": "event",
        "count": options.count,
        "bytes": options.bytes,
        "partitions": options.partitions,
        **{name: harness.summary(each) for name, each in samples.items()},
        "documents_per_s": round(max(sample.units / sample.wall_s for sample in samples["source"])),
        "cpu_s_per_1000_events": round(source.cpu_us / 1_000, 5),
        "rss_mib": harness.max_rss_mib(),
        "ratio": round(ratio, 3),
        "target": TARGET,
        "met": ratio <= TARGET,
    }


@contextlib.asynccontextmanager
async def _producing(kafka: config.Kafka) -> AsyncIterator[Any]:
    producer = await start_producer(kafka, "bare")
    try:
        yield producer
    finally:
        await producer.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mongo-uri", help="a replica set or mongos; default: the sandbox")
    parser.add_argument("--kafka", help="host:port of a broker; default: the sandbox")
    parser.add_argument("--database", default="streamtrain_bench")
    parser.add_argument("--collection", default="source")
    # The light broker keeps everything in memory: few events, often.
    parser.add_argument("--count", type=int, default=8_000)
    parser.add_argument("--bytes", type=int, default=250, help="of a document")
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=harness.REPEATS)
    options = parser.parse_args()
    # Only what is wrong, and that on stderr: stdout is for the result.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    with contextlib.ExitStack() as stack:
        uri, servers = options.mongo_uri, options.kafka
        if uri is None:
            mongo = MongoProcess()
            mongo.start()
            stack.callback(mongo.stop)
            uri = mongo.uri
        if servers is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers = stack.enter_context(KafkaBroker(directory=directory)).bootstrap_servers
        harness.report(asyncio.run(run(options, uri, servers)))


if __name__ == "__main__":
    main()

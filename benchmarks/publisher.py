"""CPU per record of the publisher beside the least that aiokafka needs for the same records: ready-made keys, values
and headers appended to batches, sent and committed in transactions.

    python benchmarks/publisher.py [--records 8000] [--bytes 330] [--transaction 2000] [--partitions 24]
"""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import bson
import harness
from aiokafka import AIOKafkaProducer

from streamtrain import config
from streamtrain.clock import SystemClock
from streamtrain.kafka.topic_admin import ensure_topics
from streamtrain.sandbox.kafka_broker import KafkaBroker
from streamtrain.source import envelope
from streamtrain.source.producer import start_producer
from streamtrain.source.publisher import Publisher
from streamtrain.source.source_topic import source_topics
from streamtrain.types import ChangeEvent, Operation, Position, PositionKind

TARGET = 1.3
Prepared = list[tuple[int, bytes, bytes, list[tuple[str, bytes]]]]


def events(count: int, size: int) -> list[ChangeEvent]:
    made = []
    for i in range(count):
        identity = bson.ObjectId()
        document = bson.encode({"_id": identity, "x": 1.5, "carrier": "AA", "pad": ""})
        document = bson.encode({"_id": identity, "x": 1.5, "carrier": "AA", "pad": "a" * (size - len(document))})
        made.append(
            ChangeEvent(
                token=bson.encode({"_data": f"82{i:024X}"}),
                operation=Operation.INSERT,
                namespace="air.flights",
                document_key=bson.encode({"_id": identity}),
                document=document,
                cluster_time=(1_700_000_000 + i // 1000) << 32 | i % 1000 + 1,
                wall_time_ms=1_700_000_000_000 + i,
            )
        )
    return made


def position_after(event: ChangeEvent, source: str, number: int) -> Position:
    return Position(
        stream=source,
        kind=PositionKind.EVENT,
        token=bson.encode({"_data": f"82{number:024X}"}),
        cluster_time=event.cluster_time,
        last_token=event.token,
        counts=(),
        cluster="c",
        pipeline="p",
        namespaces=("air.flights",),
        publisher_epoch=0,
    )


def prepare(chunk: list[ChangeEvent], partitions: int) -> Prepared:
    ready: Prepared = []
    for n, event in enumerate(chunk):
        key, value, headers = envelope.encode(event, n)
        ready.append((envelope.partition_of(key, partitions), key, value, headers))
    return ready


async def publish_bare(producer: AIOKafkaProducer, topic: str, chunks: list[Prepared]) -> int:
    for chunk in chunks:
        batches: dict[int, Any] = defaultdict(producer.create_batch)
        for partition, key, value, headers in chunk:
            batches[partition].append(timestamp=None, key=key, value=value, headers=headers)
        await producer.begin_transaction()
        sent = [await producer.send_batch(batch, topic, partition=p) for p, batch in batches.items()]
        await asyncio.gather(*sent)
        await producer.commit_transaction()
    return sum(map(len, chunks))


class Ours:
    """The publisher, with positions that go on from one run to the next."""

    def __init__(self, publisher: Publisher, source: str, chunks: list[list[ChangeEvent]]) -> None:
        self._publisher = publisher
        self._source = source
        self._chunks = chunks
        self._run = 0

    async def __call__(self) -> int:
        self._run += 1
        for number, chunk in enumerate(self._chunks):
            behind = position_after(chunk[-1], self._source, self._run * len(self._chunks) + number)
            await self._publisher.publish(chunk, behind)
        return sum(map(len, self._chunks))


async def run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    with KafkaBroker(directory=directory) as broker:
        kafka = config.Kafka(bootstrap_servers=broker.bootstrap_servers, topic_prefix="bench")
        specs = source_topics(kafka, "bare", partitions=options.partitions, epoch=0)
        await ensure_topics(kafka, specs.all)
        made = events(options.records, options.bytes)
        size = options.transaction
        chunks = [made[begin : begin + size] for begin in range(0, len(made), size)]
        prepared = [prepare(chunk, options.partitions) for chunk in chunks]
        producer = await start_producer(kafka, "bare")
        publisher = Publisher(kafka=kafka, source="ours", partitions=options.partitions, clock=SystemClock())
        try:
            await publisher.start()
            samples = await harness.compare(
                {
                    "bare": lambda: publish_bare(producer, specs.records.name, prepared),
                    "publisher": Ours(publisher, "ours", chunks),
                },
                repeats=options.repeats,
            )
        finally:
            await publisher.close()
            await producer.stop()
    ratio = harness.best(samples["publisher"]).cpu_us / harness.best(samples["bare"]).cpu_us
    return {
        "unit": "record",
        "records": options.records,
        "bytes": options.bytes,
        "transaction": options.transaction,
        "partitions": options.partitions,
        **{name: harness.summary(each) for name, each in samples.items()},
        "ratio": round(ratio, 3),
        "target": TARGET,
        "met": ratio <= TARGET,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # The light broker keeps everything in memory: few records, often.
    parser.add_argument("--records", type=int, default=8_000)
    parser.add_argument("--bytes", type=int, default=330)
    parser.add_argument("--transaction", type=int, default=2_000)
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=harness.REPEATS)
    options = parser.parse_args()
    harness.run(run, options)


if __name__ == "__main__":
    main()

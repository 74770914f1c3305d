"""The least that a record costs on its way to the model, with the libraries as they are: what the trainer's parts are
measured beside. Two kinds of documents of about 440 B: 32 floats in fields of their own, and 32 in one binary."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import bson
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from aiokafka import AIOKafkaConsumer, TopicPartition

with warnings.catch_warnings():  # pymongoarrow is built for another minor version of pyarrow, which it tells
    warnings.simplefilter("ignore", RuntimeWarning)
    from pymongoarrow.api import Schema as ArrowSchema
    from pymongoarrow.context import PyMongoArrowContext

from streamtrain import config
from streamtrain.clock import SystemClock
from streamtrain.kafka import topics
from streamtrain.source.publisher import Publisher
from streamtrain.types import ChangeEvent, Learned, Operation, Position, PositionKind

WIDTH = 32
SOURCE = "bench"
_TRANSACTION = 2_000


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of documents. features: as a job declares them."""

    name: str
    features: tuple[dict[str, Any], ...]

    def job(self, **settings: Any) -> config.Job:
        return config.Job.model_validate(
            {
                "name": f"bench-{self.name}",
                "source": SOURCE,
                "features": self.features,
                "labels": [{"field": "y", "dtype": "float32", "task": "regression"}],
                **settings,
            }
        )

    def documents(self, count: int, *, seed: int = 1) -> list[bytes]:
        """Raw BSON with an ObjectId, the features, and a label that is their sum."""
        rows = np.random.default_rng(seed).normal(size=(count, WIDTH)).astype("<f4")
        documents = []
        for row in rows:
            label = float(row.sum())
            if self.name == "scalar":
                values = {f"f{i:02d}": float(value) for i, value in enumerate(row)}
                documents.append(bson.encode({"_id": bson.ObjectId(), **values, "y": label}))
            else:
                pad = "a" * 260
                documents.append(bson.encode({"_id": bson.ObjectId(), "x": row.tobytes(), "y": label, "pad": pad}))
        return documents


SCALAR = Kind("scalar", tuple({"field": f"f{i:02d}", "dtype": "float32"} for i in range(WIDTH)))
VECTOR = Kind("vector", ({"field": "x", "dtype": "float32", "length": WIDTH, "encoding": "binary"},))
KINDS = (SCALAR, VECTOR)


async def prefill(kafka: config.Kafka, documents: Sequence[bytes], *, partitions: int) -> list[Learned]:
    """Publishes the documents as inserts; returns the end of each partition."""
    publisher = Publisher(kafka=kafka, source=SOURCE, partitions=partitions, clock=SystemClock())
    try:
        await publisher.start()
        for begin in range(0, len(documents), _TRANSACTION):
            events = [_insert(number, raw) for number, raw in enumerate(documents[begin : begin + _TRANSACTION], begin)]
            now = await publisher.publish(events, _position(events[-1]))
    finally:
        await publisher.close()
    consumer = await _consumer(kafka)
    try:
        ends = await consumer.end_offsets(_places(kafka, partitions))
        return [Learned(ends[place], now.counts[place.partition]) for place in _places(kafka, partitions)]
    finally:
        await consumer.stop()


def topic(kafka: config.Kafka) -> str:
    return topics.source_topic(kafka.topic_prefix, SOURCE, 0)


async def bare_consume(kafka: config.Kafka, ends: Sequence[Learned]) -> int:
    """Reads the topic from its beginning as aiokafka's documentation does, and looks at nothing."""
    consumer = await _consumer(kafka)
    try:
        places = _places(kafka, len(ends))
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        rows, wanted = 0, sum(end.count for end in ends)
        async with asyncio.timeout(120):
            while rows < wanted:
                rows += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
        return rows
    finally:
        await consumer.stop()


_ARROW = ArrowSchema({**{f"f{i:02d}": pa.float64() for i in range(WIDTH)}, "y": pa.float64()})


def bare_decode(kind: Kind, documents: Sequence[bytes]) -> npt.NDArray[np.float32]:
    """[rows, WIDTH + 1]: the fastest way known with libraries alone, which checks nothing: pymongoarrow for scalars,
    `bson.decode_all` for the binary."""
    table = np.empty((len(documents), WIDTH + 1), np.float32)
    if kind is SCALAR:
        context = PyMongoArrowContext(_ARROW)
        context.process_bson_stream(b"".join(documents))
        arrow = context.finish()
        for column, name in enumerate(arrow.column_names):
            table[:, column] = arrow.column(name).to_numpy()
    else:
        decoded = bson.decode_all(b"".join(documents))
        table[:, :WIDTH] = np.frombuffer(b"".join([d["x"] for d in decoded]), "<f4").reshape(-1, WIDTH)
        table[:, WIDTH] = [d["y"] for d in decoded]
    return table


async def _consumer(kafka: config.Kafka) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(
        **topics.kafka_options(kafka), isolation_level="read_committed", enable_auto_commit=False
    )
    await consumer.start()
    return consumer


def _places(kafka: config.Kafka, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic(kafka), number) for number in range(partitions)]


def _insert(number: int, raw: bytes) -> ChangeEvent:
    return ChangeEvent(
        token=bson.encode({"_data": f"82{number:024X}"}),
        operation=Operation.INSERT,
        namespace="bench.documents",
        document_key=bson.encode({"_id": bson.decode(raw)["_id"]}),
        document=raw,
        cluster_time=(1_700_000_000 + number // 1000) << 32 | number % 1000 + 1,
        wall_time_ms=1_700_000_000_000 + number,
    )


def _position(last: ChangeEvent) -> Position:
    return Position(
        stream=SOURCE,
        kind=PositionKind.EVENT,
        token=last.token,
        cluster_time=last.cluster_time,
        last_token=last.token,
        counts=(),
        cluster="bench",
        pipeline="bench",
        namespaces=("bench.documents",),
        publisher_epoch=0,
    )

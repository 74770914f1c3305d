"""CPU per row of the trainer's way from Kafka to rows (read, decode, memory) beside the bare libraries: an aiokafka
consumer that looks at nothing, and the fastest decoder that checks nothing.

    python benchmarks/decode.py [--rows 12000] [--round 4000] [--partitions 24]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import limits

from streamtrain import config
from streamtrain.clock import SystemClock
from streamtrain.kafka.topics import dead_letter_topic
from streamtrain.sandbox.kafka_broker import KafkaBroker
from streamtrain.trainer.decode import Decoder
from streamtrain.trainer.feed import Feed
from streamtrain.trainer.reader import Reader
from streamtrain.trainer.rows import RoundRows
from streamtrain.types import Learned, OffsetRange, Round

TARGET = 0.8  # of the rate that bare consuming and decoding would allow


async def read_alone(kafka: config.Kafka, ends: Sequence[Learned]) -> int:
    """The trainer's reader: exact ranges, envelopes, continuity."""
    nowhere = {number: Learned(0, 0) for number in range(len(ends))}
    reader = Reader(kafka=kafka, topic=limits.topic(kafka), partitions=tuple(nowhere), clock=SystemClock())
    await reader.start()
    try:
        await reader.locate(learned=nowhere, window_begins=dict.fromkeys(nowhere, 0))
        rows = 0
        async for chunk in reader.read({number: end.offset for number, end in enumerate(ends)}):
            rows += sum(map(len, chunk))
        return rows
    finally:
        await reader.stop()


def rows_learned(read: RoundRows) -> int:
    return read.counts.learned


def feed_rounds(
    kafka: config.Kafka,
    kind: limits.Kind,
    ends: Sequence[Learned],
    round_rows: int,
    take: Callable[[RoundRows], int] = rows_learned,
) -> int:
    """The whole feed, as a worker uses it, replay off. take: what becomes of a round; gives its number of rows."""
    partitions = tuple(range(len(ends)))
    job = kind.job()
    feed = Feed(
        job=job,
        kafka=kafka,
        topic=limits.topic(kafka),
        topic_epoch=0,
        partitions=partitions,
        learned=dict.fromkeys(partitions, Learned(0, 0)),
        window_begins=dict.fromkeys(partitions, 0),
        dead_letter_topic=dead_letter_topic(kafka.topic_prefix, job.name),
        dead_letter_origin=limits.topic(kafka),
        clock=SystemClock(),
        on_progress=lambda stage, done: None,
    )
    count = max(1, sum(end.count for end in ends) // round_rows)
    rounds = [
        Round(
            number=number,
            fresh=tuple(
                OffsetRange(
                    limits.topic(kafka), 0, p, ends[p].offset * number // count, ends[p].offset * (number + 1) // count
                )
                for p in partitions
            ),
            window_begins=(0,) * len(ends),
            replay=(0,) * len(ends),
            seed=number,
            batch_size=256,
        )
        for number in range(count)
    ]
    feed.start()
    try:
        feed.refill()
        for round_ in rounds:
            feed.submit(round_)
        return sum(take(feed.next()) for _ in rounds)
    finally:
        feed.close()


async def run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with KafkaBroker(directory=directory) as broker:
        for kind in limits.KINDS:
            kafka = config.Kafka(bootstrap_servers=broker.bootstrap_servers, topic_prefix=f"bench-{kind.name}")
            documents = kind.documents(options.rows)
            ends = await limits.prefill(kafka, documents, partitions=options.partitions)
            results[kind.name] = await _compare(options, kafka, kind, documents, ends)
    return {"unit": "row", "rows": options.rows, "round": options.round, "partitions": options.partitions, **results}


async def _compare(
    options: argparse.Namespace,
    kafka: config.Kafka,
    kind: limits.Kind,
    documents: Sequence[bytes],
    ends: Sequence[Learned],
) -> dict[str, Any]:
    decoder = Decoder(kind.job().schema_())
    rounds = [documents[begin : begin + options.round] for begin in range(0, len(documents), options.round)]

    async def consume() -> int:
        return await limits.bare_consume(kafka, ends)

    async def bare_decode() -> int:
        return sum(len(limits.bare_decode(kind, part)) for part in rounds)

    async def read() -> int:
        return await read_alone(kafka, ends)

    async def decode() -> int:
        return sum(len(decoder.decode(part)) for part in rounds)

    async def feed() -> int:
        return await asyncio.to_thread(feed_rounds, kafka, kind, ends, options.round)

    variants = {"bare_consume": consume, "bare_decode": bare_decode, "read": read, "decode": decode, "feed": feed}
    samples = await harness.compare(variants, repeats=options.repeats)
    cost = {name: harness.best(each).cpu_us for name, each in samples.items()}
    share = (cost["bare_consume"] + cost["bare_decode"]) / cost["feed"]
    return {
        "document_bytes": len(documents[0]),
        **{name: harness.summary(each) for name, each in samples.items()},
        "share_of_bare": round(share, 3),
        "target": TARGET,
        "met": share >= TARGET,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # The light broker keeps everything in memory: few records, often.
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--round", type=int, default=4_000)
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=harness.REPEATS)
    options = parser.parse_args()
    harness.run(run, options)


if __name__ == "__main__":
    main()

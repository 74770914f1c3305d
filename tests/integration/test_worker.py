"""Real worker processes, driven by the daemon's own `Group`: from records in Kafka to saved weights and back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import bson
import numpy as np
import psutil
import pytest

from streamtrain import config
from streamtrain.artifacts import open_store
from streamtrain.clock import SystemClock
from streamtrain.control.group import Group
from streamtrain.control.launcher.local import LocalLauncher
from streamtrain.errors import StreamtrainError, WorkerFailedError
from streamtrain.kafka import topics
from streamtrain.protocol import Form, Saved
from streamtrain.source.publisher import Publisher
from streamtrain.types import (
    ChangeEvent,
    Learned,
    Manifest,
    OffsetRange,
    Operation,
    Position,
    PositionKind,
    Published,
    Round,
    RoundCounts,
    RoundReport,
)

pytestmark = pytest.mark.tensorflow

PARTITIONS = 4
SOURCE = "flights"
SLOTS = 100
HERE = Path(__file__).parent


def ledger_job(**options: Any) -> config.Job:
    """Weights that count how often each document was learned."""
    return config.Job.model_validate(
        {
            "name": "ledger",
            "source": SOURCE,
            "features": [{"field": "slot", "dtype": "int32"}],
            "labels": [{"field": "y", "dtype": "float32", "task": "regression"}],
            "model": "ledger_model:build",
            "hyper": {"slots": SLOTS},
            "loss_reduction": "sum",
            **options,
        }
    )


class Topic:
    """Publishes documents and knows what is published."""

    def __init__(self, kafka: config.Kafka) -> None:
        self.kafka = kafka
        self.ends = dict.fromkeys(range(PARTITIONS), Learned(0, 0))
        self._position = Position(SOURCE, PositionKind.START, b"", 1, b"", (), "c", "p", ("d.c",), 0)
        self._written = 0
        self._publisher = Publisher(
            kafka=kafka,
            source=SOURCE,
            partitions=PARTITIONS,
            clock=SystemClock(),
            may_publish=lambda: True,
            on_published=self._on_published,
        )

    def _on_published(self, published: Published) -> None:
        for partition, (offset, count) in published.partition_ends.items():
            self.ends[partition] = Learned(offset, count)

    async def __aenter__(self) -> Topic:
        await self._publisher.start()
        await self._publisher.publish((), self._position)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._publisher.close()

    async def write(self, documents: Sequence[dict[str, Any]], operation: Operation = Operation.INSERT) -> None:
        events = []
        for document in documents:
            self._written += 1
            key = bson.encode({"_id": document["_id"]})
            token = bson.encode({"_data": f"82{self._written:08X}"})
            raw = None if operation is Operation.DELETE else bson.encode(document)
            events.append(ChangeEvent(token, operation, "d.c", key, raw, self._written << 32, 1_700_000_000_000))
        position = Position(
            SOURCE,
            PositionKind.EVENT,
            events[-1].token,
            self._written << 32,
            events[-1].token,
            (),
            "c",
            "p",
            ("d.c",),
            0,
        )
        await self._publisher.publish(events, position)


class Training:
    """A group of one generation and where it stands."""

    def __init__(self, *, group: Group, topic: Topic, learned: dict[int, Learned]) -> None:
        self.group = group
        self.topic = topic
        self.learned = learned
        self.rounds = 0

    async def learn(self, *, replay: int = 0) -> RoundReport:
        """All that is published, as one round. replay: rows per partition."""
        name = topics.source_topic(self.topic.kafka.topic_prefix, SOURCE, 0)
        fresh = tuple(
            OffsetRange(name, 0, p, self.learned[p].offset, self.topic.ends[p].offset) for p in range(PARTITIONS)
        )
        self.group.start_round(Round(self.rounds, fresh, (0,) * PARTITIONS, (replay,) * PARTITIONS, 0, 16))
        await self.group.reported()
        report = self.group.take_report()
        assert report is not None
        self.learned = {**self.learned, **report.learned}
        self.rounds += 1
        return report


@asynccontextmanager
async def training(
    *,
    job: config.Job,
    topic: Topic,
    folder: Path,
    world: int,
    manifest: Manifest | None = None,
    generation: int = 1,
    forget_through: Sequence[int] = (),
) -> AsyncIterator[Training]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
    group = Group(
        job=job.name,
        generation=generation,
        world=world,
        launcher=LocalLauncher(job=job.name, log_dir=folder / "logs", environment=environment),
        clock=SystemClock(),
    )
    learned = manifest.learned if manifest is not None else (Learned(0, 0),) * PARTITIONS
    prefix = topic.kafka.topic_prefix
    template = Form(
        generation=generation,
        epoch=1,
        rank=0,
        world=world,
        tf_config="",
        job=job.model_dump(mode="json"),
        kafka={"bootstrap_servers": topic.kafka.bootstrap_servers, "topic_prefix": prefix},
        artifacts={"kind": "directory", "path": str(folder / "artifacts")},
        topic=topics.source_topic(prefix, SOURCE, 0),
        topic_epoch=0,
        partitions=PARTITIONS,
        dead_letter_topic=topics.dead_letter_topic(prefix, job.name),
        learned=learned,
        window_begins=(0,) * PARTITIONS,
        manifest=manifest,
        restore_weights=manifest is not None,
        lineage="l",
        work_dir="",
        forget_through=tuple(forget_through),
    )
    try:
        await group.form(template)
        found = Training(group=group, topic=topic, learned=dict(enumerate(learned)))
        found.rounds = manifest.rounds if manifest is not None else 0
        yield found
        await group.stop()
    finally:
        await group.kill()


def manifest_of(saved: Saved, found: Training) -> Manifest:
    return Manifest(
        id="ledger/l/1", job="ledger", lineage="l", sequence=1, parent=None, epoch=1, generation=1, created_ms=0,
        topic="t", topic_epoch=0, learned=tuple(found.learned[p] for p in range(PARTITIONS)),
        window_begins=(0,) * PARTITIONS, rounds=saved.rounds, steps=0, rows_learned=0, counts=RoundCounts(), scores={},
        artifacts=saved.artifacts, schema_fingerprint="", model_fingerprint="",
    )  # fmt: skip


def weights(saved: Saved, folder: Path) -> Any:
    open_store({"kind": "directory", "path": str(folder / "artifacts")}).get(
        saved.artifacts["state"], folder / "state.npz"
    )
    with np.load(folder / "state.npz") as state:
        return state["weight/0"][:, 0]


async def test_every_document_is_learned_once_across_generations_of_other_sizes(
    kafka_config: config.Kafka, tmp_path: Path
) -> None:
    job = ledger_job()
    async with Topic(kafka_config) as topic:
        await topic.write([{"_id": i, "slot": i, "y": 1.0} for i in range(60)])
        async with training(job=job, topic=topic, folder=tmp_path, world=2) as first:
            report = await first.learn()
            assert report.counts.learned == 60
            assert report.steps == 4
            assert report.scores["y"].rows == 60
            assert sum(report.freshness_ms) == 60
            saved = await first.group.save("ledger/l/e1-g1-r1/")
            assert set(saved.artifacts) == {"state", "keras"}
            manifest = manifest_of(saved, first)
        np.testing.assert_array_equal(weights(saved, tmp_path), [1.0] * 60 + [0.0] * 40)

        await topic.write([{"_id": i, "slot": i, "y": 1.0} for i in range(60, SLOTS)])
        async with training(job=job, topic=topic, folder=tmp_path, world=1, manifest=manifest, generation=2) as second:
            await second.learn()
            saved = await second.group.save("ledger/l/e1-g2-r2/")
            assert saved.rounds == 2
        np.testing.assert_array_equal(weights(saved, tmp_path), [1.0] * SLOTS)


async def test_bad_documents_become_dead_letters_and_the_rest_is_learned(
    kafka_config: config.Kafka, tmp_path: Path
) -> None:
    async with Topic(kafka_config) as topic:
        await topic.write([{"_id": 1, "slot": "no number", "y": 1.0}, {"_id": 2, "slot": 2, "y": 1.0}, {"_id": 3}])
        async with training(job=ledger_job(), topic=topic, folder=tmp_path, world=1) as found:
            report = await found.learn()
            saved = await found.group.save("ledger/l/e1-g1-r1/")
    assert report.counts.dead_letters >= 1
    assert weights(saved, tmp_path).sum() == report.counts.learned == 1


async def test_a_model_that_raises_ends_the_group_with_its_error(kafka_config: config.Kafka, tmp_path: Path) -> None:
    async with Topic(kafka_config) as topic:
        job = ledger_job(hyper={"slots": "many"})
        with pytest.raises(WorkerFailedError, match="raised ValueError"):
            async with training(job=job, topic=topic, folder=tmp_path, world=1):
                raise AssertionError("formed")


async def test_a_killed_worker_ends_the_group_and_leaves_no_process(kafka_config: config.Kafka, tmp_path: Path) -> None:
    async def learn_until_killed(found: Training) -> None:
        pids.extend(found.group.pids)
        await found.learn()
        psutil.Process(pids[1]).kill()
        while True:
            await found.learn()

    pids: list[int] = []
    async with Topic(kafka_config) as topic, asyncio.timeout(60):
        await topic.write([{"_id": i, "slot": i, "y": 1.0} for i in range(SLOTS)])
        with pytest.raises(StreamtrainError):
            async with training(job=ledger_job(), topic=topic, folder=tmp_path, world=2) as found:
                await learn_until_killed(found)
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_workers_write_nothing_to_their_logs_when_all_is_well(kafka_config: config.Kafka, tmp_path: Path) -> None:
    async with Topic(kafka_config) as topic:
        await topic.write([{"_id": i, "slot": i, "y": 1.0} for i in range(SLOTS)])
        async with training(job=ledger_job(), topic=topic, folder=tmp_path, world=2) as found:
            await found.learn()
            await found.group.save("ledger/l/e1-g1-r1/")
    for log in (tmp_path / "logs").iterdir():
        assert log.read_text() == ""

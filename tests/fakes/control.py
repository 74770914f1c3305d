"""What control is handed by the composition root, without Kafka, MongoDB or TensorFlow."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamtrain import config
from streamtrain.control.launcher.local import LocalLauncher, LocalProcess
from streamtrain.errors import FencedError, MongoError, SupersededError
from streamtrain.types import (
    Frontier,
    Learned,
    Manifest,
    PartitionFrontier,
    Retention,
    RetentionState,
    Retrain,
)

WORKER = Path(__file__).with_name("worker.py")


class FakeOffsets:
    """A topic in which every offset is a record."""

    def __init__(self, partitions: int, *, topic: str = "t.s.0") -> None:
        self.topic = topic
        self.begins = [0] * partitions
        self.ends = [0] * partitions
        self.window: tuple[int, ...] | None = None
        self.times: dict[int, tuple[int, ...]] = {}
        self._version = 0
        self._moved = asyncio.Event()

    def publish(self, records: int) -> None:
        for record in range(records):
            self.ends[(self._version + record) % len(self.ends)] += 1
        self._version += 1
        self._moved.set()
        self._moved = asyncio.Event()

    async def frontier(self) -> Frontier:
        partitions = tuple(map(PartitionFrontier, self.begins, self.ends, self.ends))
        return Frontier(self.topic, 0, partitions, 0.0, self._version)

    async def changed(self, since: Frontier) -> None:
        while self._version <= since.version:
            await self._moved.wait()

    async def window_begins(self, duration_s: float, max_records: int) -> tuple[int, ...]:
        return self.window or tuple(self.begins)

    async def locate(self, offsets: Sequence[int]) -> tuple[Learned, ...]:
        return tuple(Learned(offset, offset) for offset in offsets)

    async def at_time(self, time_ms: int) -> tuple[int, ...]:
        return self.times[time_ms]

    async def oldest_untrained_s(self, learned: Sequence[Learned]) -> float | None:
        return None

    async def retention(self, learned: Sequence[Learned], oldest_untrained_s: float | None) -> Retention:
        lost = [p for p, place in enumerate(learned) if self.begins[p] > place.offset]
        return Retention(RetentionState.LOST if lost else RetentionState.OK, tuple(lost))


class FakeManifests:
    """committed: what became the head, in order."""

    def __init__(self) -> None:
        self.committed: list[Manifest] = []
        self.epoch = 0
        self.failing = 0

    async def claim(self, job: str, *, epoch: int) -> Manifest | None:
        self.check(epoch)
        return self.committed[-1] if self.committed else None

    async def commit(self, manifest: Manifest, *, epoch: int) -> None:
        if self.failing:
            self.failing -= 1
            raise MongoError("told to fail")
        self.check(epoch)
        head = self.committed[-1].id if self.committed else None
        if head not in (manifest.parent, manifest.id):
            raise SupersededError("the head has moved on")
        self.committed.append(manifest)

    async def prune(self, job: str, *, keep: int, epoch: int) -> Sequence[str]:
        return ()

    def check(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise FencedError("a newer daemon has taken over")
        self.epoch = epoch


class FakeRetrains:
    """What is stored of retrains, beside the heads in `FakeManifests`."""

    def __init__(self, manifests: FakeManifests) -> None:
        self._manifests = manifests
        self.stored: dict[str, Retrain] = {}
        self.saved: list[Manifest] = []
        self.cancelled: list[str] = []
        self.failing = 0

    async def running(self, job: str, *, epoch: int) -> Sequence[Retrain]:
        self._check(epoch)
        return tuple(self.stored.values())

    async def begin(self, retrain: Retrain, *, epoch: int) -> None:
        self._check(epoch)
        self.stored[retrain.lineage] = retrain

    async def change(self, retrain: Retrain, *, epoch: int) -> None:
        self._check(epoch)
        self.find(retrain.lineage)
        self.stored[retrain.lineage] = replace(self.find(retrain.lineage), state=retrain.state, promote=retrain.promote)

    async def cancel(self, job: str, lineage: str, *, epoch: int) -> None:
        self._check(epoch)
        del self.stored[lineage]
        self.cancelled.append(lineage)

    async def promote(self, manifest: Manifest, *, epoch: int) -> None:
        self.find(manifest.lineage)
        await self._manifests.commit(manifest, epoch=epoch)
        del self.stored[manifest.lineage]

    async def read(self, id: str) -> Manifest | None:
        return next((each for each in (*self.saved, *self._manifests.committed) if each.id == id), None)

    def manifests(self, lineage: str) -> FakeLineage:
        return FakeLineage(self, lineage)

    def find(self, lineage: str) -> Retrain:
        if lineage not in self.stored:
            raise SupersededError(f"there is no retrain {lineage}")
        return self.stored[lineage]

    def _check(self, epoch: int) -> None:
        if self.failing:
            self.failing -= 1
            raise MongoError("told to fail")
        self._manifests.check(epoch)


class FakeLineage:
    def __init__(self, retrains: FakeRetrains, lineage: str) -> None:
        self._retrains, self._lineage = retrains, lineage

    async def claim(self, job: str, *, epoch: int) -> Manifest | None:
        head = self._retrains.find(self._lineage).head
        return None if head is None else await self._retrains.read(head)

    async def commit(self, manifest: Manifest, *, epoch: int) -> None:
        retrain = self._retrains.find(self._lineage)
        self._retrains.saved.append(manifest)
        self._retrains.stored[self._lineage] = replace(retrain, head=manifest.id)

    async def prune(self, job: str, *, keep: int, epoch: int) -> Sequence[str]:
        return ()


class FakeLease:
    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.is_held = True

    def held(self) -> bool:
        return self.is_held


class ScriptedLauncher:
    """Starts fake workers; behaviours by (generation, index), see `worker.Behaviour`."""

    def __init__(self, log_dir: Path, behaviours: Mapping[tuple[int, int], str] | None = None) -> None:
        self._log_dir = log_dir
        self.behaviours = dict(behaviours or {})
        self.launched: list[LocalProcess] = []

    async def launch(self, *, control: str, token: str, generation: int, index: int) -> LocalProcess:
        behaviour = self.behaviours.get((generation, index), "")
        launcher = LocalLauncher(
            job="fake",
            log_dir=self._log_dir,
            command=(sys.executable, str(WORKER)),
            environment={**os.environ, "FAKE_WORKER": behaviour},
        )
        process = await launcher.launch(control=control, token=token, generation=generation, index=index)
        self.launched.append(process)
        return process


def fake_job(**changes: Any) -> config.Job:
    return config.Job.model_validate(
        {
            "name": "fake",
            "source": "s",
            "features": [{"field": "x", "dtype": "float32"}],
            "labels": [{"field": "y", "dtype": "float32", "task": "regression"}],
            "round": {"max_wait": "10ms", "max_records": 50, "batch_size": 8},
            "checkpoint": {"every": "300ms"},
            "workers": {"min": 2},
            **changes,
        }
    )


def ledger(manifest: Manifest, artifacts: Path) -> dict[int, list[list[int]]]:
    """The ranges that the weights of a manifest have learned, per partition."""
    content = json.loads((artifacts / manifest.artifacts["state"].name).read_text())
    return {int(partition): ranges for partition, ranges in content.items()}

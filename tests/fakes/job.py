"""A job and all that its controller is handed, over fake workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from streamtrain import cancelling, config
from streamtrain.clock import SystemClock
from streamtrain.control.controller import Controller
from streamtrain.control.group import Deadlines
from streamtrain.control.retrains import Retrains
from streamtrain.ports import LeasePort, ManifestPort
from streamtrain.types import Manifest, RoundReport
from streamtrain.window.planner import plan
from tests.fakes.control import (
    FakeLease,
    FakeManifests,
    FakeOffsets,
    FakeRetrains,
    ScriptedLauncher,
    fake_job,
    ledger,
)

PARTITIONS = 4
DEADLINES = Deadlines(ready=20.0, form=20.0, progress=2.0, terminate=0.5)
KAFKA = config.Kafka(bootstrap_servers="127.0.0.1:1")


class Setup:
    """A job and everything around it. A second one on the same ports is the next daemon."""

    def __init__(self, tmp_path: Path, **job: Any) -> None:
        self.tmp_path = tmp_path
        self.artifacts = tmp_path / "artifacts"
        self.job = fake_job(**job)
        self.offsets = FakeOffsets(PARTITIONS)
        self.replay = FakeOffsets(PARTITIONS, topic="t.fake.replay.0")
        self.manifests = FakeManifests()
        self.beside = FakeRetrains(self.manifests)
        self.lease = FakeLease()
        self.launcher = ScriptedLauncher(tmp_path / "logs")
        self.reports: list[RoundReport] = []

    def controller(self, *, manifests: ManifestPort | None = None, lease: LeasePort | None = None) -> Controller:
        return self.build(lease=lease)(
            job=self.job,
            manifests=manifests or self.manifests,
            actions=[lambda job, report: self.reports.append(report)],
        )

    def build(self, *, lease: LeasePort | None = None) -> Callable[..., Controller]:
        return partial(
            Controller,
            kafka=KAFKA,
            topic=self.offsets.topic,
            topic_epoch=0,
            partitions=PARTITIONS,
            dead_letter_topic="t.fake.dead-letters",
            offsets=self.offsets,
            replay=self.replay,
            plan=plan,
            lease=lease or self.lease,
            launcher=self.launcher,
            artifacts={"kind": "directory", "path": str(self.artifacts)},
            work_dir=self.tmp_path,
            clock=SystemClock(),
            deadlines=DEADLINES,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Controller]:
        controller = self.controller()
        run = asyncio.create_task(controller.run())
        try:
            yield controller
            if not run.done():
                controller.drain()
            await asyncio.wait_for(run, 30)
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            assert not any(psutil.pid_exists(process.pid) for process in self.launcher.launched)

    def retrains(self, running: Controller) -> Retrains:
        """Those beside the job that `running` learns."""
        return Retrains(
            job=self.job,
            running=running,
            build=self.build(),
            retrains=self.beside,
            manifests=self.manifests,
            offsets=self.offsets,
            lease=self.lease,
            clock=SystemClock(),
        )

    @asynccontextmanager
    async def retraining(self) -> AsyncIterator[tuple[Controller, Retrains]]:
        """A running job, and what is retrained beside it."""
        async with self.running() as controller:
            retrains = self.retrains(controller)
            run = asyncio.create_task(retrains.run())
            try:
                yield controller, retrains
                retrains.drain()
                await asyncio.wait_for(run, 30)
            finally:
                await cancelling.end(run)

    @property
    def head(self) -> Manifest:
        return self.manifests.committed[-1]

    def assert_learned_once(self, head: Manifest | None = None) -> None:
        """Every record is in the weights of the head exactly once."""
        head = head or self.head
        ranges = ledger(head, self.artifacts)
        for partition, end in enumerate(self.offsets.ends):
            learned = sorted(ranges.get(partition, []))
            assert [begin for begin, _ in learned] == [0, *(end for _, end in learned[:-1])][: len(learned)]
            assert (learned[-1][1] if learned else 0) == end
        assert [place.offset for place in head.learned] == self.offsets.ends
        assert head.rows_learned == sum(self.offsets.ends)


async def until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110  (a condition of other processes: nothing to be woken by)
            await asyncio.sleep(0.01)

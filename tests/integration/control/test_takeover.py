"""Two daemons of one deployment, over the real lease and registry: one learns, the other waits, takes over when the
first is stopped, and what the first does when it wakes up counts for nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest
from pymongo import AsyncMongoClient

from streamtrain.artifacts import DirectoryStore
from streamtrain.clock import SystemClock
from streamtrain.control.controller import Controller
from streamtrain.control.lease import Lease, LeaseState
from streamtrain.errors import FencedError
from streamtrain.registry.store import ManifestStore
from streamtrain.sandbox.mongo_server import ThreadedMongo
from tests.fakes.job import Setup, until

TTL_S = 1.0


class Daemon:
    def __init__(self, setup: Setup, client: AsyncMongoClient[dict[str, Any]], holder: str) -> None:
        self.lease = Lease(database=client["state"], holder=holder, clock=SystemClock(), ttl_s=TTL_S)
        self.store = ManifestStore(database=client["state"], artifacts=DirectoryStore(path=setup.artifacts))
        self._setup = setup
        self.renewing: asyncio.Task[None] | None = None

    async def start(self) -> Controller:
        await self.lease.acquire()
        self.renewing = asyncio.create_task(self.lease.run())
        return self._setup.controller(manifests=self.store, lease=self.lease)

    async def stop_renewing(self) -> None:
        """As if the process had been stopped: the controller below is not told."""
        if self.renewing is not None:
            self.renewing.cancel()
            await asyncio.gather(self.renewing, return_exceptions=True)


async def test_a_stopped_daemon_is_replaced_and_what_it_still_does_counts_for_nothing(
    tmp_path: Path, mongo_server: ThreadedMongo
) -> None:
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongo_server.uri)
    setup = Setup(tmp_path)
    first, second = Daemon(setup, client, "first"), Daemon(setup, client, "second")
    runs: list[asyncio.Task[None]] = []
    try:
        setup.offsets.publish(100)
        stale = await first.start()
        runs.append(asyncio.create_task(stale.run()))
        waiting = asyncio.create_task(second.start())
        await until(lambda: stale.status().checkpoint is not None)
        assert second.lease.state is LeaseState.STANDBY

        await first.stop_renewing()
        fresh = await asyncio.wait_for(waiting, 20)
        assert first.lease.state is not LeaseState.HELD
        runs.append(asyncio.create_task(fresh.run()))
        await until(lambda: fresh.status().rows_learned == 100)
        setup.offsets.publish(50)
        await until(lambda: fresh.status().rows_learned == 150)
        await until(lambda: (saved := fresh.status().checkpoint) is not None and saved.rows_learned == 150)

        # It wakes up, learns on, and believes that it holds the lease.
        first.lease._renewed_at = SystemClock().monotonic() + 3600
        setup.offsets.publish(1)
        with pytest.raises(FencedError):
            await asyncio.wait_for(runs[0], 30)
        await until(lambda: (saved := fresh.status().checkpoint) is not None and saved.rows_learned == 151)
        fresh.drain()
        await asyncio.wait_for(runs[1], 30)
        head = await second.store.head("fake")
        assert head is not None
        assert head.epoch == 2
        setup.assert_learned_once(head)
        assert not any(psutil.pid_exists(process.pid) for process in setup.launcher.launched)
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        await first.stop_renewing()
        await second.stop_renewing()
        await client.close()

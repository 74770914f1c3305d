"""The lease on the embedded MongoDB: one holder, epochs that grow, expiry by the server's clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from streamtrain.clock import SystemClock
from streamtrain.control.lease import Lease, LeaseState
from streamtrain.errors import FencedError, MongoError
from streamtrain.sandbox.mongo_server import ThreadedMongo

MakeLease = Callable[..., Lease]


@pytest.fixture
async def make_lease(mongo_server: ThreadedMongo) -> AsyncIterator[MakeLease]:
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongo_server.uri)

    def make(holder: str, *, ttl_s: float = 10.0, clock: Any = None) -> Lease:
        return Lease(database=client["state"], holder=holder, clock=clock or SystemClock(), ttl_s=ttl_s)

    yield make
    await client.close()


class Frozen(SystemClock):
    """A clock whose monotonic time can be moved on, as after the process was stopped."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped


async def test_one_holder_at_a_time(make_lease: MakeLease) -> None:
    first, second = make_lease("a"), make_lease("b")
    assert first.state is LeaseState.STANDBY
    assert await first.acquire() == 1
    assert first.held()
    assert not await second.try_acquire()
    assert second.seen_holder == "a"
    assert second.state is LeaseState.STANDBY
    assert not second.held()


async def test_only_one_of_many_that_ask_at_once_gets_it(make_lease: MakeLease) -> None:
    got = await asyncio.gather(*(make_lease(f"holder {i}").try_acquire() for i in range(10)))
    assert sum(got) == 1


async def test_a_standby_takes_over_when_the_lease_runs_out_with_a_higher_epoch(make_lease: MakeLease) -> None:
    first, second = make_lease("a", ttl_s=0.5), make_lease("b", ttl_s=0.5)
    await first.acquire()
    assert await asyncio.wait_for(second.acquire(), 10) == 2
    assert not first.held()
    with pytest.raises(FencedError, match="taken over"):
        await first.run()
    assert first.state is LeaseState.LOST
    assert first.epoch == 1


async def test_a_released_lease_is_free_at_once(make_lease: MakeLease) -> None:
    first, second = make_lease("a", ttl_s=600.0), make_lease("b")
    await first.acquire()
    await first.release()
    assert not first.held()
    assert await second.try_acquire()
    assert second.epoch == 2


async def test_a_renewed_lease_outlives_its_time_to_live(make_lease: MakeLease) -> None:
    first, second = make_lease("a", ttl_s=1.0), make_lease("b")
    await first.acquire()
    renewing = asyncio.create_task(first.run())
    try:
        for _ in range(30):
            assert not await second.try_acquire()
            assert first.held()
            await asyncio.sleep(0.1)
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)


async def test_a_holder_that_was_stopped_knows_at_once_and_goes_on_if_nobody_took_over(make_lease: MakeLease) -> None:
    clock = Frozen()
    lease = make_lease("a", ttl_s=10.0, clock=clock)
    await lease.acquire()
    clock.skipped = 9.0  # less than the server waits: the holder gives up first
    assert not lease.held()
    assert lease.state is LeaseState.SUSPENDED
    await lease._renew()
    assert lease.held()
    assert lease.epoch == 1


async def test_a_holder_keeps_trying_while_mongodb_does_not_answer(
    make_lease: MakeLease, mongo_server: ThreadedMongo
) -> None:
    lease = make_lease("a", ttl_s=1.0)
    await lease.acquire()
    renewing = asyncio.create_task(lease.run())
    try:
        mongo_server.faults.error("findAndModify", 11602, times=1000)
        async with asyncio.timeout(20):
            while lease.held():  # noqa: ASYNC110  (time passes on the lease's own clock)
                await asyncio.sleep(0.02)
        assert not renewing.done()
        mongo_server.faults.clear()
        async with asyncio.timeout(20):
            while not lease.held():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert lease.epoch == 1
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)


async def test_a_standby_outlives_a_mongodb_that_fails_for_a_while(
    make_lease: MakeLease, mongo_server: ThreadedMongo
) -> None:
    holder, standby = make_lease("a"), make_lease("b")
    await holder.acquire()
    waiting = asyncio.create_task(standby.acquire())
    async with asyncio.timeout(20):
        while standby.seen_holder != "a":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        before = mongo_server.faults.applied
        mongo_server.faults.error("update", 8, times=1)
        while mongo_server.faults.applied == before:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await holder.release()
        assert await waiting == 2


async def test_a_mongodb_that_fails_is_told(make_lease: MakeLease, mongo_server: ThreadedMongo) -> None:
    mongo_server.faults.error("update", 8, times=100)
    with pytest.raises(MongoError, match="acquiring the deployment's lease"):
        await make_lease("a").acquire()

"""Dead letters that were replayed, over fake workers: each is in the weights of the head once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.fakes.control import ledger
from tests.fakes.job import PARTITIONS, Setup, until
from tests.fakes.worker import REPLAYED


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def assert_replayed_once(setup: Setup) -> None:
    head = setup.head
    ranges = ledger(head, setup.artifacts)
    for partition, end in enumerate(setup.replay.ends):
        learned = sorted(ranges.get(REPLAYED + partition, []))
        assert [begin for begin, _ in learned] == [0, *(end for _, end in learned[:-1])][: len(learned)]
        assert (learned[-1][1] if learned else 0) == end
    assert head.redriven == tuple(setup.replay.ends)
    setup.assert_learned_once()


async def test_they_are_learned_while_nothing_new_comes(setup: Setup) -> None:
    setup.offsets.publish(20)
    async with setup.running() as controller:
        await until(lambda: controller.status().rows_learned == 20)
        setup.replay.publish(130)
        await until(lambda: bool(setup.manifests.committed) and sum(setup.head.redriven) == 130)
    assert_replayed_once(setup)
    assert setup.head.begins == (0,) * PARTITIONS


async def test_they_are_learned_once_whatever_dies(setup: Setup) -> None:
    setup.offsets.publish(50)
    async with setup.running() as controller:
        await until(lambda: bool(setup.manifests.committed))
        setup.replay.publish(60)
        setup.offsets.publish(100)
        await until(lambda: controller.status().rows_learned == 150)
        os.kill(setup.launcher.launched[0].pid, signal.SIGKILL)
        setup.replay.publish(70)
        await until(lambda: controller.status().generation == 2 and sum(setup.head.redriven) == 130)
    assert_replayed_once(setup)
    async with setup.running() as controller:
        setup.replay.publish(3)
        await until(lambda: sum(setup.head.redriven) == 133)
    assert_replayed_once(setup)


async def test_what_was_replayed_before_a_lineage_began_is_not_learned_by_it(setup: Setup) -> None:
    setup.replay.publish(8)
    setup.offsets.publish(10)
    async with setup.running() as controller:
        await until(lambda: controller.status().rows_learned == 10)
        await asyncio.sleep(0)
    assert setup.head.redriven == tuple(setup.replay.ends)
    assert not any(key >= REPLAYED for key in ledger(setup.head, setup.artifacts))

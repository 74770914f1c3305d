"""What is made of ends that Kafka tells late or wrongly, without a broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamtrain import config
from streamtrain.clock import FakeClock
from streamtrain.types import Learned, Position, PositionKind
from streamtrain.window.offsets import Offsets

FIVE_PUBLISHED = Position(
    stream="s",
    kind=PositionKind.START,
    token=b"",
    cluster_time=1,
    last_token=b"",
    counts=(5,),
    cluster="c",
    pipeline="p",
    namespaces=("a.b",),
    publisher_epoch=1,
)


class Log:
    """A partition as Kafka tells it."""

    def __init__(self, end: int) -> None:
        self.end = end

    async def start(self) -> None:
        pass

    async def begins(self) -> tuple[int, ...]:
        return (0,)

    async def ends(self) -> tuple[int, ...]:
        return (self.end,)


@pytest.fixture
def log() -> Log:
    return Log(end=6)


@pytest.fixture
async def offsets(log: Log, monkeypatch: pytest.MonkeyPatch) -> Offsets:
    kafka = config.Kafka(bootstrap_servers="127.0.0.1:1")
    made: Any = Offsets(kafka=kafka, topic="t", topic_epoch=0, partitions=1, clock=FakeClock())
    monkeypatch.setattr(made, "_kafka_log", log)
    await made.start(FIVE_PUBLISHED)
    assert isinstance(made, Offsets)
    return made


async def end(offsets: Offsets) -> int:
    return (await offsets.frontier()).partitions[0].end


async def test_an_end_that_is_seen_late_wakes_who_waits(offsets: Offsets, log: Log) -> None:
    """Nothing else would: what was published before the start is told by nobody."""
    seen = await offsets.frontier()
    waiting = asyncio.create_task(offsets.changed(seen))
    await offsets._refresh()
    await asyncio.sleep(0)
    assert not waiting.done(), "nothing has moved"
    log.end = 9
    await offsets._refresh()
    await asyncio.wait_for(waiting, 10)
    assert await end(offsets) == 9


async def test_an_end_that_has_gone_back_is_believed_the_second_time(offsets: Offsets, log: Log) -> None:
    """A leader that has just changed may tell less for a moment; a topic that was created again stays shorter."""
    learned = [Learned(6, 5)]
    log.end = 2
    await offsets._refresh()
    assert await end(offsets) == 6
    assert (await offsets.retention(learned, None)).state == "ok"
    await offsets._refresh()
    assert await end(offsets) == 2
    assert (await offsets.retention(learned, None)).state == "ahead"
    log.end = 8
    await offsets._refresh()
    assert await end(offsets) == 8

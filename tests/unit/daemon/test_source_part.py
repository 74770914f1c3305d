from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamtrain import config
from streamtrain.clock import FakeClock
from streamtrain.daemon import source_part
from streamtrain.daemon.source_part import SourcePart, Topic
from streamtrain.source.status import SourceState


class CrashingOffsets:
    async def run(self) -> None:
        raise ZeroDivisionError("a bug")

    async def close(self) -> None: ...


class Lease:
    epoch = 1

    def held(self) -> bool:
        return True


async def test_a_source_whose_offsets_are_no_longer_refreshed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    monkeypatch.setattr(source_part.log, "error", lambda *args, **_: logged.append(args), raising=False)
    spec = config.Source(name="s", uri="mongodb://127.0.0.1:1", database="d", collection="c")
    part = SourcePart(spec=spec, kafka=config.Kafka(bootstrap_servers="127.0.0.1:1"), lease=Lease(), clock=FakeClock())
    assert part.status(crash=None).state is not SourceState.FAILED
    part._topic.set_result(Topic(name="t", epoch=0, partitions=1, offsets=CrashingOffsets()))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    status = part.status(crash=None)
    assert status.state is SourceState.FAILED
    assert "ZeroDivisionError while looking where the topic begins and ends" in status.reason
    assert logged == [("offsets are no longer refreshed",)]
    await part.close()
    assert part.status(crash=None).state is SourceState.FAILED

"""A publisher that keeps what it is given, in the place of Kafka: it fails and waits when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from streamtrain.errors import KafkaError
from streamtrain.types import ChangeEvent, Position


class MemoryPublisher:
    """failures: how many of the next transactions fail, after `skip` that do not. gate: transactions wait while
    it is closed."""

    def __init__(self, *, position: Position | None = None) -> None:
        self.committed = position
        self.events: list[ChangeEvent] = []
        self.positions: list[Position] = []
        self.failures = 0
        self.skip = 0
        self.starts = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._started = False

    async def start(self) -> Position | None:
        self.starts += 1
        self._started = True
        return self.committed

    async def publish(self, events: Sequence[ChangeEvent], position: Position, /) -> Position:
        assert self._started, "publish after a failure, without a start"
        await self.gate.wait()
        if self.failures and events:
            if self.skip == 0:
                self.failures -= 1
                self._started = False
                raise KafkaError("the transaction failed")
            self.skip -= 1
        self.events += events
        self.committed = replace(position, counts=(len(self.events),))
        self.positions.append(self.committed)
        return self.committed

    async def close(self) -> None:
        self._started = False

"""The queue between reading from MongoDB and publishing to Kafka. It is bounded by the bytes it holds, so that
a slow Kafka slows the change stream down and never fills the memory."""

from __future__ import annotations

import asyncio
from collections import deque

from streamtrain.source.change_stream import Batch

MOST_EVENTS = 2_000  # of one reply: more would keep the event loop busy for too long
REPLY_BYTES = 4 * 1024**2  # of one reply: each of its bytes is copied a few times on its way
EXPECTED_EVENT_BYTES = 16 * 1024  # until events have been seen
EVENT_OVERHEAD_BYTES = 400  # of an event's objects, beside its bytes
_REMEMBER = 0.7


class Prefetch:
    """Holds batches in order, from when they are read until they are published.

    limit: bytes. Half of it may be held when a reply is asked for, and a reply is asked for with so few events
    that it should fit into the other half; a server sends at most 16 MB, and one event, more than that.
    """

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._batches: deque[Batch] = deque()
        self._taken = 0
        self._held = 0
        self._event_bytes = float(EXPECTED_EVENT_BYTES)
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._stopped = False

    @property
    def held(self) -> int:
        """Bytes in the queue and being published."""
        return self._held

    async def room(self) -> int:
        """Waits until another reply may be read; returns how many events to ask for."""
        while self._held > self._limit // 2:
            await self._change()
        wanted = min(self._limit // 2, REPLY_BYTES) / (self._event_bytes + EVENT_OVERHEAD_BYTES)
        return max(1, min(MOST_EVENTS, int(wanted)))

    def put(self, batch: Batch) -> None:
        count = len(batch.changes)
        if count:
            # Large events are believed at once, that they have gone only after a while.
            mean = batch.size / count
            self._event_bytes = max(mean, self._event_bytes * _REMEMBER + mean * (1 - _REMEMBER))
        self._batches.append(batch)
        self._held += _cost(batch)
        self._changed.set()

    def finish(self, failure: Exception) -> None:
        """No more will come; `take` raises this once all has been taken."""
        self._failure = failure
        self._changed.set()

    def stop(self) -> None:
        """From now on `take` returns nothing, at once."""
        self._stopped = True
        self._changed.set()

    async def take(self, *, records: int, size: int) -> list[Batch]:
        """The next batches: at least one, and more until they hold `records` events or `size` bytes; none
        after `stop`. They count as held until `published`."""
        while not self._batches and not self._stopped:
            if self._failure is not None:
                raise self._failure
            await self._change()
        taken: list[Batch] = []
        while self._batches and records > 0 and size > 0 and not self._stopped:
            batch = self._batches.popleft()
            taken.append(batch)
            records -= len(batch.changes)
            size -= batch.size
            self._taken += _cost(batch)
        return taken

    def published(self) -> None:
        """What was taken is in Kafka: there is room for more."""
        self._held -= self._taken
        self._taken = 0
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _cost(batch: Batch) -> int:
    return batch.size + EVENT_OVERHEAD_BYTES * len(batch.changes)

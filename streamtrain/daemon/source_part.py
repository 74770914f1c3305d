"""A source as the daemon runs it: its change stream, its publisher, and the offsets of its topic, which exist once
the first position is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.kafka import topics
from streamtrain.ports import LeasePort
from streamtrain.source.publisher import Publisher
from streamtrain.source.source import Source
from streamtrain.source.status import SourceState, SourceStatus
from streamtrain.types import ChangeEvent, Position, Published
from streamtrain.window.offsets import Offsets

log = structlog.get_logger()


class SourcePart:
    """`source.run()` is the work; `topic()` is how jobs get at what it publishes; `close` it after both."""

    def __init__(self, *, spec: config.Source, kafka: config.Kafka, lease: LeasePort, clock: Clock) -> None:
        self.spec = spec
        self._topic: asyncio.Future[Topic] = asyncio.get_running_loop().create_future()
        self._publisher = _Announced(spec=spec, kafka=kafka, lease=lease, clock=clock, topic=self._topic)
        self.source = Source(spec=spec, publisher=self._publisher, clock=clock)

    @property
    def started(self) -> bool:
        """Whether it has published, if only a position: what fails from then on does not fail at the start."""
        return self._publisher.published

    async def topic(self) -> Topic:
        """Waits until the source has one."""
        return await asyncio.shield(self._topic)

    def status(self, *, crash: str | None) -> SourceStatus:
        """crash: why it has ended, where it does not say so itself."""
        status = self.source.status()
        if self._topic.done():
            crash = crash or self._topic.result().crash
        ended = status.state in (SourceState.LOST, SourceState.INVALIDATED, SourceState.FAILED)
        return replace(status, state=SourceState.FAILED, reason=crash) if crash and not ended else status

    async def close(self) -> None:
        if self._topic.done():
            await self._topic.result().close()


class Topic:
    """A topic, and its offsets, which are kept true until `close`."""

    def __init__(self, *, name: str, epoch: int, partitions: int, offsets: Offsets) -> None:
        self.name, self.epoch, self.partitions = name, epoch, partitions
        self.offsets = offsets
        self._refreshing = asyncio.create_task(offsets.run())
        self._refreshing.add_done_callback(_show_crash)

    @property
    def crash(self) -> str | None:
        """Why its offsets are no longer refreshed, where that was not on purpose: what Kafka removes is not seen."""
        task = self._refreshing
        if not task.done() or task.cancelled() or (error := task.exception()) is None:
            return None
        return f"internal error: {type(error).__name__} while looking where the topic begins and ends"

    async def close(self) -> None:
        self._refreshing.cancel()
        await asyncio.gather(self._refreshing, return_exceptions=True)
        await self.offsets.close()


async def open_topic(
    name: str,
    *,
    kafka: config.Kafka,
    epoch: int,
    partitions: int,
    clock: Clock,
    position: Position | None = None,
) -> Topic:
    """A topic that is there. position: of the source, how much is in it. Raises KafkaError."""
    offsets = Offsets(kafka=kafka, topic=name, topic_epoch=epoch, partitions=partitions, clock=clock)
    try:
        await offsets.start(position)
    except BaseException:
        await offsets.close()
        raise
    return Topic(name=name, epoch=epoch, partitions=partitions, offsets=offsets)


class _Announced:
    """The source's publisher, which makes the topic's offsets known before it publishes for the first time."""

    def __init__(
        self,
        *,
        spec: config.Source,
        kafka: config.Kafka,
        lease: LeasePort,
        clock: Clock,
        topic: asyncio.Future[Topic],
    ) -> None:
        self._spec, self._kafka, self._clock = spec, kafka, clock
        self._topic = topic
        self.published = False
        self._publisher = Publisher(
            kafka=kafka,
            source=spec.name,
            partitions=spec.partitions,
            clock=clock,
            may_publish=lease.held,
            on_published=self._on_published,
        )

    async def start(self) -> Position | None:
        position = await self._publisher.start()
        if not self._topic.done():
            self._topic.set_result(await self._open(position))
        return position

    async def publish(self, events: Sequence[ChangeEvent], position: Position, /) -> Position:
        committed = await self._publisher.publish(events, position)
        self.published = True
        return committed

    async def close(self) -> None:
        await self._publisher.close()

    async def _open(self, position: Position | None) -> Topic:
        epoch = 0 if position is None else position.topic_epoch
        partitions = self._spec.partitions if position is None else len(position.counts)
        name = topics.source_topic(self._kafka.topic_prefix, self._spec.name, epoch)
        return await open_topic(
            name, kafka=self._kafka, epoch=epoch, partitions=partitions, clock=self._clock, position=position
        )

    def _on_published(self, published: Published) -> None:
        if self._topic.done():
            self._topic.result().offsets.on_published(published)


def _show_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("offsets are no longer refreshed", exc_info=error)

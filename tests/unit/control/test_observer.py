from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from structlog.testing import capture_logs

from streamtrain.clock import FakeClock
from streamtrain.control.course import JobCourse
from streamtrain.control.observer import LATENESS_S, OBSERVE_S, WINDOW_S, Observer
from streamtrain.errors import KafkaError
from streamtrain.types import Frontier, Learned, Retention, RetentionState
from tests.fakes.control import FakeManifests, FakeOffsets, fake_job


class Topic(FakeOffsets):
    def __init__(self) -> None:
        super().__init__(2)
        self.away = False
        self.state = RetentionState.OK

    async def frontier(self) -> Frontier:
        if self.away:
            raise KafkaError("Kafka is away")
        return await super().frontier()

    async def oldest_untrained_s(self, learned: Sequence[Learned]) -> float | None:
        return 12.0

    async def retention(self, learned: Sequence[Learned], oldest_untrained_s: float | None) -> Retention:
        return Retention(self.state, (0,), 100.0 - (oldest_untrained_s or 0.0))


@asynccontextmanager
async def observing(topic: Topic, clock: FakeClock) -> AsyncIterator[Observer]:
    job = fake_job()
    course = JobCourse(job=job, offsets=topic, manifests=FakeManifests(), lineage="l")
    observer = Observer(job=job.name, course=course, offsets=topic, clock=clock)
    observer.begin([Learned(0, 0)] * 2, (0, 0))
    task = asyncio.create_task(observer.run())
    await settle()
    yield observer
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def pass_time(clock: FakeClock, seconds: float) -> None:
    for _ in range(round(seconds / OBSERVE_S)):
        clock.advance(OBSERVE_S)
        await settle()


async def test_backlog_lateness_and_retention_are_looked_at() -> None:
    topic, clock = Topic(), FakeClock()
    topic.publish(10)
    async with observing(topic, clock) as observer:
        assert (observer.backlog, observer.oldest_untrained_s) == (10, 12.0)
        assert observer.retention == Retention(RetentionState.OK, (0,), 88.0)
        observer.follow([Learned(5, 5), Learned(0, 0)])
        await pass_time(clock, OBSERVE_S)
        assert observer.backlog == 5


async def test_what_is_not_known_is_not_shown_as_a_number() -> None:
    topic, clock = Topic(), FakeClock()
    topic.publish(10)
    async with observing(topic, clock) as observer:
        topic.away = True
        with capture_logs() as logs:
            await pass_time(clock, 5.0)
        assert observer.backlog is None
        assert observer.oldest_untrained_s is None
        assert len(logs) == 1, "told once, not every second"
        assert observer.tick_age_s <= OBSERVE_S, "it still looks"
        topic.away = False
        await pass_time(clock, OBSERVE_S)
        assert observer.backlog == 10


async def test_the_window_moves_on_and_never_back_within_a_generation() -> None:
    topic, clock = Topic(), FakeClock()
    topic.window = (3, 4)
    async with observing(topic, clock) as observer:
        assert observer.window_begins == (3, 4)
        topic.window = (1, 7)
        await pass_time(clock, WINDOW_S)
        assert observer.window_begins == (3, 7)
        observer.begin([Learned(0, 0)] * 2, (0, 0))
        assert observer.window_begins == (0, 0)


async def test_expiry_that_comes_near_is_told_once() -> None:
    topic, clock = Topic(), FakeClock()
    async with observing(topic, clock):
        topic.state = RetentionState.NEAR
        with capture_logs() as logs:
            await pass_time(clock, 5 * LATENESS_S)
        assert [entry["event"] for entry in logs] == ["untrained records will expire soon"]

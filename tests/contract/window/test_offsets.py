"""Offsets against both brokers, fed by a real publisher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from streamtrain import config
from streamtrain.clock import Clock, FakeClock, SystemClock
from streamtrain.errors import KafkaError
from streamtrain.kafka import topics
from streamtrain.source.publisher import Publisher
from streamtrain.types import Learned, RetentionState
from streamtrain.window.offsets import Offsets
from tests.contract.source.numbered_events import PARTITIONS, SOURCE, event, position, publishing, source_topic, start


@asynccontextmanager
async def observed(kafka: config.Kafka, *, clock: Clock | None = None) -> AsyncIterator[tuple[Publisher, Offsets]]:
    told: list[Offsets] = []
    async with publishing(kafka, on_published=lambda published: told[0].on_published(published)) as publisher:
        offsets = Offsets(
            kafka=kafka, topic=source_topic(kafka), topic_epoch=0, partitions=PARTITIONS, clock=clock or SystemClock()
        )
        told.append(offsets)
        committed = await start(publisher)
        await offsets.start(committed)
        try:
            yield publisher, offsets
        finally:
            await offsets.close()


async def publish(publisher: Publisher, first: int, count: int) -> None:
    await publisher.publish([event(i) for i in range(first, first + count)], position(first + count))


async def test_the_frontier_moves_with_every_transaction_and_wakes_who_waits(each_kafka_config: config.Kafka) -> None:
    async with observed(each_kafka_config) as (publisher, offsets):
        before = await offsets.frontier()
        assert [part.published for part in before.partitions] == [0] * PARTITIONS
        waiting = asyncio.create_task(offsets.changed(before))
        await asyncio.sleep(0)
        assert not waiting.done()
        await publish(publisher, 1, 40)
        await asyncio.wait_for(waiting, 10)
        now = await offsets.frontier()
        await asyncio.wait_for(offsets.changed(before), 1)  # who comes late need not wait
        assert sum(part.published or 0 for part in now.partitions) == 40
        assert now.backlog([Learned(0, 0)] * PARTITIONS) == 40


async def test_a_new_process_sees_what_was_published_before(each_kafka_config: config.Kafka) -> None:
    async with observed(each_kafka_config) as (publisher, _):
        await publish(publisher, 1, 40)
    async with observed(each_kafka_config) as (publisher, offsets):
        frontier = await offsets.frontier()
        assert frontier.backlog([Learned(0, 0)] * PARTITIONS) == 40
        assert all(part.end >= (part.published or 0) for part in frontier.partitions)


async def test_a_place_is_located_by_the_sequence_of_its_first_record(each_kafka_config: config.Kafka) -> None:
    async with observed(each_kafka_config) as (publisher, offsets):
        for first in (1, 21, 41):
            await publish(publisher, first, 20)
        ends = (await offsets.frontier()).partitions
        located = await offsets.locate([0] * PARTITIONS)
        assert [place.count for place in located] == [0] * PARTITIONS
        end = await offsets.locate([part.end for part in ends])
        assert [place.count for place in end] == [part.published for part in ends]
        # Three transactions, so offsets hold markers: a place in the middle is found by its record.
        middle = await offsets.locate([part.end - 1 for part in ends])
        assert [place.count for place in middle] == [max(0, (part.published or 0) - 1) for part in ends]


async def test_an_empty_topic_is_located_at_its_beginning(each_kafka_config: config.Kafka) -> None:
    async with observed(each_kafka_config) as (_, offsets):
        assert await offsets.locate([0] * PARTITIONS) == (Learned(0, 0),) * PARTITIONS


async def test_the_window_begins_where_its_duration_or_its_records_end(each_kafka_config: config.Kafka) -> None:
    async with observed(each_kafka_config) as (publisher, offsets):
        await publish(publisher, 1, 40)
        ends = [part.end for part in (await offsets.frontier()).partitions]
        assert await offsets.window_begins(3600.0, 1000) == (0,) * PARTITIONS
        capped = await offsets.window_begins(3600.0, 20)
        assert 15 <= sum(end - begin for end, begin in zip(ends, capped, strict=True)) <= 22
        await offsets.locate([end - 1 for end in ends])  # returns once all is stable
        later = FakeClock(SystemClock().time() + 1000)
        offsets._clock = later
        assert all(begin >= end for begin, end in zip(await offsets.window_begins(1.0, 1000), ends, strict=True))


async def test_the_oldest_untrained_record_ages(each_kafka_config: config.Kafka) -> None:
    clock = FakeClock(SystemClock().time())
    async with observed(each_kafka_config, clock=clock) as (publisher, offsets):
        untrained = [Learned(0, 0)] * PARTITIONS
        assert await offsets.oldest_untrained_s(untrained) is None
        await publish(publisher, 1, 10)
        first = [Learned(part.end, part.published or 0) for part in (await offsets.frontier()).partitions]
        clock.advance(100)
        await publish(publisher, 11, 10)
        clock.advance(5)
        assert await offsets.oldest_untrained_s(untrained) == pytest.approx(105)
        assert await offsets.oldest_untrained_s(first) == pytest.approx(5)


async def test_records_from_before_this_process_age_too(each_kafka_config: config.Kafka) -> None:
    async with observed(each_kafka_config) as (publisher, _):
        await publish(publisher, 1, 10)
    clock = FakeClock(SystemClock().time() + 1000)
    async with observed(each_kafka_config, clock=clock) as (publisher, offsets):
        age = await offsets.oldest_untrained_s([Learned(0, 0)] * PARTITIONS)
        assert age == pytest.approx(1000, abs=120)


async def test_retention_that_comes_near_is_told_before_records_are_lost(each_kafka_config: config.Kafka) -> None:
    async with observed(each_kafka_config) as (publisher, offsets):
        await publish(publisher, 1, 40)
        untrained = [Learned(0, 0)] * PARTITIONS
        retention = each_kafka_config.retention
        assert (await offsets.retention(untrained, 10.0)).state is RetentionState.OK
        near = await offsets.retention(untrained, 0.9 * retention)
        assert (near.state, near.headroom_s) == (RetentionState.NEAR, pytest.approx(0.1 * retention))
        ahead = [Learned(1000, 1000), *untrained[1:]]
        assert (await offsets.retention(ahead, None)).state is RetentionState.AHEAD


async def test_removed_records_that_were_not_learned_are_lost_and_others_are_not(
    apache_kafka_config: config.Kafka,
) -> None:
    kafka = apache_kafka_config
    async with observed(kafka) as (publisher, offsets):
        await publish(publisher, 1, 40)
        learned = [Learned(part.end, part.published or 0) for part in (await offsets.frontier()).partitions]
        await publish(publisher, 41, 40)
        # Everything of the first transaction, its commit marker too.
        await delete_records(kafka, [place.offset + 1 for place in learned])
        await offsets._refresh()
        frontier = await offsets.frontier()
        assert all(part.begin > place.offset for part, place in zip(frontier.partitions, learned, strict=True))
        assert (await offsets.retention(learned, None)).state is RetentionState.OK
        short = [replace(place, offset=place.offset - 1, count=place.count - 1) for place in learned]
        assert (await offsets.retention(short, None)).state is RetentionState.LOST
        assert await offsets.locate([0] * PARTITIONS) == tuple(
            Learned(part.begin, place.count) for part, place in zip(frontier.partitions, learned, strict=True)
        )


async def delete_records(kafka: config.Kafka, before: list[int]) -> None:
    admin = AIOKafkaAdminClient(**topics.kafka_options(kafka))
    await admin.start()
    try:
        await admin.delete_records(
            {
                TopicPartition(source_topic(kafka), partition): RecordsToDelete(before_offset=offset)
                for partition, offset in enumerate(before)
            }
        )
    finally:
        await admin.close()


async def test_an_unreachable_broker_is_told_at_start() -> None:
    kafka = config.Kafka(bootstrap_servers="127.0.0.1:1")
    offsets = Offsets(kafka=kafka, topic=f"{SOURCE}.0", topic_epoch=0, partitions=1, clock=SystemClock())
    with pytest.raises(KafkaError, match="cannot be reached"):
        await offsets.start(None)

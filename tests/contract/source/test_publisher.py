"""The publisher against both brokers: all or nothing, once, and only by one."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import bson
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streamtrain import config
from streamtrain.errors import FencedError, KafkaError, OffsetError, SourceError
from streamtrain.kafka import topics
from streamtrain.source.publisher import Publisher
from streamtrain.types import Operation, PositionKind, Published
from tests.contract.source.numbered_events import (
    PARTITIONS,
    SOURCE,
    check_content,
    event,
    position,
    publishing,
    read,
    source_topic,
    start,
    token,
)


async def test_records_and_position_arrive_together(each_kafka_config):
    told: list[Published] = []
    events = [event(i) for i in range(1, 101)] + [event(101, operation=Operation.DELETE)]
    async with publishing(each_kafka_config, on_published=told.append) as publisher:
        assert await publisher.start() is None
        started = await publisher.publish((), position(0, PositionKind.START))
        assert started.counts == (0,) * PARTITIONS
        committed = await publisher.publish(events, position(101))
        assert sum(committed.counts) == len(events)
        assert publisher.position == committed
    records = await check_content(each_kafka_config, events)
    assert {record.timestamp_type for record in records} == {1}, "LogAppendTime"
    alone, published = told
    assert (alone.position, alone.records, alone.partition_ends) == (started, 0, {})  # time passes without changes too
    assert published.position == committed
    assert published.records == len(events)
    assert published.bytes == sum(len(each.document or b"") for each in events)
    for partition, (end, count) in published.partition_ends.items():
        assert end == max(record.offset for record in records if record.partition == partition) + 1
        assert count == committed.counts[partition]
    async with publishing(each_kafka_config) as successor:
        assert (await start(successor)).token == token(101)


async def test_counts_continue_over_restarts(each_kafka_config):
    events = [event(i) for i in range(1, 61)]
    for begin in range(0, 60, 20):
        async with publishing(each_kafka_config) as publisher:
            resumed = await start(publisher)
            assert sum(resumed.counts) == begin
            for i in range(begin, begin + 20, 7):
                part = events[i : min(i + 7, begin + 20)]
                await publisher.publish(part, position(i + len(part)))
    await check_content(each_kafka_config, events)


async def test_a_publisher_epoch_is_higher_with_every_daemon_and_stays_over_restarts_of_one(each_kafka_config):
    async with publishing(each_kafka_config) as publisher:
        assert (await start(publisher)).publisher_epoch == 1
        assert (await start(publisher)).publisher_epoch == 1
        assert (await publisher.publish([event(1)], position(1))).publisher_epoch == 1
    async with publishing(each_kafka_config) as publisher:
        assert (await start(publisher)).publisher_epoch == 2


async def test_nothing_of_an_uncommitted_transaction_is_visible_and_nothing_is_lost(each_kafka_config):
    """What a crash between send and commit leaves behind."""
    async with publishing(each_kafka_config) as publisher:
        await start(publisher)
        await publisher.publish([event(1)], position(1))
    allowed = [True, True, True, False]  # start, the claim's commit, before the transaction, before its commit
    async with publishing(each_kafka_config, may_publish=lambda: allowed.pop(0)) as publisher:
        await start(publisher)
        with pytest.raises(KafkaError, match="lease"):
            await publisher.publish([event(i) for i in range(2, 50)], position(49))
        assert not allowed
    async with publishing(each_kafka_config) as publisher:
        assert (await start(publisher)).token == token(1)
        await publisher.publish([event(i) for i in range(2, 50)], position(49))
    await check_content(each_kafka_config, [event(i) for i in range(1, 50)])


async def test_a_predecessor_is_fenced_and_steps_down(each_kafka_config):
    async with publishing(each_kafka_config) as old, publishing(each_kafka_config) as new:
        await start(old)
        await old.publish([event(1)], position(1))
        await start(new)
        with pytest.raises(KafkaError):
            await old.publish([event(2, version=1)], position(2))
        await new.publish([event(2)], position(2))
        with pytest.raises(FencedError, match="newer daemon"):
            await old.start()
        # The old one had to fence the new one to find out; the new one goes on all the same.
        with pytest.raises(KafkaError):
            await new.publish([event(3)], position(3))
        assert (await start(new)).token == token(2)
        await new.publish([event(3)], position(3))
    await check_content(each_kafka_config, [event(1), event(2), event(3)])


async def test_a_fenced_publisher_leaves_no_failure_that_asyncio_reports_as_forgotten(each_kafka_config):
    forgotten = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: forgotten.append(context))
    async with publishing(each_kafka_config) as old, publishing(each_kafka_config) as new:
        await start(old)
        await old.publish([event(1)], position(1))
        await start(new)
        with pytest.raises(KafkaError):
            await old.publish([event(2, version=1)], position(2))
    gc.collect()
    assert forgotten == []


async def test_a_publisher_without_the_lease_waits(each_kafka_config):
    held = True
    async with publishing(each_kafka_config, may_publish=lambda: held) as publisher:
        await start(publisher)
        held = False
        waiting = asyncio.create_task(publisher.publish([event(1)], position(1)))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        assert await check_content(each_kafka_config, []) == []
        held = True
        assert (await waiting).token == token(1)


async def test_a_cancelled_publish_can_be_taken_up_again(each_kafka_config):
    async with publishing(each_kafka_config) as publisher:
        await start(publisher)
        for delay in (0, 0.001, 0.003, 0.006):
            publishing_ = asyncio.create_task(publisher.publish([event(1)], position(1)))
            await asyncio.sleep(delay)
            publishing_.cancel()
            await asyncio.gather(publishing_, return_exceptions=True)
            if (await start(publisher)).token == token(1):
                break  # the commit was quicker
        else:
            await publisher.publish([event(1)], position(1))
        await publisher.publish([event(2)], position(2))
    await check_content(each_kafka_config, [event(1), event(2)])


# ---------------------------------------------------------------------------------------- positions


async def test_positions_of_empty_batches_never_go_backwards(each_kafka_config):
    async with publishing(each_kafka_config) as publisher:
        await start(publisher)
        assert (await publisher.publish((), position(6, PositionKind.POST_BATCH))).token == token(6)
        assert (await publisher.publish((), position(4, PositionKind.POST_BATCH))).token == token(6)
        assert (await publisher.publish((), position(7, PositionKind.INVALIDATE))).token == token(7)
        with pytest.raises(SourceError, match="gone back"):
            await publisher.publish([event(3)], position(3))


async def test_positions_of_sources_do_not_mix(each_kafka_config):
    async with publishing(each_kafka_config) as one, publishing(each_kafka_config, source="ships") as other:
        await start(one)
        assert await other.start() is None
        await one.publish([event(1)], position(1))
        assert await other.start() is None


# ---------------------------------------------------------------------------------------- topics


async def create(kafka: config.Kafka, name: str, partitions: int, **configs: str) -> None:
    admin = AIOKafkaAdminClient(**topics.kafka_options(kafka))
    await admin.start()
    try:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=named)])
    finally:
        await admin.close()


@pytest.mark.parametrize(
    ("partitions", "configs", "told"),
    [
        (PARTITIONS + 1, {}, "set partitions: 5"),
        (PARTITIONS - 1, {}, "set partitions: 3"),
        (PARTITIONS, {"retention_ms": "60000"}, "keeps records for 60 s"),
        (PARTITIONS, {"message_timestamp_type": "CreateTime"}, "LogAppendTime"),
        (PARTITIONS, {"cleanup_policy": "compact"}, "is compacted"),
    ],
)
async def test_a_topic_that_would_lose_records_is_refused(each_kafka_config, partitions, configs, told):
    wanted = {"message_timestamp_type": "LogAppendTime", "retention_ms": "-1", **configs}
    await create(each_kafka_config, source_topic(each_kafka_config), partitions, **wanted)
    async with publishing(each_kafka_config) as publisher:
        with pytest.raises(KafkaError) as raised:
            await publisher.start()
    assert told in str(raised.value)
    assert raised.value.hint


async def test_topics_made_beforehand_are_accepted(each_kafka_config):
    kafka = each_kafka_config.model_copy(update={"create_topics": False})
    async with publishing(kafka) as publisher:
        with pytest.raises(KafkaError, match=r"kafka-topics\.sh --create"):
            await publisher.start()
    append_time = {"message_timestamp_type": "LogAppendTime", "retention_ms": "-1"}
    await create(kafka, source_topic(kafka), PARTITIONS, **append_time)
    await create(kafka, topics.positions_topic(kafka.topic_prefix), 1, cleanup_policy="compact")
    await create(kafka, topics.source_dead_letter_topic(kafka.topic_prefix, SOURCE), 1)
    async with publishing(kafka) as publisher:
        await start(publisher)
        await publisher.publish([event(1)], position(1))
    await check_content(kafka, [event(1)])


async def test_another_configured_partition_count_is_refused(each_kafka_config):
    async with publishing(each_kafka_config) as publisher:
        await start(publisher)
    async with publishing(each_kafka_config, partitions=PARTITIONS * 2) as publisher:
        with pytest.raises(KafkaError, match="set partitions: 4"):
            await publisher.start()


async def test_a_topic_that_was_created_anew_is_noticed(each_kafka_config):
    async with publishing(each_kafka_config) as publisher:
        await start(publisher)
        await publisher.publish([event(i) for i in range(1, 20)], position(19))
    admin = AIOKafkaAdminClient(**topics.kafka_options(each_kafka_config))
    await admin.start()
    try:
        await admin.delete_topics([source_topic(each_kafka_config)])
    finally:
        await admin.close()
    async with publishing(each_kafka_config) as publisher:
        with pytest.raises(OffsetError, match="created anew"):
            await publisher.start()


async def test_records_without_a_position_are_not_numbered_from_zero_again(each_kafka_config):
    async with publishing(each_kafka_config) as publisher:
        await start(publisher)
    producer = AIOKafkaProducer(**topics.kafka_options(each_kafka_config))
    await producer.start()
    other = each_kafka_config.model_copy(update={"topic_prefix": each_kafka_config.topic_prefix + "x"})
    await create(other, source_topic(other), PARTITIONS, message_timestamp_type="LogAppendTime", retention_ms="-1")
    try:
        await producer.send_and_wait(source_topic(other), b"x", partition=0)
    finally:
        await producer.stop()
    async with publishing(other) as publisher:
        with pytest.raises(OffsetError, match="no saved position"):
            await publisher.start()


# ---------------------------------------------------------------------------------------- sizes


async def test_a_batch_larger_than_a_kafka_batch_is_split(each_kafka_config):
    events = [event(i, size=5_000) for i in range(1, 200)]
    async with publishing(each_kafka_config, batch_bytes=20_000) as publisher:
        await start(publisher)
        await publisher.publish(events, position(199))
    await check_content(each_kafka_config, events)


async def test_a_document_of_sixteen_megabytes_fits(each_kafka_config):
    events = [event(1), event(2, size=16 * 1024**2 - 100), event(3)]
    async with publishing(each_kafka_config) as publisher:
        await start(publisher)
        await publisher.publish(events, position(3))
    await check_content(each_kafka_config, events)


async def letters(kafka: config.Kafka, *, at_least: int) -> list[tuple[bytes, str, str]]:
    topic = topics.source_dead_letter_topic(kafka.topic_prefix, SOURCE)
    found = [
        (record.key, bson.decode(record.value)) for record in await read(kafka, topic, partitions=1, at_least=at_least)
    ]
    return [(key, letter["reason"], letter["namespace"]) for key, letter in found]


async def test_an_event_larger_than_the_topic_takes_is_named_in_the_dead_letters(each_kafka_config):
    kafka = each_kafka_config
    await create(
        kafka,
        source_topic(kafka),
        PARTITIONS,
        message_timestamp_type="LogAppendTime",
        retention_ms="-1",
        max_message_bytes="50000",
    )
    large = event(2, size=60_000)
    keyless = event(4)._replace(document_key=bson.encode({"x": 1}))
    async with publishing(kafka) as publisher:
        await start(publisher)
        committed = await publisher.publish([event(1), large, event(3), keyless, event(5)], position(5))
        assert sum(committed.counts) == 3
        await publisher.publish([event(i) for i in range(6, 400)], position(399))
    await check_content(kafka, [event(1), event(3), event(5), *(event(i) for i in range(6, 400))])
    assert await letters(kafka, at_least=2) == [
        (large.document_key, "too-large", "air.flights"),
        (keyless.document_key, "no-id", "air.flights"),
    ]


async def test_a_limit_that_the_broker_does_not_tell_is_learned(each_kafka_config, monkeypatch):
    kafka = each_kafka_config
    monkeypatch.setattr("streamtrain.source.publisher.max_message_bytes", lambda state: topics.MAX_MESSAGE_BYTES)
    await create(
        kafka,
        source_topic(kafka),
        PARTITIONS,
        message_timestamp_type="LogAppendTime",
        retention_ms="-1",
        max_message_bytes="50000",
    )
    events = [event(i, size=500) for i in range(1, 1000)]
    events[500] = event(501, size=60_000)

    async def publish_all(publisher: Publisher) -> None:
        for _ in range(20):
            try:
                await publisher.publish(events, position(999))
            except KafkaError:
                await publisher.start()
            else:
                return
        raise AssertionError("the limit was not learned")

    async with publishing(kafka) as publisher:
        await start(publisher)
        await publish_all(publisher)
    await check_content(kafka, [each for each in events if len(each.document or b"") < 60_000])
    assert [reason for _, reason, _ in await letters(kafka, at_least=1)] == ["too-large"]


# ---------------------------------------------------------------------------------------- failures


async def test_an_unreachable_broker_is_a_clear_error():
    kafka = config.Kafka(bootstrap_servers="127.0.0.1:1", topic_prefix="t")
    async with publishing(kafka) as publisher:
        with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1 cannot be reached") as raised:
            await publisher.start()
    assert "bootstrap_servers" in raised.value.hint


async def test_publishing_before_start_is_refused(each_kafka_config):
    async with publishing(each_kafka_config) as publisher:
        with pytest.raises(KafkaError, match="start it first"):
            await publisher.publish([event(1)], position(1))


def hold_back(publisher: Publisher, what: str) -> Callable[[], None]:
    """Makes a call of the producer fail once, after it has done its work."""
    producer = publisher._producer
    real = getattr(producer, what)

    async def failing(*arguments: object, **named: object) -> object:
        await real(*arguments, **named)
        raise ConnectionResetError

    setattr(producer, what, failing)
    return lambda: setattr(producer, what, real)


async def test_a_commit_whose_answer_is_lost_is_not_repeated(each_kafka_config):
    told: list[Published] = []
    async with publishing(each_kafka_config, on_published=told.append) as publisher:
        await start(publisher)
        hold_back(publisher, "commit_transaction")
        with pytest.raises(KafkaError):
            await publisher.publish([event(1)], position(1))
        assert (await start(publisher)).token == token(1)
        assert [published.records for published in told if published.records] == [1]
        await publisher.publish([event(2)], position(2))
    await check_content(each_kafka_config, [event(1), event(2)])


async def test_a_transaction_whose_batch_failed_is_never_committed(each_kafka_config):
    async with publishing(each_kafka_config) as publisher:
        await start(publisher)
        hold_back(publisher, "send_batch")
        with pytest.raises(KafkaError):
            await publisher.publish([event(1)], position(1))
        assert (await start(publisher)).kind is PositionKind.START
        await publisher.publish([event(1)], position(1))
    await check_content(each_kafka_config, [event(1)])

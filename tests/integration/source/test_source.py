"""A source on a MongoDB server and a Kafka broker: every change once, in order, whatever is in between."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import bson
import pytest

from streamtrain.clock import FakeClock, SystemClock
from streamtrain.errors import ForeignPositionError, HistoryLostError, InvalidatedError, MongoError, SourceError
from streamtrain.sandbox.mongo_server import ThreadedMongo
from streamtrain.source.position_log import read_position
from streamtrain.source.prefetch import EVENT_OVERHEAD_BYTES
from streamtrain.source.progress import POSITION_EVERY_S
from streamtrain.source.source import UNKNOWN_ERROR_TRIES, Source
from streamtrain.source.status import SourceState
from streamtrain.types import Operation, PositionKind
from tests.fakes.publisher import MemoryPublisher
from tests.integration.source.at_work import (
    COLLECTION,
    DATABASE,
    PATIENCE_S,
    SOURCE,
    Writer,
    check_topic,
    spec_of,
    streaming,
    until,
)

ODD_KEYS = [
    7,
    bson.Int64(7 << 40),
    2.5,
    "text",
    b"binary",
    bson.ObjectId(),
    {"a": 1, "b": {"c": "x"}},
    datetime(2026, 1, 2, tzinfo=UTC),
    bson.Decimal128("1.10"),
    True,
    bson.Timestamp(5, 6),
    bson.MinKey(),
]


async def test_every_kind_of_change_arrives_once_and_in_order_with_its_exact_bytes(each_mongo, kafka_config):
    with Writer(each_mongo.uri) as writer:
        async with streaming(each_mongo.uri, kafka=kafka_config) as source:
            for key in ODD_KEYS:
                writer.insert({"_id": key, "v": 1, "list": [1, None, float("nan"), {"x": b""}]})
                writer.replace({"_id": key, "v": 2.0})
                writer.update({"_id": key, "v": 3})
                await until(lambda: source.status().events == writer.count)  # the lookup finds this version
                writer.delete(key)
            writer.insert_many([{"_id": f"many-{i}", "x": "y" * i} for i in range(1_000)])
            await until(lambda: source.status().events == writer.count)
        await check_topic(kafka_config, writer)


async def test_a_restart_goes_on_where_the_source_ended(each_mongo, kafka_config):
    with Writer(each_mongo.uri) as writer:
        published = 0
        for run in range(3):
            async with streaming(each_mongo.uri, kafka=kafka_config) as source:
                writer.insert_many([{"_id": f"{run}-on-{i}"} for i in range(50)])
                await until(lambda: source.status().events > 0)
            published += source.status().events
            writer.insert_many([{"_id": f"{run}-off-{i}"} for i in range(50)])
        async with streaming(each_mongo.uri, kafka=kafka_config) as source:
            await until(lambda: published + source.status().events == writer.count)
        await check_topic(kafka_config, writer)


async def test_where_a_fresh_source_starts_is_saved_before_anything_happens(each_mongo, kafka_config):
    with Writer(each_mongo.uri) as writer:
        async with streaming(each_mongo.uri, kafka=kafka_config):
            position = await read_position(kafka_config, SOURCE)
            assert position is not None
            assert position.kind is PositionKind.START
        writer.insert({"_id": 1})  # while it is away
        async with streaming(each_mongo.uri, kafka=kafka_config) as source:
            await until(lambda: source.status().events == 1)
        await check_topic(kafka_config, writer)


async def test_the_position_of_another_cluster_is_refused(mongo_server, kafka_config):
    other = ThreadedMongo()
    other.start()
    try:
        with Writer(mongo_server.uri) as writer, Writer(other.uri):
            async with streaming(mongo_server.uri, kafka=kafka_config) as source:
                writer.insert({"_id": 1})
                await until(lambda: source.status().events == 1)
            with pytest.raises(ForeignPositionError):
                async with streaming(other.uri, kafka=kafka_config):
                    pass
    finally:
        other.stop()


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        *(("getMore", fault) for fault in (10107, 43, 11600, 99_999, "before", "after", "within")),
        *(("aggregate", fault) for fault in (10107, 91, "before", "after")),
    ],
)
async def test_a_stream_that_is_cut_goes_on_without_loss_or_repetition(mongo_server, kafka_config, command, fault):
    with Writer(mongo_server.uri) as writer:
        async with streaming(mongo_server.uri, kafka=kafka_config) as source:
            writer.insert_many([{"_id": i} for i in range(100)])
            await until(lambda: source.status().events > 0)
            if isinstance(fault, int):
                mongo_server.call(lambda: mongo_server.faults.error(command, fault))
            else:
                mongo_server.call(lambda: mongo_server.faults.drop(command, when=fault))
            if command == "aggregate":
                mongo_server.drop_connections()
            writer.insert_many([{"_id": 1_000 + i} for i in range(100)])
            await until(lambda: source.status().events == writer.count)
            await until(lambda: source.status().restarts >= 1)
        await check_topic(kafka_config, writer)


async def test_lost_history_is_a_state_and_an_error_that_says_so(mongo_server, kafka_config):
    with Writer(mongo_server.uri) as writer:
        async with streaming(mongo_server.uri, kafka=kafka_config) as source:
            writer.insert({"_id": 1})
            await until(lambda: source.status().events == 1)
        writer.insert_many([{"_id": 10 + i} for i in range(10)])
        mongo_server.cut_oplog()
        with pytest.raises(HistoryLostError) as raised:
            async with streaming(mongo_server.uri, kafka=kafka_config):
                pass
        assert "start afresh" in raised.value.hint


@pytest.mark.parametrize("how", ["drop", "rename", "dropDatabase"])
async def test_a_collection_that_is_gone_is_a_state_and_one_that_comes_back_is_followed(each_mongo, kafka_config, how):
    async def stream_until_it_is_gone() -> None:
        async with streaming(each_mongo.uri, kafka=kafka_config) as source:
            writer.insert({"_id": 1})
            if how == "drop":
                writer.collection.drop()
            elif how == "rename":
                writer.collection.rename("elsewhere")
            else:
                writer.client.drop_database(DATABASE)
            await until(lambda: source.status().state is SourceState.INVALIDATED)

    async def stream_one() -> None:
        async with streaming(each_mongo.uri, kafka=kafka_config) as source:
            await until(lambda: source.status().events == 1)

    with Writer(each_mongo.uri) as writer:
        with pytest.raises(InvalidatedError, match=f"{DATABASE}.{COLLECTION} is gone"):
            await stream_until_it_is_gone()
        with pytest.raises(MongoError, match="there is no collection"):
            await stream_one()
        writer.client[DATABASE].create_collection(COLLECTION)
        writer.insert({"_id": 2})
        await stream_one()
        await check_topic(kafka_config, writer)


async def test_an_update_without_its_document_is_looked_up(each_mongo):
    publisher = MemoryPublisher()
    with Writer(each_mongo.uri) as writer:
        writer.insert({"_id": 1, "v": 0})
        writer.insert({"_id": 2, "v": 0})
        # Without post-images, whenAvailable leaves every update without its document.
        async with streaming(each_mongo.uri, publisher=publisher, full_document="whenAvailable"):
            before = len(publisher.events)
            publisher.gate.clear()
            writer.update({"_id": 1, "v": 1})
            writer.update({"_id": 1, "v": 2})
            publisher.gate.set()
            await until(lambda: len(publisher.events) == before + 2)
        updates = publisher.events[-2:]
        assert updates[1].document == bson.encode({"_id": 1, "v": 2})
        assert all(update.document is not None for update in updates)


async def test_an_update_whose_document_is_gone_comes_without_one(each_mongo):
    publisher = MemoryPublisher()
    with Writer(each_mongo.uri) as writer:
        async with streaming(each_mongo.uri, publisher=publisher):
            pass  # its start is saved
        writer.insert({"_id": 1, "v": 0})
        writer.update({"_id": 1, "v": 1})
        writer.delete(1)
        async with streaming(each_mongo.uri, publisher=publisher):
            await until(lambda: len(publisher.events) == 3)
    assert [(e.operation, e.document) for e in publisher.events[1:]] == [
        (Operation.UPDATE, None),
        (Operation.DELETE, None),
    ]


async def test_post_images_carry_every_version_also_one_that_was_overtaken(each_mongo):
    publisher = MemoryPublisher()
    with Writer(each_mongo.uri) as writer:
        writer.client[DATABASE].command("collMod", COLLECTION, changeStreamPreAndPostImages={"enabled": True})
        async with streaming(each_mongo.uri, publisher=publisher):
            pass  # its start is saved
        writer.insert({"_id": 1, "v": 0})
        writer.update({"_id": 1, "v": 1})
        writer.update({"_id": 1, "v": 2})
        writer.delete(1)
        async with streaming(each_mongo.uri, publisher=publisher):
            await until(lambda: len(publisher.events) == 4)
    versions = [event.document and bson.decode(event.document)["v"] for event in publisher.events]
    assert versions == [0, 1, 2, None]


async def test_a_slow_kafka_slows_the_stream_down_and_memory_stays_bounded(mongo_server):
    limit, document = 1024**2, 20_000
    publisher = MemoryPublisher()
    with Writer(mongo_server.uri) as writer:
        async with streaming(mongo_server.uri, publisher=publisher, prefetch=f"{limit}B") as source:
            writer.insert_many([{"_id": i, "x": "y" * document} for i in range(20)])
            await until(lambda: len(publisher.events) == 20)
            publisher.gate.clear()
            writer.insert_many([{"_id": 100 + i, "x": "y" * document} for i in range(200)])
            await until(lambda: source.status().prefetch_bytes > limit // 2)
            for _ in range(20):
                await asyncio.sleep(0.01)
                assert source.status().prefetch_bytes <= limit + document + EVENT_OVERHEAD_BYTES
            publisher.gate.set()
            await until(lambda: len(publisher.events) == 220)
    assert [bson.decode(e.document)["_id"] for e in publisher.events] == [*range(20), *range(100, 300)]


async def test_a_failed_transaction_is_done_again_from_the_committed_position(mongo_server):
    publisher = MemoryPublisher()
    with Writer(mongo_server.uri) as writer:
        async with streaming(mongo_server.uri, publisher=publisher) as source:
            publisher.skip, publisher.failures = 2, 3
            for i in range(30):
                writer.insert_many([{"_id": 10 * i + j} for j in range(10)])
                await until(lambda i=i: len(publisher.events) >= 10 * i + 10)
            assert source.status().restarts == 3
    assert publisher.starts == 4
    assert [bson.decode(e.document)["_id"] for e in publisher.events] == list(range(300))


async def test_the_position_advances_while_nothing_happens_in_the_collection(each_mongo):
    publisher = MemoryPublisher()
    clock = FakeClock()
    with Writer(each_mongo.uri) as writer:
        async with streaming(each_mongo.uri, publisher=publisher, clock=clock):
            (start,) = publisher.positions
            assert start.kind is PositionKind.START
            for rounds in range(1, 3):
                writer.client.elsewhere.c.insert_one({})  # only others write
                clock.advance(POSITION_EVERY_S)
                await until(lambda rounds=rounds: len(publisher.positions) == 1 + rounds)
    assert {position.kind for position in publisher.positions[1:]} == {PositionKind.POST_BATCH}
    times = [position.cluster_time for position in publisher.positions]
    assert times == sorted(times)
    assert times[-1] > start.cluster_time


async def test_stopping_leaves_nothing_behind(each_mongo):
    publisher = MemoryPublisher()
    with Writer(each_mongo.uri):
        async with streaming(each_mongo.uri, publisher=publisher) as source:
            pass
    assert source.status().state is SourceState.STOPPED
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_it_stops_also_while_it_waits_to_try_again(mongo_server):
    publisher = MemoryPublisher()
    with Writer(mongo_server.uri):
        async with streaming(mongo_server.uri, publisher=publisher, clock=FakeClock()) as source:  # never wakes up
            mongo_server.call(lambda: mongo_server.faults.error("getMore", 10107))
            await until(lambda: source.status().state is SourceState.BACKING_OFF)
            assert "mongodb" in source.status().reason


async def test_it_stops_also_while_its_server_is_away(mongo_process):
    server = mongo_process()
    with Writer(server.uri):
        async with streaming(server.uri, publisher=MemoryPublisher()) as source:
            server.kill()
            await until(lambda: source.status().state is SourceState.BACKING_OFF)


async def test_a_server_that_comes_back_is_followed_from_the_position(mongo_process, tmp_path):
    server = mongo_process(data_file=tmp_path / "sandbox.mongo")
    publisher = MemoryPublisher()
    with Writer(server.uri) as writer:
        async with streaming(server.uri, publisher=publisher) as source:
            writer.insert({"_id": 1})
            await until(lambda: len(publisher.events) == 1)
            server.kill()
            await until(lambda: source.status().state is SourceState.BACKING_OFF)
            server.start()
            writer.insert({"_id": 2})
            await until(lambda: len(publisher.events) == 2)
    assert [bson.decode(e.document)["_id"] for e in publisher.events] == [1, 2]


class _Impatient(SystemClock):
    """Sleeps for no time, and remembers for how long it should have."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_an_unknown_error_that_stays_ends_the_source_after_waits_that_grow(mongo_server):
    clock = _Impatient()
    with Writer(mongo_server.uri):
        mongo_server.call(lambda: mongo_server.faults.error("getMore", 99_999, times=1_000))
        source = Source(spec=spec_of(mongo_server.uri), publisher=MemoryPublisher(), clock=clock)
        with pytest.raises(SourceError, match="injected"):
            await asyncio.wait_for(source.run(), PATIENCE_S)
    assert len(clock.slept) == UNKNOWN_ERROR_TRIES
    assert clock.slept[-1] > 20 * clock.slept[0]
    assert source.status().state is SourceState.FAILED

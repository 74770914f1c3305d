"""The feed on real brokers: what the publisher wrote comes out as rows, once, however rounds are cut."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import bson
import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

from streamtrain import config
from streamtrain.clock import SystemClock
from streamtrain.errors import ContinuityError, EnvelopeError, KafkaError, OffsetError, WorkerError
from streamtrain.kafka import topics
from streamtrain.kafka.topic_admin import TopicSpec, ensure_topics
from streamtrain.sandbox.apache_kafka import ApacheKafka
from streamtrain.sandbox.kafka_broker import KafkaBroker
from streamtrain.source import envelope
from streamtrain.source.publisher import Publisher
from streamtrain.trainer import reader as reader_module
from streamtrain.trainer.feed import Feed
from streamtrain.trainer.rows import RoundRows
from streamtrain.trainer.waiting import Waiting
from streamtrain.types import ChangeEvent, Learned, OffsetRange, Operation, Round
from tests.contract.source.numbered_events import SOURCE, position, source_topic, start
from tests.deployment import wait_until

PARTITIONS = 3
JOB = config.Job.model_validate(
    {
        "name": "delay",
        "source": SOURCE,
        "features": [{"field": "x", "dtype": "float64"}, {"field": "carrier", "dtype": "string", "missing": "?"}],
        "labels": [{"field": "y", "dtype": "float64", "task": "regression"}],
    }
)


def event(
    number: int, document: dict[str, Any] | bytes | None, operation: Operation = Operation.INSERT, at: int = 0
) -> ChangeEvent:
    raw = bson.encode({"_id": number, **document}) if isinstance(document, dict) else document
    return ChangeEvent(
        token=bson.encode({"_data": f"{number}"}),
        operation=operation,
        namespace="air.flights",
        document_key=bson.encode({"_id": number}),
        document=raw,
        cluster_time=(1000 + (at or number)) << 32 | 1,
        wall_time_ms=1_700_000_000_000 + number,
    )


def good(number: int) -> dict[str, Any]:
    return {"x": float(number), "carrier": f"c{number % 7}", "y": 2.0 * number}


async def write(kafka: config.Kafka, transactions: Sequence[Sequence[ChangeEvent]]) -> list[Learned]:
    """Publishes as a source does; returns the end of each partition."""
    publisher = Publisher(kafka=kafka, source=SOURCE, partitions=PARTITIONS, clock=SystemClock())
    try:
        now = await start(publisher)
        for events in transactions:
            now = await publisher.publish(events, position(1))
    finally:
        await publisher.close()
    await ensure_topics(kafka, [TopicSpec(topics.dead_letter_topic(kafka.topic_prefix, JOB.name), 1)])
    consumer = AIOKafkaConsumer(**topics.kafka_options(kafka), isolation_level="read_committed")
    await consumer.start()
    try:
        places = [TopicPartition(source_topic(kafka), number) for number in range(PARTITIONS)]
        ends = await consumer.end_offsets(places)
    finally:
        await consumer.stop()
    return [Learned(ends[place], now.counts[place.partition]) for place in places]


class Progress(list[tuple[str, int]]):
    def __call__(self, stage: str, done: int) -> None:
        self.append((stage, done))


@contextmanager
def feeding(
    kafka: config.Kafka,
    *,
    learned: Sequence[Learned] = (Learned(0, 0),) * PARTITIONS,
    window_begins: Sequence[int] = (0,) * PARTITIONS,
    partitions: tuple[int, ...] = tuple(range(PARTITIONS)),
    topic: str = "",
    progress: Progress | None = None,
    job: config.Job = JOB,
    forget_through: Mapping[int, int] = MappingProxyType({}),
    waiting: Mapping[int, Waiting] | None = None,
    expelled: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> Iterator[Feed]:
    feed = Feed(
        job=job,
        kafka=kafka,
        topic=topic or source_topic(kafka),
        topic_epoch=0,
        partitions=partitions,
        learned={number: learned[number] for number in partitions},
        window_begins={number: window_begins[number] for number in partitions},
        dead_letter_topic=topics.dead_letter_topic(kafka.topic_prefix, JOB.name),
        dead_letter_origin=source_topic(kafka),
        clock=SystemClock(),
        on_progress=Progress() if progress is None else progress,
        forget_through=forget_through,
        waiting=waiting,
        expelled=expelled,
    )
    try:
        feed.start()
        feed.refill()
        yield feed
    finally:
        feed.close()


def rounds_to(
    kafka: config.Kafka, ends: Sequence[Learned], *, cuts: int, seed: int = 1, replay: int = 0, topic: str = ""
) -> list[Round]:
    """The whole topic in rounds that are cut anywhere."""
    choose = random.Random(seed)
    bounds = [
        [0, *sorted(choose.randint(0, end.offset) for _ in range(cuts)), end.offset]  # a cut may be inside a batch
        for end in ends
    ]
    return [
        Round(
            number=number,
            fresh=tuple(
                OffsetRange(topic or source_topic(kafka), 0, partition, bound[number], bound[number + 1])
                for partition, bound in enumerate(bounds)
            ),
            window_begins=(0,) * PARTITIONS,
            replay=(replay,) * PARTITIONS,
            seed=seed + number,
            batch_size=32,
        )
        for number in range(cuts + 1)
    ]


def take(feed: Feed, rounds: Sequence[Round]) -> list[RoundRows]:
    for round_ in rounds:
        feed.submit(round_)
    return [feed.next() for _ in rounds]


def learned_numbers(taken: Sequence[RoundRows]) -> list[int]:
    return [int(x) for round_ in taken for rows in round_.rows for x in rows.columns["x"]]


async def test_every_record_is_learned_once_however_rounds_are_cut(each_kafka_config: config.Kafka) -> None:
    kafka = each_kafka_config
    ends = await write(kafka, [[event(n, good(n)) for n in range(first, first + 100)] for first in range(0, 1500, 100)])
    progress = Progress()
    with feeding(kafka, progress=progress) as feed:
        taken = take(feed, rounds_to(kafka, ends, cuts=9))
    assert sorted(learned_numbers(taken)) == list(range(1500))
    assert taken[-1].learned == dict(enumerate(ends))
    assert sum(round_.counts.learned for round_ in taken) == 1500
    assert sum(done for _, done in progress) == 1500
    for round_ in taken:
        for rows in round_.rows:
            numbers = rows.columns["x"].astype(int)
            assert rows.labels["y"].tolist() == (2.0 * numbers).tolist()
            assert rows.columns["carrier"].tolist() == [b"c%d" % (n % 7) for n in numbers]
            assert rows.wall_time_ms.tolist() == (1_700_000_000_000 + numbers).tolist()
            assert rows.scored.all()
            assert (rows.weights == 1.0).all()


async def test_ranks_read_together_what_one_reads_alone(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(n, good(n)) for n in range(first, first + 50)] for first in (0, 50, 100)])
    rounds = rounds_to(kafka_config, ends, cuts=3, replay=7)
    with feeding(kafka_config) as alone:
        expected = {rows.partition: rows for rows in take(alone, rounds)[-1].rows}
    found = {}
    for partitions in ((0, 2), (1,)):
        with feeding(kafka_config, partitions=partitions) as rank:
            found |= {rows.partition: rows for rows in take(rank, rounds)[-1].rows}
    assert found.keys() == expected.keys()
    for number, rows in expected.items():
        np.testing.assert_array_equal(found[number].columns["x"], rows.columns["x"])
        np.testing.assert_array_equal(found[number].wall_time_ms, rows.wall_time_ms)


async def test_a_rank_without_partitions_takes_part_with_no_rows(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(n, good(n)) for n in range(30)]])
    with feeding(kafka_config, partitions=()) as idle:
        taken = take(idle, rounds_to(kafka_config, ends, cuts=1))
    assert [(round_.rows, round_.learned, round_.counts.learned) for round_ in taken] == [((), {}, 0)] * 2


async def test_what_becomes_of_each_kind_of_record(kafka_config: config.Kafka) -> None:
    first = [event(n, good(n)) for n in range(4)]
    first += [event(4, {"x": 4.0}), event(5, {"x": "?", "y": 1.0}), event(6, None, Operation.UPDATE)]
    second = [
        event(4, good(4), Operation.UPDATE, at=10),
        event(0, None, Operation.DELETE, at=11),
        event(1, good(1), Operation.REPLACE, at=12),
        event(2, good(2) | {"y": 5.0}, Operation.UPDATE, at=13),
    ]
    ends = await write(kafka_config, [first, second])
    with feeding(kafka_config) as feed:
        (taken,) = take(feed, rounds_to(kafka_config, ends, cuts=0))
        counts = taken.counts
    assert (counts.learned, counts.waiting, counts.deletes, counts.dead_letters, counts.skipped) == (6, 1, 1, 1, 1)
    assert counts.unchanged == 1
    assert counts.late_labels == 1
    assert taken.dead_letter_reasons == {"type:x": 1}
    scored = {int(x): bool(s) for rows in taken.rows for x, s in zip(rows.columns["x"], rows.scored, strict=True)}
    assert scored == {0: True, 1: True, 2: False, 3: True, 4: True}
    assert taken.memory_rows == 4


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_retrain_learns_nothing_of_what_was_deleted_before_it_began(
    kafka_config: config.Kafka, restarted: bool
) -> None:
    inserts = [event(n, good(n)) for n in range(60)]
    deletes = [event(n, None, Operation.DELETE) for n in range(0, 60, 3)]
    again = [event(n, good(n) | {"y": 1.0}) for n in range(0, 60, 6)]
    turned_away = [event(n, good(n) | {"x": -1.0}, Operation.UPDATE) for n in range(1, 60, 3)]
    ends = await write(kafka_config, [inserts, deletes, again, turned_away])
    rounds = rounds_to(kafka_config, ends, cuts=3, replay=9)
    job = JOB.model_copy(update={"filter": {"x": {"$gte": 0}}})
    through = {number: end.offset for number, end in enumerate(ends)}
    learned = [Learned(0, 0)] * PARTITIONS
    if restarted:
        with feeding(kafka_config, job=job, forget_through=through) as before:
            reached = take(before, rounds[:1])[0].learned
        learned, rounds = [reached[number] for number in range(PARTITIONS)], rounds[1:]
    with feeding(kafka_config, job=job, forget_through=through, learned=learned) as feed:
        taken = take(feed, rounds)
    xs = np.concatenate([rows.columns["x"] for round_ in taken for rows in round_.rows]).astype(int)
    ys = np.concatenate([rows.labels["y"] for round_ in taken for rows in round_.rows])
    assert set(xs[ys != 1.0].tolist()).isdisjoint({*range(0, 60, 3), *range(1, 60, 3)})
    assert set(xs[ys == 1.0].tolist()) == set(range(0, 60, 6))
    assert sum(t.counts.forgotten for t in taken) == 40 or restarted


async def test_refilled_memory_replays_like_the_one_that_lived_through_it(kafka_config: config.Kafka) -> None:
    transactions = [[event(n, good(n)) for n in range(first, first + 40)] for first in range(0, 400, 40)]
    transactions.insert(5, [event(n, None, Operation.DELETE) for n in range(0, 200, 3)])
    ends = await write(kafka_config, transactions)
    *earlier, last = rounds_to(kafka_config, ends, cuts=4, replay=11)
    with feeding(kafka_config) as lived:
        before, expected = take(lived, earlier)[-1], take(lived, [last])[0]
    restart = [before.learned[number] for number in range(PARTITIONS)]
    progress = Progress()
    with feeding(kafka_config, learned=restart, progress=progress) as restarted:
        assert {stage for stage, _ in progress} == {"refill"}
        found = take(restarted, [last])[0]
    assert found.counts == expected.counts
    assert found.learned == expected.learned
    assert expected.counts.replayed > 0
    for ours, theirs in zip(found.rows, expected.rows, strict=True):
        np.testing.assert_array_equal(ours.columns["x"], theirs.columns["x"])
        np.testing.assert_array_equal(ours.scored, theirs.scored)


async def test_fresh_and_replayed_rows_are_spread_among_each_other(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(n, good(n)) for n in range(first, first + 150)] for first in (0, 150)])
    *earlier, last = rounds_to(kafka_config, ends, cuts=1, replay=40)
    with feeding(kafka_config) as feed:
        take(feed, earlier)
        taken = take(feed, [last])[0]
    for rows in taken.rows:
        fresh = (rows.wall_time_ms > 0).astype(int)
        share = fresh.mean()
        drift = np.abs(np.cumsum(fresh) - share * np.arange(1, len(rows) + 1)).max()
        assert drift <= 1.5
        assert not rows.scored[fresh == 0].any()
        assert len(set(rows.columns["x"].tolist())) == len(rows)


async def test_a_bad_record_is_a_dead_letter_keyed_by_its_origin(each_kafka_config: config.Kafka) -> None:
    kafka = each_kafka_config
    bad = event(7, {"x": [1], "y": 1.0})
    ends = await write(kafka, [[event(1, good(1)), bad, event(8, b"\x05\x00\x00\x00\x01")]])
    for _ in range(2):  # a worker that starts again writes the same letters again
        with feeding(kafka) as feed:
            take(feed, rounds_to(kafka, ends, cuts=0))
            feed.flush_dead_letters()
    letters = await read_letters(kafka, 4)
    assert len(letters) == 4
    by_key: dict[bytes, list[ConsumerRecord]] = {}
    for letter in letters:
        by_key.setdefault(letter.key, []).append(letter)
    assert len(by_key) == 2
    reasons = {}
    for origin, repeats in by_key.items():
        assert repeats[0].value == repeats[1].value
        assert repeats[0].headers == repeats[1].headers
        headers = dict(repeats[0].headers)
        topic, partition, _ = origin.decode().split("/")
        assert headers["origin"] == origin
        assert (topic, int(partition)) == (source_topic(kafka), envelope.partition_of(headers["key"], PARTITIONS))
        record = envelope.decode(repeats[0].value, repeats[0].headers)
        reasons[bson.decode(record.document_key)["_id"]] = (headers["reason"], headers.get("field"), record.document)
    assert reasons == {7: (b"type:x", b"x", bad.document), 8: (b"invalid-bson", None, b"\x05\x00\x00\x00\x01")}


async def test_records_that_were_learned_can_become_dead_letters(
    each_kafka_config: config.Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamtrain.trainer.reread.STALLED_AFTER_S", 0.3)
    kafka = each_kafka_config
    ends = await write(kafka, [[event(n, good(n)) for n in range(first, first + 40)] for first in (0, 40)])
    with feeding(kafka) as feed:
        (taken,) = take(feed, rounds_to(kafka, ends, cuts=0))
        partition = max(range(PARTITIONS), key=lambda number: len(taken.rows[number]))
        offsets = [3, 1, ends[partition].offset - 2, 10**6]  # the last was never there
        assert feed.dead_letter_rows(partition, offsets, "non-finite-loss") == 4
        feed.flush_dead_letters()
    letters = {letter.key.decode(): letter for letter in await read_letters(kafka, 4)}
    assert set(letters) == {f"{source_topic(kafka)}/{partition}/{offset}" for offset in offsets}
    for key, letter in letters.items():
        assert dict(letter.headers)["reason"] == b"non-finite-loss"
        assert bool(letter.value) is not key.endswith("/1000000")


@pytest.mark.apache
async def test_a_bad_record_that_the_dead_letter_topic_does_not_take_is_named_in_it(
    apache_kafka_config: config.Kafka,
) -> None:
    kafka = apache_kafka_config
    large = event(1, {"x": "?", "y": 1.0, "z": "z" * 2_000_000})  # the topic was created with the broker's limit: 1 MB
    largest = event(2, {"x": "?", "y": 1.0, "z": "z" * 16_700_000})
    small = event(3, {"x": "?", "y": 1.0})
    ends = await write(kafka, [[large, largest, small]])
    with feeding(kafka) as feed:
        take(feed, rounds_to(kafka, ends, cuts=0))
        feed.flush_dead_letters()
    letters = {}
    for letter in await read_letters(kafka, 3):
        headers = dict(letter.headers)
        letters[bson.decode(headers["dk"])["_id"]] = (headers["reason"], headers.get("bytes"), letter.value)
    assert letters == {
        1: (b"type:x", str(len(large.document or b"")).encode(), b""),
        2: (b"type:x", str(len(largest.document or b"")).encode(), b""),
        3: (b"type:x", None, small.document),
    }


async def read_letters(kafka: config.Kafka, count: int) -> list[ConsumerRecord]:
    place = TopicPartition(topics.dead_letter_topic(kafka.topic_prefix, JOB.name), 0)
    consumer = AIOKafkaConsumer(**topics.kafka_options(kafka), auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([place])
        consumer.seek(place, 0)
        letters: list[ConsumerRecord] = []
        async with asyncio.timeout(20):
            while len(letters) < count:
                letters += (await consumer.getmany(timeout_ms=200)).get(place, [])
        return letters
    finally:
        await consumer.stop()


async def test_a_dead_letter_topic_that_cannot_be_written_stops_the_feed(
    kafka_config: config.Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamtrain.trainer.dead_letters.FLUSH_WITHIN_S", 0.2)
    ends = await write(kafka_config, [[event(7, {"x": "?", "y": 1.0})]])
    with feeding(kafka_config) as feed:
        feed._dead_letters._topic = "no topic has spaces"
        (round_,) = rounds_to(kafka_config, ends, cuts=0)
        feed.submit(round_)
        with pytest.raises(KafkaError, match="dead letters"):
            feed.next()


async def append_raw(kafka: config.Kafka, topic: str, numbers: Sequence[int], **headers: bytes) -> None:
    """Records written past the publisher, in partition 0, with the sequence numbers `numbers`."""
    await ensure_topics(kafka, [TopicSpec(topic, PARTITIONS)])
    producer = AIOKafkaProducer(**topics.kafka_options(kafka))
    await producer.start()
    try:
        for number in numbers:
            key, value, found = envelope.encode(event(number, good(number)), number)
            changed = [(name, headers.get(name, value)) for name, value in found]
            await producer.send_and_wait(topic, value, key=key, partition=0, headers=changed)
    finally:
        await producer.stop()


@pytest.mark.parametrize("numbers", [[0, 1, 3], [0, 1, 1]], ids=["missing", "repeated"])
async def test_a_missing_or_repeated_record_is_an_error(kafka_config: config.Kafka, numbers: list[int]) -> None:
    topic = f"{kafka_config.topic_prefix}.raw"
    await append_raw(kafka_config, topic, numbers)
    ends = [Learned(3, 3), Learned(0, 0), Learned(0, 0)]
    with feeding(kafka_config, topic=topic) as feed:
        feed.submit(rounds_to(kafka_config, ends, cuts=0, topic=topic)[0])
        with pytest.raises(ContinuityError, match=f"record {numbers[-1]} at offset 2 where 2 was expected"):
            feed.next()
        with pytest.raises(ContinuityError):
            feed.next()


async def test_learned_counts_that_the_topic_contradicts_are_an_error(kafka_config: config.Kafka) -> None:
    topic = f"{kafka_config.topic_prefix}.raw"
    await append_raw(kafka_config, topic, [0, 1, 2])
    learned = [Learned(3, 4), Learned(0, 0), Learned(0, 0)]
    with pytest.raises(ContinuityError), feeding(kafka_config, topic=topic, learned=learned):
        pass


async def test_a_newer_envelope_stops_the_feed_and_says_to_upgrade(kafka_config: config.Kafka) -> None:
    topic = f"{kafka_config.topic_prefix}.raw"
    await append_raw(kafka_config, topic, [0], v=b"\x09")
    with feeding(kafka_config, topic=topic) as feed:
        feed.submit(rounds_to(kafka_config, [Learned(1, 1), Learned(0, 0), Learned(0, 0)], cuts=0, topic=topic)[0])
        with pytest.raises(EnvelopeError, match="upgrade"):
            feed.next()


async def test_a_log_that_ends_before_what_was_learned_is_a_clear_error(
    each_kafka_config: config.Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "STALLED_AFTER_S", 0.3)
    ends = await write(each_kafka_config, [[event(1, good(1))]])
    learned = [Learned(end.offset + 5, end.count + 5) for end in ends]
    with pytest.raises(OffsetError, match="ends at offset"), feeding(each_kafka_config, learned=learned):
        pass


async def test_a_log_that_starts_after_what_was_learned_is_a_clear_error(apache_kafka_config: config.Kafka) -> None:
    kafka = apache_kafka_config
    ends = await write(kafka, [[event(n, good(n)) for n in range(30)]])
    await remove_before(kafka, ends)
    with pytest.raises(OffsetError, match="log starts at offset"), feeding(kafka):
        pass
    with feeding(kafka, learned=ends) as feed:  # nothing that is to be learned is gone
        assert take(feed, []) == []


async def test_a_log_that_is_cut_while_it_is_read_is_a_clear_error(apache_kafka_config: config.Kafka) -> None:
    kafka = apache_kafka_config
    ends = await write(kafka, [[event(n, good(n)) for n in range(30)]])
    with feeding(kafka) as feed:
        await remove_before(kafka, ends)
        feed.submit(rounds_to(kafka, ends, cuts=0)[0])
        with pytest.raises(OffsetError, match="log starts at offset"):
            feed.next()


async def remove_before(kafka: config.Kafka, ends: Sequence[Learned]) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

    admin = AIOKafkaAdminClient(**topics.kafka_options(kafka))
    await admin.start()
    try:
        await admin.delete_records(
            {
                TopicPartition(source_topic(kafka), number): RecordsToDelete(before_offset=end.offset)
                for number, end in enumerate(ends)
            }
        )
    finally:
        await admin.close()


async def test_a_read_beyond_the_log_s_end_has_a_deadline(
    kafka_config: config.Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "STALLED_AFTER_S", 0.3)
    ends = await write(kafka_config, [[event(1, good(1))]])
    with feeding(kafka_config) as feed:
        feed.submit(rounds_to(kafka_config, [Learned(e.offset + 1, 0) for e in ends], cuts=0)[0])
        with pytest.raises(KafkaError, match="nothing came"):
            feed.next()


async def test_a_round_that_does_not_go_on_where_the_last_ended_is_refused(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(n, good(n)) for n in range(30)]])
    rounds = rounds_to(kafka_config, ends, cuts=2)
    with feeding(kafka_config) as feed:
        take(feed, rounds[:1])
        feed.submit(rounds[2])
        with pytest.raises(WorkerError, match="was learned up to"):
            feed.next()


async def test_no_more_than_two_rounds_are_read_ahead(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(n, good(n)) for n in range(300)]])
    rounds = rounds_to(kafka_config, ends, cuts=7)
    with feeding(kafka_config) as feed:
        for round_ in rounds:
            feed.submit(round_)
        for left in range(len(rounds), 0, -1):
            ahead = min(2, left)
            wait_until(lambda ahead=ahead: feed._ready.qsize() >= ahead, timeout=20, what="rounds to be read")
            await asyncio.sleep(0.02)  # time enough for one more
            assert feed._ready.qsize() == ahead
            feed.next()


async def test_a_topic_that_does_not_exist_is_named(
    kafka_config: config.Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamtrain.trainer.fetch.START_WITHIN_S", 0.5)
    with (
        pytest.raises(KafkaError, match=r"none\.such cannot be found"),
        feeding(kafka_config, topic=f"{kafka_config.topic_prefix}.none.such"),
    ):
        pass


async def test_a_broker_that_restarts_is_read_on(tmp_path: Path) -> None:
    with KafkaBroker(directory=tmp_path) as broker:
        kafka = config.Kafka(bootstrap_servers=broker.bootstrap_servers, topic_prefix="restart")
        ends = await write(kafka, [[event(n, good(n)) for n in range(first, first + 50)] for first in (0, 50, 100)])
        rounds = rounds_to(kafka, ends, cuts=3)
        with feeding(kafka) as feed:
            taken = take(feed, rounds[:2])
            broker.stop()
            feed.submit(rounds[2])
            feed.submit(rounds[3])
            broker.start()
            taken += [feed.next(), feed.next()]
    assert sorted(learned_numbers(taken)) == list(range(150))


async def test_aborted_transactions_are_not_learned(apache_kafka_config: config.Kafka) -> None:
    kafka = apache_kafka_config
    await write(kafka, [[event(n, good(n)) for n in range(30)]])
    producer = AIOKafkaProducer(**topics.kafka_options(kafka), transactional_id=f"{kafka.topic_prefix}.stray")
    await producer.start()
    try:
        await producer.begin_transaction()
        for number in range(30, 60):
            await producer.send_and_wait(source_topic(kafka), b"half a transaction", partition=number % PARTITIONS)
        await producer.abort_transaction()
    finally:
        await producer.stop()
    ends = await write(kafka, [[event(n, good(n)) for n in range(30, 60)]])
    with feeding(kafka) as feed:
        taken = take(feed, rounds_to(kafka, ends, cuts=5))
    assert sorted(learned_numbers(taken)) == list(range(60))
    assert taken[-1].learned == dict(enumerate(ends))


@pytest.mark.apache
@pytest.mark.slow
async def test_partitions_whose_leader_dies_are_read_on_from_the_next(
    apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    with ApacheKafka(directory=tmp_path, runtime=apache_kafka.runtime, nodes=3) as cluster:
        kafka = config.Kafka(bootstrap_servers=cluster.bootstrap_servers, topic_prefix="leader", replication_factor=3)
        ends = await write(kafka, [[event(n, good(n)) for n in range(first, first + 50)] for first in (0, 50, 100)])
        rounds = rounds_to(kafka, ends, cuts=3)
        with feeding(kafka) as feed:
            taken = take(feed, rounds[:2])
            cluster.nodes[0].kill()  # three partitions on three nodes: one of them loses its leader
            taken += take(feed, rounds[2:])
    assert sorted(learned_numbers(taken)) == list(range(150))


async def test_a_closed_feed_leaves_no_thread(kafka_config: config.Kafka) -> None:
    before = set(threading.enumerate())
    ends = await write(kafka_config, [[event(n, good(n)) for n in range(30)]])
    with feeding(kafka_config) as feed:
        feed.submit(rounds_to(kafka_config, ends, cuts=0)[0])
    assert {thread for thread in threading.enumerate() if thread not in before and thread.name == "feed"} == set()


async def test_versions_that_were_expelled_are_not_replayed_nor_come_back_with_a_refill(
    kafka_config: config.Kafka,
) -> None:
    ends = await write(
        kafka_config, [[event(n, good(n)) for n in range(60)], [event(n, good(n)) for n in range(60, 90)]]
    )
    *earlier, last = rounds_to(kafka_config, ends, cuts=1, replay=1000)
    with feeding(kafka_config) as feed:
        (first,) = take(feed, earlier)
        gone = {rows.partition: tuple(rows.offsets[::3].tolist()) for rows in first.rows if rows.offsets is not None}
        for partition, offsets in gone.items():
            feed.expel(partition, offsets)
        feed.expel(0, (10**9,))  # one that is not there is no failure
        (lived,) = take(feed, [last])
    learned = [first.learned[number] for number in range(PARTITIONS)]
    with feeding(kafka_config, learned=learned, expelled=gone) as feed:
        (refilled,) = take(feed, [last])
    for round_ in (lived, refilled):
        for rows in round_.rows:
            assert rows.offsets is not None
            assert rows.replayed is not None
            replayed = rows.offsets[rows.replayed].tolist()
            seen = first.rows[rows.partition].offsets
            assert seen is not None
            assert sorted(replayed) == sorted({*seen.tolist()} - {*gone[rows.partition]})

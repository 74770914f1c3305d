"""Dead letters on real brokers: replayed by a command, learned by a feed, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import AIOKafkaConsumer

from streamtrain import config
from streamtrain.clock import SystemClock
from streamtrain.errors import EnvelopeError, FencedError, WorkerError
from streamtrain.kafka import topics
from streamtrain.redrive.redrive import Redrive as Command
from streamtrain.redrive.replay_topic import ReplayTopic, replay_spec
from streamtrain.trainer.feed import Feed
from streamtrain.trainer.redrive import Redrive
from streamtrain.trainer.rows import RoundRows
from streamtrain.types import Learned, OffsetRange, Operation, Round
from tests.contract.source.numbered_events import SOURCE, source_topic
from tests.contract.trainer.test_feed import JOB, PARTITIONS, event, good, write

# What JOB refuses, this one can learn: it does not look at `x`.
MILD = config.Job.model_validate(JOB.model_dump(mode="json") | {"features": [{"field": "z", "dtype": "float64"}]})
SPEC = config.Source.model_validate(
    {"name": SOURCE, "uri": "mongodb://h/", "database": "d", "collection": "c", "partitions": PARTITIONS}
)


def bad(number: int) -> dict[str, Any]:
    return {"x": "?", "y": 1.0, "z": float(number)}


def command(kafka: config.Kafka, job: config.Job = JOB) -> Command:
    return Command(job=job, source=SPEC, kafka=kafka, clock=SystemClock())


async def replay_ends(kafka: config.Kafka) -> list[int]:
    consumer = AIOKafkaConsumer(**topics.kafka_options(kafka), isolation_level="read_committed")
    await consumer.start()
    try:
        places = [TopicPartition(topics.replay_topic(kafka.topic_prefix, JOB.name, 0), n) for n in range(PARTITIONS)]
        ends = await consumer.end_offsets(places)
        return [ends[place] for place in places]
    finally:
        await consumer.stop()


class Lineage:
    """A job's workers, one after the other: what they have learned is kept."""

    def __init__(
        self, kafka: config.Kafka, name: str, *, job: config.Job = JOB, begins: Sequence[Learned] | None = None
    ) -> None:
        self.kafka = kafka
        self.job = job
        self.name = name
        self.learned = list(begins or [Learned(0, 0)] * PARTITIONS)
        self.begins = [place.offset for place in self.learned]
        self.redriven = [0] * PARTITIONS
        self.rounds = 0

    def learn(self, ends: Sequence[Learned], redriven: Sequence[int] | None = None) -> RoundRows:
        """A generation that learns one round, and its dead letters are written."""
        wanted = list(redriven or self.redriven)
        topic = topics.replay_topic(self.kafka.topic_prefix, self.job.name, 0)
        feed = Feed(
            job=self.job,
            kafka=self.kafka,
            topic=source_topic(self.kafka),
            topic_epoch=0,
            partitions=tuple(range(PARTITIONS)),
            learned=dict(enumerate(self.learned)),
            window_begins=dict(enumerate(self.begins)),
            dead_letter_topic=topics.dead_letter_topic(self.kafka.topic_prefix, self.job.name),
            dead_letter_origin=source_topic(self.kafka),
            clock=SystemClock(),
            on_progress=lambda stage, done: None,
            lineage=self.name,
            redrive=Redrive(
                job=self.job,
                kafka=self.kafka,
                topic=topic,
                source_topic=source_topic(self.kafka),
                offsets=dict(enumerate(self.redriven)),
                lineage=self.name,
                begins=dict(enumerate(self.begins)),
                clock=SystemClock(),
            ),
        )
        round_ = Round(
            number=self.rounds,
            fresh=tuple(
                OffsetRange(source_topic(self.kafka), 0, n, self.learned[n].offset, ends[n].offset)
                for n in range(PARTITIONS)
            ),
            window_begins=tuple(self.begins),
            replay=(0,) * PARTITIONS,
            seed=1,
            batch_size=32,
            redriven=tuple(OffsetRange(topic, 0, n, self.redriven[n], wanted[n]) for n in range(PARTITIONS)),
        )
        try:
            feed.start()
            feed.refill()
            feed.submit(round_)
            taken = feed.next()
            feed.flush_dead_letters()
        finally:
            feed.close()
        self.learned = [taken.learned[n] for n in range(PARTITIONS)]
        for number, end in taken.redriven.items():
            self.redriven[number] = end
        self.rounds += 1
        return taken


def numbers(taken: RoundRows, field: str = "z") -> list[int]:
    return sorted(int(value) for rows in taken.rows for value in rows.columns[field])


async def test_letters_are_learned_once_by_a_lineage_that_can_take_them(each_kafka_config: config.Kafka) -> None:
    kafka = each_kafka_config
    ends = await write(kafka, [[event(n, bad(n) if n % 5 == 0 else good(n)) for n in range(40)]])
    first = await asyncio.to_thread(Lineage(kafka, "l1").learn, ends)
    assert first.counts.dead_letters == 8
    (reason,) = await command(kafka).reasons()
    assert (reason.reason, reason.letters, reason.replayed) == ("type:x", 8, 0)

    assert (await command(kafka).replay()).replayed == {"type:x": 8}
    assert (await command(kafka).replay()).left == {"replayed before": 8}
    (reason,) = await command(kafka).reasons()
    assert (reason.letters, reason.replayed) == (8, 8)

    later = Lineage(kafka, "l2", job=MILD, begins=ends)
    taken = await asyncio.to_thread(later.learn, ends, await replay_ends(kafka))
    assert numbers(taken) == [0, 5, 10, 15, 20, 25, 30, 35]
    assert taken.counts.learned == taken.counts.redriven == 8
    assert not any(rows.scored.any() for rows in taken.rows)
    assert not any(rows.wall_time_ms.any() for rows in taken.rows)
    assert taken.memory_rows == 0
    assert all((rows.offsets >= 0).all() for rows in taken.rows if rows.offsets is not None)
    # The next generation goes on behind them.
    again = await asyncio.to_thread(later.learn, ends, await replay_ends(kafka))
    assert numbers(again) == []


async def test_what_a_lineage_has_read_by_itself_is_not_learned_again(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(n, bad(n)) for n in range(6)]])
    await asyncio.to_thread(Lineage(kafka_config, "l1").learn, ends)
    await command(kafka_config).replay()
    retrained = Lineage(kafka_config, "l2", job=MILD)
    assert len(numbers(await asyncio.to_thread(retrained.learn, ends))) == 6
    taken = await asyncio.to_thread(retrained.learn, ends, await replay_ends(kafka_config))
    assert numbers(taken) == []
    assert taken.counts.skipped == 6


async def test_a_row_that_the_model_refused_is_learned_when_it_is_replayed(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(n, good(n)) for n in range(6)]])
    lineage = Lineage(kafka_config, "l1")
    learn = lineage.learn

    def learn_and_refuse() -> None:
        taken = learn(ends)
        number, offset = next(
            (rows.partition, int(rows.offsets[0])) for rows in taken.rows if rows.offsets is not None and len(rows)
        )
        feed = Feed(
            job=JOB,
            kafka=kafka_config,
            topic=source_topic(kafka_config),
            topic_epoch=0,
            partitions=(),
            learned={},
            window_begins={},
            dead_letter_topic=topics.dead_letter_topic(kafka_config.topic_prefix, JOB.name),
            dead_letter_origin=source_topic(kafka_config),
            clock=SystemClock(),
            on_progress=lambda stage, done: None,
            lineage="l1",
        )
        try:
            feed.start()
            feed.dead_letter_rows(number, [offset], "non-finite-loss")
            feed.flush_dead_letters()
        finally:
            feed.close()

    await asyncio.to_thread(learn_and_refuse)
    assert (await command(kafka_config).replay()).replayed == {"non-finite-loss": 1}
    taken = await asyncio.to_thread(learn, ends, await replay_ends(kafka_config))
    assert taken.counts.redriven == 1


async def test_a_lineage_beside_the_job_does_not_take_its_letters_away(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(n, bad(n)) for n in range(6)]])
    await asyncio.to_thread(Lineage(kafka_config, "l1").learn, ends)
    beside = Lineage(kafka_config, "l2")
    await asyncio.to_thread(beside.learn, ends)
    assert (await command(kafka_config).replay()).replayed == {"type:x": 6}
    replayed = await replay_ends(kafka_config)
    # As if the model had been mended: each lineage learns its own letters, and another one, begun later, learns once.
    for name, begins in (("l1", None), ("l2", None), ("l3", ends)):
        lineage = Lineage(kafka_config, name, job=MILD, begins=begins)
        lineage.learned = list(ends)
        assert numbers(await asyncio.to_thread(lineage.learn, ends, replayed)) == [0, 1, 2, 3, 4, 5]


async def test_a_letter_that_is_still_bad_becomes_one_again_and_can_be_replayed_again(
    kafka_config: config.Kafka,
) -> None:
    ends = await write(kafka_config, [[event(1, bad(1)), event(2, good(2))]])
    lineage = Lineage(kafka_config, "l1")
    await asyncio.to_thread(lineage.learn, ends)
    for _ in range(2):
        assert (await command(kafka_config).replay()).replayed == {"type:x": 1}
        taken = await asyncio.to_thread(lineage.learn, ends, await replay_ends(kafka_config))
        assert (taken.counts.dead_letters, taken.counts.learned) == (1, 0)
        assert taken.dead_letter_reasons == {"type:x": 1}
    (reason,) = await command(kafka_config).reasons()
    assert (reason.letters, reason.replayed) == (1, 0)


async def test_only_what_is_asked_for_is_replayed(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(1, bad(1)), event(2, {"y": 1.0}), event(3, {"x": "?", "y": 1.0})]])
    await asyncio.to_thread(Lineage(kafka_config, "l1").learn, ends)
    assert (await command(kafka_config).replay(reason="missing")).replayed == {"missing:x": 1}
    assert (await command(kafka_config).replay(field="y")).replayed == {}
    assert (await command(kafka_config).replay(reason="type:x")).replayed == {"type:x": 2}


async def test_what_was_deleted_is_not_learned_whenever_it_was(kafka_config: config.Kafka) -> None:
    await write(kafka_config, [[event(n, bad(n)) for n in range(3)]])
    ends = await write(kafka_config, [[event(0, None, Operation.DELETE)]])
    lineage = Lineage(kafka_config, "l1")
    await asyncio.to_thread(lineage.learn, ends)
    found = await command(kafka_config).replay()
    assert (found.replayed, found.left) == ({"type:x": 2}, {"of deleted documents": 1})

    later = await write(kafka_config, [[event(1, None, Operation.DELETE)]])  # after it was replayed
    mild = Lineage(kafka_config, "l2", job=MILD, begins=ends)
    taken = await asyncio.to_thread(mild.learn, later, await replay_ends(kafka_config))
    assert numbers(taken) == [2]
    assert (taken.counts.forgotten, taken.counts.redriven) == (1, 1)


async def test_letters_of_a_job_that_keeps_deleted_documents_are_all_learned(kafka_config: config.Kafka) -> None:
    keeps = config.Job.model_validate(JOB.model_dump(mode="json") | {"on_delete": "keep"})
    await write(kafka_config, [[event(n, bad(n)) for n in range(3)]])
    ends = await write(kafka_config, [[event(0, None, Operation.DELETE)]])
    await asyncio.to_thread(Lineage(kafka_config, "l1", job=keeps).learn, ends)
    assert (await command(kafka_config, keeps).replay()).replayed == {"type:x": 3}


async def test_another_command_ends_the_one_before(each_kafka_config: config.Kafka) -> None:
    kafka = each_kafka_config
    ends = await write(kafka, [[event(n, bad(n)) for n in range(3)]])
    await asyncio.to_thread(Lineage(kafka, "l1").learn, ends)
    assert (await command(kafka).replay(field="y")).replayed == {}  # makes the topic
    topic = ReplayTopic(kafka=kafka, job=JOB.name, spec=replay_spec(kafka, JOB.name, epoch=0, partitions=PARTITIONS))
    try:
        state = await topic.begin()
        letters = await command(kafka)._letters()
        assert (await command(kafka).replay()).replayed == {"type:x": 3}
        with pytest.raises(FencedError, match="another command has begun to replay the dead letters of job delay"):
            await topic.write(letters, state=state, through=[place.offset for place in ends])
    finally:
        await topic.close()
    mild = Lineage(kafka, "l2", job=MILD, begins=ends)
    assert numbers(await asyncio.to_thread(mild.learn, ends, await replay_ends(kafka))) == [0, 1, 2]


async def test_a_range_that_does_not_go_on_where_the_last_ended_is_refused(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(1, bad(1))]])
    lineage = Lineage(kafka_config, "l1")
    await asyncio.to_thread(lineage.learn, ends)
    await command(kafka_config).replay()
    redrive = Redrive(
        job=JOB,
        kafka=kafka_config,
        topic="another",
        source_topic=source_topic(kafka_config),
        offsets={0: 0},
        lineage="l1",
        begins={},
        clock=SystemClock(),
    )
    with pytest.raises(WorkerError, match="was learned up to 0"):
        async for _ in redrive.read({0: OffsetRange("another", 0, 0, 1, 2)}, {0: ends[0]}):
            pass


async def test_a_replay_topic_that_something_else_writes_to_is_refused(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(1, good(1)), event(2, good(2))]])
    number = next(n for n in range(PARTITIONS) if ends[n].count)
    redrive = Redrive(
        job=JOB,
        kafka=kafka_config,
        topic=source_topic(kafka_config),
        source_topic=source_topic(kafka_config),
        offsets={number: 0},
        lineage="l1",
        begins={},
        clock=SystemClock(),
    )
    asked = {number: OffsetRange(source_topic(kafka_config), 0, number, 0, ends[number].offset)}
    try:
        with pytest.raises(EnvelopeError, match="holds what is no replayed dead letter"):
            async for _ in redrive.read(asked, {number: ends[number]}):
                pass
    finally:
        await redrive.stop()

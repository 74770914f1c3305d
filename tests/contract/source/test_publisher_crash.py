"""Whatever dies while a source is published: the topic holds each event once, in order."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamtrain import config
from streamtrain.errors import KafkaError
from streamtrain.sandbox.apache_kafka import ApacheKafka
from streamtrain.sandbox.kafka_broker import KafkaBroker
from tests.contract.source.numbered_events import check_content, event, position, publishing, start

ROOT = Path(__file__).resolve().parents[3]
TOTAL = 3_000
KILLS = 8


@pytest.mark.apache
async def test_a_publisher_that_is_killed_over_and_over_publishes_each_event_once(apache_kafka_config):
    """On Apache Kafka: see kafka_broker for why a reader of noida-db may miss records after an aborted transaction."""
    rng = random.Random(7)
    kafka = apache_kafka_config
    killed = 0
    while True:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.contract.source.publish_all",
            kafka.bootstrap_servers,
            kafka.topic_prefix,
            str(TOTAL),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        assert child.stdout is not None
        if killed == KILLS:
            await child.stdout.read()
            assert await child.wait() == 0
            break
        for _ in range(rng.randint(1, 6)):
            assert await child.stdout.readline(), "it ended before it was killed"
        # Somewhere inside one of the next transactions, which take some milliseconds each.
        await asyncio.sleep(rng.random() * 0.02)
        child.kill()
        await child.stdout.read()
        await child.wait()
        killed += 1
    await check_content(kafka, [event(i) for i in range(1, TOTAL + 1)])


@pytest.fixture
def own_apache(apache_kafka: ApacheKafka, tmp_path: Path) -> Iterator[ApacheKafka]:
    """A broker that the test may kill."""
    with ApacheKafka(directory=tmp_path, runtime=apache_kafka.runtime) as broker:
        yield broker


@pytest.mark.apache
@pytest.mark.slow
async def test_a_broker_that_is_killed_and_comes_back_holds_each_event_once(own_apache, monkeypatch):
    monkeypatch.setattr("streamtrain.source.publisher.DELIVERY_TIMEOUT_S", 2.0)
    kafka = config.Kafka(bootstrap_servers=own_apache.bootstrap_servers, topic_prefix="t")
    (node,) = own_apache.nodes
    done, failures = 0, 0
    async with publishing(kafka) as publisher:
        await start(publisher)
        while done < 600:
            if done in (200, 400) and node.is_running and failures * 200 < done:
                node.kill()
            events = [event(i) for i in range(done + 1, done + 21)]
            try:
                await publisher.publish(events, position(done + len(events)))
                done += len(events)
            except KafkaError:
                failures += 1
                node.launch()
                await asyncio.to_thread(own_apache.wait_until_ready)
                done = ((await start(publisher)).cluster_time >> 32) - 1000
    assert failures == 2
    await check_content(kafka, [event(i) for i in range(1, done + 1)])


async def test_a_frozen_broker_ends_in_an_error_within_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr("streamtrain.source.publisher.DELIVERY_TIMEOUT_S", 1.0)
    monkeypatch.setattr("streamtrain.source.producer.STOP_TIMEOUT_S", 0.5)
    with KafkaBroker(directory=tmp_path) as broker:
        kafka = config.Kafka(bootstrap_servers=broker.bootstrap_servers, topic_prefix="t")
        async with publishing(kafka) as publisher:
            await start(publisher)
            broker.process.pause()
            with pytest.raises(KafkaError, match="did not answer in time"):
                await publisher.publish([event(1)], position(1))
            assert asyncio.all_tasks() == {asyncio.current_task()}, "aiokafka's tasks are still at it"
            broker.process.resume()
            await start(publisher)
            await publisher.publish([event(1)], position(1))
        await check_content(kafka, [event(1)])

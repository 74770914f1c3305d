"""The brokers themselves: that they start, stop by their pid, keep what they hold, and say what is wrong."""

from __future__ import annotations

import socket

import psutil
import pytest

from streamtrain import config
from streamtrain.errors import DependencyError, KafkaError, PortInUseError
from streamtrain.sandbox import kafka_broker
from streamtrain.sandbox.apache_kafka import ApacheKafka, find_apache
from streamtrain.sandbox.kafka_broker import BrokerProcess, KafkaBroker, living_brokers
from tests.contract.source.numbered_events import check_content, event, position, publishing, start


async def test_records_survive_a_stop_and_a_start(tmp_path):
    with KafkaBroker(directory=tmp_path) as broker:
        kafka = config.Kafka(bootstrap_servers=broker.bootstrap_servers, topic_prefix="t")
        async with publishing(kafka) as publisher:
            await start(publisher)
            await publisher.publish([event(1)], position(1))
        port, pid = broker.process.port, broker.process.pid
    assert not psutil.pid_exists(pid)
    assert living_brokers(port) == 0
    with KafkaBroker(directory=tmp_path, port=port):
        await check_content(kafka, [event(1)])


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=str(port)):
            KafkaBroker(directory=tmp_path, port=port).start()


def test_a_missing_package_is_told_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_broker.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match="noida-db") as raised:
        KafkaBroker(directory=tmp_path).start()
    assert "pip install" in raised.value.hint


def test_a_broker_that_ends_at_once_shows_the_end_of_its_log(tmp_path):
    process = BrokerProcess(["sh", "-c", "echo out of luck; exit 3"], port=1, log=tmp_path / "broker.log")
    process.launch()
    with pytest.raises(KafkaError, match="exit code 3: out of luck"):
        process.wait_until_ready(brokers=1, deadline=float("inf"))


def test_missing_jars_say_make_kafka(tmp_path):
    with pytest.raises(DependencyError) as raised:
        find_apache(tmp_path)
    assert "make kafka" in raised.value.hint


@pytest.mark.apache
@pytest.mark.slow
async def test_three_nodes_go_on_without_one_of_them(apache_kafka: ApacheKafka, tmp_path):
    with ApacheKafka(directory=tmp_path, runtime=apache_kafka.runtime, nodes=3) as cluster:
        kafka = config.Kafka(bootstrap_servers=cluster.bootstrap_servers, topic_prefix="t")
        async with publishing(kafka) as publisher:
            await start(publisher)
            await publisher.publish([event(1)], position(1))
            cluster.nodes[0].kill()
            done = 1
            while done < 20:
                try:
                    await publisher.publish([event(done + 1)], position(done + 1))
                    done += 1
                except KafkaError:
                    done = ((await start(publisher)).cluster_time >> 32) - 1000
        await check_content(kafka, [event(i) for i in range(1, 21)])

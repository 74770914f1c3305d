"""Passwords and ACLs, on an Apache Kafka that asks for them: each refusal names what is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aiokafka.errors import TransactionalIdAuthorizationFailed
from pydantic import SecretStr

from streamtrain import config
from streamtrain.errors import AuthenticationError, KafkaError, PermissionMissingError
from streamtrain.kafka.failure import explain
from streamtrain.sandbox.apache_kafka import ApacheKafka
from streamtrain.source.producer import start_producer
from tests.contract.source.numbered_events import publishing

pytestmark = pytest.mark.apache

PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def secured(apache_kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    directory = tmp_path_factory.mktemp("secured")
    with ApacheKafka(directory=directory, runtime=apache_kafka.runtime, users={"limited": PASSWORD}) as broker:
        yield broker


def settings(broker: ApacheKafka, *, password: str = PASSWORD, **changes: object) -> config.Kafka:
    security = config.Security(
        protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="limited", password=SecretStr(password)
    )
    return config.Kafka(
        bootstrap_servers=broker.sasl_servers, topic_prefix="t", security=security, replication_factor=1, **changes
    )


async def test_a_wrong_password_is_told_as_one_and_not_shown(secured):
    async with publishing(settings(secured, password="wrong-battery")) as publisher:
        with pytest.raises(AuthenticationError, match="refuses the credentials") as raised:
            await publisher.start()
    assert "wrong-battery" not in f"{raised.value} {raised.value.hint}"


async def test_a_missing_acl_to_create_topics_is_named(secured):
    async with publishing(settings(secured)) as publisher:
        with pytest.raises(PermissionMissingError, match=r"create the topic t\.positions") as raised:
            await publisher.start()
    assert "CREATE" in raised.value.hint


async def test_topics_that_may_not_be_seen_are_told_like_missing_ones(secured):
    plain = config.Kafka(bootstrap_servers=secured.bootstrap_servers, topic_prefix="t", replication_factor=1)
    async with publishing(plain) as publisher:
        await publisher.start()
    async with publishing(settings(secured, create_topics=False)) as publisher:
        with pytest.raises(KafkaError) as raised:
            await publisher.start()
    assert "allow DESCRIBE" in raised.value.hint


async def test_a_listener_that_wants_a_password_is_not_taken_for_one_without(secured):
    plain = config.Kafka(bootstrap_servers=secured.sasl_servers, topic_prefix="t")
    async with publishing(plain) as publisher:
        with pytest.raises(KafkaError) as raised:
            await publisher.start()
    assert "security" in raised.value.hint


async def test_a_transactional_id_that_is_forbidden_is_named(secured):
    with pytest.raises(TransactionalIdAuthorizationFailed) as raised:
        await start_producer(settings(secured), "flights")
    error = explain(raised.value, kafka=settings(secured), doing="starting")
    assert isinstance(error, PermissionMissingError)
    assert "transactional ids with the prefix 't'" in error.hint

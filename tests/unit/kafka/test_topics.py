import pytest
from pydantic import SecretStr

from streamtrain import config
from streamtrain.errors import ConfigError
from streamtrain.kafka import topics


def kafka(**security: object) -> config.Kafka:
    return config.Kafka(bootstrap_servers="broker:9092", security=config.Security(**security))  # type: ignore[arg-type]


def test_names_of_different_things_never_coincide():
    names = [
        topics.source_topic("p", "positions", 0),
        topics.source_topic("p", "dead-letters", 0),
        topics.positions_topic("p"),
        topics.dead_letter_topic("p", "flights"),
        topics.source_dead_letter_topic("p", "flights"),
        topics.source_topic("p", "flights", 0),
        topics.source_topic("p", "flights", 1),
    ]
    assert len(set(names)) == len(names)


def test_the_longest_names_fit_into_kafkas_249_characters():
    prefix, name = "p" * 100, "n" * 63
    for topic in (topics.source_dead_letter_topic(prefix, name), topics.source_topic(prefix, name, 10**6)):
        assert len(topic) <= 249


def test_a_plain_cluster_needs_no_credentials():
    assert topics.kafka_options(kafka()) == {"bootstrap_servers": "broker:9092", "security_protocol": "PLAINTEXT"}


def test_sasl_credentials_are_passed_on():
    options = topics.kafka_options(
        kafka(protocol="SASL_SSL", mechanism="SCRAM-SHA-512", username="st", password=SecretStr("secret"))
    )
    assert options["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("st", "secret")
    assert options["ssl_context"].check_hostname


def test_an_authority_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        topics.kafka_options(kafka(protocol="SSL", cafile=str(tmp_path / "missing.pem")))

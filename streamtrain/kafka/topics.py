"""The names of every Kafka topic, and the options of every Kafka client: the one place that knows either."""

from __future__ import annotations

import ssl
from typing import Any

from streamtrain import config
from streamtrain.errors import ConfigError

# MongoDB documents end at 16 MiB; the rest is for headers, the key and the batch around them.
MAX_MESSAGE_BYTES = 17 * 1024 * 1024


def source_topic(prefix: str, source: str, epoch: int) -> str:
    """The records of a source. A new epoch is a new topic: the partition count of one never changes."""
    return f"{prefix}.{source}.{epoch}"


def positions_topic(prefix: str) -> str:
    """Compacted, one partition: how far each source has been published."""
    return f"{prefix}.positions"


def dead_letter_topic(prefix: str, job: str) -> str:
    """Records that a job could not train on."""
    return f"{prefix}.{job}.dead-letters"


def replay_topic(prefix: str, job: str, epoch: int) -> str:
    """Dead letters of a job that are to be learned after all; epoch and partitions are those of the source's topic."""
    return f"{prefix}.{job}.replay.{epoch}"


def source_dead_letter_topic(prefix: str, source: str) -> str:
    """Change events that could not become records, named by their key."""
    return f"{prefix}.{source}.source-dead-letters"


def transactional_id(prefix: str, source: str) -> str:
    """The same for every daemon of a deployment, so that Kafka fences the older publisher of a source."""
    return f"{prefix}.{source}"


def replay_transactional_id(prefix: str, job: str) -> str:
    """One replay of a job's dead letters at a time: a later one ends the earlier one's transaction."""
    return f"{prefix}.{job}.replay"


def kafka_options(kafka: config.Kafka) -> dict[str, Any]:
    """What every aiokafka client of this cluster is constructed with. Holds the password: never logged.

    Raises ConfigError when the authority's certificates cannot be read.
    """
    security = kafka.security
    options: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "security_protocol": security.protocol,
    }
    if security.protocol.startswith("SASL"):
        assert security.password is not None  # config.Security is complete, or it is refused
        options["sasl_mechanism"] = security.mechanism
        options["sasl_plain_username"] = security.username
        options["sasl_plain_password"] = security.password.get_secret_value()
    if security.protocol.endswith("SSL"):
        try:
            options["ssl_context"] = ssl.create_default_context(cafile=security.cafile)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"kafka.security.cafile {security.cafile!r} cannot be read: {error}",
                hint="name a PEM file with the certificates of the authority that signed the brokers' certificates",
            ) from error
    return options

"""Topics as they should be and as they are: missing ones are created, all are described. It changes no topic
that exists."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streamtrain import config
from streamtrain.errors import KafkaError, PermissionMissingError, StreamtrainError
from streamtrain.kafka.failure import explain, explain_unreachable
from streamtrain.kafka.topics import kafka_options

REQUEST_TIMEOUT_MS = 15_000
APPEAR_TIMEOUT_S = 15.0
_POLL_S = 0.05
_NOT_YET = {kafka_errors.LeaderNotAvailableError.errno, kafka_errors.UnknownTopicOrPartitionError.errno}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as streamtrain creates it. config: topic configuration, as Kafka spells it."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is. config: None where the broker does not tell it."""

    name: str
    partitions: int
    config: Mapping[str, str] | None


async def ensure_topics(
    kafka: config.Kafka, specs: Sequence[TopicSpec], *, create: bool = True
) -> dict[str, TopicState]:
    """Creates those that are missing, where the settings allow it, and says how all of them are, by name. With
    `create=False` it changes nothing, and leaves out those that are missing and that it would create.

    Raises KafkaError, AuthenticationError or PermissionMissingError.
    """
    doing = "looking at its topics"
    admin = AIOKafkaAdminClient(**kafka_options(kafka), request_timeout_ms=REQUEST_TIMEOUT_MS)
    try:
        try:
            await admin.start()
        except (kafka_errors.KafkaError, OSError) as error:
            raise await explain_unreachable(error, kafka=kafka, doing="connecting") from error
        live = await _partitions(admin)
        missing = [spec for spec in specs if spec.name not in live]
        if missing and (create or not kafka.create_topics):
            await _create(admin, kafka, missing)
            live = await _wait_for(admin, missing)
        found = [spec.name for spec in specs if spec.name in live]
        configs = await _configs(admin, found) if found else {}
        return {name: TopicState(name, live[name], configs.get(name)) for name in found}
    except StreamtrainError:
        raise
    except (kafka_errors.KafkaError, OSError) as error:
        raise explain(error, kafka=kafka, doing=doing) from error
    finally:
        await admin.close()


async def _partitions(admin: AIOKafkaAdminClient) -> dict[str, int]:
    # All topics rather than some: to ask for one that is missing may create it, with the broker's defaults.
    return {
        topic["topic"]: len(topic["partitions"])
        for topic in await admin.describe_topics()
        if topic["error_code"] == 0 and topic["partitions"]
    }


async def _create(admin: AIOKafkaAdminClient, kafka: config.Kafka, specs: Sequence[TopicSpec]) -> None:
    if not kafka.create_topics:
        raise KafkaError(
            f"{_listed(specs)} missing, and kafka.create_topics is false",
            hint="create: " + "; ".join(map(describe, specs)) + "; or allow DESCRIBE on them if they exist",
        )
    wanted = []
    for spec in specs:
        topic = NewTopic(spec.name, spec.partitions, 1, topic_configs=dict(spec.config))
        topic.replication_factor = kafka.replication_factor  # the constructor refuses -1, the broker's default
        wanted.append(topic)
    answer = await admin.create_topics(wanted)
    for spec, (name, code, *message) in ((_by_name(specs, each[0]), each) for each in answer.topic_errors):
        if code in (0, kafka_errors.TopicAlreadyExistsError.errno):
            continue
        if code in (
            kafka_errors.TopicAuthorizationFailedError.errno,
            kafka_errors.ClusterAuthorizationFailedError.errno,
        ):
            raise PermissionMissingError(
                f"Kafka forbids to create the topic {name}",
                hint=f"grant CREATE on topics with the prefix {kafka.topic_prefix!r}; or create it beforehand: "
                + describe(spec),
            )
        if code == kafka_errors.InvalidReplicationFactorError.errno:
            raise KafkaError(
                f"the topic {name} cannot have {kafka.replication_factor} replicas: {_text(message)}",
                hint="set kafka.replication_factor to at most the number of brokers",
            )
        raise KafkaError(
            f"Kafka does not create the topic {name}: {kafka_errors.for_code(code).__name__} {_text(message)}",
            hint="or create it beforehand: " + describe(spec),
        )


async def _wait_for(admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec]) -> dict[str, int]:
    """Until every partition of the new topics has a leader."""
    try:
        async with asyncio.timeout(APPEAR_TIMEOUT_S):
            while True:
                topics = {topic["topic"]: topic for topic in await admin.describe_topics()}
                if all(_is_up(topics.get(spec.name)) for spec in specs):
                    return {name: len(topic["partitions"]) for name, topic in topics.items()}
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise KafkaError(f"{_listed(specs)} created, but without leaders after {APPEAR_TIMEOUT_S:.0f} s") from error


def _is_up(topic: Mapping[str, Any] | None) -> bool:
    if topic is None or topic["error_code"] in _NOT_YET or not topic["partitions"]:
        return False
    return all(partition["error_code"] == 0 and partition["leader"] >= 0 for partition in topic["partitions"])


async def _configs(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, Mapping[str, str]]:
    """Topic configurations; without those that the broker does not tell, or may not."""
    try:
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    except (kafka_errors.UnsupportedVersionError, kafka_errors.IncompatibleBrokerVersion):
        return {}
    found: dict[str, Mapping[str, str]] = {}
    for answer in answers:
        for resource in answer.to_object()["resources"]:
            if resource["error_code"] == 0:
                found[resource["resource_name"]] = {
                    entry["config_names"]: entry["config_value"] for entry in resource["config_entries"]
                }
    return found


def describe(spec: TopicSpec) -> str:
    """The topic as arguments of Kafka's own tool."""
    configs = "".join(f" --config {key}={value}" for key, value in spec.config.items())
    return f"kafka-topics.sh --create --topic {spec.name} --partitions {spec.partitions}{configs}"


def _by_name(specs: Sequence[TopicSpec], name: str) -> TopicSpec:
    return next(spec for spec in specs if spec.name == name)


def _listed(specs: Sequence[TopicSpec]) -> str:
    names = ", ".join(spec.name for spec in specs)
    return f"the topic {names} is" if len(specs) == 1 else f"the topics {names} are"


def _text(message: Iterable[Any]) -> str:
    return " ".join(str(part) for part in message if part)

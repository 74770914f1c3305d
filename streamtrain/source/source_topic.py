"""The topics that a source is published to: how they are created, and whether one that exists will do."""

from __future__ import annotations

from dataclasses import dataclass

from streamtrain import config
from streamtrain.errors import KafkaError
from streamtrain.kafka import topics
from streamtrain.kafka.topic_admin import TopicSpec, TopicState

# What Kafka allows where nothing else is set.
_DEFAULT_MAX_MESSAGE_BYTES = 1_048_588


@dataclass(frozen=True, slots=True)
class SourceTopics:
    """The specs of a source's topics."""

    records: TopicSpec
    positions: TopicSpec
    dead_letters: TopicSpec

    @property
    def all(self) -> tuple[TopicSpec, ...]:
        return self.records, self.positions, self.dead_letters


def source_topics(kafka: config.Kafka, source: str, *, partitions: int, epoch: int) -> SourceTopics:
    limit = {"max.message.bytes": str(topics.MAX_MESSAGE_BYTES)}
    return SourceTopics(
        records=TopicSpec(
            topics.source_topic(kafka.topic_prefix, source, epoch),
            partitions,
            # LogAppendTime: records of a long catch-up must not expire on arrival.
            {
                "cleanup.policy": "delete",
                "message.timestamp.type": "LogAppendTime",
                "retention.ms": str(round(kafka.retention * 1000)),
                **limit,
            },
        ),
        positions=TopicSpec(
            topics.positions_topic(kafka.topic_prefix),
            1,
            # Small segments: only closed ones are compacted, and a start reads the whole topic.
            {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024), "min.cleanable.dirty.ratio": "0.1"},
        ),
        dead_letters=TopicSpec(
            topics.source_dead_letter_topic(kafka.topic_prefix, source),
            1,
            {"cleanup.policy": "delete", "retention.ms": str(round(kafka.retention * 1000))},
        ),
    )


def check_records(
    state: TopicState, spec: TopicSpec, *, source: str, stored: int | None, retention_s: float
) -> list[str]:
    """Warnings. stored: the partition count that the source has been published with, None if it is new.

    Raises KafkaError when the topic would lose or misplace records.
    """
    warnings = []
    if stored is not None and stored != spec.partitions:
        raise KafkaError(
            f"source {source!r} is configured with {spec.partitions} partitions, but has been published to {stored}",
            hint=f"set partitions: {stored} of the source: a document's partition follows from the count",
        )
    if state.partitions != spec.partitions:
        if stored is None or state.partitions < stored:
            raise KafkaError(
                f"the topic {state.name} has {state.partitions} partitions, source {source!r} needs {spec.partitions}",
                hint=f"set partitions: {state.partitions} of the source, or remove the topic"
                if stored is None
                else "the topic was created anew: restore it, or give the source a new name to start afresh",
            )
        warnings.append(
            f"the topic {state.name} has been given {state.partitions} partitions; the source stays with {stored}"
        )
    if state.config is None:
        return warnings
    _check_policy(state, spec)
    kept = int(state.config.get("retention.ms", -1))
    if 0 <= kept < round(retention_s * 1000):
        raise KafkaError(
            f"the topic {state.name} keeps records for {kept / 1000:.0f} s, "
            f"kafka.retention asks for {retention_s:.0f} s",
            hint=f"{_alter(state, 'retention.ms', round(retention_s * 1000))}; "
            "or lower kafka.retention: what is not learned when it expires is lost to the job",
        )
    if int(state.config.get("retention.bytes", -1)) >= 0:
        warnings.append(f"the topic {state.name} has retention.bytes: records may expire before kafka.retention")
    limit = max_message_bytes(state)
    if limit < topics.MAX_MESSAGE_BYTES:
        warnings.append(f"the topic {state.name} takes records up to {limit} bytes: larger ones become dead letters")
    return warnings


def _check_policy(state: TopicState, spec: TopicSpec) -> None:
    assert state.config is not None
    if "compact" in state.config.get("cleanup.policy", "delete"):
        raise KafkaError(
            f"the topic {state.name} is compacted: earlier versions of documents would disappear unlearned",
            hint=_alter(state, "cleanup.policy", "delete"),
        )
    if state.config.get("message.timestamp.type", "LogAppendTime") != "LogAppendTime":
        raise KafkaError(
            f"the topic {state.name} has message.timestamp.type {state.config['message.timestamp.type']}",
            hint=f"{_alter(state, 'message.timestamp.type', 'LogAppendTime')}: windows are cut by the time of arrival",
        )


def check_positions(state: TopicState, spec: TopicSpec) -> None:
    """Raises KafkaError when the topic could lose a position."""
    if state.partitions != 1:
        raise KafkaError(
            f"the topic {state.name} has {state.partitions} partitions, it must have one",
            hint="remove it, or choose another kafka.topic_prefix",
        )
    if state.config is not None and state.config.get("cleanup.policy", "compact") != "compact":
        raise KafkaError(
            f"the topic {state.name} has cleanup.policy {state.config['cleanup.policy']}: positions would expire",
            hint=_alter(state, "cleanup.policy", "compact"),
        )


def max_message_bytes(state: TopicState) -> int:
    """The largest record batch the topic takes; what streamtrain would have set where it is not told."""
    if state.config is None:
        return topics.MAX_MESSAGE_BYTES
    return int(state.config.get("max.message.bytes", _DEFAULT_MAX_MESSAGE_BYTES))


def _alter(state: TopicState, key: str, value: object) -> str:
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {state.name} --add-config {key}={value}"

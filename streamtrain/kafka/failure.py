"""What an error of the Kafka client means to an operator, and what to do about it."""

from __future__ import annotations

from typing import Any

from aiokafka import errors as kafka_errors
from aiokafka.conn import create_conn

from streamtrain import config
from streamtrain.errors import AuthenticationError, KafkaError, PermissionMissingError, StreamtrainError
from streamtrain.kafka.topics import kafka_options

PROBE_TIMEOUT_MS = 5_000

_WRONG_CREDENTIALS = (kafka_errors.AuthenticationFailedError, kafka_errors.SaslAuthenticationFailed)


def explain(error: BaseException, *, kafka: config.Kafka, doing: str) -> StreamtrainError:
    """The error to raise in place of `error`, which came up while `doing`."""
    if isinstance(error, StreamtrainError):
        return error
    if isinstance(error, _WRONG_CREDENTIALS):
        return AuthenticationError(
            f"Kafka at {kafka.bootstrap_servers} refuses the credentials",
            hint="check kafka.security: mechanism, username and password",
        )
    if isinstance(error, kafka_errors.TransactionalIdAuthorizationFailed):
        return PermissionMissingError(
            f"Kafka forbids the transactional id while {doing}",
            hint=f"grant WRITE and DESCRIBE on transactional ids with the prefix {kafka.topic_prefix!r}",
        )
    if isinstance(error, kafka_errors.TopicAuthorizationFailedError):
        return PermissionMissingError(
            f"Kafka forbids access to a topic while {doing}: {_told(error)}",
            hint=f"grant READ, WRITE, DESCRIBE and DESCRIBE_CONFIGS on topics with the prefix {kafka.topic_prefix!r}",
        )
    if isinstance(error, kafka_errors.ClusterAuthorizationFailedError):
        return PermissionMissingError(
            f"Kafka forbids an operation on the cluster while {doing}",
            hint="grant CREATE on the topics, or create them beforehand and set kafka.create_topics: false; "
            "brokers before 3.0 also want IDEMPOTENT_WRITE on the cluster",
        )
    if isinstance(error, kafka_errors.KafkaConnectionError | OSError) and not isinstance(error, TimeoutError):
        return KafkaError(
            f"Kafka at {kafka.bootstrap_servers} cannot be reached while {doing}",
            hint="is it running, is kafka.bootstrap_servers right, and does kafka.security.protocol fit its listener?",
        )
    if isinstance(error, TimeoutError):
        return KafkaError(f"Kafka at {kafka.bootstrap_servers} did not answer in time while {doing}")
    return KafkaError(f"Kafka failed while {doing}: {_told(error)}")


async def explain_unreachable(error: BaseException, *, kafka: config.Kafka, doing: str) -> StreamtrainError:
    """`explain` for an error at start: the client hides a refused password behind "unable to bootstrap"."""
    if isinstance(error, kafka_errors.KafkaConnectionError):
        options: dict[str, Any] = kafka_options(kafka)
        for server in str(options.pop("bootstrap_servers")).split(","):
            host, _, port = server.strip().rpartition(":")
            try:
                connection = await create_conn(
                    host.strip("[]"), int(port), request_timeout_ms=PROBE_TIMEOUT_MS, **options
                )
            except _WRONG_CREDENTIALS as found:
                return explain(found, kafka=kafka, doing=doing)
            except (kafka_errors.KafkaError, OSError, ValueError):
                continue
            connection.close()
    return explain(error, kafka=kafka, doing=doing)


def _told(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

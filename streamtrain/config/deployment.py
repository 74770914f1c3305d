"""Settings of a deployment: Kafka, MongoDB, the daemon, the sources that it follows and the jobs that it runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, ValidationError, model_validator

from streamtrain.config.job import Job
from streamtrain.config.values import (
    Address,
    DatabaseName,
    ExactName,
    MongoUri,
    Name,
    PositiveDuration,
    Section,
    Servers,
    Size,
    located,
)


class Security(Section):
    """How to authenticate with Kafka."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="as the brokers' listener has it"
    )
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(None, description="of SASL")
    username: str | None = Field(None, description="of SASL")
    password: SecretStr | None = Field(None, description="of SASL; or password_file: the name of a file that holds it")
    cafile: str | None = Field(
        None, description="PEM file of the authority that signed the brokers' certificates; default: the system's"
    )

    @model_validator(mode="after")
    def _complete(self) -> Security:
        needed = {"mechanism": self.mechanism, "username": self.username, "password": self.password}
        missing = [name for name, value in needed.items() if value is None]
        if self.protocol.startswith("SASL") and missing:
            raise ValueError(f"protocol {self.protocol} needs {', '.join(missing)} too")
        if not self.protocol.startswith("SASL") and len(missing) < len(needed):
            raise ValueError(f"protocol {self.protocol} would send no credentials: SASL_SSL or SASL_PLAINTEXT does")
        return self


class Kafka(Section):
    """The brokers, and the topics that streamtrain keeps in them."""

    bootstrap_servers: Servers = Field(description="host:port of one or more brokers, comma separated")
    security: Security = Field(Security(), description="how to authenticate; default: not at all")
    topic_prefix: str = Field(
        "streamtrain",
        pattern=r"^[a-zA-Z0-9._-]{1,100}$",
        description="what every topic's name begins with; deployments that share brokers need different ones",
    )
    replication_factor: int = Field(-1, description="of topics that streamtrain creates; -1: the broker's default")
    create_topics: bool = Field(True, description="false: the topics must exist; the error says how to create them")
    retention: PositiveDuration = Field(
        86400.0 * 3,
        description="of topics that streamtrain creates, and at least of those that exist: a window, and the longest "
        "outage that must not lose records",
    )


class State(Section):
    """Where manifests, checkpoints and the lease live."""

    uri: MongoUri | None = Field(
        None, description="MongoDB; or uri_file: the name of a file that holds it; default: the first source's"
    )
    database: DatabaseName = Field("streamtrain", description="one for each deployment: the lease is in it")
    artifacts: str = Field("gridfs", min_length=1, description="checkpoints' files: gridfs, or a directory")


class Admin(Section):
    """The HTTP endpoint for probes, metrics, status and commands."""

    listen: Address = Field(
        "127.0.0.1:8470", pattern=r"^[^:]+:\d+$|^\[[0-9a-f:]+\]:\d+$", description="host:port; port 0: any free one"
    )
    token: SecretStr | None = Field(
        None,
        description="bearer token for the status and for everything that changes state; or token_file: the name of a "
        "file that holds it. Without one, state is changed from this machine only",
    )


class Log(Section):
    """What goes to stderr. Reloaded on SIGHUP."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="the least that is logged")
    format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto: console on a terminal, else JSON lines"
    )


class Source(Section):
    """A collection that is followed: one change stream and one topic, shared by its jobs."""

    name: Name = Field(description="part of the topic's name; a new name starts afresh from now")
    uri: MongoUri = Field(description="MongoDB, a replica set or mongos; or uri_file: the name of a file that holds it")
    database: DatabaseName = Field(description="of the collection")
    collection: ExactName = Field(description="what is followed")
    full_document: Literal["auto", "updateLookup", "whenAvailable", "required"] = Field(
        "auto", description="how an update gets its document; auto: post-images where the collection records them"
    )
    partitions: int = Field(
        24,
        ge=1,
        le=10_000,
        description="of its topic, for good; a worker owns whole partitions, so also a limit to them",
    )
    prefetch: Size = Field(32 * 1024**2, description="bytes of events held between MongoDB and Kafka")


class Settings(Section):
    """A deployment."""

    kafka: Kafka = Field(description="the buffer between MongoDB and the workers")
    state: State = Field(State(), description="where manifests, checkpoints and the lease live")
    admin: Admin = Field(Admin(), description="the HTTP endpoint")
    log: Log = Field(Log(), description="what goes to stderr")
    sources: tuple[Source, ...] = Field(min_length=1, description="the collections that are followed")
    jobs: tuple[Job, ...] = Field(min_length=1, description="the models that learn from them")

    @model_validator(mode="after")
    def _references(self) -> Settings:
        errors = []
        sources = {source.name: source for source in self.sources}
        for at, job in enumerate(self.jobs):
            source = sources.get(job.source)
            if source is None:
                errors.append(located(("jobs", at, "source"), f"there is no source {job.source!r}", job.source))
            elif job.workers.min > source.partitions:
                told = f"there are only {source.partitions} partitions, and a partition belongs to one worker"
                errors.append(located(("jobs", at, "workers", "min"), told, job.workers.min))
            if job.window.duration > self.kafka.retention:
                told = "is longer than kafka.retention: Kafka would remove records that are still in the window"
                errors.append(located(("jobs", at, "window", "duration"), told, job.window.duration))
            for place, label in enumerate(job.labels):
                if label.absent_after is not None and label.absent_after + job.window.duration > self.kafka.retention:
                    told = (
                        "and window.duration are together longer than kafka.retention: Kafka would remove documents "
                        "before they are learned, or learned again"
                    )
                    errors.append(located(("jobs", at, "labels", place, "absent_after"), told, label.absent_after))
        named = (("sources", [s.name for s in self.sources]), ("jobs", [j.name for j in self.jobs]))
        for section, names in named:
            for at, name in enumerate(names):
                if name in names[:at]:
                    errors.append(located((section, at, "name"), f"two {section} are called {name!r}", name))
        if errors:
            raise ValidationError.from_exception_data("Settings", errors)
        return self

"""Settings: the user's contract (DESIGN 8). Sections are frozen; unknown keys are errors."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from streamtrain import types

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*$")
_DURATION_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB)\s*$")
_SIZE_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


def parse_duration(value: Any) -> Any:
    """`30s`, `100ms`, `6h`, `1d` -> seconds. A bare number is refused: its unit would be a guess."""
    if isinstance(value, str) and (match := _DURATION.match(value)):
        return float(match[1]) * _DURATION_SECONDS[match[2]]
    raise ValueError(f"{value!r} is not a duration: write it like 100ms, 30s, 5m, 6h or 1d")


def parse_size(value: Any) -> Any:
    """`64MiB` -> bytes."""
    if isinstance(value, str) and (match := _SIZE.match(value)):
        return int(float(match[1]) * _SIZE_BYTES[match[2]])
    raise ValueError(f"{value!r} is not a size: write it like 512KiB, 64MiB or 2GiB")


WRITTEN = "written"
"""Validation context of settings that a person wrote: durations and sizes must carry their unit. Without it
(sections that a program hands on) they may also be seconds and bytes."""


def seconds(value: Any, info: ValidationInfo) -> Any:
    written = bool(info.context and info.context.get(WRITTEN))
    return value if isinstance(value, float) and not written else parse_duration(value)


def size_in_bytes(value: Any, info: ValidationInfo) -> Any:
    written = bool(info.context and info.context.get(WRITTEN))
    return value if isinstance(value, int) and not written else parse_size(value)


def _text(pattern: re.Pattern[str], example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern.pattern, "examples": [example]})


Duration = Annotated[float, BeforeValidator(seconds), Field(ge=0), _text(_DURATION, "30s")]
Size = Annotated[int, BeforeValidator(size_in_bytes), Field(gt=0), _text(_SIZE, "64MiB")]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


def _servers(value: str) -> str:
    servers = [server.strip() for server in value.split(",") if server.strip()]
    for server in servers:
        if not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/@\[\]]+):\d{1,5}", server):
            raise ValueError(f"{server!r} is not host:port")
    if not servers:
        raise ValueError("names no broker")
    return ",".join(servers)


def _exact(value: str) -> str:
    """A name that MongoDB compares byte by byte: white space around it would silently match nothing."""
    if value != value.strip():
        raise ValueError(f"{value!r} has white space around it, and MongoDB would look for exactly that")
    return value


def _mongo_uri(value: SecretStr) -> SecretStr:
    # The value itself must not be in the message: it may hold a password.
    if not re.match(r"^mongodb(\+srv)?://\S+$", value.get_secret_value()):
        raise ValueError("not a MongoDB URI: it begins with mongodb:// or mongodb+srv:// and holds no white space")
    return value


Servers = Annotated[str, AfterValidator(_servers)]
ExactName = Annotated[str, Field(min_length=1), AfterValidator(_exact)]
MongoUri = Annotated[SecretStr, AfterValidator(_mongo_uri)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Security(Section):
    """How to authenticate with Kafka."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: str | None = None
    password: SecretStr | None = None
    cafile: str | None = None

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
    bootstrap_servers: Servers = Field(description="host:port of one or more brokers, comma separated")
    security: Security = Security()
    topic_prefix: str = Field("streamtrain", pattern=r"^[a-zA-Z0-9._-]{1,100}$")
    replication_factor: int = Field(-1, description="of topics that streamtrain creates; -1: the broker's default")
    create_topics: bool = True
    retention: Duration = Field(86400.0 * 3, description="of topics that streamtrain creates")


class State(Section):
    """Where manifests, checkpoints and the lease live."""

    uri: MongoUri | None = Field(None, description="default: the first source's cluster")
    database: str = "streamtrain"
    artifacts: str = Field("gridfs", description="gridfs, or a directory")


class Admin(Section):
    listen: str = Field("127.0.0.1:8470", pattern=r"^[^:]+:\d+$|^\[[0-9a-f:]+\]:\d+$")
    token: SecretStr | None = Field(None, description="bearer token for everything that changes state")


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto: console on a terminal, else JSON lines"
    )


class Pool(Section):
    cpus: int = Field(2, ge=1)
    launcher: Literal["local"] = "local"


class Source(Section):
    """A collection that is followed; one change stream and one topic."""

    name: Name
    uri: MongoUri
    database: ExactName
    collection: ExactName
    full_document: Literal["auto", "updateLookup", "whenAvailable", "required"] = "auto"
    partitions: int = Field(24, ge=1, le=10_000)
    prefetch: Size = Field(32 * 1024**2, description="bytes of events held between MongoDB and Kafka")


class FeatureSpec(Section):
    field: str = Field(min_length=1)
    dtype: types.DType
    length: int | None = Field(None, ge=1)
    encoding: Literal["list", "binary"] = "list"
    missing: float | int | bool | str | None = None
    buckets: int | None = Field(None, ge=2)


class LabelSpec(Section):
    field: str = Field(min_length=1)
    dtype: types.DType
    task: types.Task
    classes: int = Field(2, ge=2)


class WindowSpec(Section):
    duration: Duration = 6 * 3600.0
    max_records: int = Field(500_000, ge=1)
    half_life: Duration = 2 * 3600.0


class RoundSpec(Section):
    max_wait: Duration = 0.1
    max_records: int = Field(16_384, ge=1)
    batch_size: int = Field(256, ge=1)
    replay_ratio: float = Field(1.0, ge=0, le=100)


class CheckpointSpec(Section):
    every: Duration = 30.0
    keep: int = Field(5, ge=1)


class WorkersSpec(Section):
    min: int = Field(1, ge=1, le=1024)


class Job(Section):
    """A model that learns from a source."""

    name: Name
    source: Name
    features: tuple[FeatureSpec, ...] = Field(min_length=1)
    labels: tuple[LabelSpec, ...] = Field(min_length=1, max_length=1)
    window: WindowSpec = WindowSpec()
    round: RoundSpec = RoundSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    model: str = Field("builtin", pattern=r"^builtin$|^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    hyper: dict[str, Any] = Field(default_factory=dict)
    optimizer: dict[str, Any] | None = Field(None, description="a keras optimizer config; default: what the model sets")
    loss_reduction: Literal["mean", "sum"] = "mean"
    dtype: Literal["float32", "float64"] = "float32"
    workers: WorkersSpec = WorkersSpec()
    seed: int = 0

    def schema_(self) -> types.Schema:
        return types.Schema(
            features=tuple(types.Feature(**feature.model_dump()) for feature in self.features),
            labels=tuple(types.Label(**label.model_dump()) for label in self.labels),
        )


class Settings(Section):
    kafka: Kafka
    state: State = State()
    admin: Admin = Admin()
    log: Log = Log()
    pool: Pool = Pool()
    sources: tuple[Source, ...] = Field(min_length=1)
    jobs: tuple[Job, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _references(self) -> Settings:
        errors = []
        sources = {source.name for source in self.sources}
        for at, job in enumerate(self.jobs):
            if job.source not in sources:
                errors.append(_located(("jobs", at, "source"), f"there is no source {job.source!r}", job.source))
            if job.window.duration > self.kafka.retention:
                told = "is longer than kafka.retention: Kafka would remove records that are still in the window"
                errors.append(_located(("jobs", at, "window", "duration"), told, job.window.duration))
        named = (("sources", [s.name for s in self.sources]), ("jobs", [j.name for j in self.jobs]))
        for section, names in named:
            for at, name in enumerate(names):
                if name in names[:at]:
                    errors.append(_located((section, at, "name"), f"two {section} are called {name!r}", name))
        if errors:
            raise ValidationError.from_exception_data("Settings", errors)
        return self


def _located(path: tuple[str | int, ...], message: str, value: object) -> InitErrorDetails:
    """An error at a place inside the settings, so that the file's line can be shown."""
    return InitErrorDetails(type=PydanticCustomError("reference", message), loc=path, input=value)

"""Settings: the user's contract (DESIGN 8). Sections are frozen; unknown keys are errors."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

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


# Defaults are given in seconds and bytes; what is validated (file, env, flags) must carry its unit.
Duration = Annotated[float, BeforeValidator(lambda v: v if isinstance(v, float) else parse_duration(v)), Field(ge=0)]
Size = Annotated[int, BeforeValidator(lambda v: v if isinstance(v, int) else parse_size(v)), Field(gt=0)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Security(Section):
    """How to authenticate with Kafka."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: str | None = None
    password: SecretStr | None = None
    cafile: str | None = None


class Kafka(Section):
    bootstrap_servers: str = Field(description="host:port of one or more brokers, comma separated")
    security: Security = Security()
    topic_prefix: str = Field("streamtrain", pattern=r"^[a-zA-Z0-9._-]{1,100}$")
    replication_factor: int = Field(-1, description="of topics that streamtrain creates; -1: the broker's default")
    create_topics: bool = True
    retention: Duration = Field(86400.0 * 3, description="of topics that streamtrain creates")


class State(Section):
    """Where manifests, checkpoints and the lease live."""

    uri: SecretStr | None = Field(None, description="default: the first source's cluster")
    database: str = "streamtrain"
    artifacts: str = Field("gridfs", description="gridfs, or a directory")


class Admin(Section):
    listen: str = Field("127.0.0.1:8470", pattern=r"^[^:]+:\d+$|^\[[0-9a-f:]+\]:\d+$")
    token: SecretStr | None = Field(None, description="bearer token for everything that changes state")


class Pool(Section):
    cpus: int = Field(2, ge=1)
    launcher: Literal["local"] = "local"


class Source(Section):
    """A collection that is followed; one change stream and one topic."""

    name: Name
    uri: SecretStr
    database: str = Field(min_length=1)
    collection: str = Field(min_length=1)
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
    pool: Pool = Pool()
    sources: tuple[Source, ...] = Field(min_length=1)
    jobs: tuple[Job, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _references(self) -> Settings:
        names = {source.name for source in self.sources}
        for job in self.jobs:
            if job.source not in names:
                raise ValueError(f"job {job.name!r} names the source {job.source!r}, which is not defined")
        for kind, found in (("source", [s.name for s in self.sources]), ("job", [j.name for j in self.jobs])):
            if len(set(found)) != len(found):
                raise ValueError(f"two {kind}s have the same name")
        return self

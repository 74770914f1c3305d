"""Settings: the user's contract (DESIGN 8). Sections are frozen; unknown keys are errors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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
from streamtrain.errors import FilterError

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*$")
_DURATION_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SHARE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%\s*$")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB)\s*$")
_SIZE_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_FLOATS = frozenset({types.DType.FLOAT32, types.DType.FLOAT64})
_LARGEST_FLOAT32 = 3.4028234663852886e38
_NOT_IN_DATABASE = ' .$/\\\0"'
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


def parse_share(value: Any) -> Any:
    """`1%` -> 0.01; a number is a share already."""
    if isinstance(value, str) and (match := _SHARE.match(value)):
        return float(match[1]) / 100
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is not a share: write it like 1%, or as a number like 0.01")


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
PositiveDuration = Annotated[Duration, Field(gt=0)]
Holdout = Annotated[float, BeforeValidator(parse_share), Field(ge=0, le=0.5), _text(_SHARE, "1%")]
Size = Annotated[int, BeforeValidator(size_in_bytes), Field(gt=0), _text(_SIZE, "64MiB")]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


def _port(address: str) -> str:
    """The address; the system would take a larger port for another one."""
    port = address.rpartition(":")[2]
    if int(port) > 65535:
        raise ValueError(f"{port} is no port: the largest is 65535")
    return address


def _servers(value: str) -> str:
    servers = [server.strip() for server in value.split(",") if server.strip()]
    for server in servers:
        if not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/@\[\]]+):\d{1,5}", server):
            raise ValueError(f"{server!r} is not host:port")
        _port(server)
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


def _database(value: str) -> str:
    if wrong := [character for character in value if character in _NOT_IN_DATABASE]:
        raise ValueError(f"the name of a MongoDB database cannot hold {wrong[0]!r}")
    return value


Servers = Annotated[str, AfterValidator(_servers)]
ExactName = Annotated[str, Field(min_length=1), AfterValidator(_exact)]
DatabaseName = Annotated[ExactName, Field(max_length=63), AfterValidator(_database)]
MongoUri = Annotated[SecretStr, AfterValidator(_mongo_uri)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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

    listen: Annotated[str, AfterValidator(_port)] = Field(
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


class FeatureSpec(Section):
    """An input of the model."""

    field: str = Field(min_length=1, description="dotted path into the document")
    dtype: types.DType = Field(description="what it becomes; a datetime is milliseconds since 1970")
    length: int | None = Field(None, ge=1, description="elements of a vector; default: a single value")
    max_length: int | None = Field(
        None, ge=1, description="of a list of any length: its last so many elements, followed by pad where it has fewer"
    )
    pad: float | int | bool | str | None = Field(
        None, description="what fills a list up to max_length; default: 0, or the empty string"
    )
    encoding: Literal["list", "binary"] = Field(
        "list", description="of a vector: a list of numbers, or little-endian float32 in binary data"
    )
    missing: float | int | bool | str | None = Field(
        None,
        description="stands in for a value that is absent, null or not finite, while an absent list with max_length is "
        "an empty one; default: such a document is refused",
    )
    buckets: int | None = Field(None, ge=2, description="hash a string into so many integers before the model sees it")

    @model_validator(mode="after")
    def _fits(self) -> FeatureSpec:
        problems = []
        if self.encoding == "binary" and (self.length is None or self.dtype not in _FLOATS):
            problems.append(_located(("encoding",), "a binary vector needs dtype: float32 and a length", self.encoding))
        if self.buckets is not None and self.dtype is not types.DType.STRING:
            problems.append(_located(("buckets",), f"only strings are hashed, not {self.dtype.value}", self.buckets))
        if self.max_length is not None and self.length is not None:
            told = "a vector has a length, a list of any length a max_length: give one of them"
            problems.append(_located(("max_length",), told, self.max_length))
        if self.pad is not None and self.max_length is None:
            problems.append(_located(("pad",), "only a list with max_length is padded", self.pad))
        for name, value in (("missing", self.missing), ("pad", self.pad)):
            if value is not None and not _replaces(value, self.dtype):
                problems.append(_located((name,), f"{value!r} is no {self.dtype.value}", value))
        if problems:
            raise ValidationError.from_exception_data("FeatureSpec", problems)
        return self


class LabelSpec(Section):
    """What the model predicts. A document without it waits until an update brings it, or `absent_after` is over."""

    field: str = Field(min_length=1, description="dotted path into the document")
    dtype: types.DType = Field(description="a number; for a classification also bool")
    task: types.Task = Field(description="regression, or classification: labels are 0 to classes - 1")
    classes: int = Field(2, ge=2, description="of a classification")
    absent_after: PositiveDuration | None = Field(
        None,
        description="how long the label is waited for from the document's first version on, by MongoDB's clock; then "
        "the document is learned with absent_value. Default: for good, but not beyond the window",
    )
    absent_value: float | int | bool | None = Field(None, description="of a label that has not come; with absent_after")

    @model_validator(mode="after")
    def _fits(self) -> LabelSpec:
        refused = {types.DType.STRING, types.DType.DATETIME, types.DType.BYTES}
        if self.task is types.Task.REGRESSION:
            refused.add(types.DType.BOOL)
        problems = []
        if self.dtype in refused:
            told = f"{self.dtype.value} cannot be the label of a {self.task.value}"
            problems.append(_located(("dtype",), told, self.dtype))
        elif self.absent_after is not None and self.absent_value is None:
            told = "says when, but not what is learned then: give an absent_value"
            problems.append(_located(("absent_after",), told, self.absent_after))
        elif self.absent_value is not None and not self._takes(self.absent_value):
            told = f"{self.absent_value!r} cannot be the value of this label"
            problems.append(_located(("absent_value",), told, self.absent_value))
        elif self.absent_value is not None and self.absent_after is None:
            problems.append(_located(("absent_value",), "needs absent_after: when it is learned", self.absent_value))
        if problems:
            raise ValidationError.from_exception_data("LabelSpec", problems)
        return self

    def _takes(self, value: float | int | bool) -> bool:
        if self.dtype is types.DType.BOOL:
            return isinstance(value, bool)
        if not _replaces(value, self.dtype):
            return False
        if self.task is types.Task.CLASSIFICATION:
            return 0 <= value < self.classes and value == int(value)
        return abs(value) <= types.LARGEST_TARGET


class WeightSpec(Section):
    """How much a document counts in the loss, in the running statistics and in the scores. `weight: field` is short
    for `weight: {field: field}`; with both keys the weights are multiplied."""

    field: str | None = Field(None, min_length=1, description="dotted path to a number of at least 0")
    missing: float = Field(1.0, ge=0, le=1e9, description="the weight of a document where that is absent or null")
    classes: dict[int, Annotated[float, Field(ge=0, le=1e9)]] | None = Field(
        None, min_length=1, description="weights by class of the label; a class that is not named has weight 1"
    )
    label: str | None = Field(None, description="whose classes; default: the only classification of the job")

    @model_validator(mode="after")
    def _says_something(self) -> WeightSpec:
        if self.field is None and self.classes is None:
            raise ValueError("needs a field, or classes")
        if self.label is not None and self.classes is None:
            problem = _located(("label",), "is for classes, and there are none", self.label)
            raise ValidationError.from_exception_data("WeightSpec", [problem])
        return self


def _weight(value: Any) -> Any:
    return {"field": value} if isinstance(value, str) else value


class WindowSpec(Section):
    """The rolling window that a job keeps in memory and learns again from."""

    duration: PositiveDuration = Field(6 * 3600.0, description="how far back, by the time of arrival in Kafka")
    max_records: int = Field(500_000, ge=1, description="and at most so many records")
    half_life: PositiveDuration = Field(2 * 3600.0, description="after it a document is replayed half as often")


class RoundSpec(Section):
    """What is learned in one go."""

    max_wait: Duration = Field(0.1, description="how long a record may wait for others")
    max_records: int = Field(16_384, ge=1, le=10_000_000, description="at most so many new ones")
    batch_size: int = Field(256, ge=1, le=1_000_000, description="rows of a gradient step, over all workers")
    replay_ratio: float = Field(1.0, ge=0, le=100, description="rows learned again for each new one")


class CheckpointSpec(Section):
    """How often what was learned is saved."""

    every: PositiveDuration = Field(30.0, description="between saves while something was learned")
    keep: int = Field(5, ge=1, description="manifests to keep")


class WorkersSpec(Section):
    """The processes that train a job."""

    min: int = Field(1, ge=1, le=1024, description="how many")


class Job(Section):
    """A model that learns from a source."""

    name: Name = Field(description="of the job; a new name starts anew")
    source: Name = Field(description="the name of the source that it learns from")
    features: tuple[FeatureSpec, ...] = Field(min_length=1, description="the model's inputs")
    labels: tuple[LabelSpec, ...] = Field(min_length=1, description="what it predicts")
    features_as_of: Literal["label", "first"] = Field(
        "label",
        description="which version of a document gives the features: the one that brought the label, or the first one "
        "that was seen, as it stood when nothing was known yet",
    )
    filter: dict[str, Any] | None = Field(
        None,
        description="a MongoDB query; a version that does not match it counts as the delete of its document. "
        "Default: every document is learned",
    )
    weight: Annotated[WeightSpec | None, BeforeValidator(_weight)] = Field(
        None, description="a field, or weights by class; default: all documents count the same"
    )
    on_delete: Literal["forget", "keep"] = Field(
        "forget",
        description="forget: a deleted document is never learned again; keep: deletes change nothing, for collections "
        "whose documents expire or are archived",
    )
    holdout: Holdout = Field(
        0.0, description="share of the documents, by a fixed hash of their key, that is scored and never learned from"
    )
    window: WindowSpec = Field(WindowSpec(), description="how much is kept to learn again from")
    round: RoundSpec = Field(RoundSpec(), description="how much is learned in one go")
    checkpoint: CheckpointSpec = Field(CheckpointSpec(), description="how often what was learned is saved")
    model: str = Field(
        "builtin",
        pattern=r"^builtin$|^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="builtin, or module:function, called as function(schema, hyper), which returns a keras.Model",
    )
    hyper: dict[str, Any] = Field(default_factory=dict, description="handed to the model's function")
    optimizer: dict[str, Any] | None = Field(None, description="a keras optimizer config; default: what the model sets")
    loss_reduction: Literal["mean", "sum"] = Field("mean", description="of a batch's weighted losses")
    dtype: Literal["float32", "float64"] = Field("float32", description="of weights and computation")
    workers: WorkersSpec = Field(WorkersSpec(), description="the processes that train it")
    seed: int = Field(0, ge=0, lt=2**32, description="of first weights and replay")

    @model_validator(mode="after")
    def _distinct(self) -> Job:
        """A field is one input; a label that is one too would be known before it is predicted."""
        seen: set[str] = set()
        problems = []
        given = (("features", [f.field for f in self.features]), ("labels", [label.field for label in self.labels]))
        for section, fields in given:
            for at, field in enumerate(fields):
                if field in seen:
                    problems.append(_located((section, at, "field"), f"{field!r} is given twice", field))
                seen.add(field)
        if problems:
            raise ValidationError.from_exception_data("Job", problems)
        return self

    @model_validator(mode="after")
    def _answers(self) -> Job:
        """The filter is a query that can be answered, and the weights are those of classes that there are."""
        problems = []
        if self.filter is not None:
            from streamtrain.filters import Filter  # bson takes a while to import, and few jobs have one

            try:
                Filter(self.filter)
            except FilterError as error:
                problems.append(_located(("filter", *error.place), error.problem, None))
        if self.weight is not None and self.weight.classes is not None:
            problems += self._class_weights(self.weight, self.weight.classes)
        if problems:
            raise ValidationError.from_exception_data("Job", problems)
        return self

    def _class_weights(self, weight: WeightSpec, classes: dict[int, float]) -> list[InitErrorDetails]:
        label = self.weighted_label()
        if label is None:
            among = [each.field for each in self.labels if each.task is types.Task.CLASSIFICATION]
            told = f"the classifications are {', '.join(map(repr, among))}" if among else "no label is a classification"
            at = "classes" if weight.label is None else "label"
            return [_located(("weight", at), told, weight.label)]
        unknown = [number for number in classes if not 0 <= number < label.classes]
        told = f"the classes of {label.field!r} are 0 to {label.classes - 1}"
        problems = [_located(("weight", "classes", str(number)), told, number) for number in unknown]
        if not problems and not any(classes.get(number, 1.0) for number in range(label.classes)):
            problems = [_located(("weight", "classes"), "all classes have weight 0: nothing would be learned", classes)]
        return problems

    def weighted_label(self) -> LabelSpec | None:
        """The classification whose classes have weights: the one named, or the only one."""
        named = None if self.weight is None else self.weight.label
        found = [
            label for label in self.labels if label.task is types.Task.CLASSIFICATION and named in (None, label.field)
        ]
        return found[0] if len(found) == 1 else None

    def with_hyper(self, instead: Mapping[str, Any]) -> Job:
        """With other hyper-parameters under the keys that `instead` names (`types.Manifest.hyper`)."""
        return self.model_copy(update={"hyper": {**self.hyper, **instead}}) if instead else self

    def schema_(self) -> types.Schema:
        return types.Schema(
            features=tuple(types.Feature(**feature.model_dump()) for feature in self.features),
            labels=tuple(types.Label(**label.model_dump()) for label in self.labels),
        )


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
                errors.append(_located(("jobs", at, "source"), f"there is no source {job.source!r}", job.source))
            elif job.workers.min > source.partitions:
                told = f"there are only {source.partitions} partitions, and a partition belongs to one worker"
                errors.append(_located(("jobs", at, "workers", "min"), told, job.workers.min))
            if job.window.duration > self.kafka.retention:
                told = "is longer than kafka.retention: Kafka would remove records that are still in the window"
                errors.append(_located(("jobs", at, "window", "duration"), told, job.window.duration))
            for place, label in enumerate(job.labels):
                if label.absent_after is not None and label.absent_after + job.window.duration > self.kafka.retention:
                    told = (
                        "and window.duration are together longer than kafka.retention: Kafka would remove documents "
                        "before they are learned, or learned again"
                    )
                    errors.append(_located(("jobs", at, "labels", place, "absent_after"), told, label.absent_after))
        named = (("sources", [s.name for s in self.sources]), ("jobs", [j.name for j in self.jobs]))
        for section, names in named:
            for at, name in enumerate(names):
                if name in names[:at]:
                    errors.append(_located((section, at, "name"), f"two {section} are called {name!r}", name))
        if errors:
            raise ValidationError.from_exception_data("Settings", errors)
        return self


def _replaces(value: float | int | bool | str, dtype: types.DType) -> bool:
    """Whether the value can stand for a missing one of that type."""
    if dtype in (types.DType.STRING, types.DType.BYTES):
        return isinstance(value, str)
    if dtype is types.DType.BOOL:
        return isinstance(value, bool)
    if isinstance(value, (bool, str)) or not math.isfinite(value):
        return False
    if dtype in _FLOATS:
        return dtype is types.DType.FLOAT64 or abs(value) <= _LARGEST_FLOAT32
    bits = 31 if dtype is types.DType.INT32 else 63
    return value == int(value) and -(2**bits) <= value < 2**bits


def _located(path: tuple[str | int, ...], message: str, value: object) -> InitErrorDetails:
    """An error at a place inside the settings, so that the file's line can be shown."""
    return InitErrorDetails(type=PydanticCustomError("reference", message), loc=path, input=value)

"""The shared vocabulary: frozen values that stages hand to each other. Nothing here does I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal, NamedTuple

# --------------------------------------------------------------------------- schema


class DType(StrEnum):
    """What a field becomes in memory. A `datetime` is int64 milliseconds UTC, a `string` stays a string, `bytes` are
    BSON binary data as they are."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    STRING = "string"
    DATETIME = "datetime"
    BYTES = "bytes"


class Task(StrEnum):
    REGRESSION = "regression"
    CLASSIFICATION = "classification"


LARGEST_TARGET = 1e15
"""Of a regression's label: the squares of a batch's errors must add up to a float32."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One input of the model.

    field: dotted path into the document. length: number of elements of a fixed-length vector, None for a
    scalar. encoding: how a vector is stored (`list` of numbers, or little-endian float32 `binary`).
    missing: what replaces an absent, null or non-finite value; None sends such a document to the
    dead-letter topic. buckets: hash a string into this many integers before the model sees it.
    max_length: of a list of any length, whose last `max_length` elements are kept, and followed by `pad`
    (None: 0, or the empty string) up to that number; with `missing` an absent list is an empty one.
    """

    field: str
    dtype: DType
    length: int | None = None
    encoding: Literal["list", "binary"] = "list"
    missing: float | int | bool | str | None = None
    buckets: int | None = None
    max_length: int | None = None
    pad: float | int | bool | str | None = None

    @property
    def width(self) -> int | None:
        """Elements of a row's value: None for a scalar."""
        return self.length if self.max_length is None else self.max_length


@dataclass(frozen=True, slots=True)
class Label:
    """What the model predicts. classes: number of classes of a classification (labels are 0..classes-1).

    absent_after: seconds of cluster time after which a label that has not come is `absent_value`; None: it is waited
    for. They say when a document is learned, not how it is decoded, and are no part of the fingerprint.
    """

    field: str
    dtype: DType
    task: Task
    classes: int = 2
    absent_after: float | None = None
    absent_value: float | int | bool | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """What is read from a document. A document is labelled once all its label fields are present."""

    features: tuple[Feature, ...]
    labels: tuple[Label, ...]

    @property
    def longest_absence(self) -> float | None:
        """Seconds after which no document waits any more for labels that may be absent; None where none may."""
        return max((label.absent_after for label in self.labels if label.absent_after is not None), default=None)

    def fingerprint(self) -> str:
        """sha256 of the schema's canonical JSON: equal exactly when two schemas decode alike.

        Fields that came later than the first release are left out while they are at their default, so that a
        checkpoint of an older release fits the schema that it was written with.
        """
        parts = {
            "features": [_canonical(feature, _FIRST_FEATURE_FIELDS) for feature in self.features],
            "labels": [_canonical(label, _FIRST_LABEL_FIELDS) for label in self.labels],
        }
        canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


_FIRST_FEATURE_FIELDS = frozenset({"field", "dtype", "length", "encoding", "missing", "buckets"})
_FIRST_LABEL_FIELDS = frozenset({"field", "dtype", "task", "classes"})
_NOT_DECODED = frozenset({"absent_after", "absent_value"})


def _canonical(part: Feature | Label, always: frozenset[str]) -> dict[str, Any]:
    values = asdict(part)
    return {
        each.name: values[each.name]
        for each in fields(part)
        if each.name in always or (each.name not in _NOT_DECODED and getattr(part, each.name) != each.default)
    }


# --------------------------------------------------------------------------- source


class Operation(StrEnum):
    """What a change event did; the value is the one-letter form of the record header `op`."""

    INSERT = "i"
    UPDATE = "u"
    REPLACE = "r"
    DELETE = "d"


class ChangeEvent(NamedTuple):
    """A change of one document, as raw BSON slices of the wire bytes: nothing is re-encoded. A tuple rather
    than a dataclass: made once per event.

    token: raw BSON of the event's `_id`. document: raw BSON, or None (a delete, or an update whose
    document could not be found). document_key: raw BSON of `documentKey`. cluster_time: BSON timestamp
    as `seconds << 32 | increment`. wall_time_ms: UTC, None before MongoDB 6.0.
    """

    token: bytes
    operation: Operation
    namespace: str
    document_key: bytes
    document: bytes | None
    cluster_time: int
    wall_time_ms: int | None


class PositionKind(StrEnum):
    EVENT = "event"
    POST_BATCH = "post-batch"
    INVALIDATE = "invalidate"
    START = "start"  # a fresh stream: no token yet, only the cluster time it starts at


@dataclass(frozen=True, slots=True)
class Position:
    """How far a source's change stream has been published (DESIGN 6).

    counts: records published so far, per partition; so the next record of partition p carries `n ==
    counts[p]`. token is raw BSON, empty only for START. last_token: raw BSON of the last event that was
    published, empty if none was. cluster and pipeline are identities: a position of another cluster or
    another pipeline must never be resumed from.
    """

    stream: str
    kind: PositionKind
    token: bytes
    cluster_time: int
    last_token: bytes
    counts: tuple[int, ...]
    cluster: str
    pipeline: str
    namespaces: tuple[str, ...]
    publisher_epoch: int
    topic_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """What one committed transaction of a publisher added. partition_ends: of the partitions that it wrote
    to, the offset after the last record, and the records ever published there."""

    partition_ends: Mapping[int, tuple[int, int]]
    records: int
    bytes: int
    position: Position


# --------------------------------------------------------------------------- window


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `begin <= o < end` of one partition. It may hold fewer records: commit markers take offsets."""

    topic: str
    epoch: int
    partition: int
    begin: int
    end: int

    @property
    def span(self) -> int:
        return max(0, self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Learned:
    """Through where a partition has been learned: the next offset to read, and the `n` it will carry."""

    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class PartitionFrontier:
    """One partition as Kafka shows it: log start, last stable offset, and records ever published
    (None while that is not known, which is never the same as 0)."""

    begin: int
    end: int
    published: int | None


@dataclass(frozen=True, slots=True)
class Frontier:
    """What a topic holds now. as_of: monotonic clock seconds. version: grows whenever the end moves. watermark: a
    cluster time; every change before it is among the records that are counted as published (0: not known)."""

    topic: str
    epoch: int
    partitions: tuple[PartitionFrontier, ...]
    as_of: float
    version: int = 0
    watermark: int = 0

    def backlog(self, learned: Sequence[Learned]) -> int | None:
        """Records published and not learned: exact, or None while one count is missing or contradicts
        what was learned."""
        total = 0
        for partition, place in zip(self.partitions, learned, strict=True):
            if partition.published is None or partition.published < place.count:
                return None
            total += partition.published - place.count
        return total


class RetentionState(StrEnum):
    OK = "ok"
    NEAR = "near"  # what is untrained will soon be older than the topic keeps
    LOST = "lost"  # the log starts after what was learned: records are gone untrained
    AHEAD = "ahead"  # the log ends before what was learned: a re-created topic, or an unclean leader election


@dataclass(frozen=True, slots=True)
class Retention:
    """How far Kafka's retention is from what a job has not learned yet.

    partitions: those the state speaks of. headroom_s: seconds until the oldest untrained record expires,
    None when nothing is untrained or its age is not known.
    """

    state: RetentionState
    partitions: tuple[int, ...] = ()
    headroom_s: float | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """What is agreed before a round starts (DESIGN idea 4).

    number: counts from 0 within the lineage. fresh: the ranges to learn, one per partition. window_begins:
    rows below these offsets leave the memory before replay is drawn. replay: rows to replay per partition,
    drawn with `seed`. batch_size: global rows per step, over all ranks. scored: whether its rows count for
    prequential scores (a retrain learns again what was scored before, so its rounds do not). watermark: a cluster
    time before which every change has been learned once this round is: labels that are due by then are absent.
    redriven: ranges of the job's replay topic, one per partition (dead letters that somebody had replayed); () without.
    """

    number: int
    fresh: tuple[OffsetRange, ...]
    window_begins: tuple[int, ...]
    replay: tuple[int, ...]
    seed: int
    batch_size: int
    scored: bool = True
    watermark: int = 0
    redriven: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What a job says about its rounds (`round` of the config). seed: of the job."""

    max_wait_s: float
    max_records: int
    batch_size: int
    replay_ratio: float
    seed: int


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """All that the planner may look at. number: of the round to cut. planned: where the last planned round
    ends; its counts may be estimates. waiting_since: when the oldest unplanned record was first seen, None
    without one; the same monotonic clock as now. watermark: of the round before. next_absent: the cluster time that
    the watermark must pass for the next label to be absent; None without one, and while rounds are in flight.
    redriven: see Round."""

    number: int
    planned: tuple[Learned, ...]
    frontier: Frontier
    window_begins: tuple[int, ...]
    settings: PlanSettings
    waiting_since: float | None
    now: float
    scored: bool = True
    watermark: int = 0
    next_absent: int | None = None
    redriven: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """A round, and where planning goes on after it."""

    round: Round
    planned: tuple[Learned, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """No round yet. until: monotonic seconds; None: until more is published."""

    until: float | None


# --------------------------------------------------------------------------- reports, manifests


@dataclass(frozen=True, slots=True)
class Scores:
    """Sums over scored rows of one label, mergeable by addition: divide by `weight` at the end.

    loss: weighted sum of per-row losses. sums: per metric the weighted sum that its value is computed
    from (`absolute_error`, `squared_error`, `correct`, ...). positives, negatives: histograms of the
    predicted score of class 1 (binary classification), for AUC.
    """

    rows: int = 0
    weight: float = 0.0
    loss: float = 0.0
    sums: Mapping[str, float] = field(default_factory=dict)
    positives: tuple[float, ...] = ()
    negatives: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundCounts:
    """What became of the records of a round. The number of records read is the sum of learned, waiting, deletes,
    dead_letters, skipped, unchanged, filtered, forgotten and held_out."""

    learned: int = 0  # labelled versions that entered the fresh path
    waiting: int = 0  # versions without their label
    deletes: int = 0
    dead_letters: int = 0
    skipped: int = 0  # an update whose document was gone when it was looked up
    replayed: int = 0
    late_labels: int = 0  # of `learned` and `held_out`: the document had been waiting for its label
    expelled: int = 0  # versions that were replayed until the model could not take them any more
    unchanged: int = 0  # labelled versions that say the same as the one before: not learned again
    filtered: int = 0  # versions that the job's filter turns away
    forgotten: int = 0  # versions of documents that are deleted further on: not learned any more
    held_out: int = 0  # labelled versions of documents that are held out: scored, never learned
    absent_labels: int = 0  # documents whose label did not come in time: learned (or held out) beside the records read
    labels_after_absent: int = 0  # of `learned` and `held_out`: the document's label had been absent
    lost_waiting: int = 0  # documents that waited, and of which Kafka holds too little to learn them as they were
    redriven: int = 0  # of `learned` and `held_out`: dead letters that were replayed

    def __add__(self, other: RoundCounts) -> RoundCounts:
        return RoundCounts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class Norms:
    """L2 norms of the steps that were applied, over all weights: of the gradient that the optimizer was given (sum over
    `steps`, and the largest), and of what a step moved the weights by (of `updates` of the steps)."""

    steps: int = 0
    gradient_sum: float = 0.0
    gradient_max: float = 0.0
    updates: int = 0
    update_sum: float = 0.0
    update_max: float = 0.0

    def __add__(self, other: Norms) -> Norms:
        return Norms(
            steps=self.steps + other.steps,
            gradient_sum=self.gradient_sum + other.gradient_sum,
            gradient_max=max(self.gradient_max, other.gradient_max),
            updates=self.updates + other.updates,
            update_sum=self.update_sum + other.update_sum,
            update_max=max(self.update_max, other.update_max),
        )


@dataclass(frozen=True, slots=True)
class FieldCounts:
    """How often a round's documents held something else than usual in a field (`trainer/field_statistics.py`)."""

    missing: int = 0  # absent, null, or not finite where `missing` stands in for it
    coerced: int = 0  # of another BSON type than the field's, and taken exactly
    unseen: int = 0  # a string that had not been seen before
    out_of_range: int = 0  # a number beyond what was seen before, or too large for the field

    def __add__(self, other: FieldCounts) -> FieldCounts:
        return FieldCounts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What a generation did in a round. A rank reports its own partitions in `learned`, `counts`,
    `dead_letter_reasons` and `freshness_ms`; `steps` and `scores` are the same on every rank.

    freshness_ms: counts per bucket of `FRESHNESS_BUCKETS_MS` of (gradient applied - wall time of the
    write). timings: seconds by stage (`read`, `decode`, `memory`, `step`, `total`). holdout: as `scores`, of the
    rows that are never learned from. fields: per field of the schema. expelled: offsets, per partition, of versions
    that the model could not take: they have left the memory and must not come back to it. waiting: documents that
    wait for a label. next_absent: see PlanRequest. label_latency: counts per bucket of `LABEL_LATENCY_BUCKETS_S` of
    the time from a waiting document's first version to its label, by cluster time. redriven: the offset through
    which it has read the job's replay topic, per partition of which it has read something.
    """

    round: int
    learned: Mapping[int, Learned]
    counts: RoundCounts
    steps: int
    scores: Mapping[str, Scores]
    dead_letter_reasons: Mapping[str, int]
    freshness_ms: tuple[int, ...]
    timings: Mapping[str, float]
    memory_rows: int = 0
    memory_bytes: int = 0
    holdout: Mapping[str, Scores] = field(default_factory=dict)
    norms: Norms = field(default_factory=Norms)
    fields: Mapping[str, FieldCounts] = field(default_factory=dict)
    expelled: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    waiting: int = 0
    next_absent: int | None = None
    label_latency: tuple[int, ...] = ()
    redriven: Mapping[int, int] = field(default_factory=dict)


# Upper bounds, in milliseconds, of the freshness histogram: about 12 % apart; a last bucket holds the rest.
FRESHNESS_BUCKETS_MS: tuple[float, ...] = tuple(round(1.122**i, 3) for i in range(130))

# Upper bounds, in seconds, of the histogram of how long labels take, up to 110 days; a last bucket holds the rest.
LABEL_LATENCY_BUCKETS_S: tuple[float, ...] = tuple(round(1.25**i, 3) for i in range(73))


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """A file in the artifact store. sha256 in hex, bytes is its size."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The only truth of what was learned (DESIGN idea 6): an immutable document.

    id: `<job>/<lineage>/<sequence>`. epoch: the lease's fencing epoch. learned: per partition, offsets and counts
    that the weights contain. scores: totals since the lineage began, per label. artifacts: by role (`state`:
    weights and optimizer, `keras`: the `.keras` file, `waiting-N`: what waits for a label in the partitions of rank
    N). retrain_until: places through which the weights that this lineage began with had learned already: rows
    before them are not scored; None beyond, and with new weights. holdout: as `scores`, of the rows that are never
    learned from. expelled: per partition, the offsets inside the window of versions that the model could not take.
    watermark: of the last round. hyper: what this lineage is learned with in place of what the job's `hyper` says
    under the same keys. begins: offsets at which the lineage began to read; not known in manifests of the first
    releases. redriven: per partition, the offset through which the job's replay topic was learned.
    """

    id: str
    job: str
    lineage: str
    sequence: int
    parent: str | None
    epoch: int
    generation: int
    created_ms: int
    topic: str
    topic_epoch: int
    learned: tuple[Learned, ...]
    window_begins: tuple[int, ...]
    rounds: int
    steps: int
    rows_learned: int
    counts: RoundCounts
    scores: Mapping[str, Scores]
    artifacts: Mapping[str, ArtifactRef]
    schema_fingerprint: str
    model_fingerprint: str
    retrain_until: tuple[Learned, ...] | None = None
    holdout: Mapping[str, Scores] = field(default_factory=dict)
    expelled: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    watermark: int = 0
    hyper: Mapping[str, Any] = field(default_factory=dict)
    begins: tuple[int, ...] = ()
    redriven: tuple[int, ...] = ()


# --------------------------------------------------------------------------- retrain


class RetrainState(StrEnum):
    LEARNING = "learning"  # its range
    READY = "ready"  # at its end; it stays until it is promoted or cancelled
    PROMOTING = "promoting"  # learns what the job has learned since, and then takes the job's place


@dataclass(frozen=True, slots=True)
class Retrain:
    """A lineage that is learned beside the running job. It is kept in the job's document until it is promoted or
    cancelled, so that a restart goes on with it.

    topic: whose offsets these are. base: the manifest whose weights it begins with; None: new ones. begins, end: its
    range, per partition. watermark: a cluster time before which every change lies in the range (0: not known).
    forget_through: offsets per partition; a document that is deleted before them is not learned. workers: processes.
    promote: whether it takes the job's place as soon as it has learned its range. since_ms, until_ms: the times that
    were asked for, for people. head: its newest manifest. hyper: see Manifest.
    """

    job: str
    lineage: str
    state: RetrainState
    topic: str
    base: str | None
    hyper: Mapping[str, Any]
    workers: int
    begins: tuple[Learned, ...]
    end: tuple[Learned, ...]
    watermark: int
    forget_through: tuple[int, ...]
    promote: bool
    created_ms: int
    since_ms: int | None = None
    until_ms: int | None = None
    head: str | None = None

    @property
    def records(self) -> int:
        """In its range."""
        return sum(end.count - begin.count for begin, end in zip(self.begins, self.end, strict=True))

"""Every Prometheus metric of the project, once, with its help text. Units are in the names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, Info
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from streamtrain.types import FRESHNESS_BUCKETS_MS, LABEL_LATENCY_BUCKETS_S

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class CountedHistogram(Collector):
    """A histogram that is given counts per bucket instead of single observations. Of its fine buckets it
    exports each `every`-th bound, since Prometheus keeps a series for each."""

    def __init__(self, name: str, help: str, *, label: str, bounds: Sequence[float], every: int) -> None:
        self._name, self._help, self._label = name, help, label
        self._bounds = tuple(bounds)
        self._every = every
        self._counts: dict[str, list[int]] = {}
        REGISTRY.register(self)

    def add(self, label: str, counts: Sequence[int]) -> None:
        """counts: one per bound, and one for what is above the last."""
        kept = self._counts.setdefault(label, [0] * (len(self._bounds) + 1))
        for bucket, count in enumerate(counts):
            kept[bucket] += count

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._help, labels=[self._label])]

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=[self._label])
        for label, counts in list(self._counts.items()):
            cumulative = list(accumulate(counts))
            exported = range(self._every - 1, len(self._bounds), self._every)
            buckets = [(f"{self._bounds[bucket]:g}", float(cumulative[bucket])) for bucket in exported]
            middles = (*self._bounds[:1], *self._bounds)
            total = sum(count * middle for count, middle in zip(counts, middles, strict=True))
            family.add_metric([label], [*buckets, ("+Inf", float(cumulative[-1]))], sum_value=total)
        return [family]


# --------------------------------------------------------------------------- the process

BUILD = Info("streamtrain_build", "The version that runs.")
READY = Gauge(
    "streamtrain_ready", "1 while the part does its work, 0 while it does not (see /readyz for why).", ["part"]
)
LEASE_HELD = Gauge(
    "streamtrain_lease_held", "1 while this process holds the deployment's lease and may publish and commit."
)
LEASE_EPOCH = Gauge("streamtrain_lease_epoch", "Fencing epoch of the lease that this process holds.")
LOOP_LAG = Gauge("streamtrain_event_loop_lag_seconds", "How late the daemon's event loop last ran a timer.")

# --------------------------------------------------------------------------- source

SOURCE_EVENTS = Counter("streamtrain_source_events", "Change events published to Kafka.", ["source"])
SOURCE_BYTES = Counter("streamtrain_source_bytes", "Bytes of documents published to Kafka.", ["source"])
SOURCE_LAG = Gauge(
    "streamtrain_source_lag_seconds",
    "Age, at publishing, of the newest event published: how far the source is behind the collection.",
    ["source"],
)
SOURCE_TRANSACTIONS = Counter(
    "streamtrain_source_transactions",
    "Kafka transactions that a source committed: records with their position.",
    ["source"],
)
SOURCE_STATE = Gauge(
    "streamtrain_source_state", "1 for the state the source is in, 0 for the others.", ["source", "state"]
)
SOURCE_RESTARTS = Counter(
    "streamtrain_source_restarts", "Times a source was started again after a failure.", ["source", "reason"]
)
SOURCE_DEAD_LETTERS = Counter(
    "streamtrain_source_dead_letters", "Change events that could not become records.", ["source", "reason"]
)

# --------------------------------------------------------------------------- window

BACKLOG = Gauge("streamtrain_backlog_records", "Published records that the job has not learned yet.", ["job"])
OLDEST_UNTRAINED = Gauge(
    "streamtrain_oldest_untrained_seconds",
    "Age of the oldest published record that the job has not learned yet.",
    ["job"],
)
RETENTION_HEADROOM = Gauge(
    "streamtrain_retention_headroom_seconds",
    "Until Kafka removes the oldest record that the job has not learned; +Inf when it has learned all.",
    ["job"],
)
RETENTION_STATE = Gauge(
    "streamtrain_retention_state",
    "1 for the state the job's topic is in: ok, near (untrained records expire soon), lost (some have), "
    "ahead (the log ends before what was learned).",
    ["job", "state"],
)

# --------------------------------------------------------------------------- training

PHASE = Gauge("streamtrain_job_phase", "1 for the phase the job is in, 0 for the others.", ["job", "phase"])
WORKERS = Gauge("streamtrain_job_workers", "Workers in the job's present generation.", ["job"])
GENERATIONS = Counter("streamtrain_job_generations", "Worker generations that were formed.", ["job"])
WORKER_FAILURES = Counter(
    "streamtrain_worker_failures", "Generations that ended by a failure, by kind.", ["job", "kind"]
)
RECORDS = Counter(
    "streamtrain_records",
    "Records read by rounds: learned, waiting (no label yet), deletes, dead_letters, skipped (document gone), "
    "unchanged (says what the version before it said), filtered (turned away by the job's filter), forgotten (in a "
    "retrain: deleted before it began), held_out (scored, never learned).",
    ["job", "outcome"],
)
REPLAYED = Counter("streamtrain_rows_replayed", "Rows replayed from the window.", ["job"])
LATE_LABELS = Counter("streamtrain_late_labels", "Learned documents that had been waiting for their label.", ["job"])
WAITING = Gauge("streamtrain_waiting_documents", "Documents that wait for a label.", ["job"])
ABSENT_LABELS = Counter(
    "streamtrain_absent_labels", "Documents learned with the absent_value of a label that had not come.", ["job"]
)
LABELS_AFTER_ABSENT = Counter(
    "streamtrain_labels_after_absent", "Labels that came after their document had been learned without.", ["job"]
)
LOST_WAITING = Counter(
    "streamtrain_lost_waiting",
    "Documents that waited for a label, and of which Kafka held too little to learn them as they were.",
    ["job"],
)
LABEL_LATENCY = CountedHistogram(
    "streamtrain_label_latency_seconds",
    "From the first version of a document that waited to the one with its label, by MongoDB's clock.",
    label="job",
    bounds=LABEL_LATENCY_BUCKETS_S,
    every=6,
)
DEAD_LETTERS = Counter(
    "streamtrain_dead_letters", "Records sent to the job's dead-letter topic, by reason.", ["job", "reason"]
)
ROUNDS = Counter("streamtrain_rounds", "Rounds trained.", ["job"])
STEPS = Counter("streamtrain_steps", "Gradient steps applied.", ["job"])
ROUND_SECONDS = Histogram(
    "streamtrain_round_seconds",
    "Seconds of a round, of its slowest rank, by stage.",
    ["job", "stage"],
    buckets=_SECONDS,
)
LOSS = Gauge("streamtrain_prequential_loss", "Mean prequential loss of the last scored round.", ["job", "label"])
SCORE = Gauge(
    "streamtrain_prequential_score", "Prequential metric over the last scored rounds.", ["job", "label", "metric"]
)
HOLDOUT_LOSS = Gauge(
    "streamtrain_holdout_loss", "Mean loss over the rows of the last ten minutes that are held out.", ["job", "label"]
)
HOLDOUT_SCORE = Gauge(
    "streamtrain_holdout_score",
    "Metric over the rows of the last ten minutes that are held out: never learned from.",
    ["job", "label", "metric"],
)
GRADIENT_NORM = Gauge(
    "streamtrain_gradient_norm", "L2 norm of the gradients of the last round's steps: mean and max.", ["job", "stat"]
)
UPDATE_NORM = Gauge(
    "streamtrain_update_norm",
    "L2 norm of what steps of the last round moved the weights by, measured every 16th: mean and max.",
    ["job", "stat"],
)
EXPELLED = Counter(
    "streamtrain_rows_expelled",
    "Versions taken out of the window's memory since the model could not learn from them any more.",
    ["job"],
)
FIELD_VALUES = Counter(
    "streamtrain_field_values",
    "Unusual values among the documents read: missing, coerced (of another BSON type, taken exactly), unseen (a string "
    "not seen before), out_of_range (a number far beyond what was seen before, or that the field cannot hold).",
    ["job", "field", "kind"],
)
FRESHNESS = CountedHistogram(
    "streamtrain_freshness_seconds",
    "From the write in MongoDB to the gradient, of fresh rows.",
    label="job",
    bounds=tuple(bound / 1000 for bound in FRESHNESS_BUCKETS_MS),
    every=6,
)
FRESHNESS_QUANTILE = Gauge(
    "streamtrain_freshness_quantile_seconds",
    "Freshness over the last rounds, from a finer histogram.",
    ["job", "quantile"],
)
MEMORY_ROWS = Gauge("streamtrain_memory_rows", "Documents in the workers' memory of the window.", ["job"])
MEMORY_BYTES = Gauge("streamtrain_memory_bytes", "Bytes that the workers' memory of the window takes.", ["job"])

# --------------------------------------------------------------------------- checkpoints

CHECKPOINTS = Counter("streamtrain_checkpoints", "Manifests committed.", ["job"])
CHECKPOINT_SECONDS = Histogram(
    "streamtrain_checkpoint_seconds",
    "Seconds from asking for a save to its manifest's commit.",
    ["job"],
    buckets=_SECONDS,
)
CHECKPOINT_TIME = Gauge(
    "streamtrain_checkpoint_time_seconds", "When the job's newest manifest was committed, Unix time.", ["job"]
)

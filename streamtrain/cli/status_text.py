"""The status of `GET /v1/status` as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from streamtrain.cli import retrain_command

_FIELDS = 8  # that are told of


def render(status: Mapping[str, Any]) -> str:
    return "\n".join(_lines(status))


def _lines(status: Mapping[str, Any]) -> Iterator[str]:
    lease = status["lease"]
    held = f"holds the lease, epoch {lease['epoch']}" if lease["held"] else "does not hold the lease"
    yield f"streamtrain {status['version']}, pid {status['pid']}, up {status['uptime_s']:.0f} s, {held}"
    for part, reason in sorted(status["not_ready"].items()):
        yield f"not ready: {part}: {reason}"
    for name, source in status["sources"].items():
        yield f"source {name}: {source['state']}, {source['published']:,} events published"
    for name, job in status["jobs"].items():
        yield f"job {name}: {job['phase']}, {job['workers']} workers, generation {job['generation']}"
        yield from (f"  {line}" for line in _job(job))


def _job(job: Mapping[str, Any]) -> Iterator[str]:
    if job.get("reason"):
        yield f"reason: {job['reason']}"
    backlog = "not known" if job.get("backlog") is None else f"{job['backlog']:,} records"
    yield f"learned {job['rows_learned']:,} rows in {job['steps']:,} steps; backlog {backlog}"
    freshness = job["report"]["freshness_ms"]
    if freshness["p50"] is not None:
        yield f"freshness p50 {freshness['p50']:.0f} ms, p99 {freshness['p99']:.0f} ms"
    yield from _waiting(job["report"])
    for label, values in job["report"]["recent_scores"].items():
        scores = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if name != "rows")
        yield f"{label}: {scores} over the last {values['rows']:,} scored rows"
    for label, values in job["report"]["recent_holdout"].items():
        scores = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if name != "rows")
        yield f"{label}, held out: {scores} over the last {values['rows']:,} rows"
    norms = job["report"]["norms"]
    if norms["gradient"]:
        told = ", ".join(
            f"{name} norm {found['mean']:.3g} (max {found['max']:.3g})" for name, found in norms.items() if found
        )
        yield f"last round: {told}"
    yield from _fields(job["report"]["fields"])
    if job["report"]["dead_letter_reasons"]:
        reasons = ", ".join(
            f"{reason} {count:,}" for reason, count in sorted(job["report"]["dead_letter_reasons"].items())
        )
        yield f"dead letters: {reasons}"
    if job.get("checkpoint"):
        yield f"newest manifest {job['checkpoint']['id']}, {job['checkpoint']['age_s']:.0f} s old"
    if job.get("hyper"):
        yield "hyper-parameters of this lineage: " + ", ".join(f"{key}={value}" for key, value in job["hyper"].items())
    yield from retrain_command.lines(job.get("retrains", ()))


def _waiting(report: Mapping[str, Any]) -> Iterator[str]:
    """Of labels that come later than their document, or not at all."""
    counts, latency = report["records"], report["label_latency_s"]
    told = [f"{report['waiting']:,} documents wait for a label"] if report["waiting"] else []
    if latency["p50"] is not None:
        told.append(f"labels took p50 {latency['p50']:.0f} s, p99 {latency['p99']:.0f} s")
    told += [
        f"{counts[name]:,} {words}"
        for name, words in (
            ("absent_labels", "absent"),
            ("labels_after_absent", "came after that"),
            ("lost_waiting", "lost: Kafka held their documents no more"),
        )
        if counts[name]
    ]
    if told:
        yield "labels: " + ", ".join(told)


def _fields(fields: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """The fields with the most unusual values."""
    most = sorted(fields, key=lambda field: -sum(fields[field].values()))
    for field in most[:_FIELDS]:
        kinds = ", ".join(f"{kind.replace('_', ' ')} {count:,}" for kind, count in fields[field].items() if count)
        yield f"field {field}: {kinds}"
    if len(most) > _FIELDS:
        yield f"and {len(most) - _FIELDS} more fields with unusual values (status --json)"

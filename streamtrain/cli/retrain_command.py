"""`streamtrain retrain`: what is asked of the daemon, and its answer for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from streamtrain.client import AdminClient
from streamtrain.errors import UsageError


def begin(
    client: AdminClient,
    job: str,
    *,
    start: str,
    since: str | None,
    until: str | None,
    hyper: Sequence[str],
    workers: int | None,
    promote: bool,
) -> dict[str, Any]:
    """hyper: `key=value` each. Raises UsageError."""
    asked = {"from": start, "since": since, "until": until, "hyper": _pairs(hyper), "workers": workers}
    return client.retrain(job, {key: value for key, value in asked.items() if value} | {"promote": promote})


def act(client: AdminClient, job: str, lineage: str, *, promote: bool, cancel: bool) -> dict[str, Any]:
    """On a retrain that was begun; with neither it is shown."""
    if promote and cancel:
        raise UsageError("--promote and --cancel cannot both be meant")
    if cancel:
        return client.cancel_retrain(job, lineage) | {"cancelled": True}
    if promote:
        return client.promote_retrain(job, lineage) | {"promoted": True}
    for found in client.retrains(job)["retrains"]:
        if found["lineage"] == lineage:
            return dict(found)
    raise UsageError(f"job {job} has no retrain {lineage!r}")


def begun_text(found: Mapping[str, Any], *, promote: bool) -> str:
    job, lineage = found["job"], found["lineage"]
    then = (
        "it takes the job's place as soon as it has learned them"
        if promote
        else f"then: streamtrain retrain {job} {lineage} --promote, or --cancel"
    )
    return (
        f"{job}: retraining {found['records']:,} records from {found['from']} in the lineage {lineage}\n"
        f"{then}; `streamtrain status` shows the progress"
    )


def acted_text(job: str, lineage: str, found: Mapping[str, Any]) -> str:
    if found.get("cancelled"):
        return f"{job}: the retrain {lineage} is cancelled"
    if found.get("promoted"):
        return f"{job}: {lineage} takes the job's place as soon as it has learned what the job has"
    return "\n".join(lines([found]))


def lines(retrains: Sequence[Mapping[str, Any]]) -> list[str]:
    """One or more for each retrain of `GET /v1/status`."""
    return [line for retrain in retrains for line in _lines(retrain)]


def _lines(retrain: Mapping[str, Any]) -> list[str]:
    text = f"retrain {retrain['lineage']} from {retrain['from']}: {retrain['state']}"
    if retrain["state"] == "ready":
        text += f", {retrain['records']:,} records learned"
    else:
        text += f", {retrain['progress']:.0%} of {retrain['records']:,} records"
    if retrain["eta_s"]:
        text += f", about {_duration(retrain['eta_s'])} left"
    if retrain["hyper"]:
        text += ", with " + ", ".join(f"{key}={value}" for key, value in retrain["hyper"].items())
    found = [text]
    if retrain["reason"]:
        found.append(f"  reason: {retrain['reason']}")
    for label, values in retrain["scores"].items():
        scores = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if name != "rows")
        found.append(f"  {label}: {scores} over its own {values['rows']:,} rows")
    return found


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{max(1, whole)} s"
    minutes, left = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _pairs(texts: Sequence[str]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--hyper {text}: must be written key=value")
        pairs[key] = _value(value)
    return pairs


def _value(text: str) -> Any:
    """JSON, or else a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text

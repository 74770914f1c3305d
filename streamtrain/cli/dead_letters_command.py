"""What `dead-letters list` and `dead-letters replay` do. They ask Kafka; a running daemon does the learning."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from streamtrain.clock import SystemClock
from streamtrain.config import Settings
from streamtrain.errors import UsageError
from streamtrain.redrive.redrive import Redrive


def listed(settings: Settings, job: str, *, reason: str | None, field: str | None) -> dict[str, Any]:
    """The job's letters by reason. Raises UsageError for a job that is not configured."""
    reasons = asyncio.run(_redrive(settings, job).reasons(reason=reason, field=field))
    return {"job": job, "reasons": [asdict(each) for each in reasons]}


def list_text(found: Mapping[str, Any]) -> str:
    if not found["reasons"]:
        return f"{found['job']}: no dead letters"
    lines = [f"{found['job']}: {sum(each['letters'] for each in found['reasons']):,} dead letters"]
    for each in found["reasons"]:
        replayed = f", {each['replayed']:,} replayed" if each["replayed"] else ""
        lines.append(
            f"  {each['letters']:>9,}  {each['reason']}{replayed}, "
            f"{_time(each['first_ms'])} to {_time(each['last_ms'])}, such as {each['example']}"
        )
    return "\n".join(lines)


def replay(settings: Settings, job: str, *, reason: str | None, field: str | None) -> dict[str, Any]:
    """How many letters were replayed by reason, and how many were not by why."""
    found = asyncio.run(_redrive(settings, job).replay(reason=reason, field=field))
    return {"job": job, **asdict(found)}


def replay_text(found: Mapping[str, Any]) -> str:
    lines = [f"{found['job']}: {sum(found['replayed'].values()):,} dead letters are learned once more"]
    lines += [f"  {number:>9,}  {reason}" for reason, number in sorted(found["replayed"].items())]
    left = {why: number for why, number in found["left"].items() if why != "not asked for"}
    lines += [f"  {number:>9,}  not: {why}" for why, number in sorted(left.items())]
    return "\n".join(lines)


def _redrive(settings: Settings, name: str) -> Redrive:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would say is in the errors
    for job in settings.jobs:
        if job.name == name:
            source = next(source for source in settings.sources if source.name == job.source)
            return Redrive(job=job, source=source, kafka=settings.kafka, clock=SystemClock())
    names = ", ".join(job.name for job in settings.jobs)
    raise UsageError(f"there is no job {name!r}", hint=f"the settings have {names}")


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")

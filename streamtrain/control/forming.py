"""Where a generation starts from: the head manifest, a retrain of it, or the window's begin of a fresh job."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, SecretStr

from streamtrain import config
from streamtrain.control.progress import Progress, of_manifest, retrained, same_topic, skip_removed
from streamtrain.errors import ConfigError, OffsetError
from streamtrain.ports import ManifestPort, OffsetsPort
from streamtrain.types import Learned, Manifest, RetentionState


@dataclass(frozen=True, slots=True)
class Retrain:
    """A retrain that was asked for and is not in the head manifest yet."""

    lineage: str
    from_scratch: bool


@dataclass(frozen=True, slots=True)
class Start:
    """head: the newest manifest, None for a fresh job. restore: the manifest whose weights are restored."""

    head: Manifest | None
    progress: Progress
    restore: Manifest | None


async def find_start(
    *,
    job: config.Job,
    offsets: OffsetsPort,
    manifests: ManifestPort,
    retrain: Retrain | None,
    lineage: str,
    epoch: int,
) -> Start:
    """lineage: the id of a fresh job's first lineage.

    Raises ConfigError when the head does not fit the job as it is configured, OffsetError when it has learned from
    another topic, or when records between what was learned and what Kafka holds are gone.
    """
    head = await manifests.claim(job.name, epoch=epoch)
    window = await offsets.window_begins(job.window.duration, job.window.max_records)
    if head is None:
        learned = await offsets.locate(window)
        return Start(None, Progress(lineage=lineage, learned=learned, window_begins=window), None)
    pending = retrain is not None and head.lineage != retrain.lineage
    from_scratch = pending and retrain is not None and retrain.from_scratch
    if head.schema_fingerprint != job.schema_().fingerprint() and not from_scratch:
        raise ConfigError(
            f"the features or labels of job {job.name} are not those that its checkpoint was trained with",
            hint=f"restore them, or learn anew: streamtrain retrain {job.name} --from scratch",
        )
    if pending and retrain is not None:
        begins = await offsets.locate(window)
        progress = retrained(head, lineage=retrain.lineage, begins=begins, frontier=await offsets.frontier())
        return Start(head, progress, None if from_scratch else head)
    if not same_topic(head, frontier := await offsets.frontier()):
        raise OffsetError(
            f"job {job.name} has learned from the topic {head.topic} with {len(head.learned)} partitions; "
            f"its source now writes {frontier.topic} with {len(frontier.partitions)}",
            hint=f"set back what was changed, or learn what the topic holds now: streamtrain retrain {job.name}",
        )
    await check_retention(job.name, offsets, head.learned)
    learned = skip_removed(head.learned, await offsets.frontier())
    return Start(head, replace(of_manifest(head), learned=learned), head)


async def check_retention(job: str, offsets: OffsetsPort, learned: tuple[Learned, ...]) -> None:
    """Raises OffsetError when going on from `learned` would silently leave records out."""
    retention = await offsets.retention(learned, None)
    where = ", ".join(map(str, retention.partitions[:5]))
    if retention.state is RetentionState.LOST:
        raise OffsetError(
            f"Kafka has removed records that job {job} had not learned, in partitions {where}",
            hint=f"go on with what the window still holds: streamtrain retrain {job}",
        )
    if retention.state is RetentionState.AHEAD:
        raise OffsetError(
            f"the topic of job {job} ends before what was learned, in partitions {where}: it was created again, "
            "or lost records",
            hint=f"learn what it holds now: streamtrain retrain {job}",
        )


def new_lineage(now: float) -> str:
    """Sorts by time; unique, because two daemons may name one in the same second."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dt%H%M%S}-{secrets.token_hex(3)}"


def revealed(section: BaseModel) -> dict[str, Any]:
    """A config section as a document for a worker, secrets in clear: to be sent, never to be logged."""
    return {key: _reveal(value) for key, value in section.model_dump().items()}


def _reveal(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: _reveal(item) for key, item in value.items()}
    return value

"""What `models list` and `models export` do: look manifests up, and have a process of its own export one. Nothing here
imports TensorFlow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from streamtrain.artifacts import open_store
from streamtrain.cli.trainer_process import ask
from streamtrain.codec import to_document
from streamtrain.config import Job, Settings
from streamtrain.daemon import state_store
from streamtrain.errors import ArtifactError, UsageError
from streamtrain.registry.store import ManifestStore
from streamtrain.scores import metrics
from streamtrain.types import Manifest

EXPORT_TIMEOUT_S = 600.0
ATTEMPTS = 3  # a head may be superseded and pruned before its artifacts have been read


def listed(settings: Settings, job: str | None) -> dict[str, Any]:
    """By job, its manifests that are there, newest first. Raises UsageError for a job that is not configured."""
    jobs = [_job(settings, job)] if job is not None else list(settings.jobs)
    return {"jobs": {each.name: _listed(each, *asyncio.run(_stored(settings, each))) for each in jobs}}


def list_text(found: Mapping[str, Any]) -> str:
    return "\n".join(line for name, manifests in found["jobs"].items() for line in _lines(name, manifests))


def export(
    settings: Settings, job_name: str, *, to: Path, manifest_id: str | None, savedmodel: bool, keras: bool
) -> dict[str, Any]:
    """What was exported (`trainer.export_process.Exported`). Raises UsageError when the job or the manifest is not
    there, DependencyError, ModelError or ArtifactError when it cannot be exported; then nothing has changed."""
    job = _job(settings, job_name)
    attempts = 1 if manifest_id is not None else ATTEMPTS
    while True:
        attempts -= 1
        manifest = asyncio.run(_wanted(settings, job, manifest_id))
        request = {
            "job": job.model_dump(mode="json"),
            "manifest": to_document(manifest),
            "artifacts": state_store.artifact_options(settings),
            "directory": str(to.resolve()),
            "savedmodel": savedmodel,
            "keras": keras,
        }
        try:
            found: dict[str, Any] = ask(
                "streamtrain.trainer.export_process",
                json.dumps(request),
                timeout=EXPORT_TIMEOUT_S,
                doing=f"exporting model {job.model!r} of job {job.name}",
            )["exported"]
            return found
        except ArtifactError:
            if attempts <= 0 or asyncio.run(_wanted(settings, job, None)).id == manifest.id:
                raise


def export_text(found: Mapping[str, Any]) -> str:
    lines = [f"{found['manifest']} is now {found['path']}"]
    if found["signature"] is not None:
        taken = ", ".join(found["signature"]["inputs"].values())
        given = ", ".join(name for answer in found["signature"]["outputs"].values() for name in answer.values())
        lines.append(f"  SavedModel: serving_default takes {taken} and gives {given}")
    if found["without_keras"]:
        lines.append(f"  no .keras file: {found['without_keras']}")
    elif "model.keras" in found["files"]:
        lines.append("  model.keras: the model as it was built")
    return "\n".join(lines)


# ------------------------------------------------------------------ manifests


def _job(settings: Settings, name: str) -> Job:
    for job in settings.jobs:
        if job.name == name:
            return job
    names = ", ".join(job.name for job in settings.jobs)
    raise UsageError(f"there is no job {name!r}", hint=f"the settings have {names}")


async def _stored(settings: Settings, job: Job) -> tuple[str | None, Sequence[Manifest]]:
    """The head's id, and all manifests."""
    async with _manifests(settings) as manifests:
        head = await manifests.head(job.name)
        return None if head is None else head.id, await manifests.stored(job.name)


async def _wanted(settings: Settings, job: Job, manifest_id: str | None) -> Manifest:
    async with _manifests(settings) as manifests:
        if manifest_id is None:
            head = await manifests.head(job.name)
            if head is None:
                raise UsageError(
                    f"job {job.name} has saved nothing yet", hint="its first manifest comes with checkpoint.every"
                )
            return head
        found = await manifests.read(manifest_id)
    if found is None or found.job != job.name:
        raise UsageError(
            f"job {job.name} has no manifest {manifest_id!r}",
            hint=f"`streamtrain models list {job.name}` names those that are kept (checkpoint.keep)",
        )
    return found


@asynccontextmanager
async def _manifests(settings: Settings) -> AsyncIterator[ManifestStore]:
    client = state_store.connect(settings)
    artifacts = open_store(state_store.artifact_options(settings))
    try:
        yield ManifestStore(database=client[settings.state.database], artifacts=artifacts)
    finally:
        artifacts.close()
        await client.close()


def _listed(job: Job, head: str | None, manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    schema = job.schema_()
    return [
        {
            "id": manifest.id,
            "head": manifest.id == head,
            "created_ms": manifest.created_ms,
            "lineage": manifest.lineage,
            "rounds": manifest.rounds,
            "steps": manifest.steps,
            "rows_learned": manifest.rows_learned,
            "bytes": sum(artifact.bytes for artifact in manifest.artifacts.values()),
            "fits": manifest.schema_fingerprint == schema.fingerprint(),
            "scores": {
                label.field: {"rows": scores.rows, **metrics(label, scores)}
                for label in schema.labels
                if (scores := manifest.scores.get(label.field)) is not None
            },
        }
        for manifest in manifests
    ]


def _lines(job: str, manifests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{job}:" if manifests else f"{job}: nothing saved yet"
    for manifest in manifests:
        at = datetime.fromtimestamp(manifest["created_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        notes = [f"{manifest['rows_learned']:,} rows learned", f"{manifest['bytes'] / 2**20:.1f} MiB"]
        for label, values in manifest["scores"].items():
            scores = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if name != "rows")
            notes += [f"{label}: {scores}"] if scores else []
        notes += [] if manifest["fits"] else ["of other features or labels than the settings have now"]
        yield f"{'*' if manifest['head'] else ' '} {manifest['id']}  {at}  {'; '.join(notes)}"

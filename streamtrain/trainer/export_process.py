"""`python -m streamtrain.trainer.export_process`: exports what a manifest says a job has learned, and answers on
stdout, as JSON. A process of its own without a GPU, so that training never waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from streamtrain import __version__, config
from streamtrain.artifacts import open_store
from streamtrain.clock import Clock, SystemClock
from streamtrain.codec import from_document
from streamtrain.errors import ArtifactError, ModelError, StreamtrainError
from streamtrain.scores import metrics
from streamtrain.trainer.version_folder import VersionFolder
from streamtrain.trainer.worker import quieten
from streamtrain.types import Manifest, Schema, Scores

RECORD_NAME = "streamtrain.json"
KERAS_NAME = "model.keras"


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. artifacts: how their store is opened; holds a secret. savedmodel, keras: what to write; a
    `.keras` file that cannot be is an error only where nothing else was asked for."""

    job: Mapping[str, Any]
    manifest: Mapping[str, Any]
    artifacts: Mapping[str, Any]
    directory: str
    savedmodel: bool
    keras: bool


@dataclass(frozen=True, slots=True)
class Exported:
    """path: of the new version. inputs, outputs: of its signature, None without a SavedModel. without_keras: why there
    is no `.keras` file although one was asked for."""

    path: str
    version: int
    manifest: str
    files: tuple[str, ...]
    signature: Mapping[str, Any] | None
    without_keras: str = ""


def export(request: Request, *, clock: Clock) -> Exported:
    """Raises StreamtrainError; then nothing is there that was not before."""
    manifest = from_document(Manifest, request.manifest)
    job = config.Job.model_validate(request.job).with_hyper(manifest.hyper)
    state = manifest.artifacts.get("state")
    if state is None:
        raise ArtifactError(f"manifest {manifest.id} names no saved state")
    with VersionFolder(root=Path(request.directory), job=job.name).arriving() as arriving:
        stored = arriving.scratch / "state.npz"
        store = open_store(request.artifacts)
        try:
            store.get(state, stored)
        finally:
            store.close()
        # Seconds: what the folder or the store refuses is told before.
        from streamtrain.trainer.checkpoint import restore_state
        from streamtrain.trainer.export import export_keras, export_model
        from streamtrain.trainer.model import JobModel, set_precision

        set_precision(job.dtype)
        model = JobModel(job=job)
        restore_state(model, stored, rank=0)
        signature = export_model(model, arriving.version) if request.savedmodel else None
        without_keras = ""
        if request.keras:
            try:
                export_keras(model, arriving.version / KERAS_NAME)
            except ModelError as error:
                if not request.savedmodel:
                    raise
                without_keras = error.message
                (arriving.version / KERAS_NAME).unlink(missing_ok=True)
        told = None if signature is None else asdict(signature)
        record = json.dumps(_record(job, manifest, told, clock), indent=2, ensure_ascii=False)
        (arriving.version / RECORD_NAME).write_text(record + "\n", encoding="utf-8")
        files = tuple(sorted(path.name for path in arriving.version.iterdir()))
        path = arriving.publish(now=clock.time())
    return Exported(
        path=str(path),
        version=int(path.name),
        manifest=manifest.id,
        files=files,
        signature=told,
        without_keras=without_keras,
    )


def _record(
    job: config.Job, manifest: Manifest, signature: Mapping[str, Any] | None, clock: Clock
) -> Mapping[str, Any]:
    """What a version is: for whoever finds it years later. No secrets, and nothing that a model is handed."""
    import keras
    import tensorflow as tf

    schema = job.schema_()
    return {
        "format": 1,
        "job": job.name,
        "model": job.model,
        "manifest": {
            "id": manifest.id,
            "lineage": manifest.lineage,
            "sequence": manifest.sequence,
            "created_ms": manifest.created_ms,
            "rounds": manifest.rounds,
            "steps": manifest.steps,
            "rows_learned": manifest.rows_learned,
            "topic": manifest.topic,
            "offsets": [place.offset for place in manifest.learned],
            "records": [place.count for place in manifest.learned],
        },
        "scores": _scores(schema, manifest.scores),
        "holdout": _scores(schema, manifest.holdout),
        "signature": signature,
        "schema": {
            "features": [asdict(feature) for feature in schema.features],
            "labels": [asdict(label) for label in schema.labels],
        },
        "fingerprints": {"schema": manifest.schema_fingerprint, "model": manifest.model_fingerprint},
        "exported_ms": int(clock.time() * 1000),
        "versions": {
            "streamtrain": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "python": platform.python_version(),
        },
    }


def _scores(schema: Schema, scores: Mapping[str, Scores]) -> dict[str, dict[str, float]]:
    return {
        label.field: {"rows": scores[label.field].rows, **metrics(label, scores[label.field])}
        for label in schema.labels
        if label.field in scores
    }


def main() -> None:
    """Reads a Request, as JSON, from stdin. What the model prints goes to stderr."""
    request = Request(**json.loads(sys.stdin.read()))
    quieten(os.environ)
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                answer: dict[str, Any] = {"exported": asdict(export(request, clock=SystemClock()))}
        except StreamtrainError as error:
            answer = {"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}
        out.write(json.dumps(answer))


if __name__ == "__main__":
    main()

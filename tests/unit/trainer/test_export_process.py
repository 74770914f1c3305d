"""From a manifest to a version. The same as a process, from the command line: `integration/test_export.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamtrain import config
from streamtrain.artifacts import DirectoryStore
from streamtrain.clock import FakeClock
from streamtrain.codec import to_document
from streamtrain.errors import ArtifactError, DependencyError, ModelError, StateMismatchError
from streamtrain.trainer.export_process import Request, export
from streamtrain.types import ArtifactRef, Learned, Manifest, RoundCounts, Schema, Scores
from tests.unit.trainer.loop_case import job_of

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning"),  # Keras' own
]

MODEL = f"{__name__}:plain"


def plain(schema: Schema, hyper: dict[str, Any]) -> Any:
    import keras

    x = keras.Input((2,), name="x")
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Dense(hyper.get("units", 3))(x)))


def unwritable(schema: Schema, hyper: dict[str, Any]) -> Any:
    """With a layer that Keras cannot write."""
    import keras

    class Odd(keras.layers.Layer):  # type: ignore[misc]
        same_in_training = True

        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def call(self, x: Any) -> Any:
            return self.function(x)

    x = keras.Input((2,), name="x")
    return keras.Model(x, Odd(lambda y: y + 1.0)(keras.layers.Dense(1)(x)))


class Case:
    """A job that has saved its state in a directory."""

    def __init__(self, folder: Path, *, builder: str = "plain", **options: Any) -> None:
        from streamtrain.trainer.checkpoint import state_bytes
        from streamtrain.trainer.model import JobModel

        self.folder = folder
        self.job = job_of(model=f"{__name__}:{builder}", **options)
        self.store = DirectoryStore(path=folder / "artifacts")
        model = JobModel(job=self.job)
        self.artifacts = {"state": self.store.put("job/l/e1-g1-r1/state.npz", state_bytes(model, rank=0))}

    def export(self, *, savedmodel: bool = True, keras: bool = True, job: config.Job | None = None) -> Any:
        used = job or self.job
        manifest = Manifest(
            id="job/l/3",
            job="job",
            lineage="l",
            sequence=3,
            parent=None,
            epoch=1,
            generation=1,
            created_ms=1,
            topic="t",
            topic_epoch=0,
            learned=(Learned(9, 7),),
            window_begins=(0,),
            rounds=1,
            steps=1,
            rows_learned=7,
            counts=RoundCounts(learned=7),
            scores={"y": Scores(rows=2, weight=2.0, loss=5.0, sums={"absolute_error": 3.0, "squared_error": 8.0})},
            artifacts=self.artifacts,
            schema_fingerprint="s",
            model_fingerprint="m",
        )
        request = Request(
            job=used.model_dump(mode="json"),
            manifest=json.loads(json.dumps(to_document(manifest))),
            artifacts={"kind": "directory", "path": str(self.folder / "artifacts")},
            directory=str(self.folder / "models"),
            savedmodel=savedmodel,
            keras=keras,
        )
        return export(request, clock=FakeClock(1_764_549_000.0))

    def versions(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "models" / "job").iterdir())


def test_a_version_says_what_it_is(strategy: Any, tmp_path: Path) -> None:
    case = Case(tmp_path)
    found = case.export()
    assert case.versions() == ["1764549000"]
    assert (found.version, found.manifest, found.without_keras) == (1764549000, "job/l/3", "")
    assert found.signature == {"inputs": {"x": "x"}, "outputs": {"y": {"name": "y"}}}
    record = json.loads((Path(found.path) / "streamtrain.json").read_text())
    assert record["manifest"] == {
        "id": "job/l/3",
        "lineage": "l",
        "sequence": 3,
        "created_ms": 1,
        "rounds": 1,
        "steps": 1,
        "rows_learned": 7,
        "topic": "t",
        "offsets": [9],
        "records": [7],
    }
    assert record["scores"] == {"y": {"rows": 2, "loss": 2.5, "mae": 1.5, "rmse": 2.0}}
    assert record["holdout"] == {}
    assert record["schema"]["features"][0]["field"] == "x"
    assert record["exported_ms"] == 1_764_549_000_000
    assert sorted(record["versions"]) == ["keras", "python", "streamtrain", "tensorflow"]


def test_only_what_was_asked_for_is_written(strategy: Any, tmp_path: Path) -> None:
    case = Case(tmp_path)
    assert "model.keras" not in case.export(keras=False).files
    found = case.export(savedmodel=False)
    assert found.files == ("model.keras", "streamtrain.json")
    assert found.signature is None


def test_a_model_that_keras_cannot_write_is_exported_without_its_file(strategy: Any, tmp_path: Path) -> None:
    case = Case(tmp_path, builder="unwritable")
    found = case.export()
    assert "the model cannot be written as .keras" in found.without_keras
    assert "model.keras" not in found.files
    with pytest.raises(ModelError, match=r"the model cannot be written as \.keras"):
        case.export(savedmodel=False)
    assert len(case.versions()) == 1


def test_what_cannot_be_exported_leaves_no_version(strategy: Any, tmp_path: Path) -> None:
    case = Case(tmp_path)
    with pytest.raises(StateMismatchError, match="the saved state belongs to another model"):
        case.export(job=job_of(model=MODEL, hyper={"units": 4}))
    whole = case.artifacts
    case.artifacts = {"state": ArtifactRef(case.artifacts["state"].name, "0" * 64, 1)}
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        case.export()
    assert case.versions() == []
    case.artifacts = {}
    with pytest.raises(ArtifactError, match="names no saved state"):
        case.export()
    case.artifacts = whole
    (tmp_path / "models" / "job").rmdir()
    (tmp_path / "models" / "job").touch()
    with pytest.raises(DependencyError, match="nothing can be exported to"):
        case.export()

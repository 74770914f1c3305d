"""A model's whole state as one file, and back, bit for bit and for any number of workers: weights (running
statistics among them), optimizer, random generators. Never decides when to save."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from streamtrain.errors import ArtifactError, ModelError, StateMismatchError, TrainingError
from streamtrain.trainer.model import JobModel

FORMAT = 1
STATE_ROLE = "state"
KERAS_ROLE = "keras"
FILE_NAMES = {STATE_ROLE: "state.npz", KERAS_ROLE: "model.keras"}
_META = "meta"


def state_bytes(model: JobModel, *, rank: int) -> bytes:
    """The content of `state.npz`: no pickles, arrays in the variables' order and `meta` as JSON. rank: whose
    random generators are written (they differ by the rank alone). Raises TrainingError when a weight is not a finite
    number: every restart would come back to it."""
    arrays: dict[str, Any] = {}
    dtypes: dict[str, str] = {}
    for name, variable in _variables(model):
        value = np.asarray(variable.numpy())
        if variable.trainable and not np.isfinite(value.astype(np.float64)).all():
            raise TrainingError(
                f"training diverged: {variable.path} holds a value that is not a finite number",
                hint="lower the learning rate or clip gradients (optimizer: {clipnorm: 1.0}); the last checkpoint "
                "before it is kept",
            )
        dtypes[name] = value.dtype.name
        arrays[name] = value if value.dtype.kind in "biuf" else value.view(np.uint8 if value.itemsize == 1 else "u2")
    for index, state in enumerate(model.seeds):
        value = np.array(state.numpy())
        arrays[f"seed/{index}"] = value - np.array([rank, 0], value.dtype)
    meta = {"format": FORMAT, "fingerprint": model.fingerprint(), "dtypes": dtypes}
    arrays[_META] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def restore_state(model: JobModel, path: Path, *, rank: int) -> None:
    """Raises StateMismatchError when the file belongs to another model, ArtifactError when it is no such file."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        meta = json.loads(arrays.pop(_META).tobytes())
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ArtifactError(f"{path.name} is not a saved state: {error}") from error
    if meta["format"] > FORMAT:
        raise ArtifactError(
            f"the saved state has format {meta['format']}; this release reads up to {FORMAT}",
            hint="upgrade streamtrain on this host",
        )
    if meta["fingerprint"] != model.fingerprint():
        raise StateMismatchError(
            "the saved state belongs to another model: " + _difference(model, arrays),
            hint="features, labels, hyper-parameters, the model's code or the optimizer have changed since it was "
            "saved; undo that, or `streamtrain retrain` the job from scratch",
        )
    rate = getattr(model.optimizer, "_learning_rate", None)  # a variable, unless it is a schedule
    for name, variable in _variables(model):
        if variable is rate:
            continue  # as it is configured now, by a retrain or in the settings: it is nothing that was learned
        value = arrays[name]
        dtype = meta["dtypes"][name]
        variable.assign(value if value.dtype.name == dtype else value.view(np.asarray(variable.numpy()).dtype))
    for index, state in enumerate(model.seeds):
        value = arrays.get(f"seed/{index}", np.array(state.numpy()))  # dropout that is new draws from its own
        state.assign(value + np.array([rank, 0], value.dtype))


def write_keras(model: JobModel, path: Path) -> None:
    """The `.keras` file. Raises ModelError when the model cannot be serialised."""
    try:
        model.keras.save(path)
    except Exception as error:
        raise ModelError(
            f"the model cannot be written as .keras: {type(error).__name__}: {error}",
            hint="custom layers and losses need get_config() and @keras.saving.register_keras_serializable()",
        ) from error


def _variables(model: JobModel) -> list[tuple[str, Any]]:
    weights = [(f"weight/{index}", variable) for index, variable in enumerate(model.keras.weights)]
    return weights + [(f"optimizer/{index}", variable) for index, variable in enumerate(model.optimizer.variables)]


def _difference(model: JobModel, arrays: dict[str, Any]) -> str:
    present = dict(_variables(model))
    stored = {name for name in arrays if not name.startswith("seed/")}
    if len(stored) != len(present):
        return f"it holds {len(stored)} variables, the model has {len(present)}"
    for name, variable in present.items():
        if name in arrays and tuple(arrays[name].shape) != tuple(variable.shape):
            return f"{variable.path} has shape {list(variable.shape)}, saved was {list(arrays[name].shape)}"
    return "its schema, or the type of its optimizer, is another"

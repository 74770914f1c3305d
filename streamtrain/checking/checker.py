"""Checks a job's model: tries it alone and with two workers, and says what was found."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from streamtrain.checking import trial_run
from streamtrain.checking.states import Difference, difference
from streamtrain.checking.trial_run import Subject
from streamtrain.checking.verdicts import Evidence, Verdict, verdicts
from streamtrain.config import Job
from streamtrain.errors import DependencyError

TRIAL_TIMEOUT_S = 300.0


def check(job: Job, documents: Sequence[bytes], *, module: str = "", file: str = "") -> list[Verdict]:
    """documents: raw BSON. module, file: of the model's function, where it lies in no installed module. Raises
    DependencyError without TensorFlow."""
    if missing := [name for name in ("tensorflow", "keras") if find_spec(name) is None]:
        raise DependencyError(
            f"{' and '.join(missing)} cannot be imported by {sys.executable}", hint="pip install 'streamtrain[cpu]'"
        )
    with tempfile.TemporaryDirectory(prefix="streamtrain-check-") as name:
        folder = Path(name)
        stored = folder / "documents.bson"
        stored.write_bytes(b"".join(documents))
        subject = Subject(job=job.model_dump(mode="json"), documents=stored, folder=folder, module=module, file=file)
        (alone,) = trial_run.run(subject, world=1, timeout=TRIAL_TIMEOUT_S)
        evidence = Evidence(dtype=job.dtype, alone=alone)
        if "order" in alone.found:
            together = trial_run.run(subject, world=trial_run.WORLD, timeout=TRIAL_TIMEOUT_S)
            evidence = Evidence(
                dtype=job.dtype,
                alone=alone,
                together=together,
                replicas=_between(folder / "trained-2-0.npz", folder / "trained-2-1.npz"),
                counts=_between(folder / "trained-1-0.npz", folder / "trained-2-0.npz"),
                orders=_furthest(folder, alone.found["order"]["orders"]),
                moved=_between(folder / "first.npz", folder / "trained-1-0.npz"),
                went_on=_between(folder / "went-on.npz", folder / "restored-went-on.npz"),
            )
        return verdicts(evidence)


def _between(one: Path, other: Path) -> Difference | None:
    return difference(one, other) if one.exists() and other.exists() else None


def _furthest(folder: Path, names: Sequence[str]) -> Difference | None:
    found = [difference(folder / "trained-1-0.npz", folder / name) for name in names]
    return max(found, key=lambda each: each.largest, default=None)

"""`streamtrain check-model`: tries a job's model on documents and prints the verdicts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from streamtrain.checking import samples
from streamtrain.checking.checker import check
from streamtrain.checking.verdicts import State, Verdict
from streamtrain.config import Job, Settings
from streamtrain.errors import EXIT_CONFIG, EXIT_OK, UsageError

_WIDTH = 7


def chosen(settings: Settings, name: str | None) -> Job:
    """Raises UsageError."""
    names = [job.name for job in settings.jobs]
    if name is None and len(names) > 1:
        raise UsageError("there are several jobs", hint=f"--job {'|'.join(names)}")
    for job in settings.jobs:
        if name is None or job.name == name:
            return job
    raise UsageError(f"there is no job {name!r}", hint=f"the jobs are {', '.join(names)}")


def documents(settings: Settings, job: Job, *, file: str | None, count: int) -> list[bytes]:
    """Raises UsageError or DependencyError."""
    if file is not None:
        return samples.from_file(Path(file), count)
    source = next(source for source in settings.sources if source.name == job.source)
    return samples.from_collection(source, count)


def run(settings: Settings, *, job: str | None, file: str | None, count: int) -> tuple[Job, list[Verdict]]:
    sys.path.insert(0, "")  # a model may lie in the folder that streamtrain runs in
    subject = chosen(settings, job)
    return subject, check(subject, documents(settings, subject, file=file, count=count))


def exit_code(verdicts: list[Verdict]) -> int:
    return EXIT_CONFIG if any(verdict.state is State.FAILED for verdict in verdicts) else EXIT_OK


def as_json(job: Job, verdicts: list[Verdict]) -> dict[str, Any]:
    return {
        "job": job.name,
        "model": job.model,
        "ok": exit_code(verdicts) == EXIT_OK,
        "checks": [
            {"check": each.check, "state": each.state.value, "message": each.message, "advice": each.advice}
            for each in verdicts
        ],
    }


def lines(verdicts: list[Verdict]) -> list[str]:
    """For a person."""
    found = []
    for each in verdicts:
        found.append(f"{each.state.value:<{_WIDTH}} {each.check}: {each.message}")
        if each.advice and each.state is not State.OK:
            found.append(f"{'':<{_WIDTH}}   {each.advice}")
    return found

"""What `validate` checks beyond the settings file: the models, each built in a process of its own, and the
servers. It must never change anything: no topic is created, no running daemon is fenced."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from streamtrain.config import Job, Settings
from streamtrain.errors import ModelError, StreamtrainError

MODEL_CHECK_TIMEOUT_S = 180.0
_SHOWN_OUTPUT = 1000


@dataclass(frozen=True, slots=True)
class Check:
    """name: what was checked. error: why it failed, None when it is well."""

    name: str
    error: StreamtrainError | None = None


def run(settings: Settings, *, connect: bool, models: bool) -> list[Check]:
    checks = [Check("settings")]
    if models:
        checks += _models(settings)
    if connect:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would say is in the checks' answers
        checks += asyncio.run(_servers(settings))
    return checks


def _models(settings: Settings) -> Iterator[Check]:
    for job in settings.jobs:
        try:
            build_model(job)
        except ModelError as error:
            yield Check(f"model of job {job.name}", error)
        else:
            yield Check(f"model of job {job.name}")


def build_model(job: Job) -> None:
    """Builds the job's model in a process of its own; raises ModelError."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", "streamtrain.trainer.check"],
            input=job.model_dump_json(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=MODEL_CHECK_TIMEOUT_S,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "CUDA_VISIBLE_DEVICES": ""},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"model {job.model!r} of job {job.name}: not built within {MODEL_CHECK_TIMEOUT_S:g} s",
            hint="does it download or compute something when it is built?",
        ) from error
    if child.returncode != 0 or not child.stdout:  # it answers always, unless the model ended it
        raise ModelError(
            f"model {job.model!r} of job {job.name}: the process that built it ended with status {child.returncode}",
            hint=f"its last words: {child.stderr.strip()[-_SHOWN_OUTPUT:]}",
        )
    answer = json.loads(child.stdout)
    if answer:
        raise ModelError(f"job {job.name}: {answer['message']}", hint=answer["hint"])


async def _servers(settings: Settings) -> list[Check]:
    from streamtrain.daemon.connections import checks

    found = []
    for name, check in checks(settings):
        try:
            await check()
        except StreamtrainError as error:
            found.append(Check(name, error))
        else:
            found.append(Check(name))
    return found

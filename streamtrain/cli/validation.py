"""What `validate` checks beyond the settings file: the models, each built in a process of its own, and the
servers. It must never change anything: no topic is created, no running daemon is fenced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from streamtrain.cli.trainer_process import ask
from streamtrain.config import Job, Settings
from streamtrain.errors import ModelError, StreamtrainError

MODEL_CHECK_TIMEOUT_S = 180.0


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
    answer = ask(
        "streamtrain.trainer.check",
        job.model_dump_json(),
        timeout=MODEL_CHECK_TIMEOUT_S,
        doing=f"model {job.model!r} of job {job.name}",
        done="built",
        process="the process that built it",
    )
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

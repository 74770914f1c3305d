"""Runs trials of a model (`trainer.trial`) in processes of their own: one alone, then two together. Never imports
TensorFlow, and never waits longer than `timeout`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

WORLD = 2
_SHOWN_OUTPUT = 2000
_GRACE_S = 10.0  # for the other process to say why it failed too
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tried. job: settings of the job as JSON holds them. module, file: of a function that lies in no
    installed module. documents: a file of BSON documents. folder: for what the trials leave behind."""

    job: Mapping[str, Any]
    documents: Path
    folder: Path
    module: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process said: by stage what it found, and where it failed. ended: how, if it did not end by itself."""

    found: Mapping[str, Mapping[str, Any]]
    errors: Mapping[str, Mapping[str, str]]
    ended: str = ""


def run(subject: Subject, *, world: int, timeout: float) -> list[Answer]:
    """The answers of `world` processes that train together, in order of rank."""
    held = [_free_port() for _ in range(world)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(world):
            processes.append(_start(subject, rank=rank, addresses=addresses))
        _await(processes, timeout)
        return [_answer(subject, process, world, rank, timeout) for rank, process in enumerate(processes)]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for each in held:
            each.close()


def _await(processes: Sequence[subprocess.Popen[str]], timeout: float) -> None:
    """Until all have ended, or one has failed: the others would wait for it in vain."""
    deadline = monotonic() + timeout
    while any(process.poll() is None for process in processes):
        left = deadline - monotonic()
        if left <= 0:
            return
        if any(process.poll() for process in processes):
            deadline = min(deadline, monotonic() + _GRACE_S)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(left, _POLL_S))


def _start(subject: Subject, *, rank: int, addresses: Sequence[str]) -> subprocess.Popen[str]:
    environ = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environ.pop("TF_CONFIG", None)
    if len(addresses) > 1:
        cluster = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}}
        environ["TF_CONFIG"] = json.dumps(cluster)
    environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))
    given = {
        "job": subject.job,
        "module": subject.module,
        "file": subject.file,
        "documents": str(subject.documents),
        "folder": str(subject.folder),
        "rank": rank,
        "world": len(addresses),
    }
    with (
        _log(subject, len(addresses), rank).open("w", encoding="utf-8") as log,
        _answers(subject, len(addresses), rank).open("w", encoding="utf-8") as answers,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "streamtrain.trainer.trial"],
            stdin=subprocess.PIPE,
            stdout=answers,
            stderr=log,
            text=True,
            env=environ,
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps(given))
    return process


def _log(subject: Subject, world: int, rank: int) -> Path:
    return subject.folder / f"trial-{world}-{rank}.log"


def _answers(subject: Subject, world: int, rank: int) -> Path:
    return subject.folder / f"trial-{world}-{rank}.jsonl"


def _answer(subject: Subject, process: subprocess.Popen[str], world: int, rank: int, timeout: float) -> Answer:
    status = process.poll()
    ended = ""
    if status is None:
        ended = f"had not ended after {timeout:g} s"
    elif status:
        ended = f"ended with status {status}"
    if ended:
        words = _log(subject, world, rank).read_text(encoding="utf-8", errors="replace").strip()[-_SHOWN_OUTPUT:]
        ended += f"; its last words: {words}" if words else ""
    found: dict[str, Mapping[str, Any]] = {}
    errors: dict[str, Mapping[str, str]] = {}
    for line in _answers(subject, world, rank).read_text(encoding="utf-8").splitlines():
        said = json.loads(line)
        if "error" in said:
            errors[said["stage"]] = said["error"]
        else:
            found[said["stage"]] = said["found"]
    return Answer(found, errors, ended)


def _free_port() -> socket.socket:
    """A port that no other process is given while this socket is bound; TensorFlow's server can still listen."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held

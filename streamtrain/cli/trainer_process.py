"""Asks a process of its own what only TensorFlow can answer: JSON in, JSON out, without a GPU. Whatever a user's model
does stays there, and this process never imports TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from streamtrain import errors
from streamtrain.errors import ModelError, StreamtrainError

_SHOWN_OUTPUT = 1000


def ask(
    module: str, request: str, *, timeout: float, doing: str, done: str = "done", process: str = "the process"
) -> dict[str, Any]:
    """The answer of `python -m module` to `request`, which it reads from stdin, as secrets may be in it. doing, done,
    process: what an error calls the work, its end, and who does it.

    An answer {error: {kind, message, hint}} is raised as the error of that kind. Raises ModelError when the process
    ended without one, or took longer than `timeout` seconds: then it was the model's code that did that.
    """
    try:
        child = subprocess.run(
            [sys.executable, "-m", module],
            input=request,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "CUDA_VISIBLE_DEVICES": ""},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"{doing}: not {done} within {timeout:g} s",
            hint="does the model download or compute something when it is built?",
        ) from error
    if child.returncode != 0 or not child.stdout:
        raise ModelError(
            f"{doing}: {process} ended with status {child.returncode}",
            hint=f"its last words: {child.stderr.strip()[-_SHOWN_OUTPUT:]}",
        )
    answer: dict[str, Any] = json.loads(child.stdout)
    if told := answer.get("error"):
        raise _error(told["kind"], told["message"], told["hint"])
    return answer


def _error(kind: str, message: str, hint: str) -> StreamtrainError:
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, StreamtrainError) and found.__init__ is StreamtrainError.__init__:
        return found(message, hint=hint)
    return StreamtrainError(message, hint=hint)

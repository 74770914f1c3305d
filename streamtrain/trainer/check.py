"""`python -m streamtrain.trainer.check`: builds a job's model as a worker would, and says on stdout, as JSON,
whether it could. A process of its own, so that whatever the user's function does stays there."""

from __future__ import annotations

import contextlib
import json
import os
import sys

from streamtrain import config
from streamtrain.errors import ConfigError


def check(job: config.Job) -> None:
    """Raises ConfigError when the model cannot be built or does not fit the job's schema, or nothing decodes it."""
    from streamtrain.trainer.decode import Decoder
    from streamtrain.trainer.model import JobModel, set_precision

    Decoder.of(job)

    set_precision(job.dtype)
    JobModel(job=job)


def main() -> None:
    """Reads a job's settings, as JSON, from stdin. What the model prints goes to stderr."""
    job = config.Job.model_validate_json(sys.stdin.read())
    answer: dict[str, str] = {}
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                check(job)
        except ConfigError as error:
            answer = {"message": error.message, "hint": error.hint}
        out.write(json.dumps(answer))


if __name__ == "__main__":
    main()

"""Starts workers as processes of this machine, each in its own session, so that a signal to the daemon's
process group does not reach them: the daemon ends them, after it has saved."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from streamtrain.errors import WorkerError

TOKEN_VARIABLE = "STREAMTRAIN_JOIN_TOKEN"
WORKER_COMMAND = (sys.executable, "-m", "streamtrain.trainer.worker")
_STDERR = 2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STOPPED_STATES = frozenset("Tt")  # by a signal, by a debugger
KEPT_LOGS = 20  # per job: a crash loop must not fill the disk


class LocalProcess:
    def __init__(self, process: asyncio.subprocess.Process, *, log: str) -> None:
        self._process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float | None:
        try:
            fields = self._stat()
            return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        except (OSError, IndexError, ValueError):
            return None

    def stopped(self) -> bool:
        try:
            return self._stat()[0] in _STOPPED_STATES
        except (OSError, IndexError):
            return False

    def _stat(self) -> list[str]:
        """Fields after the command's closing bracket (proc(5)): the state first; utime and stime are the 12th and
        13th."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()

    async def wait(self) -> int:
        return await self._process.wait()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """To the worker's whole session, so that what a user's model started goes too."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


class LocalLauncher:
    """log_dir: one file per worker and generation, `{job}-g{generation}-{index}.log`; None: the daemon's stderr."""

    def __init__(
        self,
        *,
        job: str,
        log_dir: Path | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._job = job
        self._log_dir = log_dir
        self._command = tuple(command)
        self._environment = dict(os.environ if environment is None else environment)

    async def launch(self, *, control: str, token: str, generation: int, index: int) -> LocalProcess:
        try:
            path = self._log_path(generation, index)
            output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if path else None
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    "--control",
                    control,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=_STDERR if output is None else output,
                    stderr=None if output is None else output,
                    env={**self._environment, TOKEN_VARIABLE: token},
                    start_new_session=True,
                )
            finally:
                if output is not None:
                    os.close(output)
        except OSError as error:
            raise WorkerError(f"cannot start a worker of job {self._job}: {error}") from error
        return LocalProcess(process, log=str(path) if path else "the daemon's stderr")

    def _log_path(self, generation: int, index: int) -> Path | None:
        if self._log_dir is None:
            return None
        self._log_dir.mkdir(parents=True, exist_ok=True)
        logs = sorted(self._log_dir.glob(f"{self._job}-g*-*.log"), key=lambda path: path.stat().st_mtime)
        for old in logs[: -KEPT_LOGS + 1]:
            old.unlink(missing_ok=True)
        return self._log_dir / f"{self._job}-g{generation}-{index}.log"

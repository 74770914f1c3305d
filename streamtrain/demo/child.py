"""A server or the daemon as a child process of the demo: in a session of its own, so that Ctrl-C reaches the
demo alone, which then ends its children in order. Never leaves one behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from streamtrain.errors import DependencyError

_LOG_TAIL_BYTES = 2000


class Child:
    """name: what a message calls it. Its output goes to `log`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    async def start(cls, name: str, command: Sequence[str], *, log: Path) -> Child:
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        return cls(name, process, log)

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def check(self) -> None:
        """Raises DependencyError, with the end of its log, once it has ended."""
        if self._process.returncode is not None:
            raise DependencyError(f"{self.name} ended with exit code {self._process.returncode}\n{self.log_tail()}")

    def log_tail(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    async def stop(self, *, within: float) -> bool:
        """TERM, and KILL after `within` seconds. Returns whether it ended by itself."""
        if self._process.returncode is not None:
            return True
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
            return False
        except asyncio.CancelledError:  # whoever waits for this has lost patience
            self.kill()
            raise
        return True

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

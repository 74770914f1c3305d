"""What a group needs of whatever starts its workers."""

from __future__ import annotations

from typing import Protocol


class WorkerProcess(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def log(self) -> str:
        """Where its output goes, for people."""

    def cpu_s(self) -> float | None:
        """Processor time that it has taken, in seconds; None where that cannot be told."""

    def stopped(self) -> bool:
        """Whether a signal (SIGSTOP) or a debugger holds it; False where that cannot be told."""

    async def wait(self) -> int:
        """Its exit status once it has ended and been reaped; negative: the signal that killed it."""

    def terminate(self) -> None:
        """Asks it to end; nothing if it has."""

    def kill(self) -> None:
        """Ends it; nothing if it has ended."""


class Launcher(Protocol):
    async def launch(self, *, control: str, token: str, generation: int, index: int) -> WorkerProcess:
        """Starts a worker that connects to `control` and shows `token`. Raises WorkerError."""

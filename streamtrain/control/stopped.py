"""Whether a worker stands stopped by a signal: it will answer nothing until somebody lets it go on. Unlike silence,
which a busy machine makes too, this is certain, so it need not be waited for long."""

from __future__ import annotations

from streamtrain.control.launcher.port import WorkerProcess


class Stopped:
    """Looked at now and then; only one that is found stopped every time, for long enough, is given up."""

    def __init__(self, process: WorkerProcess, *, index: int) -> None:
        self._process = process
        self._index = index
        self._since: float | None = None

    def overdue(self, now: float, stopped_s: float) -> str | None:
        """Why this worker is given up, if it is. Where a process' state cannot be told, nothing is."""
        if not self._process.stopped():
            self._since = None
            return None
        if self._since is None:
            self._since = now
        if now - self._since < stopped_s:
            return None
        return f"worker {self._index} (pid {self._process.pid}) has stood stopped by a signal for {stopped_s:g} s"

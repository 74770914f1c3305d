"""Whether a worker that has not arrived yet is on its way: importing TensorFlow takes seconds, on a busy machine
many, but it takes processor time too. One that takes none is stuck."""

from __future__ import annotations

from streamtrain.control.launcher.port import WorkerProcess

_PROGRESS_CPU_S = 0.05


class Startup:
    def __init__(self, process: WorkerProcess, *, index: int, now: float) -> None:
        self.process = process
        self._index = index
        self._began = self._busy_at = now
        self._cpu_s = 0.0

    def overdue(self, now: float, *, ready_s: float, progress_s: float) -> str | None:
        """Why this worker is given up, if it is. Where processor time cannot be told, only `ready_s` counts."""
        pid = self.process.pid
        if now - self._began > ready_s:
            return f"worker {self._index} (pid {pid}) did not get ready within {ready_s:g} s"
        cpu_s = self.process.cpu_s()
        if cpu_s is None or cpu_s - self._cpu_s >= _PROGRESS_CPU_S:
            self._cpu_s, self._busy_at = cpu_s or 0.0, now
        if now - self._busy_at > progress_s:
            return f"worker {self._index} (pid {pid}) did not get ready and has done nothing for {progress_s:g} s"
        return None

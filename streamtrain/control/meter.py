"""A controller's own metrics. Those of a lineage beside the job are not the job's: nothing is counted for it."""

from __future__ import annotations

from streamtrain import metrics
from streamtrain.control.machine import Phase


class Meter:
    """job: whose labels the metrics have; None: a lineage beside the job."""

    def __init__(self, job: str | None) -> None:
        self._job = job

    def phase(self, phase: Phase) -> None:
        if self._job is not None:
            for each in Phase:
                metrics.PHASE.labels(self._job, each.value).set(each is phase)

    def workers(self, number: int) -> None:
        if self._job is not None:
            metrics.WORKERS.labels(self._job).set(number)

    def formed(self, workers: int) -> None:
        if self._job is not None:
            metrics.GENERATIONS.labels(self._job).inc()
            self.workers(workers)

    def failed(self, kind: str) -> None:
        if self._job is not None:
            metrics.WORKER_FAILURES.labels(self._job, kind).inc()

    def saved(self, *, created_ms: int, seconds: float) -> None:
        if self._job is not None:
            metrics.CHECKPOINTS.labels(self._job).inc()
            metrics.CHECKPOINT_TIME.labels(self._job).set(created_ms / 1000)
            metrics.CHECKPOINT_SECONDS.labels(self._job).observe(seconds)

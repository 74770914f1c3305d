"""The daemon that the demo runs, seen from outside as a user sees it: a child process, its exit code, its log,
and what its admin endpoint says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamtrain.client import AdminClient
from streamtrain.demo.child import Child
from streamtrain.demo.configuration import JOB, LABEL
from streamtrain.demo.view import JobView
from streamtrain.errors import DependencyError, StreamtrainError

DRAIN_S = 30.0


class Daemon:
    """`streamtrain run` on a configuration file."""

    def __init__(self, *, child: Child, client: AdminClient) -> None:
        self.child = child
        self._client = client
        self._last = JobView()

    @classmethod
    async def start(cls, *, config: Path, admin: str, log: Path) -> Daemon:
        command = [sys.executable, "-m", "streamtrain", "run", "--config", str(config)]
        child = await Child.start("the daemon (`streamtrain run`)", command, log=log)
        return cls(child=child, client=AdminClient(address=admin, token=None))

    async def job(self) -> JobView:
        """The job now; as it was, while the daemon does not answer. Raises once the daemon has ended, or when
        its job has come to a halt."""
        self.child.check()
        try:
            status = await asyncio.to_thread(self._client.status)
        except DependencyError:
            return self._last
        self._last = job_view(status["jobs"].get(JOB, {}))
        return self._last

    async def stop(self) -> bool:
        """Drains it: the last round and its checkpoint are finished. Returns whether it did so in time."""
        return await self.child.stop(within=DRAIN_S) and self.child.exit_code == 0


def job_view(job: Mapping[str, Any]) -> JobView:
    """What `GET /v1/status` says of a job. Raises StreamtrainError when it says that the job is stopped."""
    if job.get("phase", "").upper() in ("STOPPED", "PAUSED"):
        raise StreamtrainError(f"the job has stopped: {job.get('reason') or 'the daemon gives no reason'}")
    report = job.get("report") or {}
    scores = report.get("scores", {}).get(LABEL, {})
    freshness = report.get("freshness_ms_since_start") or {}
    records = report.get("records", {})
    return JobView(
        phase=str(job.get("phase", "starting")).lower(),
        reason=str(job.get("reason") or ""),
        workers=int(job.get("workers") or 0),
        generation=int(job.get("generation") or 0),
        rounds=int(job.get("rounds") or 0),
        learned=int(job.get("rows_learned") or 0),
        scored=int(scores.get("rows", 0)),
        absolute_error=float(scores.get("mae", 0.0)) * int(scores.get("rows", 0)),
        backlog=job.get("backlog"),
        dead_letters=int(records.get("dead_letters", 0)),
        freshness_p50_s=_seconds(freshness.get("p50")),
        freshness_p99_s=_seconds(freshness.get("p99")),
    )


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000

"""A job as the daemon runs it: its controller, which exists once the source has a topic, and its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.control.controller import Controller
from streamtrain.control.launcher.local import LocalLauncher
from streamtrain.control.machine import Phase
from streamtrain.daemon.overview import JobView
from streamtrain.daemon.source_part import SourcePart
from streamtrain.errors import ConfigError, ModelError, StreamtrainError, WorkerFailedError
from streamtrain.kafka import topics
from streamtrain.kafka.topic_admin import TopicSpec, ensure_topics
from streamtrain.observe.report import JobReport
from streamtrain.ports import LeasePort, ManifestPort
from streamtrain.types import RoundReport
from streamtrain.window.planner import plan

# Of a worker's errors, those that only other settings or another model can help; not their subclasses, which a retrain
# helps: the daemon must be there to be asked for one.
_UNFIT = frozenset({ModelError.__name__, ConfigError.__name__})


class JobPart:
    """`run` is the work; all else may be asked at any time."""

    def __init__(self, *, job: config.Job, clock: Clock) -> None:
        self.job = job
        self._clock = clock
        self._report = JobReport(job=job.name, labels=job.schema_().labels, clock=clock)
        self._controller: Controller | None = None

    @property
    def started(self) -> bool:
        return self._controller is not None

    async def run(
        self,
        *,
        source: SourcePart,
        kafka: config.Kafka,
        manifests: ManifestPort,
        lease: LeasePort,
        artifacts: Mapping[str, Any],
        work_dir: Path,
    ) -> None:
        """Until it is drained or halted."""
        topic = await source.topic()
        dead_letters = TopicSpec(
            topics.dead_letter_topic(kafka.topic_prefix, self.job.name),
            1,
            {
                "cleanup.policy": "delete",
                "retention.ms": str(round(kafka.retention * 1000)),
                "max.message.bytes": str(topics.MAX_MESSAGE_BYTES),
            },
        )
        await ensure_topics(kafka, [dead_letters])
        self._controller = Controller(
            job=self.job,
            kafka=kafka,
            topic=topic.name,
            topic_epoch=topic.epoch,
            partitions=topic.partitions,
            dead_letter_topic=dead_letters.name,
            offsets=topic.offsets,
            plan=plan,
            manifests=manifests,
            lease=lease,
            launcher=LocalLauncher(job=self.job.name),
            artifacts=artifacts,
            work_dir=work_dir,
            clock=self._clock,
            actions=(self._on_round,),
        )
        await self._controller.run()

    def drain(self) -> None:
        if self._controller is not None:
            self._controller.drain()

    def halt(self) -> None:
        if self._controller is not None:
            self._controller.halt()

    def retrain(self, *, from_scratch: bool) -> str:
        """The new lineage. Raises StreamtrainError when the job cannot now."""
        if self._controller is None:
            raise StreamtrainError(f"job {self.job.name} has not begun yet", hint="/readyz says what it waits for")
        return self._controller.retrain(from_scratch=from_scratch)

    @property
    def model_error(self) -> WorkerFailedError | None:
        """Why the job is paused, when its model cannot be built or does not fit its schema."""
        controller = self._controller
        if controller is None or controller.status().phase is not Phase.PAUSED:
            return None
        error = controller.error
        return error if isinstance(error, WorkerFailedError) and error.kind in _UNFIT else None

    def view(self, *, crash: str | None) -> JobView:
        """crash: why it has ended, where that was not on purpose."""
        status = self._controller.status() if self._controller is not None else None
        if status is not None and crash:
            status = replace(status, phase=Phase.STOPPED, reason=crash)
        return JobView(
            source=self.job.source,
            status=status,
            reason=crash or f"waits for source {self.job.source}",
            report=self._report.summary(),
        )

    def export(self) -> None:
        """Gauges of what no report tells."""
        if self._controller is not None:
            status = self._controller.status()
            self._report.on_backlog(
                backlog=status.backlog, oldest_untrained_s=status.oldest_untrained_s, retention=status.retention
            )

    def _on_round(self, _job: str, report: RoundReport) -> None:
        self._report.on_round(report)

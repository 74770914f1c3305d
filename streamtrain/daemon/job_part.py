"""A job as the daemon runs it: its controller, which exists once the source has a topic, what is retrained beside it,
and its report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from streamtrain import cancelling, config
from streamtrain.clock import Clock
from streamtrain.control.controller import Controller
from streamtrain.control.launcher.local import LocalLauncher
from streamtrain.control.machine import Phase
from streamtrain.control.retrains import Retrains, Wish
from streamtrain.daemon.overview import JobView
from streamtrain.daemon.source_part import SourcePart, open_topic
from streamtrain.errors import ConfigError, FencedError, ModelError, StreamtrainError, WorkerFailedError
from streamtrain.kafka import topics
from streamtrain.kafka.topic_admin import TopicSpec, ensure_topics
from streamtrain.observe.report import JobReport
from streamtrain.ports import LeasePort, ManifestPort, RetrainPort
from streamtrain.redrive.replay_topic import replay_spec
from streamtrain.types import Retrain, RoundReport
from streamtrain.window.planner import plan

log = structlog.get_logger()

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
        self._retrains: Retrains | None = None

    @property
    def started(self) -> bool:
        return self._controller is not None

    async def run(
        self,
        *,
        source: SourcePart,
        kafka: config.Kafka,
        manifests: ManifestPort,
        retrains: RetrainPort,
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
        replay = replay_spec(kafka, self.job.name, epoch=topic.epoch, partitions=topic.partitions)
        await ensure_topics(kafka, [dead_letters, replay])
        replayed = await open_topic(
            replay.name, kafka=kafka, epoch=topic.epoch, partitions=topic.partitions, clock=self._clock
        )
        build = partial(
            Controller,
            kafka=kafka,
            topic=topic.name,
            topic_epoch=topic.epoch,
            partitions=topic.partitions,
            dead_letter_topic=dead_letters.name,
            offsets=topic.offsets,
            plan=plan,
            lease=lease,
            launcher=LocalLauncher(job=self.job.name),
            artifacts=artifacts,
            work_dir=work_dir,
            clock=self._clock,
            replay=replayed.offsets,
        )
        controller = build(job=self.job, manifests=manifests, actions=(self._on_round,))
        self._retrains = Retrains(
            job=self.job,
            running=controller,
            build=build,
            retrains=retrains,
            manifests=manifests,
            offsets=topic.offsets,
            lease=lease,
            clock=self._clock,
        )
        self._controller = controller
        try:
            await self._run_both(controller, self._retrains)
        finally:
            await replayed.close()

    async def _run_both(self, controller: Controller, retrains: Retrains) -> None:
        job, beside = asyncio.create_task(controller.run()), asyncio.create_task(self._run_beside(retrains))
        try:
            await asyncio.wait((job, beside), return_when=asyncio.FIRST_EXCEPTION)
            for each in (beside, job):
                if each.done():
                    each.result()
            await job
        finally:
            await cancelling.end(job, beside)

    async def _run_beside(self, retrains: Retrains) -> None:
        """What happens to the retrains does not end the job, unless a newer daemon has taken over."""
        try:
            await retrains.run()
        except FencedError:
            raise
        except Exception:
            log.exception("retrains have crashed", job=self.job.name)

    def drain(self) -> None:
        if self._controller is not None and self._retrains is not None:
            self._retrains.drain()
            self._controller.drain()

    def halt(self) -> None:
        if self._controller is not None and self._retrains is not None:
            self._retrains.halt()
            self._controller.halt()

    def pause(self) -> None:
        """Raises StreamtrainError when the job cannot now."""
        self._begun()[0].pause()

    def resume(self) -> None:
        self._begun()[0].resume()

    async def retrain(self, wish: Wish) -> Retrain:
        """Raises StreamtrainError for what cannot be."""
        return await self._begun()[1].begin(wish)

    async def cancel(self, lineage: str) -> None:
        await self._begun()[1].cancel(lineage)

    async def promote(self, lineage: str) -> None:
        await self._begun()[1].promote(lineage)

    def _begun(self) -> tuple[Controller, Retrains]:
        if self._controller is None or self._retrains is None:
            raise StreamtrainError(f"job {self.job.name} has not begun yet", hint="/readyz says what it waits for")
        return self._controller, self._retrains

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
            retrains=self._retrains.status() if self._retrains is not None else (),
            labels={label.field: label for label in self.job.schema_().labels},
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

"""Turns what a group has learned into a manifest, and prunes old ones while training goes on. It commits only
while the lease is held: a holder that cannot renew keeps its workers and waits."""

from __future__ import annotations

import asyncio

import structlog

from streamtrain import cancelling, config
from streamtrain.clock import Clock
from streamtrain.control.group import Group
from streamtrain.control.meter import Meter
from streamtrain.control.progress import Progress
from streamtrain.errors import DependencyError, StreamtrainError, WorkerError
from streamtrain.ports import LeasePort, ManifestPort
from streamtrain.types import Manifest

COMMIT_TIMEOUT_S = 30.0
COMMIT_RETRY_S = 0.5
LEASE_RETRY_S = 1.0
PRUNE_TIMEOUT_S = 30.0

_log = structlog.get_logger()


class Checkpointer:
    def __init__(
        self,
        *,
        job: config.Job,
        topic: str,
        topic_epoch: int,
        manifests: ManifestPort,
        lease: LeasePort,
        clock: Clock,
        meter: Meter,
    ) -> None:
        self._job = job
        self._topic, self._topic_epoch = topic, topic_epoch
        self._manifests = manifests
        self._lease = lease
        self._clock = clock
        self._meter = meter
        self._log = _log.bind(job=job.name)
        self._last_at = clock.monotonic()
        self._pruning: asyncio.Task[None] | None = None

    def restarted(self) -> None:
        """What is in memory now is what the head says."""
        self._last_at = self._clock.monotonic()

    def due(self, *, learned_more: bool, now: float) -> float | None:
        """When to save next, on the monotonic clock; None while there is nothing new."""
        if not learned_more:
            return None
        due = self._last_at + self._job.checkpoint.every
        return due if self._lease.held() else max(due, now + LEASE_RETRY_S)

    async def save(
        self, group: Group, progress: Progress, *, parent: Manifest | None, model_fingerprint: str
    ) -> Manifest | None:
        """The new head; `parent` again when the lease is not held, for then nobody may commit.

        Raises FencedError when a newer daemon has committed, WorkerError when the group has not saved what
        was asked, MongoError when the commit fails for longer than COMMIT_TIMEOUT_S although the lease is held.
        """
        await self._pruned(timeout=PRUNE_TIMEOUT_S)
        if not self._lease.held():
            self._log.warning("not saving: the lease cannot be renewed")
            return parent
        began = self._clock.monotonic()
        job, epoch = self._job.name, self._lease.epoch
        saved = await group.save(f"{job}/{progress.lineage}/e{epoch}-g{group.generation}-r{progress.rounds}/")
        if saved.rounds != progress.rounds:
            raise WorkerError(f"the group saved after round {saved.rounds}, its reports say {progress.rounds}")
        sequence = 0 if parent is None else parent.sequence + 1
        manifest = Manifest(
            id=f"{job}/{progress.lineage}/{sequence}",
            job=job,
            lineage=progress.lineage,
            sequence=sequence,
            parent=None if parent is None else parent.id,
            epoch=epoch,
            generation=group.generation,
            created_ms=int(self._clock.time() * 1000),
            topic=self._topic,
            topic_epoch=self._topic_epoch,
            learned=progress.learned,
            window_begins=progress.window_begins,
            rounds=progress.rounds,
            steps=progress.steps,
            rows_learned=progress.rows_learned,
            counts=progress.counts,
            scores=progress.scores,
            artifacts=saved.artifacts,
            schema_fingerprint=self._job.schema_().fingerprint(),
            model_fingerprint=model_fingerprint,
            retrain_until=progress.retrain_until,
            watermark=progress.watermark,
            holdout=progress.holdout,
            expelled=progress.expelled,
            hyper=progress.hyper,
            begins=progress.begins,
            redriven=progress.redriven,
        )
        await self._commit(manifest)
        self._last_at = self._clock.monotonic()
        self._meter.saved(created_ms=manifest.created_ms, seconds=self._last_at - began)
        self._pruning = asyncio.create_task(self._prune())
        return manifest

    async def _commit(self, manifest: Manifest) -> None:
        """The same manifest may be committed again: a lost answer is not a lost checkpoint. While the lease cannot
        be renewed it waits: the holder keeps its workers, and goes on if its epoch still stands."""
        give_up = self._clock.monotonic() + COMMIT_TIMEOUT_S
        while True:
            try:
                return await self._manifests.commit(manifest, epoch=manifest.epoch)
            except DependencyError as error:
                if self._clock.monotonic() >= give_up and self._lease.held():
                    raise
                self._log.warning("the manifest could not be committed yet", reason=error.message)
            await self._clock.sleep(COMMIT_RETRY_S)
            while not self._lease.held():
                await self._clock.sleep(COMMIT_RETRY_S)
                give_up = self._clock.monotonic() + COMMIT_TIMEOUT_S

    async def _prune(self) -> None:
        try:
            await self._manifests.prune(self._job.name, keep=self._job.checkpoint.keep, epoch=self._lease.epoch)
        except StreamtrainError as error:  # nothing is lost: the next save prunes again
            self._log.warning("old checkpoints could not be pruned", reason=error.message)

    async def _pruned(self, *, timeout: float) -> None:
        """Until nothing is pruned any more. What takes longer is given up: the next save prunes again."""
        pruning, self._pruning = self._pruning, None
        if pruning is None:
            return
        try:
            await asyncio.wait({pruning}, timeout=timeout)
        finally:
            await cancelling.end(pruning)
            if not pruning.cancelled() and (error := pruning.exception()) is not None:
                self._log.error("pruning has crashed", exc_info=error)

    async def close(self) -> None:
        await self._pruned(timeout=0)

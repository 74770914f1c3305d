"""Where a controller's lineage begins and which window it remembers: the job's own, or one beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from streamtrain import config
from streamtrain.control.forming import check_retention
from streamtrain.control.progress import Progress, begun, of_manifest, same_topic, skip_removed, window_of_range
from streamtrain.errors import ArtifactError, ConfigError, OffsetError
from streamtrain.ports import ManifestPort, OffsetsPort
from streamtrain.types import Learned, Manifest, Retrain


@dataclass(frozen=True, slots=True)
class Start:
    """head: the lineage's newest manifest, None for a fresh one. restore: the manifest whose weights are restored.
    forget_through: see `protocol.Form`."""

    head: Manifest | None
    progress: Progress
    restore: Manifest | None
    forget_through: tuple[int, ...] = ()


class Course(Protocol):
    beside: str | None
    """The lineage that is learned beside the job, whose metrics are then not touched; None: the job's own."""

    async def start(self, epoch: int) -> Start:
        """Raises ConfigError when the head does not fit the job as it is configured, OffsetError when it has learned
        from another topic, or when records between what was learned and what Kafka holds are gone."""

    async def window(self, learned: Sequence[Learned]) -> tuple[int, ...]:
        """Where the window begins."""


class JobCourse:
    """On from the job's head, or from where the window begins."""

    beside: str | None = None

    def __init__(self, *, job: config.Job, offsets: OffsetsPort, manifests: ManifestPort, lineage: str) -> None:
        """lineage: the id of a fresh job's first lineage."""
        self._job = job
        self._offsets = offsets
        self._manifests = manifests
        self._lineage = lineage

    async def start(self, epoch: int) -> Start:
        head = await self._manifests.claim(self._job.name, epoch=epoch)
        if head is None:
            window = await self.window(())
            learned = await self._offsets.locate(window)
            return Start(None, Progress(lineage=self._lineage, learned=learned, window_begins=window), None)
        return await go_on(head, job=self._job, offsets=self._offsets)

    async def window(self, learned: Sequence[Learned]) -> tuple[int, ...]:
        return await self._offsets.window_begins(self._job.window.duration, self._job.window.max_records)


class RetrainCourse:
    """Through a range of what the topic holds, beside the job.

    manifests: of the lineage. base: the manifest whose weights it begins with.
    """

    def __init__(
        self,
        *,
        job: config.Job,
        retrain: Retrain,
        offsets: OffsetsPort,
        manifests: ManifestPort,
        base: Manifest | None,
    ) -> None:
        self.beside: str | None = retrain.lineage
        self._job = job
        self._retrain = retrain
        self._offsets = offsets
        self._manifests = manifests
        self._base = base

    async def start(self, epoch: int) -> Start:
        retrain, job = self._retrain, self._job
        head = await self._manifests.claim(job.name, epoch=epoch)
        if head is not None:
            start = await go_on(head, job=job, offsets=self._offsets)
            return replace(start, forget_through=retrain.forget_through)
        if (topic := (await self._offsets.frontier()).topic) != retrain.topic:
            raise OffsetError(
                f"the range of this retrain lies in the topic {retrain.topic}; job {job.name} now learns from {topic}",
                hint="cancel it, and begin another one",
            )
        if retrain.base is not None and self._base is None:
            raise ArtifactError(f"the manifest {retrain.base} that this retrain begins with is gone")
        await check_retention(job.name, self._offsets, retrain.begins)
        progress = begun(retrain, base=self._base)
        return Start(None, progress, self._base, retrain.forget_through)

    async def window(self, learned: Sequence[Learned]) -> tuple[int, ...]:
        return window_of_range(self._retrain.begins, learned, max_records=self._job.window.max_records)


async def go_on(head: Manifest, *, job: config.Job, offsets: OffsetsPort) -> Start:
    check_schema(head, job)
    if not same_topic(head, frontier := await offsets.frontier()):
        raise OffsetError(
            f"job {job.name} has learned from the topic {head.topic} with {len(head.learned)} partitions; "
            f"its source now writes {frontier.topic} with {len(frontier.partitions)}",
            hint="set back what was changed, or learn what the topic holds now: "
            f"streamtrain retrain {job.name} --promote",
        )
    await check_retention(job.name, offsets, head.learned)
    progress = replace(of_manifest(head), learned=skip_removed(head.learned, await offsets.frontier()))
    # A lineage that an earlier release began in the job's own place still looks ahead for what was deleted.
    return Start(head, progress, head, tuple(place.offset for place in progress.retrain_until or ()))


def check_schema(head: Manifest, job: config.Job) -> None:
    """Raises ConfigError."""
    if head.schema_fingerprint != job.schema_().fingerprint():
        raise ConfigError(
            f"the features or labels of job {job.name} are not those that its checkpoint was trained with",
            hint=f"restore them, or learn anew: streamtrain retrain {job.name} --from scratch --promote",
        )

"""Deletes from the demo's topic what its newest checkpoint no longer needs, because the embedded broker keeps
a whole topic in memory and in one file. A deployment leaves this to the topic's retention."""

from __future__ import annotations

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from streamtrain.registry.store import ManifestStore

EVERY_S = 2.0


class Trimmer:
    """Trims no further than the window of the job's head manifest: a restart reads from there."""

    def __init__(self, *, admin: AIOKafkaAdminClient, manifests: ManifestStore, job: str) -> None:
        self._admin = admin
        self._manifests = manifests
        self._job = job
        self._trimmed: tuple[int, ...] = ()

    async def trim(self) -> None:
        head = await self._manifests.head(self._job)
        if head is None:
            return
        needed = tuple(
            min(begin, learned.offset) for begin, learned in zip(head.window_begins, head.learned, strict=True)
        )
        before = self._trimmed or (0,) * len(needed)
        moved = {
            TopicPartition(head.topic, partition): RecordsToDelete(before_offset=offset)
            for partition, (offset, done) in enumerate(zip(needed, before, strict=True))
            if offset > done
        }
        if moved:
            await self._admin.delete_records(moved)
            self._trimmed = needed

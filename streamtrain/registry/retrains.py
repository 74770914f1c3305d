"""The lineages that are learned beside a job, in the job's own document: so that the end of one and the swap of the
job's head are one update, and a daemon whose epoch has passed can change neither."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import ReturnDocument

from streamtrain.codec import from_document, to_document
from streamtrain.errors import ArtifactError, StreamtrainError, SupersededError
from streamtrain.registry.manifests import chain, orphans, pairs
from streamtrain.registry.store import ManifestStore, explained, fenced
from streamtrain.types import Manifest, Retrain


class RetrainStore:
    """Implements `ports.RetrainPort`. Raises what `ManifestStore` does."""

    def __init__(self, store: ManifestStore) -> None:
        self._store = store

    async def running(self, job: str, *, epoch: int) -> Sequence[Retrain]:
        document = await self._store.swap(job, epoch, {"epoch": epoch}) or {}
        found = [_from_stored(stored) for stored in (document.get("retrains") or {}).values()]
        return sorted(found, key=lambda retrain: (retrain.created_ms, retrain.lineage))

    async def begin(self, retrain: Retrain, *, epoch: int) -> None:
        change = {"epoch": epoch, f"retrains.{retrain.lineage}": _to_stored(retrain)}
        await self._store.swap(retrain.job, epoch, change)

    async def change(self, retrain: Retrain, *, epoch: int) -> None:
        where = f"retrains.{retrain.lineage}"
        change = {f"{where}.state": retrain.state.value, f"{where}.promote": retrain.promote}
        await self.update(retrain.job, retrain.lineage, {"$set": change}, epoch=epoch)

    async def cancel(self, job: str, lineage: str, *, epoch: int) -> None:
        # What breaks off after this is pruned with the job's: nothing names these manifests any more.
        await self.update(job, lineage, {"$unset": {f"retrains.{lineage}": ""}}, epoch=epoch)
        with explained(f"removing the manifests of {lineage}"):
            await self._store.collection.delete_many({"job": job, "lineage": lineage, "epoch": {"$lte": epoch}})
        names = await asyncio.to_thread(self._store.artifacts.list, f"{job}/{lineage}/")
        for name in orphans(names, kept=(), epoch=epoch):
            await asyncio.to_thread(self._store.artifacts.delete, name)

    async def promote(self, manifest: Manifest, *, epoch: int) -> None:
        await self._store.write(manifest, epoch=epoch)
        await self.update(
            manifest.job,
            manifest.lineage,
            {
                "$set": {"head": manifest.id, "sequence": manifest.sequence, "committed_ms": manifest.created_ms},
                "$unset": {f"retrains.{manifest.lineage}": ""},
            },
            epoch=epoch,
            head=manifest.parent,
        )

    async def read(self, id: str) -> Manifest | None:
        return await self._store.read(id)

    def manifests(self, lineage: str) -> LineageManifests:
        return LineageManifests(retrains=self, store=self._store, lineage=lineage)

    async def update(
        self, job: str, lineage: str, change: Mapping[str, Any], *, epoch: int, **where: Any
    ) -> Mapping[str, Any]:
        """Changes the job's document while the retrain is there; returns it."""
        condition = {"_id": job, "epoch": {"$lte": epoch}, f"retrains.{lineage}": {"$exists": True}, **where}
        stamped = {**change, "$set": {**change.get("$set", {}), "epoch": epoch}}
        with explained(f"changing the retrain {lineage}"):
            found: Mapping[str, Any] | None = await self._store.jobs.find_one_and_update(
                condition, stamped, return_document=ReturnDocument.AFTER
            )
            if found is not None:
                return found
            document = await self._store.jobs.find_one({"_id": job})
        if document is not None and document["epoch"] > epoch:
            raise fenced(job, epoch)
        if document is None or lineage not in (document.get("retrains") or {}):
            raise SupersededError(f"job {job} has no retrain {lineage} any more")
        raise SupersededError(f"the head of job {job} has moved on")


class LineageManifests:
    """Implements `ports.ManifestPort` for one retrain: its head stands beside the job's."""

    def __init__(self, *, retrains: RetrainStore, store: ManifestStore, lineage: str) -> None:
        self._retrains = retrains
        self._store = store
        self._lineage = lineage

    async def claim(self, job: str, *, epoch: int) -> Manifest | None:
        document = await self._retrains.update(job, self._lineage, {}, epoch=epoch)
        head = document["retrains"][self._lineage].get("head")
        if head is None:
            return None
        manifest = await self._store.read(head)
        if manifest is None:
            raise ArtifactError(f"the manifest {head} of the retrain {self._lineage} is missing", hint="cancel it")
        return manifest

    async def commit(self, manifest: Manifest, *, epoch: int) -> None:
        await self._store.write(manifest, epoch=epoch)
        change = {f"retrains.{self._lineage}.head": manifest.id}
        await self._retrains.update(manifest.job, self._lineage, {"$set": change}, epoch=epoch)

    async def prune(self, job: str, *, keep: int, epoch: int) -> Sequence[str]:
        names = await asyncio.to_thread(self._store.artifacts.list, f"{job}/{self._lineage}/")
        entries = await self._store.entries({"job": job, "lineage": self._lineage})
        document = await self._retrains.update(job, self._lineage, {}, epoch=epoch)
        kept = chain(entries, head=document["retrains"][self._lineage].get("head"), keep=max(1, keep))
        if not kept:
            return ()
        return await self._store.remove(entries, names, kept=kept, epoch=epoch)


def _to_stored(retrain: Retrain) -> dict[str, Any]:
    document = to_document(retrain)
    return {**document, "hyper": pairs(document["hyper"])}


def _from_stored(document: Mapping[str, Any]) -> Retrain:
    try:
        hyper = {pair["key"]: pair["value"] for pair in document["hyper"]}
        return from_document(Retrain, {**document, "hyper": hyper})
    except (ValueError, KeyError, TypeError) as error:
        raise StreamtrainError(f"a stored retrain cannot be read: {type(error).__name__}") from error

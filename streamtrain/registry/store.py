"""Manifests and each job's head, in MongoDB. A manifest is written first and becomes true by one conditional
swap of the head; a daemon whose epoch has passed can do neither."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pymongo
from pymongo import ReadPreference, ReturnDocument, WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern

from streamtrain.artifacts import ArtifactStore
from streamtrain.errors import ArtifactError, FencedError
from streamtrain.mongo_failure import explain
from streamtrain.registry.manifests import Entry, chain, from_stored, orphans, to_stored
from streamtrain.types import Manifest

TIMEOUT_S = 15.0
_ENTRY_FIELDS = {"_id": 1, "parent": 1, "epoch": 1, "artifacts": 1}


class ManifestStore:
    """Implements `ports.ManifestPort`. Every method raises MongoError, AuthenticationError or
    PermissionMissingError when MongoDB fails, and those that write FencedError past their epoch."""

    def __init__(self, *, database: AsyncDatabase[dict[str, Any]], artifacts: ArtifactStore) -> None:
        options: dict[str, Any] = {
            "write_concern": WriteConcern("majority", wtimeout=round(TIMEOUT_S * 1000)),
            "read_concern": ReadConcern("majority"),
            "read_preference": ReadPreference.PRIMARY,
        }
        self._manifests = database.get_collection("manifests", **options)
        self._jobs = database.get_collection("jobs", **options)
        self._artifacts = artifacts

    async def prepare(self) -> None:
        """Creates the index. Idempotent."""
        with _explained("preparing the manifests"):
            await self._manifests.create_index([("job", 1), ("sequence", -1)])

    async def claim(self, job: str, *, epoch: int) -> Manifest | None:
        """Stamps the epoch into the job, so that no earlier daemon can commit any more, and returns its head."""
        return await self._head_of(job, await self._swap(job, epoch, {"epoch": epoch}))

    async def head(self, job: str) -> Manifest | None:
        """For display: whoever goes on from it uses `claim`."""
        with _explained(f"reading the head of job {job}"):
            found = await self._jobs.find_one({"_id": job})
        return await self._head_of(job, found)

    async def commit(self, manifest: Manifest, *, epoch: int) -> None:
        """May be repeated with the same manifest."""
        with _explained(f"writing the manifest {manifest.id}"):
            try:
                # What is there under this id is either this manifest or one that never became the head.
                await self._manifests.replace_one(
                    {"_id": manifest.id, "epoch": {"$lte": epoch}}, to_stored(manifest), upsert=True
                )
            except DuplicateKeyError:
                raise _fenced(manifest.job, epoch) from None
        await self._swap(
            manifest.job,
            epoch,
            {"epoch": epoch, "head": manifest.id, "sequence": manifest.sequence, "committed_ms": manifest.created_ms},
        )

    async def history(self, job: str) -> Sequence[Manifest]:
        """The head and the manifests before it that are still kept, newest first."""
        kept: list[Manifest] = []
        manifest = await self.head(job)
        while manifest is not None:
            kept.append(manifest)
            manifest = None if manifest.parent is None else await self.read(manifest.parent)
        return kept

    async def stored(self, job: str) -> Sequence[Manifest]:
        """Every manifest of the job that is there, of any lineage, newest first."""
        with _explained(f"reading the manifests of job {job}"):
            found = self._manifests.find({"job": job}).sort([("created_ms", -1), ("sequence", -1)])
            return [from_stored(document) async for document in found]

    async def read(self, id: str) -> Manifest | None:
        """None where there is none, or none any more."""
        with _explained(f"reading the manifest {id}"):
            document = await self._manifests.find_one({"_id": id})
        return None if document is None else from_stored(document)

    async def prune(self, job: str, *, keep: int, epoch: int) -> Sequence[str]:
        """Removes every manifest but the newest `keep` that lead to the head, and every artifact of the job that
        none of those names. A newer daemon's are left alone. Not while the job is saving."""
        with _explained(f"pruning the manifests of job {job}"):
            found = await self._jobs.find_one({"_id": job})
            if found is not None and found["epoch"] > epoch:
                raise _fenced(job, epoch)
            entries = [
                Entry.of_stored(document) async for document in self._manifests.find({"job": job}, _ENTRY_FIELDS)
            ]
            kept = chain(entries, head=None if found is None else found.get("head"), keep=max(1, keep))
            removed = [each.id for each in entries if each not in kept and each.epoch <= epoch]
            if removed:
                await self._manifests.delete_many({"_id": {"$in": removed}})
        names = await asyncio.to_thread(self._artifacts.list, f"{job}/")
        spared = [each for each in entries if each.id not in removed]
        for name in orphans(names, kept=spared, epoch=epoch):
            await asyncio.to_thread(self._artifacts.delete, name)
        return removed

    async def _head_of(self, job: str, document: Mapping[str, Any] | None) -> Manifest | None:
        if document is None or document.get("head") is None:
            return None
        manifest = await self.read(document["head"])
        if manifest is None:
            raise ArtifactError(
                f"the head manifest {document['head']} of job {job} is missing",
                hint="restore the collection manifests from a backup, or give the job another name to start anew",
            )
        return manifest

    async def _swap(self, job: str, epoch: int, change: Mapping[str, Any]) -> Mapping[str, Any] | None:
        with _explained(f"changing job {job}"):
            try:
                found: Mapping[str, Any] | None = await self._jobs.find_one_and_update(
                    {"_id": job, "epoch": {"$lte": epoch}},
                    {"$set": dict(change)},
                    upsert=True,
                    return_document=ReturnDocument.AFTER,
                )
            except DuplicateKeyError:  # the job is there, with a later epoch
                raise _fenced(job, epoch) from None
        return found


def _fenced(job: str, epoch: int) -> FencedError:
    return FencedError(
        f"job {job} belongs to a newer daemon than this one (epoch {epoch})",
        hint="two daemons share one state database: only one of them may train",
    )


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    try:
        with pymongo.timeout(TIMEOUT_S):
            yield
    except PyMongoError as error:
        raise explain(error, doing=doing) from error

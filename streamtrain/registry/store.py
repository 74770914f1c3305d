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
from streamtrain.errors import ArtifactError, FencedError, SupersededError
from streamtrain.mongo_failure import explain
from streamtrain.registry.manifests import Entry, chain, from_stored, orphans, to_stored
from streamtrain.types import Manifest

TIMEOUT_S = 15.0
_ENTRY_FIELDS = {"_id": 1, "parent": 1, "epoch": 1, "artifacts": 1, "lineage": 1}


class ManifestStore:
    """Implements `ports.ManifestPort`. Every method raises MongoError, AuthenticationError or
    PermissionMissingError when MongoDB fails, and those that write FencedError past their epoch."""

    def __init__(self, *, database: AsyncDatabase[dict[str, Any]], artifacts: ArtifactStore) -> None:
        options: dict[str, Any] = {
            "write_concern": WriteConcern("majority", wtimeout=round(TIMEOUT_S * 1000)),
            "read_concern": ReadConcern("majority"),
            "read_preference": ReadPreference.PRIMARY,
        }
        self.collection = database.get_collection("manifests", **options)
        self.jobs = database.get_collection("jobs", **options)
        self.artifacts = artifacts

    async def prepare(self) -> None:
        """Creates the index. Idempotent."""
        with explained("preparing the manifests"):
            await self.collection.create_index([("job", 1), ("sequence", -1)])

    async def claim(self, job: str, *, epoch: int) -> Manifest | None:
        """Stamps the epoch into the job, so that no earlier daemon can commit any more, and returns its head."""
        return await self._head_of(job, await self.swap(job, epoch, {"epoch": epoch}))

    async def head(self, job: str) -> Manifest | None:
        """For display: whoever goes on from it uses `claim`."""
        with explained(f"reading the head of job {job}"):
            found = await self.jobs.find_one({"_id": job})
        return await self._head_of(job, found)

    async def commit(self, manifest: Manifest, *, epoch: int) -> None:
        """May be repeated with the same manifest. Raises SupersededError when the head is not its parent."""
        await self.write(manifest, epoch=epoch)
        change = {
            "epoch": epoch,
            "head": manifest.id,
            "sequence": manifest.sequence,
            "committed_ms": manifest.created_ms,
        }
        await self.swap(manifest.job, epoch, change, head={"$in": [manifest.parent, manifest.id]})

    async def write(self, manifest: Manifest, *, epoch: int) -> None:
        """Stores it, and is no head yet."""
        with explained(f"writing the manifest {manifest.id}"):
            try:
                # What is there under this id is either this manifest or one that never became the head.
                await self.collection.replace_one(
                    {"_id": manifest.id, "epoch": {"$lte": epoch}}, to_stored(manifest), upsert=True
                )
            except DuplicateKeyError:
                raise fenced(manifest.job, epoch) from None

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
        with explained(f"reading the manifests of job {job}"):
            found = self.collection.find({"job": job}).sort([("created_ms", -1), ("sequence", -1)])
            return [from_stored(document) async for document in found]

    async def read(self, id: str) -> Manifest | None:
        """None where there is none, or none any more."""
        with explained(f"reading the manifest {id}"):
            document = await self.collection.find_one({"_id": id})
        return None if document is None else from_stored(document)

    async def prune(self, job: str, *, keep: int, epoch: int) -> Sequence[str]:
        """Removes every manifest but the newest `keep` that lead to the head, and every artifact of the job that
        none of those names. A newer daemon's are left alone, and so is all of the retrains that run, with what they
        began from. Not while the job is saving."""
        # In this order: what is written or promoted meanwhile is either not looked at, or known to be needed.
        names = await asyncio.to_thread(self.artifacts.list, f"{job}/")
        entries = await self.entries({"job": job})
        with explained(f"pruning the manifests of job {job}"):
            found = await self.jobs.find_one({"_id": job}) or {}
        if found.get("epoch", 0) > epoch:
            raise fenced(job, epoch)
        kept = chain(entries, head=found.get("head"), keep=max(1, keep))
        if found.get("head") is not None and not kept:
            return ()
        retrains = found.get("retrains") or {}
        beside = [f"{job}/{lineage}/" for lineage in retrains]
        bases = {retrain.get("base") for retrain in retrains.values()}
        spared = [entry for entry in entries if entry.lineage in retrains or entry.id in bases]
        names = [name for name in names if not name.startswith(tuple(beside))]
        return await self.remove(entries, names, kept=[*kept, *spared], epoch=epoch)

    async def entries(self, where: Mapping[str, Any]) -> Sequence[Entry]:
        with explained("reading manifests to prune"):
            return [Entry.of_stored(document) async for document in self.collection.find(where, _ENTRY_FIELDS)]

    async def remove(
        self, entries: Sequence[Entry], names: Sequence[str], *, kept: Sequence[Entry], epoch: int
    ) -> Sequence[str]:
        """Of these manifests all but those that are kept, and of the artifacts those that no other one names."""
        removed = [each.id for each in entries if each not in kept and each.epoch <= epoch]
        if removed:
            with explained("removing manifests"):
                await self.collection.delete_many({"_id": {"$in": removed}})
        others = [each for each in entries if each.id not in removed]
        for name in orphans(names, kept=others, epoch=epoch):
            await asyncio.to_thread(self.artifacts.delete, name)
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

    async def swap(self, job: str, epoch: int, change: Mapping[str, Any], **where: Any) -> Mapping[str, Any] | None:
        """Changes the job's document, if it is as `where` says; returns it."""
        with explained(f"changing job {job}"):
            try:
                found: Mapping[str, Any] | None = await self.jobs.find_one_and_update(
                    {"_id": job, "epoch": {"$lte": epoch}, **where},
                    {"$set": dict(change)},
                    upsert=True,
                    return_document=ReturnDocument.AFTER,
                )
                return found
            except DuplicateKeyError:  # the job is there, with a later epoch or another head
                document = await self.jobs.find_one({"_id": job})
        if document is None or document["epoch"] > epoch:
            raise fenced(job, epoch)
        raise SupersededError(f"the head of job {job} has moved on to {document.get('head')}")


def fenced(job: str, epoch: int) -> FencedError:
    return FencedError(
        f"job {job} belongs to a newer daemon than this one (epoch {epoch})",
        hint="two daemons share one state database: only one of them may train",
    )


@contextmanager
def explained(doing: str) -> Iterator[None]:
    try:
        with pymongo.timeout(TIMEOUT_S):
            yield
    except PyMongoError as error:
        raise explain(error, doing=doing) from error

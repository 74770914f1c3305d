"""Manifests on the embedded MongoDB: the head swap, its fence, and what pruning leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from streamtrain.artifacts import DirectoryStore
from streamtrain.errors import ArtifactError, FencedError, MongoError, StreamtrainError
from streamtrain.registry.store import ManifestStore
from streamtrain.sandbox.mongo_server import ThreadedMongo
from streamtrain.types import Learned, Manifest, RoundCounts, Scores


class Registry:
    def __init__(self, client: AsyncMongoClient[dict[str, Any]], path: Path) -> None:
        self.database = client["state"]
        self.artifacts = DirectoryStore(path=path)
        self.store = ManifestStore(database=self.database, artifacts=self.artifacts)

    async def commit(self, sequence: int, *, epoch: int = 1, parent: Manifest | None = None) -> Manifest:
        manifest = a_manifest(self, sequence, epoch=epoch, parent=parent)
        await self.store.commit(manifest, epoch=epoch)
        return manifest


def a_manifest(registry: Registry, sequence: int, *, epoch: int = 1, parent: Manifest | None = None) -> Manifest:
    ref = registry.artifacts.put(f"job/l/e{epoch}-g1-r{sequence}/state", f"{epoch}/{sequence}".encode())
    return Manifest(
        id=f"job/l/{sequence}",
        job="job",
        lineage="l",
        sequence=sequence,
        parent=None if parent is None else parent.id,
        epoch=epoch,
        generation=1,
        created_ms=1_700_000_000_000 + sequence,
        topic="t.s.0",
        topic_epoch=0,
        learned=(Learned(2**40, 7), Learned(5, 5)),
        window_begins=(0, 1),
        rounds=sequence + 1,
        steps=3,
        rows_learned=12,
        counts=RoundCounts(learned=12),
        scores={"nested.label": Scores(rows=3, weight=3.0, loss=0.5, sums={"absolute_error": 1.5})},
        artifacts={"state": ref},
        schema_fingerprint="s",
        model_fingerprint="m",
        retrain_until=(Learned(9, 9), Learned(9, 9)),
    )


@pytest.fixture
async def registry(mongo_server: ThreadedMongo, tmp_path: Path) -> AsyncIterator[Registry]:
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongo_server.uri)
    registry = Registry(client, tmp_path)
    await registry.store.prepare()
    yield registry
    await client.close()


async def test_a_committed_manifest_is_the_head_and_comes_back_as_it_was(registry: Registry) -> None:
    assert await registry.store.claim("job", epoch=1) is None
    first = await registry.commit(0)
    assert await registry.store.head("job") == first
    second = await registry.commit(1, parent=first)
    assert await registry.store.claim("job", epoch=1) == second
    assert await registry.store.history("job") == [second, first]
    assert await registry.store.head("another job") is None


async def test_a_commit_may_be_repeated(registry: Registry) -> None:
    first = await registry.commit(0)
    await registry.store.commit(first, epoch=1)
    assert await registry.store.history("job") == [first]


async def test_a_stale_daemon_can_neither_commit_nor_claim_nor_prune(registry: Registry) -> None:
    first = await registry.commit(0, epoch=1)
    await registry.store.claim("job", epoch=2)  # the new daemon has not committed anything yet
    with pytest.raises(FencedError):
        await registry.commit(1, epoch=1, parent=first)
    with pytest.raises(FencedError):
        await registry.store.claim("job", epoch=1)
    with pytest.raises(FencedError):
        await registry.store.prune("job", keep=1, epoch=1)
    assert await registry.store.head("job") == first


async def test_a_stale_daemon_cannot_overwrite_a_manifest_of_a_newer_one(registry: Registry) -> None:
    await registry.store.claim("job", epoch=2)
    newer = await registry.commit(0, epoch=2)
    with pytest.raises(FencedError):
        await registry.commit(0, epoch=1)
    assert await registry.store.head("job") == newer


async def test_a_manifest_written_by_a_daemon_that_died_before_the_swap_is_replaced(registry: Registry) -> None:
    first = await registry.commit(0, epoch=1)
    lost = a_manifest(registry, 1, epoch=1, parent=first)
    await registry.database["manifests"].insert_one({"_id": lost.id, "job": "job", "epoch": 1, "format": 1})
    second = await registry.commit(1, epoch=2, parent=first)
    assert await registry.store.history("job") == [second, first]


async def test_pruning_keeps_the_newest_and_removes_the_files_of_the_rest(registry: Registry) -> None:
    manifest: Manifest | None = None
    for sequence in range(5):
        manifest = await registry.commit(sequence, parent=manifest)
    assert sorted(await registry.store.prune("job", keep=2, epoch=1)) == ["job/l/0", "job/l/1", "job/l/2"]
    kept = await registry.store.history("job")
    assert [each.sequence for each in kept] == [4, 3]
    assert registry.artifacts.list("job/") == ["job/l/e1-g1-r3/state", "job/l/e1-g1-r4/state"]
    assert await registry.store.prune("job", keep=2, epoch=1) == []


async def test_pruning_never_takes_the_head(registry: Registry) -> None:
    head = await registry.commit(0)
    await registry.store.prune("job", keep=0, epoch=1)
    assert await registry.store.head("job") == head
    assert registry.artifacts.list("job/") == [head.artifacts["state"].name]


async def test_files_that_no_manifest_names_are_collected_but_not_those_of_a_newer_daemon(registry: Registry) -> None:
    head = await registry.commit(0)
    registry.artifacts.put("job/l/e1-g1-r7/state", b"saved, and then the daemon died")
    registry.artifacts.put("job/l/e2-g1-r7/state", b"a newer daemon is saving")
    registry.artifacts.put("job/export/model", b"not a checkpoint")
    registry.artifacts.put("job-2/l/e1-g1-r7/state", b"another job's")
    await registry.store.prune("job", keep=3, epoch=1)
    assert registry.artifacts.list("job") == [
        "job-2/l/e1-g1-r7/state",
        "job/export/model",
        head.artifacts["state"].name,
        "job/l/e2-g1-r7/state",
    ]


async def test_manifests_that_never_became_the_head_do_not_count(registry: Registry) -> None:
    first = await registry.commit(0)
    lost = replace(a_manifest(registry, 1, parent=first), id="job/other/1")
    await registry.database["manifests"].insert_one(
        {"_id": lost.id, "job": "job", "parent": first.id, "epoch": 1, "sequence": 1, "artifacts": {}, "format": 1}
    )
    assert await registry.store.prune("job", keep=1, epoch=1) == ["job/other/1"]
    assert await registry.store.head("job") == first


async def test_a_missing_head_is_an_error_and_not_a_fresh_job(registry: Registry) -> None:
    await registry.commit(0)
    await registry.database["manifests"].delete_many({})
    with pytest.raises(ArtifactError, match="job/l/0 of job job is missing"):
        await registry.store.claim("job", epoch=1)


async def test_a_manifest_of_a_newer_version_is_refused(registry: Registry) -> None:
    await registry.commit(0)
    await registry.database["manifests"].update_one({"_id": "job/l/0"}, {"$set": {"format": 99}})
    with pytest.raises(StreamtrainError, match="newer streamtrain"):
        await registry.store.head("job")


async def test_what_a_future_version_adds_is_read_over(registry: Registry) -> None:
    head = await registry.commit(0)
    await registry.database["manifests"].update_one({"_id": "job/l/0"}, {"$set": {"an_addition": 1}})
    assert await registry.store.head("job") == head


async def test_a_server_that_fails_is_told_with_what_was_asked(registry: Registry, mongo_server: ThreadedMongo) -> None:
    mongo_server.faults.error("findAndModify", 8, times=100)
    with pytest.raises(MongoError, match="changing job job"):
        await registry.store.claim("job", epoch=1)

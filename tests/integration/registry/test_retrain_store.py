"""Retrains in the job's document: their heads, their fence, what pruning leaves them, and the swap."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from streamtrain.artifacts import DirectoryStore
from streamtrain.errors import ArtifactError, FencedError, SupersededError
from streamtrain.registry.retrains import RetrainStore
from streamtrain.registry.store import ManifestStore
from streamtrain.sandbox.mongo_server import ThreadedMongo
from streamtrain.types import Learned, Manifest, Retrain, RetrainState, RoundCounts

RETRAIN = Retrain(
    job="job",
    lineage="20261201t010203-abc",
    state=RetrainState.LEARNING,
    topic="t.s.0",
    base=None,
    hyper={"with.dots": {"$odd": [1, 2.5]}, "plain": "x"},
    workers=2,
    begins=(Learned(2**40, 7),),
    end=(Learned(2**41, 9),),
    watermark=2**63 - 1,
    forget_through=(2**41,),
    promote=False,
    created_ms=1_700_000_000_000,
    since_ms=5,
)


class Registry:
    def __init__(self, client: AsyncMongoClient[dict[str, Any]], path: Path) -> None:
        self.artifacts = DirectoryStore(path=path)
        self.manifests = ManifestStore(database=client["state"], artifacts=self.artifacts)
        self.retrains = RetrainStore(self.manifests)
        self.database = client["state"]

    def manifest(self, lineage: str, sequence: int, *, parent: Manifest | None = None, epoch: int = 1) -> Manifest:
        ref = self.artifacts.put(f"job/{lineage}/e{epoch}-g1-r{sequence}/state", f"{epoch}/{sequence}".encode())
        return Manifest(
            id=f"job/{lineage}/{sequence}",
            job="job",
            lineage=lineage,
            sequence=sequence,
            parent=None if parent is None else parent.id,
            epoch=epoch,
            generation=1,
            created_ms=1_700_000_000_000 + sequence,
            topic="t.s.0",
            topic_epoch=0,
            learned=(Learned(5, 5),),
            window_begins=(0,),
            rounds=sequence + 1,
            steps=3,
            rows_learned=12,
            counts=RoundCounts(learned=12),
            scores={},
            artifacts={"state": ref},
            schema_fingerprint="s",
            model_fingerprint="m",
            hyper={"a.b": 1},
        )

    async def job(self, count: int) -> Manifest:
        """The job's own manifests; the newest."""
        head: Manifest | None = None
        for sequence in range(count):
            manifest = self.manifest("l", sequence, parent=head)
            await self.manifests.commit(manifest, epoch=1)
            head = manifest
        assert head is not None
        return head

    async def beside(self, count: int, *, lineage: str = RETRAIN.lineage) -> Manifest:
        head: Manifest | None = None
        for sequence in range(count):
            manifest = self.manifest(lineage, sequence, parent=head)
            await self.retrains.manifests(lineage).commit(manifest, epoch=1)
            head = manifest
        assert head is not None
        return head

    async def ids(self) -> list[str]:
        return sorted([found["_id"] async for found in self.database["manifests"].find({}, {"_id": 1})])


@pytest.fixture
async def registry(mongo_server: ThreadedMongo, tmp_path: Path) -> AsyncIterator[Registry]:
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongo_server.uri)
    yield Registry(client, tmp_path)
    await client.close()


async def test_what_was_begun_is_found_again_as_it_was_in_the_order_of_its_begin(registry: Registry) -> None:
    assert await registry.retrains.running("job", epoch=1) == []
    later = replace(RETRAIN, lineage="another", created_ms=RETRAIN.created_ms + 1)
    await registry.retrains.begin(later, epoch=1)
    await registry.retrains.begin(RETRAIN, epoch=1)
    assert await registry.retrains.running("job", epoch=1) == [RETRAIN, later]
    changed = replace(RETRAIN, state=RetrainState.PROMOTING, promote=True)
    await registry.retrains.change(changed, epoch=1)
    assert await registry.retrains.running("job", epoch=2) == [changed, later]


async def test_a_lineage_has_a_head_of_its_own_that_is_not_the_jobs(registry: Registry) -> None:
    head = await registry.job(1)
    await registry.retrains.begin(RETRAIN, epoch=1)
    lineage = registry.retrains.manifests(RETRAIN.lineage)
    assert await lineage.claim("job", epoch=1) is None
    newest = await registry.beside(2)
    assert await lineage.claim("job", epoch=1) == newest
    assert newest.hyper == {"a.b": 1}
    assert await registry.manifests.head("job") == head
    (stored,) = await registry.retrains.running("job", epoch=1)
    assert stored.head == newest.id


async def test_a_stale_daemon_can_change_nothing(registry: Registry) -> None:
    head = await registry.job(1)
    await registry.retrains.begin(RETRAIN, epoch=1)
    newest = await registry.beside(1)
    await registry.retrains.running("job", epoch=2)
    lineage = registry.retrains.manifests(RETRAIN.lineage)
    for work in (
        registry.retrains.running("job", epoch=1),
        registry.retrains.begin(replace(RETRAIN, lineage="b"), epoch=1),
        registry.retrains.change(RETRAIN, epoch=1),
        registry.retrains.cancel("job", RETRAIN.lineage, epoch=1),
        registry.retrains.promote(replace(newest, id="job/x/9", parent=head.id), epoch=1),
        lineage.claim("job", epoch=1),
        lineage.commit(registry.manifest(RETRAIN.lineage, 1, parent=newest), epoch=1),
        lineage.prune("job", keep=1, epoch=1),
    ):
        with pytest.raises(FencedError):
            await work
    assert await lineage.claim("job", epoch=2) == newest
    assert await registry.manifests.head("job") == head


async def test_pruning_the_job_spares_its_retrains_and_what_they_began_with(registry: Registry) -> None:
    await registry.job(4)
    await registry.retrains.begin(replace(RETRAIN, base="job/l/0"), epoch=1)
    await registry.beside(2)
    registry.artifacts.put(f"job/{RETRAIN.lineage}/e1-g1-r9/state", b"being saved")
    removed = await registry.manifests.prune("job", keep=2, epoch=1)
    assert removed == ["job/l/1"]
    assert await registry.ids() == [
        f"job/{RETRAIN.lineage}/0",
        f"job/{RETRAIN.lineage}/1",
        "job/l/0",
        "job/l/2",
        "job/l/3",
    ]
    names = registry.artifacts.list("job/")
    assert f"job/{RETRAIN.lineage}/e1-g1-r9/state" in names
    assert "job/l/e1-g1-r0/state" in names
    assert "job/l/e1-g1-r1/state" not in names


async def test_pruning_a_retrain_touches_nothing_else(registry: Registry) -> None:
    await registry.job(3)
    await registry.retrains.begin(RETRAIN, epoch=1)
    await registry.beside(3)
    lineage = registry.retrains.manifests(RETRAIN.lineage)
    removed = await lineage.prune("job", keep=1, epoch=1)
    assert sorted(removed) == [f"job/{RETRAIN.lineage}/0", f"job/{RETRAIN.lineage}/1"]
    assert registry.artifacts.list(f"job/{RETRAIN.lineage}/") == [f"job/{RETRAIN.lineage}/e1-g1-r2/state"]
    assert len(registry.artifacts.list("job/l/")) == 3


async def test_a_cancelled_retrain_leaves_nothing(registry: Registry) -> None:
    head = await registry.job(2)
    await registry.retrains.begin(RETRAIN, epoch=1)
    newest = await registry.beside(2)
    await registry.retrains.cancel("job", RETRAIN.lineage, epoch=1)
    assert await registry.retrains.running("job", epoch=1) == []
    assert await registry.ids() == ["job/l/0", "job/l/1"]
    assert registry.artifacts.list(f"job/{RETRAIN.lineage}/") == []
    assert await registry.manifests.head("job") == head
    with pytest.raises(SupersededError, match="no retrain"):
        await registry.retrains.manifests(RETRAIN.lineage).commit(newest, epoch=1)


async def test_what_a_daemon_left_that_died_while_it_cancelled_is_pruned_with_the_jobs(registry: Registry) -> None:
    await registry.job(1)
    await registry.retrains.begin(RETRAIN, epoch=1)
    await registry.beside(2)
    await registry.database["jobs"].update_one({"_id": "job"}, {"$unset": {f"retrains.{RETRAIN.lineage}": ""}})
    await registry.manifests.prune("job", keep=5, epoch=1)
    assert await registry.ids() == ["job/l/0"]
    assert registry.artifacts.list(f"job/{RETRAIN.lineage}/") == []


async def test_a_promotion_swaps_the_head_and_ends_the_retrain_at_once_and_keeps_the_old_lineage(
    registry: Registry,
) -> None:
    head = await registry.job(3)
    await registry.retrains.begin(RETRAIN, epoch=1)
    newest = await registry.beside(2)
    promoted = replace(newest, id=f"job/{RETRAIN.lineage}/3", sequence=3, parent=head.id)
    await registry.retrains.promote(promoted, epoch=1)
    assert await registry.retrains.running("job", epoch=1) == []
    assert await registry.manifests.claim("job", epoch=1) == promoted
    assert [each.sequence for each in await registry.manifests.history("job")] == [3, 2, 1, 0]
    await registry.manifests.prune("job", keep=3, epoch=1)
    assert await registry.ids() == [promoted.id, "job/l/1", "job/l/2"]
    assert registry.artifacts.list(f"job/{RETRAIN.lineage}/") == [promoted.artifacts["state"].name]
    # the job's own daemon, did it not know, cannot go on in the old lineage
    with pytest.raises(SupersededError, match="has moved on"):
        await registry.manifests.commit(registry.manifest("l", 3, parent=head), epoch=1)


async def test_a_promotion_over_another_head_than_it_caught_up_with_is_refused(registry: Registry) -> None:
    head = await registry.job(3)
    await registry.retrains.begin(RETRAIN, epoch=1)
    newest = await registry.beside(1)
    with pytest.raises(SupersededError, match="moved on"):
        await registry.retrains.promote(replace(newest, id="job/x/9", parent="job/l/1"), epoch=1)
    assert await registry.manifests.head("job") == head
    assert len(await registry.retrains.running("job", epoch=1)) == 1


async def test_a_retrain_whose_manifest_is_gone_says_so(registry: Registry) -> None:
    await registry.retrains.begin(RETRAIN, epoch=1)
    await registry.beside(1)
    await registry.database["manifests"].delete_many({})
    with pytest.raises(ArtifactError, match="is missing"):
        await registry.retrains.manifests(RETRAIN.lineage).claim("job", epoch=1)

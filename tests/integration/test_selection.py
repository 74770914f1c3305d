"""What a job selects, told by a ledger: each weight of the model is the sum of the weights with which its document was
learned, whatever was filtered, held out, deleted, restarted or trained anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamtrain import config
from streamtrain.types import Operation
from tests.integration.test_worker import PARTITIONS, SLOTS, Topic, Training, ledger_job, manifest_of, training, weights

pytestmark = pytest.mark.tensorflow

DELETED = range(20)
HIDDEN = range(20, 30)
SAME = range(50, 60)  # a version comes that says what the one before said
REPLAY = 40  # rows per partition: more than there are


def document(number: int, **more: object) -> dict[str, object]:
    return {"_id": number, "slot": number, "y": 1.0, "w": 2.0 if number % 2 else 1.0, **more}


async def ledger_of(found: Training, folder: Path, name: str) -> np.ndarray:
    ledger: np.ndarray = weights(await found.group.save(f"ledger/{name}/"), folder)
    return ledger


async def test_nothing_is_learned_of_a_document_after_it_is_gone_nor_ever_of_one_that_is_held_out(
    kafka_config: config.Kafka, tmp_path: Path
) -> None:
    job = ledger_job(weight="w", holdout="20%", filter={"hidden": {"$ne": True}})
    once = np.array([document(n)["w"] for n in range(SLOTS)])
    gone = np.array([n in DELETED or n in HIDDEN for n in range(SLOTS)])
    same = np.array([n in SAME for n in range(SLOTS)])
    async with Topic(kafka_config) as topic:
        await topic.write([document(n) for n in range(SLOTS)])
        async with training(job=job, topic=topic, folder=tmp_path, world=2) as first:
            report = await first.learn()
            held = (await ledger_of(first, tmp_path, "1")) == 0
            assert report.counts.held_out == held.sum() > 5
            assert report.counts.learned == SLOTS - held.sum()
            assert report.holdout["y"].rows == held.sum()
            assert report.holdout["y"].weight == once[held].sum()
            assert report.scores["y"].rows == report.counts.learned
            assert report.scores["y"].weight == once[~held].sum()

            await topic.write([document(n, views=1) for n in SAME], Operation.UPDATE)
            await topic.write([document(n) for n in DELETED], Operation.DELETE)
            await topic.write([document(n, hidden=True) for n in HIDDEN], Operation.UPDATE)
            before = await ledger_of(first, tmp_path, "2")
            np.testing.assert_array_equal(before[~held], once[~held])
            counts = (await first.learn(replay=REPLAY)).counts
            expected = (0, len(SAME), len(DELETED), len(HIDDEN))
            assert (counts.learned, counts.unchanged, counts.deletes, counts.filtered) == expected
            after = await ledger_of(first, tmp_path, "3")
            np.testing.assert_array_equal(after[gone], before[gone])
            kept = ~held & ~gone
            # What is new in a round is not replayed in it.
            np.testing.assert_array_equal(after[kept], np.where(same, 1, 2)[kept] * once[kept])
            manifest = manifest_of(await first.group.save("ledger/4/"), first)

        async with training(job=job, topic=topic, folder=tmp_path, world=1, manifest=manifest, generation=2) as second:
            await topic.write([document(99, y=2.0)], Operation.UPDATE)
            await second.learn(replay=REPLAY)
            restarted = await ledger_of(second, tmp_path, "5")
            np.testing.assert_array_equal(restarted[gone], before[gone])
            np.testing.assert_array_equal(restarted[kept], np.where(same, 2, 3)[kept] * once[kept])
            through = [second.learned[partition].offset for partition in range(PARTITIONS)]

        async with training(
            job=job, topic=topic, folder=tmp_path, world=1, generation=3, forget_through=through
        ) as again:
            counts = (await again.learn()).counts
            assert counts.forgotten == len(DELETED) + len(HIDDEN)
            retrained = await ledger_of(again, tmp_path, "6")
    np.testing.assert_array_equal(retrained[gone], 0.0)
    np.testing.assert_array_equal(retrained[held], 0.0)
    assert (retrained[kept] >= once[kept]).all()


async def test_kept_documents_are_replayed_after_their_deletes_and_after_a_restart(
    kafka_config: config.Kafka, tmp_path: Path
) -> None:
    job = ledger_job(on_delete="keep")
    async with Topic(kafka_config) as topic:
        await topic.write([document(n) for n in range(SLOTS)])
        async with training(job=job, topic=topic, folder=tmp_path, world=1) as first:
            await first.learn()
            await topic.write([document(n) for n in range(SLOTS)], Operation.DELETE)
            assert (await first.learn(replay=REPLAY)).counts.deletes == SLOTS
            manifest = manifest_of(await first.group.save("ledger/1/"), first)
        async with training(job=job, topic=topic, folder=tmp_path, world=1, manifest=manifest, generation=2) as second:
            await topic.write([document(SLOTS - 1, y=2.0)])
            await second.learn(replay=REPLAY)
            ledger = await ledger_of(second, tmp_path, "2")
    np.testing.assert_array_equal(ledger, [3.0] * SLOTS)

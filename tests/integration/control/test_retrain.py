"""Lineages beside the running job, over fake workers: what they learn, what survives, and how one takes over."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from streamtrain.control.controller import Controller
from streamtrain.control.machine import Phase
from streamtrain.control.retrain_status import RetrainStatus
from streamtrain.control.retrains import Retrains, Wish
from streamtrain.errors import ConfigError, StreamtrainError, UsageError
from streamtrain.types import Manifest, RetrainState
from tests.fakes.control import FakeOffsets, fake_job, ledger
from tests.fakes.job import PARTITIONS, Setup, until


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path, workers={"min": 1})


def only(retrains: Retrains) -> RetrainStatus:
    (found,) = retrains.status()
    return found


async def learned(controller: Controller, rows: int) -> None:
    await until(lambda: controller.status().rows_learned == rows)


async def ready(retrains: Retrains) -> None:
    await until(lambda: only(retrains).state == "ready")


def times_learned(setup: Setup, manifest: Manifest) -> Counter[int]:
    """How many offsets were learned how often, by the weights of a manifest."""
    counts: Counter[tuple[int, int]] = Counter()
    for partition, ranges in ledger(manifest, setup.artifacts).items():
        counts.update((partition, offset) for begin, end in ranges for offset in range(begin, end))
    return Counter(counts.values())


async def test_a_retrain_learns_the_window_beside_the_job_which_does_not_notice(setup: Setup) -> None:
    setup.offsets.publish(400)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 400)
        before = controller.status()
        begun = await retrains.begin(Wish(start="scratch"))
        assert begun.records == 400
        setup.offsets.publish(100)
        await ready(retrains)
        await learned(controller, 500)
        status = only(retrains)
        assert (status.lineage, status.done, status.progress, status.eta_s) == (begun.lineage, 400, 1.0, None)
        assert status.workers == ()
        assert status.scores["y"].rows > 0
        after = controller.status()
        assert (after.lineage, after.generation, after.failures) == (before.lineage, 1, 0)
    assert setup.head.lineage == before.lineage
    setup.assert_learned_once()
    newest = setup.beside.saved[-1]
    assert newest.lineage == begun.lineage
    assert times_learned(setup, newest) == {1: 400}
    assert setup.beside.stored[begun.lineage].state is RetrainState.READY


async def test_its_rounds_are_not_reported_as_the_jobs(setup: Setup) -> None:
    setup.offsets.publish(200)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 200)
        await retrains.begin(Wish(start="scratch"))
        await ready(retrains)
    assert sum(report.counts.learned for report in setup.reports) == 200


async def test_a_promoted_retrain_learns_the_gap_and_takes_the_jobs_place(setup: Setup) -> None:
    setup.offsets.publish(300)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 300)
        begun = await retrains.begin(Wish(start="scratch", hyper={"width": 8}))
        await ready(retrains)
        setup.offsets.publish(200)
        await learned(controller, 500)
        await retrains.promote(begun.lineage)
        await until(lambda: controller.status().lineage == begun.lineage)
        await until(lambda: retrains.status() == ())
        setup.offsets.publish(100)
        await learned(controller, 600)
        assert controller.status().hyper == {"width": 8}
    setup.assert_learned_once()
    assert setup.head.lineage == begun.lineage
    assert setup.head.hyper == {"width": 8}
    assert setup.beside.stored == {}
    sequences = [manifest.sequence for manifest in setup.manifests.committed]
    assert sequences == sorted(set(sequences))
    parents = [manifest.parent for manifest in setup.manifests.committed[1:]]
    assert parents == [manifest.id for manifest in setup.manifests.committed[:-1]]


async def test_what_was_learned_once_is_scored_once_by_the_job(setup: Setup) -> None:
    setup.offsets.publish(300)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 300)
        await retrains.begin(Wish(start="scratch", promote=True))
        await until(lambda: retrains.status() == () and controller.status().phase is Phase.TRAINING)
        setup.offsets.publish(50)
        await learned(controller, 350)
    assert sum(report.counts.learned for report in setup.reports) == 350
    assert all(report.scores for report in setup.reports)


async def test_a_promotion_under_a_running_writer_is_exact(setup: Setup) -> None:
    setup.offsets.publish(500)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 500)

        async def write() -> None:
            for _ in range(200):
                setup.offsets.publish(7)
                await asyncio.sleep(0.02)

        writing = asyncio.create_task(write())
        begun = await retrains.begin(Wish(start="scratch", promote=True))
        await until(lambda: controller.status().lineage == begun.lineage)
        assert not writing.done()
        await writing
        await learned(controller, 1900)
    setup.assert_learned_once()


async def test_a_retrain_from_the_weights_goes_on_from_them_and_is_unscored_through_what_they_had_learned(
    setup: Setup,
) -> None:
    setup.offsets.publish(300)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 300)
        await until(lambda: bool(setup.manifests.committed) and setup.head.rows_learned == 300)
        base = setup.head
        begun = await retrains.begin(Wish(start="weights"))
        assert begun.base == base.id
        await ready(retrains)
        assert only(retrains).scores == {}
        assert times_learned(setup, setup.beside.saved[-1]) == {2: 300}
        setup.offsets.publish(100)
        await retrains.promote(begun.lineage)
        await until(lambda: retrains.status() == ())
        await until(lambda: controller.status().lineage == begun.lineage)
    assert times_learned(setup, setup.head) == {2: 300, 1: 100}
    assert setup.head.scores["y"].rows > 0
    assert setup.head.retrain_until is None


async def test_a_retrain_begins_with_any_manifest_that_is_kept_and_with_its_hyper_parameters(setup: Setup) -> None:
    setup.offsets.publish(100)
    async with setup.retraining() as (controller, retrains):
        await until(lambda: bool(setup.manifests.committed) and setup.head.rows_learned == 100)
        first = setup.head
        await retrains.begin(Wish(start="scratch", hyper={"a": 1, "b": 1}, promote=True))
        await until(lambda: bool(setup.head.hyper))
        begun = await retrains.begin(Wish(start="weights", hyper={"b": 2}))
        assert begun.hyper == {"a": 1, "b": 2}
        begun = await retrains.begin(Wish(start=first.id, hyper={"b": 3}))
        assert (begun.base, begun.hyper) == (first.id, {"b": 3})
        with pytest.raises(UsageError, match="has no manifest 'fake/x/1'"):
            await retrains.begin(Wish(start="fake/x/1"))
        assert controller.status().failures == 0


async def test_a_range_of_time_is_learned_and_no_more(setup: Setup) -> None:
    setup.offsets.publish(400)
    setup.offsets.times = {1: (20,) * PARTITIONS, 2: (70,) * PARTITIONS}
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 400)
        begun = await retrains.begin(Wish(start="scratch", since_ms=1, until_ms=2))
        assert begun.records == 200
        assert begun.forget_through == (100,) * PARTITIONS
        await ready(retrains)
        newest = setup.beside.saved[-1]
        assert [place.offset for place in newest.learned] == [70] * PARTITIONS
        assert times_learned(setup, newest) == {1: 200}
        await retrains.promote(begun.lineage)
        await until(lambda: controller.status().lineage == begun.lineage)
    assert times_learned(setup, setup.head) == {1: 320}


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (Wish(start="scratch", since_ms=3), "no record lies in this range"),
        (Wish(start="scratch", since_ms=2, until_ms=1), "since is not before until"),
        (Wish(start="scratch", workers=PARTITIONS + 1), "only 4 partitions"),
        (Wish(start="nothing"), "has no manifest 'nothing'"),
    ],
)
async def test_a_wish_that_cannot_be_is_refused_and_nothing_is_stored(setup: Setup, wish: Wish, told: str) -> None:
    setup.offsets.publish(40)
    setup.offsets.times = {1: (0,) * PARTITIONS, 2: (5,) * PARTITIONS, 3: (10,) * PARTITIONS}
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 40)
        with pytest.raises(UsageError, match=told):
            await retrains.begin(wish)
        with pytest.raises(UsageError, match="has no retrain 'x'; there are none"):
            await retrains.cancel("x")
    assert setup.beside.stored == {}


async def test_another_schema_is_retrained_from_scratch_only(setup: Setup) -> None:
    setup.offsets.publish(20)
    async with setup.running() as controller:
        await learned(controller, 20)
    setup.job = fake_job(features=[{"field": "z", "dtype": "float32"}], workers={"min": 1})
    async with setup.retraining() as (controller, retrains):
        await until(lambda: controller.status().phase is Phase.PAUSED)
        assert "features or labels" in controller.status().reason
        assert "--from scratch --promote" in controller.status().hint
        with pytest.raises(ConfigError, match="features or labels"):
            await retrains.begin(Wish(start="weights"))
        await retrains.begin(Wish(start="scratch", promote=True))
        await until(lambda: controller.status().phase is Phase.TRAINING)
        setup.offsets.publish(20)
        await learned(controller, 40)
    setup.assert_learned_once()


async def test_a_retrain_goes_on_where_records_were_lost(setup: Setup) -> None:
    setup.offsets.publish(100)
    async with setup.running() as controller:
        await learned(controller, 100)
    setup.offsets.publish(100)
    setup.offsets.begins = [40] * PARTITIONS
    async with setup.retraining() as (controller, retrains):
        await until(lambda: controller.status().phase is Phase.PAUSED)
        assert "removed records that job fake had not learned" in controller.status().reason
        assert "streamtrain retrain fake --promote" in controller.status().hint
        await retrains.begin(Wish(start="weights", promote=True))
        await until(lambda: controller.status().phase is Phase.TRAINING)
        assert controller.status().rows_learned == 40


async def test_a_source_with_another_name_is_not_taken_for_the_one_that_was_learned_from(setup: Setup) -> None:
    """Its offsets mean other records: going on from them would leave its first ones out."""
    setup.offsets.publish(60)
    async with setup.running() as controller:
        await learned(controller, 60)
    setup.offsets = FakeOffsets(PARTITIONS, topic="t.renamed.0")
    setup.offsets.publish(100)
    async with setup.retraining() as (controller, retrains):
        await until(lambda: controller.status().phase is Phase.PAUSED)
        assert "t.s.0 with 4 partitions; its source now writes t.renamed.0" in controller.status().reason
        await retrains.begin(Wish(start="scratch", promote=True))
        await until(lambda: controller.status().phase is Phase.TRAINING)
    setup.assert_learned_once()


@pytest.mark.parametrize("place", ["start", "form", "1", "save"])
async def test_a_retrain_survives_its_workers(setup: Setup, place: str) -> None:
    setup.offsets.publish(200)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 200)
        setup.launcher.behaviours = {(1, 0): f"kill@{place}"}
        await retrains.begin(Wish(start="scratch", promote=True))
        await until(lambda: retrains.status() == () and controller.status().phase is Phase.TRAINING)
    setup.assert_learned_once()


async def test_a_worker_that_dies_while_the_job_waits_lets_the_job_go_on(setup: Setup) -> None:
    setup.offsets.publish(100)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 100)
        await retrains.begin(Wish(start="scratch"))
        await ready(retrains)
        await retrains.promote(only(retrains).lineage)
        known = len(setup.launcher.launched)
        await until(lambda: controller.status().phase is Phase.PAUSED and len(setup.launcher.launched) > known)
        for process in setup.launcher.launched[known:]:
            os.kill(process.pid, signal.SIGKILL)
        await until(lambda: retrains.status() == () and controller.status().phase is Phase.TRAINING)
    setup.assert_learned_once()


@pytest.mark.parametrize("phase", ["learning", "ready", "promoting"])
async def test_the_next_daemon_goes_on_wherever_it_was(setup: Setup, phase: str) -> None:
    setup.offsets.publish(300)
    async with setup.running() as controller:
        await learned(controller, 300)
    slow = {(generation, 0): "slow" for generation in range(1, 9)}
    setup.launcher.behaviours = slow
    controller = setup.controller()
    retrains = setup.retrains(controller)
    runs = [asyncio.create_task(controller.run()), asyncio.create_task(retrains.run())]
    await until(lambda: controller.status().phase is Phase.TRAINING)
    begun = await retrains.begin(Wish(start="scratch"))
    await until(lambda: only(retrains).done > 0)
    if phase != "learning":
        await ready(retrains)
        setup.offsets.publish(300)
    if phase == "promoting":
        await retrains.promote(begun.lineage)
        await until(lambda: only(retrains).state == "promoting" and only(retrains).done > 300)
    for run in runs:
        run.cancel()  # nothing is saved: as if the daemon were killed
    await asyncio.gather(*runs, return_exceptions=True)

    setup.launcher.behaviours = {}
    setup.lease.epoch = 2
    async with setup.retraining() as (controller, retrains):
        await until(lambda: phase == "promoting" or bool(retrains.status()))
        if phase != "promoting":
            await ready(retrains)
            await retrains.promote(begun.lineage)
        await until(lambda: controller.status().lineage == begun.lineage)
        setup.offsets.publish(50)
        await until(lambda: controller.status().rows_learned == sum(setup.offsets.ends))
    setup.assert_learned_once()


async def test_a_cancelled_retrain_is_gone_with_its_workers(setup: Setup) -> None:
    setup.offsets.publish(300)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 300)
        setup.launcher.behaviours = {(1, 0): "slow"}
        begun = await retrains.begin(Wish(start="scratch"))
        await until(lambda: bool(only(retrains).workers) and only(retrains).rounds > 0)
        (pid,) = only(retrains).workers
        await retrains.cancel(begun.lineage)
        await until(lambda: retrains.status() == ())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert controller.status().phase in (Phase.TRAINING, Phase.SAVING)
    assert setup.beside.cancelled == [begun.lineage]


async def test_one_that_is_cancelled_while_the_job_waits_lets_the_job_go_on(setup: Setup) -> None:
    setup.offsets.publish(100)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 100)
        begun = await retrains.begin(Wish(start="scratch"))
        await ready(retrains)
        await retrains.promote(begun.lineage)
        await until(lambda: controller.status().phase is Phase.PAUSED)
        await retrains.cancel(begun.lineage)
        await until(lambda: controller.status().phase is Phase.TRAINING)
        setup.offsets.publish(50)
        await learned(controller, 150)
    setup.assert_learned_once()


async def test_a_retrain_that_cannot_be_learned_fails_alone_and_says_why(setup: Setup) -> None:
    setup.offsets.publish(100)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 100)
        setup.launcher.behaviours = {(1, 0): "fatal@form"}
        begun = await retrains.begin(Wish(start="scratch"))
        await until(lambda: only(retrains).state == "failed")
        assert "told to fail" in only(retrains).reason
        assert only(retrains).eta_s is None
        setup.offsets.publish(50)
        await learned(controller, 150)
        setup.launcher.behaviours = {}
        await retrains.promote(begun.lineage)  # tried again
        await until(lambda: retrains.status() == () and controller.status().phase is Phase.TRAINING)
    setup.assert_learned_once()


async def test_a_job_that_the_operator_has_paused_stays_paused_and_resumes_in_the_new_lineage(setup: Setup) -> None:
    setup.offsets.publish(100)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 100)
        controller.pause()
        await until(lambda: controller.status().phase is Phase.PAUSED)
        setup.offsets.publish(100)
        begun = await retrains.begin(Wish(start="scratch", promote=True))
        await until(lambda: retrains.status() == ())
        assert controller.status().phase is Phase.PAUSED
        controller.resume()
        await learned(controller, 200)
        assert controller.status().lineage == begun.lineage
    setup.assert_learned_once()


async def test_a_database_that_does_not_answer_for_a_moment_stops_neither_the_job_nor_the_retrain(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamtrain.control.retraining.RETRY_S", 0.05)
    setup.offsets.publish(100)
    async with setup.retraining() as (controller, retrains):
        await learned(controller, 100)
        await retrains.begin(Wish(start="scratch", promote=True))
        setup.beside.failing = 2
        await until(lambda: retrains.status() == () and controller.status().phase is Phase.TRAINING)
    setup.assert_learned_once()


async def test_a_draining_job_begins_no_retrain(setup: Setup) -> None:
    async with setup.retraining() as (controller, retrains):
        await until(lambda: controller.status().phase is Phase.TRAINING)
        retrains.drain()
        with pytest.raises(StreamtrainError, match="draining"):
            await retrains.begin(Wish())

"""A whole job over fake workers: what is learned, what survives, what the operator can do."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from streamtrain.control import checkpoint
from streamtrain.control.machine import Phase
from streamtrain.errors import AuthenticationError, DependencyError, FencedError, MongoError, StreamtrainError
from streamtrain.types import Manifest, RetentionState
from tests.fakes.job import Setup, until


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


async def test_what_is_published_is_learned_saved_and_reported(setup: Setup) -> None:
    setup.offsets.publish(300)
    async with setup.running() as controller:
        await until(lambda: controller.status().rows_learned == 300)
        status = controller.status()
        assert status.phase in (Phase.TRAINING, Phase.SAVING)
        assert len(status.workers) == 2
        await until(lambda: bool(setup.manifests.committed))
        for _ in range(5):
            setup.offsets.publish(3)
            await asyncio.sleep(0.02)
    setup.assert_learned_once()
    assert controller.status().phase is Phase.STOPPED
    assert controller.status().reason == ""
    assert sum(report.counts.learned for report in setup.reports) == 315
    assert setup.head.scores["y"].rows == len(setup.reports)
    assert [m.sequence for m in setup.manifests.committed] == list(range(len(setup.manifests.committed)))
    assert [m.parent for m in setup.manifests.committed[1:]] == [m.id for m in setup.manifests.committed[:-1]]


async def test_rounds_keep_to_their_cap_and_are_never_empty(setup: Setup) -> None:
    setup.offsets.publish(1000)
    async with setup.running() as controller:
        await until(lambda: controller.status().rows_learned == 1000)
    assert all(0 < report.counts.learned <= 50 for report in setup.reports)


async def test_an_idle_job_saves_nothing(setup: Setup) -> None:
    async with setup.running() as controller:
        await until(lambda: controller.status().phase is Phase.TRAINING)
    assert setup.manifests.committed == []


async def test_the_next_daemon_goes_on_from_the_head(setup: Setup) -> None:
    setup.offsets.publish(100)
    async with setup.running() as controller:
        await until(lambda: controller.status().rows_learned == 100)
    first = setup.head
    setup.lease.epoch = 2
    setup.offsets.publish(77)
    async with setup.running() as controller:
        await until(lambda: controller.status().rows_learned == 177)
    setup.assert_learned_once()
    assert setup.head.lineage == first.lineage
    assert setup.head.generation > first.generation
    assert setup.head.epoch == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
async def test_a_lost_worker_takes_the_generation_with_it_and_nothing_is_learned_twice(
    setup: Setup, number: signal.Signals, victim: int
) -> None:
    setup.offsets.publish(200)
    async with setup.running() as controller:
        await until(lambda: bool(setup.manifests.committed))
        setup.offsets.publish(200)
        await until(lambda: controller.status().rows_learned > 200)
        os.kill(setup.launcher.launched[victim].pid, number)
        setup.offsets.publish(200)
        await until(lambda: controller.status().generation == 2 and controller.status().rows_learned == 600)
        assert controller.status().reason == ""
        assert controller.status().last_error
    setup.assert_learned_once()


async def test_workers_may_die_again_and_again(setup: Setup) -> None:
    places = ["start", "form", "0", "2", "save"]
    setup.launcher.behaviours = {(g + 1, g % 2): f"kill@{place}" for g, place in enumerate(places)}
    setup.offsets.publish(400)
    async with setup.running() as controller:
        await until(lambda: controller.status().rows_learned == 400 and controller.status().generation >= 5, 60)
        await until(lambda: bool(setup.manifests.committed) and setup.head.rows_learned == 400)
        assert controller.status().failures == 0
    setup.assert_learned_once()


async def test_a_worker_that_never_arrives_does_not_stop_the_job(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.launcher.behaviours = {(1, 1): "exit@start"}
    setup.offsets.publish(10)
    async with setup.running() as controller:
        await until(lambda: controller.status().rows_learned == 10)
    setup.assert_learned_once()


async def test_a_fatal_failure_pauses_the_job_and_says_why(setup: Setup) -> None:
    setup.launcher.behaviours = {(1, 0): "fatal@form"}
    setup.offsets.publish(10)
    async with setup.running() as controller:
        await until(lambda: controller.status().phase is Phase.PAUSED)
        status = controller.status()
        assert "told to fail" in status.reason
        assert status.hint == "stop telling it"
        assert status.workers == ()
        controller.resume()
        await until(lambda: controller.status().rows_learned == 10)
        assert controller.status().reason == ""
    setup.assert_learned_once()


async def test_what_would_fail_again_pauses_the_job_whoever_meets_it(setup: Setup) -> None:
    """Here the daemon itself: credentials that are wrong are not tried for ever."""

    async def claim(job: str, *, epoch: int) -> Manifest | None:
        raise AuthenticationError("wrong password", hint="set the right one")

    setup.manifests.claim = claim  # type: ignore[method-assign]
    async with setup.running() as controller:
        await until(lambda: controller.status().phase is Phase.PAUSED)
        assert controller.status().hint == "set the right one"
        assert setup.launcher.launched == []


async def test_a_report_that_contradicts_its_round_is_not_believed(setup: Setup) -> None:
    setup.launcher.behaviours = {(1, 0): "wrong@0"}
    setup.offsets.publish(10)
    async with setup.running() as controller:
        await until(lambda: controller.status().rows_learned == 10)
        assert "round 0 was to learn partition" in controller.status().last_error
    setup.assert_learned_once()


async def test_a_paused_job_gives_its_workers_back_and_resumes_where_it_was(setup: Setup) -> None:
    setup.offsets.publish(50)
    async with setup.running() as controller:
        await until(lambda: controller.status().rows_learned == 50)
        controller.pause("the operator wants the machine")
        await until(lambda: controller.status().phase is Phase.PAUSED)
        assert controller.status().workers == ()
        assert controller.status().reason == "the operator wants the machine"
        assert setup.head.rows_learned == 50
        setup.offsets.publish(50)
        await until(lambda: controller.status().backlog == 50)
        controller.resume()
        await until(lambda: controller.status().rows_learned == 100)
    setup.assert_learned_once()


async def test_a_daemon_that_was_taken_over_stops_without_committing(setup: Setup) -> None:
    setup.offsets.publish(20)
    controller = setup.controller()
    run = asyncio.create_task(controller.run())
    await until(lambda: bool(setup.manifests.committed))
    await setup.manifests.claim("fake", epoch=2)
    committed = len(setup.manifests.committed)
    setup.offsets.publish(20)
    with pytest.raises(FencedError):
        await asyncio.wait_for(run, 30)
    assert len(setup.manifests.committed) == committed
    assert not any(psutil.pid_exists(process.pid) for process in setup.launcher.launched)


async def test_a_holder_that_cannot_renew_keeps_its_workers_and_commits_later(setup: Setup) -> None:
    async with setup.running() as controller:
        await until(lambda: controller.status().phase is Phase.TRAINING)
        setup.lease.is_held = False
        setup.offsets.publish(40)
        await until(lambda: controller.status().rows_learned == 40)
        await asyncio.sleep(0.5)  # longer than checkpoint.every: nothing may be committed now
        assert setup.manifests.committed == []
        setup.lease.is_held = True
        await until(lambda: bool(setup.manifests.committed))
        assert controller.status().generation == 1
    setup.assert_learned_once()


async def test_a_commit_that_fails_for_a_moment_is_tried_again(setup: Setup) -> None:
    setup.manifests.failing = 2
    setup.offsets.publish(40)
    async with setup.running() as controller:
        await until(lambda: bool(setup.manifests.committed))
        assert controller.status().generation == 1
    setup.assert_learned_once()


async def test_a_holder_that_cannot_renew_while_it_commits_keeps_its_workers(setup: Setup) -> None:
    """An election takes about as long as a lease: both are over before the commit is answered."""
    commit = setup.manifests.commit
    asked: list[Manifest] = []

    async def during_an_election(manifest: Manifest, *, epoch: int) -> None:
        asked.append(manifest)
        if len(asked) == 1:
            setup.lease.is_held = False
            raise MongoError("there is no primary")
        await commit(manifest, epoch=epoch)

    setup.manifests.commit = during_an_election  # type: ignore[method-assign]
    setup.offsets.publish(40)
    async with setup.running() as controller:
        await until(lambda: bool(asked))
        setup.lease.is_held = True
        await until(lambda: bool(setup.manifests.committed))
        assert controller.status().generation == 1
        assert controller.status().failures == 0
    assert asked[0] == setup.manifests.committed[0]
    setup.assert_learned_once()


async def test_pruning_that_fails_or_never_ends_does_not_keep_a_job_from_saving(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned = 0

    async def prune(job: str, *, keep: int, epoch: int) -> Sequence[str]:
        nonlocal pruned
        pruned += 1
        if pruned == 1:
            raise OSError("not even an error that pruning knows")
        return await asyncio.Event().wait() and ()

    monkeypatch.setattr(checkpoint, "PRUNE_TIMEOUT_S", 0.05)
    setup.manifests.prune = prune  # type: ignore[method-assign]
    async with setup.running() as controller:
        for save in range(1, 4):
            setup.offsets.publish(4)
            await until(lambda save=save: len(setup.manifests.committed) >= save)  # type: ignore[misc]
        assert controller.status().generation == 1
    assert pruned >= 3
    setup.assert_learned_once()


async def test_a_halt_while_it_waits_for_pruning_ends_the_job(setup: Setup) -> None:
    pruning = asyncio.Event()

    async def prune(job: str, *, keep: int, epoch: int) -> Sequence[str]:
        pruning.set()
        return await asyncio.Event().wait() and ()

    setup.manifests.prune = prune  # type: ignore[method-assign]
    setup.offsets.publish(4)
    controller = setup.controller()
    run = asyncio.create_task(controller.run())
    await asyncio.wait_for(pruning.wait(), 30)
    setup.offsets.publish(4)
    await until(lambda: controller.status().rows_learned == 8 and controller.status().phase is Phase.SAVING)
    controller.halt()
    await asyncio.wait_for(run, 20)
    assert controller.status().phase is Phase.STOPPED


async def test_a_halt_ends_the_workers_at_once(setup: Setup) -> None:
    setup.launcher.behaviours = {(1, 0): "hang@0"}
    setup.offsets.publish(10)
    controller = setup.controller()
    run = asyncio.create_task(controller.run())
    await until(lambda: controller.status().phase is Phase.TRAINING)
    controller.halt()
    await asyncio.wait_for(run, 10)
    assert not any(psutil.pid_exists(process.pid) for process in setup.launcher.launched)
    with pytest.raises(StreamtrainError, match="stopped"):
        controller.pause()


async def test_a_drain_with_a_frozen_worker_still_ends_and_says_so(setup: Setup) -> None:
    setup.launcher.behaviours = {(1, 1): "freeze@0"}
    setup.offsets.publish(10)
    controller = setup.controller()
    run = asyncio.create_task(controller.run())
    await until(lambda: len(setup.launcher.launched) == 2)
    frozen = psutil.Process(setup.launcher.launched[1].pid)
    await until(lambda: frozen.status() == psutil.STATUS_STOPPED)
    controller.drain()
    with pytest.raises(DependencyError, match=r"could not be saved: .*no progress"):
        await asyncio.wait_for(run, 30)
    assert controller.status().phase is Phase.STOPPED
    assert "no progress" in controller.status().reason


async def test_a_drain_whose_save_cannot_be_committed_says_so(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "COMMIT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(checkpoint, "COMMIT_RETRY_S", 0.05)
    setup.offsets.publish(10)
    setup.manifests.failing = 1000
    controller = setup.controller()
    run = asyncio.create_task(controller.run())
    await until(lambda: controller.status().rows_learned == 10)
    controller.drain()
    with pytest.raises(DependencyError, match="what it learned last could not be saved: told to fail"):
        await asyncio.wait_for(run, 30)


async def test_a_drain_without_the_lease_says_that_nothing_was_saved(setup: Setup) -> None:
    setup.offsets.publish(10)
    controller = setup.controller()
    run = asyncio.create_task(controller.run())
    await until(lambda: controller.status().phase is Phase.TRAINING)
    setup.lease.is_held = False
    await until(lambda: controller.status().rows_learned == 10)
    controller.drain()
    with pytest.raises(DependencyError, match="the lease could not be renewed"):
        await asyncio.wait_for(run, 30)
    assert setup.manifests.committed == []


async def test_a_drain_while_forming_ends_the_workers(setup: Setup) -> None:
    setup.launcher.behaviours = {(1, 0): "absent@start"}
    async with setup.running() as controller:
        await until(lambda: len(setup.launcher.launched) == 2)
    assert controller.status().phase is Phase.STOPPED


async def test_a_cancelled_controller_leaves_no_worker_behind(setup: Setup) -> None:
    controller = setup.controller()
    run = asyncio.create_task(controller.run())
    await until(lambda: controller.status().phase is Phase.TRAINING)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert not any(psutil.pid_exists(process.pid) for process in setup.launcher.launched)


async def test_the_backlog_is_shown_and_the_retention_too(setup: Setup) -> None:
    setup.offsets.publish(8)
    async with setup.running() as controller:
        await until(lambda: controller.status().rows_learned == 8)
        await until(lambda: controller.status().backlog == 0)
        retention = controller.status().retention
        assert retention is not None
        assert retention.state is RetentionState.OK

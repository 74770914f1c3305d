"""A group of fake workers, real processes, that die, freeze, stay away and misbehave."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from streamtrain.clock import SystemClock
from streamtrain.control.forming import revealed
from streamtrain.control.group import Deadlines, Group
from streamtrain.errors import WorkerError, WorkerFailedError
from streamtrain.protocol import Form
from streamtrain.types import Learned, OffsetRange, Round
from tests.fakes.control import ScriptedLauncher, fake_job

DEADLINES = Deadlines(ready=30.0, form=30.0, round=30.0, save=30.0, progress=2.0, stop=10.0, terminate=1.0, reap=10.0)
PARTITIONS = 4


@asynccontextmanager
async def formed(tmp_path: Path, **options: object) -> AsyncIterator[tuple[Group, ScriptedLauncher]]:
    async with unformed(tmp_path, **options) as (group, launcher):  # type: ignore[arg-type]
        await group.form(template(tmp_path))
        yield group, launcher


@asynccontextmanager
async def unformed(
    tmp_path: Path,
    *,
    world: int = 2,
    deadlines: Deadlines = DEADLINES,
    generation: int = 1,
    **behaviours: str,
) -> AsyncIterator[tuple[Group, ScriptedLauncher]]:
    """Leaves no worker behind, whatever happens to the group."""
    launcher = ScriptedLauncher(
        tmp_path / "logs",
        {(generation, int(index.removeprefix("worker_"))): what for index, what in behaviours.items()},
    )
    group = Group(
        job="fake", generation=generation, world=world, launcher=launcher, clock=SystemClock(), deadlines=deadlines
    )
    try:
        yield group, launcher
    finally:
        await group.kill()
        for process in launcher.launched:
            assert not psutil.pid_exists(process.pid)


def template(tmp_path: Path) -> Form:
    return Form(
        generation=0,
        epoch=1,
        rank=0,
        world=0,
        tf_config="",
        job=revealed(fake_job()),
        kafka={},
        artifacts={"kind": "directory", "path": str(tmp_path / "artifacts")},
        topic="t.s.0",
        topic_epoch=0,
        partitions=PARTITIONS,
        dead_letter_topic="t.fake.dead-letters",
        learned=(Learned(0, 0),) * PARTITIONS,
        window_begins=(0,) * PARTITIONS,
        manifest=None,
        restore_weights=False,
        lineage="l",
        work_dir=str(tmp_path),
    )


def a_round(number: int) -> Round:
    fresh = tuple(OffsetRange("t.s.0", 0, p, 10 * number, 10 * number + 10) for p in range(PARTITIONS))
    return Round(number, fresh, (0,) * PARTITIONS, (1,) * PARTITIONS, seed=1, batch_size=8)


async def reports(group: Group, count: int) -> None:
    for _ in range(count):
        await group.reported()
        assert group.take_report() is not None


async def test_rounds_are_reported_by_all_ranks_as_one(tmp_path: Path) -> None:
    async with formed(tmp_path) as (group, _):
        group.start_round(a_round(0))
        group.start_round(a_round(1))
        for number in range(2):
            await group.reported()
            merged = group.take_report()
            assert merged is not None
            assert merged.round == number
            assert merged.learned == dict.fromkeys(range(PARTITIONS), Learned(10 * number + 10, 10 * number + 10))
            assert merged.counts.learned == 40
        assert group.in_flight == 0
        saved = await group.save("fake/l/e1-g1-r2/")
        assert saved.rounds == 2
        assert (tmp_path / "artifacts" / saved.artifacts["state"].name).is_file()
        await group.stop()


async def test_a_third_round_in_flight_is_refused(tmp_path: Path) -> None:
    async with formed(tmp_path) as (group, _):
        group.start_round(a_round(0))
        group.start_round(a_round(1))
        with pytest.raises(WorkerError, match="third in flight"):
            group.start_round(a_round(2))


async def test_a_stopped_group_ends_in_order(tmp_path: Path) -> None:
    async with formed(tmp_path) as (group, launcher):
        await group.stop()
        assert [await process.wait() for process in launcher.launched] == [0, 0]


@pytest.mark.parametrize("behaviour", ["kill@1", "freeze@1", "hang@1", "exit@1"])
async def test_a_worker_lost_in_a_round_fails_the_generation(tmp_path: Path, behaviour: str) -> None:
    async with formed(tmp_path, worker_1=behaviour) as (group, _):
        group.start_round(a_round(0))
        group.start_round(a_round(1))
        with pytest.raises(WorkerError, match=r"killed by SIGKILL|no progress for 2 s in round 1|exited with status 3"):
            await reports(group, 2)


async def test_a_worker_frozen_in_a_save_fails_the_generation(tmp_path: Path) -> None:
    async with formed(tmp_path, worker_0="freeze@save") as (group, _):
        with pytest.raises(WorkerError, match=r"rank \d .*no progress for 2 s in saving"):
            await group.save("fake/l/e1-g1-r0/")


async def test_a_worker_killed_while_idle_is_noticed_at_once(tmp_path: Path) -> None:
    async with formed(tmp_path) as (group, launcher):
        waiting = asyncio.create_task(group.reported())
        os.kill(launcher.launched[0].pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            await waiting


async def test_a_worker_stopped_while_idle_is_noticed_although_it_owes_nothing(tmp_path: Path) -> None:
    async with formed(tmp_path, deadlines=replace(DEADLINES, stopped=0.5, progress=60.0)) as (group, launcher):
        os.kill(launcher.launched[1].pid, signal.SIGSTOP)
        with pytest.raises(WorkerError, match=r"worker 1 .* has stood stopped by a signal for 0\.5 s"):
            await group.reported()


async def test_a_worker_stopped_before_it_arrives_is_noticed(tmp_path: Path) -> None:
    deadlines = replace(DEADLINES, stopped=0.5, progress=60.0)
    async with unformed(tmp_path, deadlines=deadlines, worker_1="absent@start") as (group, launcher):
        forming = asyncio.create_task(group.form(template(tmp_path)))
        async with asyncio.timeout(30):
            while len(launcher.launched) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        os.kill(launcher.launched[1].pid, signal.SIGSTOP)
        with pytest.raises(WorkerError, match=r"worker 1 .* has stood stopped by a signal"):
            await forming


async def test_a_slow_round_with_progress_is_no_failure(tmp_path: Path) -> None:
    async with formed(tmp_path, worker_0="long@0") as (group, _):
        group._deadlines = Deadlines(progress=1.5)  # not while it forms: a busy machine starts a process slowly
        group.start_round(a_round(0))
        await reports(group, 1)


async def test_a_round_that_never_ends_fails_in_spite_of_progress(tmp_path: Path) -> None:
    deadlines = Deadlines(progress=5.0, round=0.1)
    async with formed(tmp_path, deadlines=deadlines, worker_0="busy@0") as (group, _):
        group.start_round(a_round(0))
        with pytest.raises(WorkerError, match=r"has not finished round 0 within 0\.1 s"):
            await reports(group, 1)


@pytest.mark.parametrize("behaviour", ["absent@start", "freeze@start", "stranger"])
async def test_a_worker_that_never_arrives_is_given_up(tmp_path: Path, behaviour: str) -> None:
    deadlines = Deadlines(ready=30.0, progress=2.0, terminate=0.5)
    async with unformed(tmp_path, deadlines=deadlines, worker_1=behaviour) as (group, _):
        with pytest.raises(WorkerError, match=r"did not get ready and has done nothing for 2 s|exited with status 70"):
            await group.form(template(tmp_path))


async def test_a_worker_that_is_busy_for_too_long_before_it_arrives_is_given_up(tmp_path: Path) -> None:
    deadlines = Deadlines(ready=6.0, progress=30.0)
    async with unformed(tmp_path, deadlines=deadlines, worker_1="spin@start") as (group, _):
        with pytest.raises(WorkerError, match=r"worker 1 .*did not get ready within 6 s"):
            await group.form(template(tmp_path))


async def test_a_worker_that_is_slow_but_busy_is_waited_for(tmp_path: Path) -> None:
    """Longer than the deadline for progress: a machine that imports slowly is not a stuck one."""
    async with formed(tmp_path, deadlines=Deadlines(progress=3.0), worker_1="toil@start") as (group, _):
        await group.stop()


async def test_a_worker_that_exits_before_it_arrives_is_noticed_at_once(tmp_path: Path) -> None:
    async with unformed(tmp_path, worker_1="exit@start") as (group, _):
        with pytest.raises(WorkerError, match=r"exited with status 3") as raised:
            await group.form(template(tmp_path))
    assert "fake-g1-1.log" in raised.value.hint


@pytest.mark.parametrize(("behaviour", "fatal"), [("fail@0", False), ("fatal@0", True)])
async def test_what_a_worker_says_it_failed_with_is_what_is_raised(tmp_path: Path, behaviour: str, fatal: bool) -> None:
    async with formed(tmp_path, worker_1=behaviour) as (group, _):
        group.start_round(a_round(0))
        with pytest.raises(WorkerFailedError, match="told to fail") as raised:
            await group.reported()
        assert raised.value.fatal is fatal
        assert raised.value.hint == "stop telling it"


async def test_a_lost_peer_is_not_told_in_place_of_what_was_lost(tmp_path: Path) -> None:
    async with formed(tmp_path, worker_0="fail@0", worker_1="kill@0") as (group, _):
        group.start_round(a_round(0))
        with pytest.raises(WorkerError, match="was killed by SIGKILL"):
            await group.reported()


async def test_a_frozen_worker_that_ignores_sigterm_is_killed_and_reaped(tmp_path: Path) -> None:
    async with formed(tmp_path, worker_0="deaf") as (group, launcher):
        os.kill(launcher.launched[0].pid, signal.SIGSTOP)
        while psutil.Process(launcher.launched[0].pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await group.kill()
        assert await launcher.launched[0].wait() == -signal.SIGKILL


async def test_the_daemon_taken_away_ends_the_workers(tmp_path: Path) -> None:
    """As when the daemon dies: the control connections close, nobody is there to kill."""
    async with formed(tmp_path) as (group, launcher):
        for member in group._members:
            member.close()
        assert [await process.wait() for process in launcher.launched] == [70, 70]


async def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        async with formed(tmp_path) as (group, _):
            assert os.listdir(short) == []  # the socket goes as soon as the group is complete
            await group.stop()
        assert os.listdir(short) == []


async def test_a_full_disk_is_a_failure_that_the_next_generation_may_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with unformed(tmp_path) as (group, launcher):
        with monkeypatch.context() as patched:
            patched.setattr(tempfile, "mkdtemp", full)
            with pytest.raises(WorkerError, match="no control socket can be made: No space left") as failure:
                await group.form(template(tmp_path))
        assert not failure.value.fatal
        assert not launcher.launched


async def test_a_temporary_folder_with_a_long_path_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    async with formed(tmp_path) as (group, _):
        await group.stop()

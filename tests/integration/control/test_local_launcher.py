from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from streamtrain.control.launcher.local import KEPT_LOGS, TOKEN_VARIABLE, LocalLauncher
from streamtrain.errors import WorkerError

SHOW = f"import os, sys; print(sys.argv[1:], os.environ['{TOKEN_VARIABLE}'], os.getsid(0) == os.getpid())"
SLEEP = "import time; print(1, flush=True); time.sleep(99)"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{SLEEP}'])"


async def test_a_worker_gets_address_and_token_in_a_session_of_its_own(tmp_path: Path) -> None:
    launcher = LocalLauncher(job="j", log_dir=tmp_path, command=(sys.executable, "-c", SHOW))
    process = await launcher.launch(control="unix:/x", token="secret", generation=3, index=1)
    assert await process.wait() == 0
    assert (tmp_path / "j-g3-1.log").read_text() == "['--control', 'unix:/x'] secret True\n"


async def test_the_token_is_not_on_the_command_line(tmp_path: Path) -> None:
    launcher = LocalLauncher(job="j", log_dir=tmp_path, command=(sys.executable, "-c", "input()"))
    process = await launcher.launch(control="unix:/x", token="secret", generation=1, index=0)
    assert "secret" not in " ".join(psutil.Process(process.pid).cmdline())
    process.kill()
    await process.wait()


async def test_what_a_worker_started_is_ended_with_it(tmp_path: Path) -> None:
    launcher = LocalLauncher(job="j", log_dir=tmp_path, command=(sys.executable, "-c", CHILD))
    process = await launcher.launch(control="unix:/x", token="t", generation=1, index=0)
    async with asyncio.timeout(30):
        while not (tmp_path / "j-g1-0.log").read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    (child,) = psutil.Process(process.pid).children()
    process.terminate()
    assert await process.wait() == -signal.SIGTERM
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    process.kill()  # one that has ended is left alone


async def test_processor_time_is_told_while_it_runs(tmp_path: Path) -> None:
    launcher = LocalLauncher(job="j", log_dir=tmp_path, command=(sys.executable, "-c", "while True: pass"))
    process = await launcher.launch(control="unix:/x", token="t", generation=1, index=0)
    if process.cpu_s() is None:
        pytest.skip("this system does not tell processor time in /proc")
    async with asyncio.timeout(30):
        while (process.cpu_s() or 0.0) < 0.1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    process.kill()
    await process.wait()
    assert process.cpu_s() is None


async def test_a_process_that_is_stopped_is_told_from_one_that_runs(tmp_path: Path) -> None:
    launcher = LocalLauncher(job="j", log_dir=tmp_path, command=(sys.executable, "-c", "while True: pass"))
    process = await launcher.launch(control="unix:/x", token="t", generation=1, index=0)
    if process.cpu_s() is None:
        pytest.skip("this system does not tell a process' state in /proc")
    assert not process.stopped()
    async with asyncio.timeout(30):
        os.kill(process.pid, signal.SIGSTOP)
        while not process.stopped():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        os.kill(process.pid, signal.SIGCONT)
        while process.stopped():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    process.kill()
    await process.wait()
    assert not process.stopped()


async def test_old_logs_go(tmp_path: Path) -> None:
    launcher = LocalLauncher(job="j", log_dir=tmp_path, command=(sys.executable, "-c", ""))
    for generation in range(KEPT_LOGS + 5):
        (tmp_path / f"j-g{generation}-0.log").write_text("")
        os.utime(tmp_path / f"j-g{generation}-0.log", (generation, generation))
    process = await launcher.launch(control="unix:/x", token="t", generation=99, index=0)
    await process.wait()
    logs = {path.name for path in tmp_path.iterdir()}  # noqa: ASYNC240
    assert len(logs) == KEPT_LOGS
    assert {"j-g99-0.log", f"j-g{KEPT_LOGS + 4}-0.log"} <= logs
    assert "j-g0-0.log" not in logs


async def test_a_command_that_cannot_start_is_told(tmp_path: Path) -> None:
    launcher = LocalLauncher(job="j", log_dir=tmp_path, command=("/does/not/exist",))
    with pytest.raises(WorkerError, match="cannot start a worker of job j"):
        await launcher.launch(control="unix:/x", token="t", generation=1, index=0)


async def test_logs_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    launcher = LocalLauncher(job="j", log_dir=tmp_path / "file", command=(sys.executable, "-c", ""))
    with pytest.raises(WorkerError, match="cannot start a worker of job j"):
        await launcher.launch(control="unix:/x", token="t", generation=1, index=0)

"""The demo as a user runs it: a child process that learns everything it wrote, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.deployment import wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

DEMO = [sys.executable, "-m", "streamtrain", "demo"]
ENDS_WITHIN_S = 240.0


def environment(folder: Path) -> dict[str, str]:
    """Its temporary directory is ours, so that what it leaves behind can be seen."""
    return {**os.environ, "TMPDIR": str(folder)}


def test_everything_that_was_written_is_learned(tmp_path: Path) -> None:
    arguments = ["--rate", "500", "--duration", "8s", "--workers", "1", "--json"]
    done = subprocess.run(
        [*DEMO, *arguments], env=environment(tmp_path), capture_output=True, text=True, timeout=ENDS_WITHIN_S
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["learned"]["complete"] is True
    assert summary["learned"]["rows"] == summary["written"]["updates"] > 1000
    assert summary["mean_absolute_error"]["labels"] == summary["learned"]["rows"]
    assert summary["learned"]["first_after_seconds"] > 0
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_is_killed_costs_nothing_but_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    folder = tmp_path / "tmp"
    folder.mkdir()
    with log.open("wb") as output:
        demo = subprocess.Popen(
            [*DEMO, "--rate", "300", "--duration", "20s", "--workers", "2", "--json"],
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    try:
        wait_until(lambda: "learned 1" in log.read_text(), timeout=ENDS_WITHIN_S, what="documents to be learned")
        (worker, *_others) = [
            process
            for process in psutil.Process(demo.pid).children(recursive=True)
            if "streamtrain.trainer.worker" in process.cmdline()
        ]
        worker.kill()
        summary = json.loads(demo.communicate(timeout=ENDS_WITHIN_S)[0])
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.wait()
    assert demo.returncode == 0, log.read_text()
    assert summary["learned"]["generations"] > 1
    assert summary["learned"]["complete"] is True
    assert summary["mean_absolute_error"]["labels"] == summary["learned"]["rows"] == summary["written"]["updates"]


@pytest.mark.parametrize("when", ["starting", "learned 1"])
def test_ctrl_c_ends_it_in_order_and_leaves_nothing_behind(tmp_path: Path, when: str) -> None:
    log = tmp_path / "log"
    folder = tmp_path / "tmp"
    folder.mkdir()
    with log.open("wb") as output:
        demo = subprocess.Popen(
            [*DEMO, "--rate", "200", "--duration", "5m", "--workers", "2", "--keep"],
            env=environment(folder),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: when in log.read_text() or demo.poll() is not None,
            timeout=ENDS_WITHIN_S,
            what=f"{when!r} in the log",
        )
        started = psutil.Process(demo.pid).children(recursive=True)
        os.killpg(demo.pid, signal.SIGINT)  # what a terminal does
        assert demo.wait(timeout=60) == 130, log.read_text()
        wait_until(lambda: not any(alive(each) for each in started), timeout=10, what="its processes to be gone")
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.wait()
    assert "Traceback" not in log.read_text()


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rate", "0"], "more than 0"),
        (["--rate=-1"], "more than 0"),
        (["--rate", "fast"], "--rate"),
        (["--duration", "60"], "30s"),
        (["--workers", "9"], "8 partitions"),
    ],
)
def test_bad_arguments_end_with_code_2_and_say_what_to_write(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run([*DEMO, *arguments], env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []

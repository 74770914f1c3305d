"""README.md does what it says: its configuration and its model are the ones that are run here, with its commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamtrain.sandbox.kafka_broker import free_ports
from tests.deployment import wait_until

ROOT = Path(__file__).resolve().parents[2]
STARTS_WITHIN_S = 120.0
ENDS_WITHIN_S = 60.0
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall((ROOT / page).read_text()) if kind == language]


def commands(page: str) -> list[list[str]]:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def test_readme_begins_with_the_two_commands_that_a_newcomer_needs() -> None:
    assert [words[:2] for words in commands("README.md")[:2]] == [["make", "demo"], ["make", "test"]]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_the_docs_exists(page: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(page):
        if words[0] == "make":
            assert words[1] in targets, words
        elif words[0] == "streamtrain":
            names = words[1:3] if words[1] in ("sandbox", "models", "dead-letters") else words[1:2]
            told = subprocess.run(
                [sys.executable, "-m", "streamtrain", *names, "--help"], check=True, capture_output=True, text=True
            ).stdout
            for option in (word for word in words if word.startswith("--")):
                assert option.partition("=")[0] in told, words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory as a reader of the README has it, with free ports in place of the usual ones."""
    ports = free_ports(3)
    usual = {"27117": ports[0], "19092": ports[1], "8470": ports[2]}
    files = {"streamtrain.yaml": f'admin: {{listen: "127.0.0.1:8470"}}\n{blocks("README.md", "yaml")[0]}'}
    for script in blocks("README.md", "python") + blocks("docs/models.md", "python"):
        name = re.match(r"# (\w+\.py)\n", script)
        assert name is not None
        files[name[1]] = script
    for name_, text in files.items():
        for port, free in usual.items():
            text = text.replace(port, str(free))
        (tmp_path / name_).write_text(text)
    (tmp_path / "ports").write_text(f"{ports[0]} {ports[1]}")
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder), "TMPDIR": str(folder)}


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "streamtrain", *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=STARTS_WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(folder: Path) -> None:
    subprocess.run([sys.executable, "write_flights.py"], cwd=folder, check=True, timeout=STARTS_WITHIN_S)


def with_a_model_of_its_own(folder: Path) -> None:
    settings = folder / "streamtrain.yaml"
    settings.write_text(settings.read_text() + "    model: flight_models:build\n    hyper: {width: 64}\n")


@contextmanager
def running(folder: Path, *arguments: str, log: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command until the block ends; then SIGTERM must end it with 0."""
    with (folder / log).open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamtrain", *arguments],
            cwd=folder,
            env=environment(folder),
            stdout=output,
            stderr=output,
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(ENDS_WITHIN_S) == 0, (folder / log).read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_path_from_the_sandbox_to_a_retrain_works_as_written(folder: Path) -> None:
    mongo, kafka = (folder / "ports").read_text().split()
    up = ("sandbox", "up", "--mongo-port", mongo, "--kafka-port", kafka)
    with running(folder, *up, log="sandbox.log"):
        wait_until(lambda: mongo in (folder / "sandbox.log").read_text(), timeout=STARTS_WITHIN_S, what="the sandbox")
        write(folder)
        run(folder, "validate", "--connect")
        for words in commands("README.md"):
            if words[:2] == ["streamtrain", "init"]:
                given = [word.replace("27117", mongo).replace("19092", kafka) for word in words[1:]]
                run(folder, *given, "--watch", "0s")
        run(folder, "validate", "--connect", "--no-models", "--config", "mine.yaml")
        with running(folder, "run", log="daemon.log") as daemon:

            def job() -> dict[str, Any]:
                assert daemon.poll() is None, (folder / "daemon.log").read_text()
                told = subprocess.run(
                    [sys.executable, "-m", "streamtrain", "status", "--json"],
                    cwd=folder,
                    env=environment(folder),
                    capture_output=True,
                    text=True,
                )
                found: dict[str, Any] = json.loads(told.stdout)["jobs"]["flight-delay"] if told.returncode == 0 else {}
                return found

            wait_until(lambda: job().get("phase") == "training", timeout=STARTS_WITHIN_S, what="the job to train")
            write(folder)
            wait_until(lambda: job()["rows_learned"] >= 2000, timeout=STARTS_WITHIN_S, what="the flights to be learned")
            lineage = job()["lineage"]
            run(folder, "retrain", "flight-delay", "--from", "scratch", "--promote")
            wait_until(lambda: job()["lineage"] != lineage, timeout=STARTS_WITHIN_S, what="the retrain's promotion")

            assert "* flight-delay/" in run(folder, "models", "list")
            run(folder, "models", "export", "flight-delay", "--to", "models")
        subprocess.run([sys.executable, "use_model.py"], cwd=folder, check=True, timeout=STARTS_WITHIN_S)

        # another model than the one that has learned: the daemon waits to be asked for a retrain
        with_a_model_of_its_own(folder)
        with running(folder, "run", log="daemon.log") as daemon:
            wait_until(lambda: job().get("phase") == "paused", timeout=STARTS_WITHIN_S, what="the job to pause")
            assert "belongs to another model" in job()["reason"]
            run(folder, "retrain", "flight-delay", "--from", "scratch", "--promote")
            wait_until(lambda: job().get("phase") == "training", timeout=STARTS_WITHIN_S, what="the model to learn")


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_model_of_the_readme_fits_its_job(folder: Path) -> None:
    with_a_model_of_its_own(folder)
    assert "ok" in run(folder, "validate")

"""A whole deployment for tests: `streamtrain run` as a child process, as an operator would start it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

import psutil
import yaml

from streamtrain.config import Kafka
from streamtrain.sandbox.kafka_broker import free_ports

T = TypeVar("T")
POLL_SECONDS = 0.05


def wait_until(condition: Callable[[], T], *, timeout: float, what: str) -> T:
    """Polls until `condition` is true and returns its value; fails with `what` once `timeout` has passed."""
    deadline = monotonic() + timeout
    while not (value := condition()):
        if monotonic() > deadline:
            raise AssertionError(f"waited {timeout:.0f} s in vain for {what}")
        sleep(POLL_SECONDS)
    return value


def one_job(
    kafka: Kafka, uri: str, *, database: str, partitions: int, job: dict[str, Any], collection: str = "documents"
) -> dict[str, Any]:
    """Settings of one job, that learns from the collection through a source of the job's name."""
    name = job["name"]
    return {
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": kafka.topic_prefix},
        "admin": {"listen": f"127.0.0.1:{free_ports(1)[0]}"},
        "sources": [
            {"name": name, "uri": uri, "database": database, "collection": collection, "partitions": partitions}
        ],
        "jobs": [{**job, "source": name}],
    }


class Deployment:
    """One configuration that is started, killed, drained and started again."""

    def __init__(self, *, config: dict[str, Any], folder: Path, python_path: Path | None = None) -> None:
        self._folder = folder
        self._config_file = folder / "streamtrain.yaml"
        self._config_file.write_text(yaml.safe_dump(config))
        self._url = f"http://{config['admin']['listen']}"
        # What is killed cleans nothing up; a short path, since that of a Unix socket is limited.
        self.scratch = Path(tempfile.mkdtemp(prefix="st-"))
        self._env = {**os.environ, "TMPDIR": str(self.scratch)}
        if python_path is not None:
            self._env["PYTHONPATH"] = str(python_path)
        self._starts = 0
        self.daemon: subprocess.Popen[bytes] | None = None

    @property
    def log_file(self) -> Path:
        """What the daemon wrote since its last start."""
        return self._folder / f"daemon-{self._starts}.log"

    def start(self) -> None:
        self._starts += 1
        self.scratch.mkdir(exist_ok=True)
        with self.log_file.open("wb") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "streamtrain", "run", "--config", str(self._config_file)],
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )

    def status(self) -> dict[str, Any] | None:
        """The answer of GET /v1/status, None while there is none."""
        assert self.daemon is not None
        if self.daemon.poll() is not None:
            raise AssertionError(
                f"the daemon ended with {self.daemon.returncode}:\n{self.log_file.read_text()[-4000:]}"
            )
        try:
            with urllib.request.urlopen(f"{self._url}/v1/status", timeout=5) as answer:
                document: dict[str, Any] = json.load(answer)
                return document
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def job(self) -> dict[str, Any] | None:
        """The status of the (only) job."""
        status = self.status()
        return next(iter(status["jobs"].values()), None) if status else None

    def workers(self) -> list[psutil.Process]:
        """Worker processes of the running daemon."""
        assert self.daemon is not None
        try:
            children = psutil.Process(self.daemon.pid).children(recursive=True)
            return [child for child in children if "streamtrain.trainer.worker" in child.cmdline()]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """SIGKILL, as the kernel would; then the process is gone."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait(10)

    def drain(self, *, timeout: float = 60) -> int:
        """SIGTERM to the daemon's whole process group, as systemd and a shell do; returns the exit code."""
        assert self.daemon is not None
        os.killpg(self.daemon.pid, signal.SIGTERM)
        return self.daemon.wait(timeout)

    def stop(self) -> None:
        """For the end of a test: whatever still runs is gone afterwards, and what it left in its folder."""
        if self.daemon is not None:
            self._end()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _end(self) -> None:
        assert self.daemon is not None
        workers = self.workers()
        if self.daemon.poll() is None:
            self.kill()
        for worker in workers:
            if worker.is_running():
                worker.kill()
        psutil.wait_procs(workers, timeout=10)

"""A Kafka broker for the demo and the tests: the binary of the PyPI package `noida-db`, as a child process on
127.0.0.1. Not for production: it keeps all in one file, loses acknowledged records when it is killed, and a
`read_committed` consumer that begins behind an aborted transaction misses later records of the same producer."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from streamtrain.errors import DependencyError, KafkaError, PortInUseError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
PORT_ATTEMPTS = 3
_POLL_S = 0.02
_ANSWER_TIMEOUT_S = 2.0
_LOG_TAIL_BYTES = 1500


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing listens on now. Another process may take one before it is used."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def living_brokers(port: int) -> int:
    """How many brokers the one on this port knows to be alive; 0 when it does not answer."""
    # A Metadata request, version 1, for no topic: what every client asks first.
    request = struct.pack(">hhihi", 3, 1, 1, -1, 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            head = b""
            while len(head) < 12:  # size, correlation id, number of brokers
                chunk = connection.recv(12 - len(head))
                if not chunk:
                    return 0
                head += chunk
    except OSError:
        return 0
    return int(struct.unpack(">iii", head)[2])


class BrokerProcess:
    """One broker as a child process: started in a session of its own, ended by its pid."""

    def __init__(self, command: list[str], *, port: int, log: Path, environment: dict[str, str] | None = None) -> None:
        self.port = port
        self._command = command
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise KafkaError("the broker has not been started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the program that uses the broker, not the broker
                env=None if self._environment is None else {**os.environ, **self._environment},
            )

    def wait_until_ready(self, *, brokers: int, deadline: float) -> None:
        """Returns once it answers and sees `brokers` brokers. Raises KafkaError when it exits or is late."""
        assert self._process is not None
        while living_brokers(self.port) < brokers:
            if self._process.poll() is not None:
                raise KafkaError(f"the broker ended with exit code {self._process.returncode}: {self.log_tail()}")
            if time.monotonic() > deadline:
                raise KafkaError(f"the broker did not answer in time: {self.log_tail()}", hint=f"see {self._log}")
            time.sleep(_POLL_S)

    def log_tail(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - _LOG_TAIL_BYTES))
                return log.read().decode(errors="replace").strip() or "its log is empty"
        except OSError:
            return "it wrote no log"

    def kill(self) -> None:
        """SIGKILL: what a crash looks like."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """TERM, without waiting for it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()

    def stop(self) -> None:
        """TERM, and KILL when that does not end it in time. Does nothing when it is not running."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            self.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None


def noida_binary() -> Path:
    """The broker's executable. Raises DependencyError when the package is not installed."""
    found = importlib.util.find_spec("noida_db")
    if found is not None:
        for folder in found.submodule_search_locations or ():
            for name in ("noida-db", "noida-db.exe"):
                if (binary := Path(folder) / name).is_file():
                    return binary
    raise DependencyError(
        "the sandbox's Kafka broker is not installed: the package noida-db is missing",
        hint=f"{sys.executable} -m pip install 'streamtrain[sandbox]'",
    )


class KafkaBroker:
    """`noida-db` with its own data directory. A context manager; `start` blocks until it answers."""

    def __init__(self, *, directory: Path, port: int | None = None) -> None:
        self.directory = directory
        self._fixed_port = port
        self._process: BrokerProcess | None = None

    @property
    def process(self) -> BrokerProcess:
        if self._process is None:
            raise KafkaError("the sandbox's Kafka broker has not been started")
        return self._process

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.process.port}"

    def start(self) -> Self:
        """Raises DependencyError without the package, PortInUseError, or KafkaError when it does not come up."""
        binary = noida_binary()
        if self._fixed_port is not None and not _is_free(self._fixed_port):
            raise PortInUseError(
                f"port {self._fixed_port} of 127.0.0.1 is in use: the sandbox's Kafka broker cannot listen there",
                hint="choose another port, or stop what listens there",
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, PORT_ATTEMPTS + 1):
            port = self._fixed_port if self._fixed_port is not None else free_ports(1)[0]
            try:
                self._launch(binary, port)
                return self
            except KafkaError:
                self.stop()
                # The port was free when it was chosen; somebody may have been quicker.
                if self._fixed_port is not None or attempt == PORT_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _launch(self, binary: Path, port: int) -> None:
        command = [str(binary), "start", "--only", "kafka", "--host", "127.0.0.1", "--kafka-port", str(port)]
        self._process = BrokerProcess(
            [*command, "--data-dir", str(self.directory)], port=port, log=self.directory / "broker.log"
        )
        self._process.launch()
        self._process.wait_until_ready(brokers=1, deadline=time.monotonic() + START_TIMEOUT_S)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

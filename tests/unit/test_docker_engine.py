"""Whether tests that need a container are run or skipped, and what a skip says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docker_engine import DEFAULT_ADDRESS, engine_address, missing_engine


@contextmanager
def answering(listener: socket.socket, answer: bytes) -> Iterator[None]:
    """One connection is answered with these bytes and closed."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(answer)

    with listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join()


def test_an_engine_that_answers_its_ping_is_there(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    with answering(listener, b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nOK"):
        assert missing_engine(f"unix://{tmp_path}/s") is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.0 403 Forbidden\r\n\r\n", "its ping was answered with status 403"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "what listens there does not speak HTTP"),
        (b"", "what listens there does not speak HTTP"),
    ],
)
def test_something_else_on_its_port_is_no_engine(answer: bytes, reason: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    with answering(listener, answer):
        assert missing_engine(address) == f"no Docker engine: tried {address}: {reason}"


def test_the_reason_names_the_address_that_was_tried_and_why_it_failed(tmp_path: Path) -> None:
    absent = missing_engine(f"unix://{tmp_path}/absent")
    assert absent is not None
    assert absent.startswith(f"no Docker engine: tried unix://{tmp_path}/absent: No such file or directory")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    refused = missing_engine(f"tcp://127.0.0.1:{port}")
    assert refused is not None
    assert "Connection refused" in refused


def test_an_engine_behind_ssh_is_left_to_its_client() -> None:
    assert missing_engine("ssh://host.invalid") is None


def test_it_is_looked_for_where_testcontainers_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert engine_address() == "tcp://127.0.0.1:1"
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setattr("testcontainers.core.docker_client._get_docker_host_from_context", lambda: None)
    assert engine_address() == DEFAULT_ADDRESS

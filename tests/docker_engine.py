"""Whether a Docker engine answers where testcontainers would look for one. Asked over a bare socket, since a docker
client that meets no engine takes long over some addresses and leaves its own socket open."""

from __future__ import annotations

import os
import socket
from urllib.parse import SplitResult, urlsplit

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
TCP_PORT, TLS_PORT = 2375, 2376
CONNECT_TIMEOUT_S = 0.5
ANSWER_TIMEOUT_S = 1.0
PING = b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n"


def engine_address() -> str:
    """From ~/.testcontainers.properties, DOCKER_HOST or the docker context, as testcontainers decides it."""
    from testcontainers.core.docker_client import get_docker_host  # takes a third of a second

    return get_docker_host() or DEFAULT_ADDRESS


def missing_engine(address: str) -> str | None:
    """Why no test can use a container; None when an engine answers. Takes less than two seconds."""
    url = urlsplit(address)
    if url.scheme not in ("unix", "tcp", "http", "https"):
        return None  # ssh and others: only a docker client can ask
    try:
        with _connect(url) as connection:
            if _encrypted(url):
                return None
            connection.sendall(PING)
            answer = connection.recv(64)
    except OSError as error:
        return f"no Docker engine: tried {address}: {error.strerror or error}; DOCKER_HOST names another"
    if not answer.startswith(b"HTTP/1."):
        return f"no Docker engine: tried {address}: what listens there does not speak HTTP"
    status = answer.split(b" ", 2)[1].decode(errors="replace")
    return None if status == "200" else f"no Docker engine: tried {address}: its ping was answered with status {status}"


def _encrypted(url: SplitResult) -> bool:
    return url.scheme != "unix" and (url.scheme == "https" or bool(os.environ.get("DOCKER_TLS_VERIFY")))


def _connect(url: SplitResult) -> socket.socket:
    if url.scheme != "unix":
        port = url.port or (TLS_PORT if _encrypted(url) else TCP_PORT)
        connection = socket.create_connection((url.hostname or "localhost", port), timeout=CONNECT_TIMEOUT_S)
        connection.settimeout(ANSWER_TIMEOUT_S)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(ANSWER_TIMEOUT_S)
        connection.connect(url.path)
    except BaseException:
        connection.close()
        raise
    return connection

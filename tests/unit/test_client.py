"""What the command line makes of the admin endpoint's answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from streamtrain.client import AdminClient
from streamtrain.errors import AuthenticationError, DependencyError, StreamtrainError, UsageError


class Answering(ThreadingHTTPServer):
    """Gives every request the same answer, and remembers what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = (200, b"{}")
        self.asked: list[tuple[str, str, str | None]] = []

    @property
    def client(self) -> AdminClient:
        return AdminClient(address=f"127.0.0.1:{self.server_port}", token="t0ken")


class _Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_GET(self) -> None:
        self.server.asked.append((self.command, self.path, self.headers["Authorization"]))
        status, body = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def daemon() -> Iterator[Answering]:
    with Answering() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_the_token_is_shown_and_any_job_name_is_asked_for_as_it_is(daemon: Answering) -> None:
    daemon.client.status()
    daemon.client.retrain("a job?/x", {"from": "scratch"})
    daemon.client.pause("j")
    daemon.client.resume("j")
    daemon.client.retrains("j")
    daemon.client.cancel_retrain("j", "l/1")
    daemon.client.promote_retrain("j", "l")
    assert daemon.asked == [
        ("GET", "/v1/status", "Bearer t0ken"),
        ("POST", "/v1/jobs/a%20job%3F%2Fx/retrain", "Bearer t0ken"),
        ("POST", "/v1/jobs/j/pause", "Bearer t0ken"),
        ("POST", "/v1/jobs/j/resume", "Bearer t0ken"),
        ("GET", "/v1/jobs/j/retrain", "Bearer t0ken"),
        ("POST", "/v1/jobs/j/retrain/l%2F1/cancel", "Bearer t0ken"),
        ("POST", "/v1/jobs/j/retrain/l/promote", "Bearer t0ken"),
    ]


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (401, b'{"detail": "a token"}', AuthenticationError, "a token"),
        (404, b'{"detail": "there is no job"}', UsageError, "there is no job"),
        (409, b'{"detail": "not now"}', StreamtrainError, "not now"),
        (500, b"{}", StreamtrainError, "Internal Server Error"),
        (200, b"<html>", DependencyError, "no daemon answers at 127.0.0.1:"),
        (200, b"[]", DependencyError, "no daemon of streamtrain"),
    ],
)
def test_what_is_no_status_is_an_error_that_says_why(
    daemon: Answering, status: int, body: bytes, kind: type[StreamtrainError], said: str
) -> None:
    daemon.answer = (status, body)
    with pytest.raises(kind, match=said):
        daemon.client.status()

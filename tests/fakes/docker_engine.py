"""A Docker engine as far as testcontainers needs one: it "runs" a container by forwarding its port to a server that is
there already, so that the code which starts containers is exercised where no engine is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

CONTAINER = "c0ffee"


class FakeEngine:
    """`port` is where its container's port leads; `images` those it has, `pulls` those it could fetch."""

    def __init__(self, *, port: int, images: set[str], pulls: set[str] | None = None) -> None:
        self.port, self.images, self.pulls = port, images, pulls or set()
        self.created: list[dict[str, Any]] = []
        self.running = False
        self.address = ""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON of the reply; the API's version is cut off the path."""
        match method, path.strip("/").split("/"):
            case "GET", ["_ping"]:
                return 200, "OK"
            case "GET", ["version"]:
                return 200, {"Version": "28.0.0", "ApiVersion": "1.48", "MinAPIVersion": "1.24"}
            case "GET", ["images", *name, "json"]:
                found = "/".join(name) in self.images
                return (200, {"Id": "sha256:1", "RepoTags": []}) if found else (404, {"message": "No such image"})
            case "POST", ["images", "create"]:
                return self._pull(body)
            case "POST", ["containers", "create"]:
                self.created.append(body)
                return 201, {"Id": CONTAINER, "Warnings": []}
            case "POST", ["containers", _, "start"]:
                self.running = True
                return 204, None
            case "GET", ["containers", _, "json"]:
                ports = {"27017/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}]}
                state = {"Status": "running" if self.running else "created"}
                network = {"Ports": ports}
                return 200, {"Id": CONTAINER, "State": state, "Config": {"Tty": False}, "NetworkSettings": network}
            case "GET", ["containers", _, "logs"]:
                line = b"mongod's last words\n"
                return 200, b"\x01\x00\x00\x00" + len(line).to_bytes(4, "big") + line
            case "DELETE", ["containers", _]:
                self.running = False
                self.created.clear()
                return 204, None
        return 500, {"message": f"the fake engine does not know {method} {path}"}

    def _pull(self, query: str) -> tuple[int, Any]:
        asked = dict(part.split("=", 1) for part in query.split("&"))
        name = f"{unquote(asked['fromImage'])}:{unquote(asked['tag'])}"
        if name not in self.pulls:
            return 500, {"message": "no route to the registry"}
        self.images.add(name)
        return 200, {"status": "Downloaded"}


@contextmanager
def running_engine(engine: FakeEngine) -> Iterator[FakeEngine]:
    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            path, _, query = self.path.partition("?")
            if path.startswith("/v1."):
                path = path[path.index("/", 1) :]
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, reply = engine.answer(self.command, path, json.loads(sent) if sent else query)
            body = reply if isinstance(reply, bytes) else b"" if reply is None else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _handle  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        engine.address = f"tcp://127.0.0.1:{server.server_address[1]}"
        try:
            yield engine
        finally:
            server.shutdown()
            thread.join()

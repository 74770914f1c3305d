"""An embedded MongoDB server for development and tests only: it speaks the wire protocol, and the real pymongo takes it
for the primary of a one-member replica set of MongoDB 7.0. Production code knows nothing of it.

    python -m streamtrain.sandbox.mongo_server --port 27017 --data-file sandbox.mongo
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from streamtrain.sandbox.mongo.authentication import User
from streamtrain.sandbox.mongo.faults import Faults
from streamtrain.sandbox.mongo.server import OPLOG_BYTES, SandboxMongo

__all__ = ["MongoProcess", "SandboxMongo", "ThreadedMongo", "User", "running_mongo"]

T = TypeVar("T")

START_TIMEOUT = 30.0
STOP_TIMEOUT = 10.0


class ThreadedMongo:
    """A server in a thread of its own, so that blocking clients of the same process can use it."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="sandbox-mongo", daemon=True)
        self.server = SandboxMongo(**options)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def start(self) -> None:
        self._thread.start()
        try:
            self.wait(self.server.start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        if self._thread.is_alive():
            self.wait(self.server.stop())
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT)

    def wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(START_TIMEOUT)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the server's loop, where its state may be touched."""

        async def run() -> T:
            return function()

        result: T = self.wait(run())
        return result

    @property
    def uri(self) -> str:
        return self.server.uri

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def faults(self) -> Faults:
        return self.server.faults

    def cut_oplog(self, keep: int = 0) -> None:
        self.call(lambda: self.server.cut_oplog(keep))

    def drop_connections(self) -> None:
        self.call(self.server.drop_connections)


class MongoProcess:
    """A server in a process of its own: it can be killed, and does not share the caller's interpreter lock."""

    def __init__(
        self,
        *,
        port: int = 0,
        data_file: Path | None = None,
        replica_set: str | None = "rs0",
        oplog_bytes: int = OPLOG_BYTES,
    ) -> None:
        self._port, self._data_file, self._replica_set, self._oplog_bytes = port, data_file, replica_set, oplog_bytes
        self._process: subprocess.Popen[str] | None = None
        self.uri = ""
        self.port = 0

    def start(self) -> None:
        """Raises RuntimeError when the server does not come up in time."""
        command = [sys.executable, "-m", "streamtrain.sandbox.mongo_server", "--port", str(self.port or self._port)]
        command += ["--oplog-bytes", str(self._oplog_bytes), "--parent-pipe"]
        if self._data_file is not None:
            command += ["--data-file", str(self._data_file)]
        command += ["--standalone"] if self._replica_set is None else ["--replica-set", self._replica_set]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], START_TIMEOUT)[0]:
            self.kill()
            raise RuntimeError(f"the sandbox's MongoDB server was not ready within {START_TIMEOUT:g} s")
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait(STOP_TIMEOUT)
            self._reap()
            raise RuntimeError(f"the sandbox's MongoDB server ended with exit code {code} before it was ready")
        ready = json.loads(line)
        self.uri, self.port = ready["uri"], ready["port"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """kill -9: what was not acknowledged may be gone."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def _reap(self) -> None:
        process = self._process
        if process is not None:
            process.wait(STOP_TIMEOUT)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._process = None


@contextlib.contextmanager
def running_mongo(*, child: bool = True, **options: Any) -> Iterator[MongoProcess | ThreadedMongo]:
    """A running server with `.uri`: in a child process, or (`child=False`) in a thread of this one."""
    server: MongoProcess | ThreadedMongo = MongoProcess(**options) if child else ThreadedMongo(**options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


async def _serve(arguments: argparse.Namespace) -> None:
    server = SandboxMongo(
        port=arguments.port,
        data_file=arguments.data_file,
        replica_set=None if arguments.standalone else arguments.replica_set,
        oplog_bytes=arguments.oplog_bytes,
        fsync=arguments.fsync,
    )
    await server.start()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if arguments.parent_pipe:
        threading.Thread(target=_end_with_parent, args=(loop, stopped), daemon=True).start()
    print(json.dumps({"uri": server.uri, "port": server.port}), flush=True)
    await stopped.wait()
    await server.stop()


def _end_with_parent(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """A parent that dies closes the pipe; the server does not outlive it."""
    sys.stdin.read()
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(stopped.set)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="streamtrain.sandbox.mongo_server", description="An embedded MongoDB for development and tests."
    )
    parser.add_argument("--port", type=int, default=27017, help="0 takes a free one; the ready line names it")
    parser.add_argument(
        "--data-file", type=Path, help="append-only file that writes survive in; without it they are in memory only"
    )
    parser.add_argument("--replica-set", default="rs0")
    parser.add_argument("--standalone", action="store_true", help="pretend to be a mongod without a replica set")
    parser.add_argument("--oplog-bytes", type=int, default=OPLOG_BYTES)
    parser.add_argument("--fsync", action="store_true", help="survive power failures too, slowly")
    parser.add_argument("--parent-pipe", action="store_true", help="end when standard input is closed")
    try:
        asyncio.run(_serve(parser.parse_args(argv)))
    except OSError as error:
        print(f"mongo_server: {error}", file=sys.stderr)
        return 69
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""An embedded MongoDB server for development and tests only: it speaks the wire protocol, and the real pymongo takes it
for the primary of a one-member replica set of MongoDB 7.0. Production code knows nothing of it.

    python -m streamtrain.sandbox.mongo_server --port 27017 --data-file sandbox.mongo
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from streamtrain.clock import Clock, SystemClock
from streamtrain.sandbox.mongo import wire
from streamtrain.sandbox.mongo.dispatch import DisconnectError, Dispatcher
from streamtrain.sandbox.mongo.engine import open_engine
from streamtrain.sandbox.mongo.expiry import expire
from streamtrain.sandbox.mongo.faults import Faults

T = TypeVar("T")

HOUSE_INTERVAL = 1.0
NOOP_INTERVAL = 10.0
"""Seconds between the no-op entries that move the cluster time on while nobody writes, as on a real primary."""
CURSOR_TIMEOUT = 600.0
OPLOG_BYTES = 512 * 1024 * 1024
START_TIMEOUT = 30.0
STOP_TIMEOUT = 10.0
HIGH_WATER = 64 * 1024 * 1024


class SandboxMongo:
    """A server in the running event loop. `data_file` makes it durable, `replica_set=None` a standalone mongod."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data_file: Path | None = None,
        replica_set: str | None = "rs0",
        oplog_bytes: int = OPLOG_BYTES,
        fsync: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._host, self._port, self._replica_set = host, port, replica_set
        self._clock = clock or SystemClock()
        self._data_file, self._oplog_bytes, self._fsync = data_file, oplog_bytes, fsync
        self._server: asyncio.Server | None = None
        self._housekeeping: asyncio.Task[None] | None = None
        self._dispatcher: Dispatcher | None = None
        self._connections: set[_Connection] = set()

    async def start(self) -> None:
        """Listen; raises OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), self._host, self._port, backlog=512)
        self._port = self._server.sockets[0].getsockname()[1]
        engine = open_engine(
            time=self._clock.time, data_file=self._data_file, oplog_bytes=self._oplog_bytes, fsync=self._fsync
        )
        self._dispatcher = Dispatcher(engine, address=self.address, replica_set=self._replica_set)
        self._housekeeping = asyncio.create_task(self._keep_house())

    async def stop(self) -> None:
        """Close every connection and the file. May be called twice."""
        if self._server is None:
            return
        self._server.close()
        self.drop_connections()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)
        await asyncio.gather(*(c.task for c in self._connections if c.task is not None), return_exceptions=True)
        self._server = None
        if self.dispatcher.engine.journal is not None:
            self.dispatcher.engine.journal.close()

    async def __aenter__(self) -> SandboxMongo:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _keep_house(self) -> None:
        engine, loop = self.dispatcher.engine, asyncio.get_running_loop()
        last, noted, expired = engine.oplog.last, loop.time(), loop.time()
        while True:
            await asyncio.sleep(HOUSE_INTERVAL)
            now = loop.time()
            if engine.oplog.last != last or self._replica_set is None:
                last, noted = engine.oplog.last, now
            elif now - noted >= NOOP_INTERVAL:
                engine.note()
                engine.flush()
            if now - expired >= self.dispatcher.deployment.ttl_interval:
                expire(engine)
                expired = now
            self.dispatcher.cursors.close_idle(now - CURSOR_TIMEOUT)

    @property
    def dispatcher(self) -> Dispatcher:
        assert self._dispatcher is not None, "start() comes first"
        return self._dispatcher

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def uri(self) -> str:
        options = f"replicaSet={self._replica_set}" if self._replica_set is not None else "directConnection=true"
        return f"mongodb://{self.address}/?{options}"

    @property
    def faults(self) -> Faults:
        return self.dispatcher.faults

    def cut_oplog(self, keep: int = 0) -> None:
        """Forget all but the newest `keep` oplog entries: positions before them are gone (error 286)."""
        self.dispatcher.engine.cut_oplog(keep)
        self.dispatcher.engine.flush()

    def drop_connections(self) -> None:
        """Close every connection at once, without a word."""
        for connection in list(self._connections):
            connection.close()

    def attach(self, connection: _Connection) -> None:
        self._connections.add(connection)
        self.dispatcher.deployment.connections = len(self._connections)

    def detach(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self.dispatcher.deployment.connections = len(self._connections)


class _Connection(asyncio.Protocol):
    """One client. Requests are answered in order; while one waits, what comes behind it is left in the buffer."""

    def __init__(self, server: SandboxMongo) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._number = 0
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(HIGH_WATER)
        self._server.attach(self)

    def connection_lost(self, _: Exception | None) -> None:
        if self.task is not None:
            self.task.cancel()
        self._server.detach(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self.task is None:
            self._serve()

    def _serve(self) -> None:
        while len(self._buffer) >= 16 and self.task is None:
            length = int.from_bytes(self._buffer[:4], "little")
            if not 16 <= length <= wire.MAX_MESSAGE + 16384:
                self.close()
                return
            if len(self._buffer) < length:
                return
            data = bytes(memoryview(self._buffer)[:length])
            del self._buffer[:length]
            try:
                self._answer(wire.parse(data))
            except wire.ProtocolError:
                self.close()
                return

    def _answer(self, message: wire.Message) -> None:
        try:
            reply = self._server.dispatcher.run(message)
        except DisconnectError:
            self.close()
            return
        if isinstance(reply, bytes):
            self._send(message, reply)
        else:
            self.task = asyncio.get_running_loop().create_task(self._wait(message, reply))

    async def _wait(self, message: wire.Message, reply: Awaitable[bytes]) -> None:
        try:
            self._send(message, await reply)
        except DisconnectError as fault:
            if fault.partial is not None and self._transport is not None:
                whole = wire.reply(message, self._number, fault.partial)
                self._transport.write(whole[: len(whole) // 2])
                self._transport.close()
            else:
                self.close()
            return
        self.task = None
        self._serve()

    def _send(self, message: wire.Message, document: bytes) -> None:
        if message.flags & wire.MORE_TO_COME and message.opcode == wire.OP_MSG:
            return
        self._number += 1
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(wire.reply(message, self._number, document))


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
        """Raises RuntimeError when the server does not come up."""
        command = [sys.executable, "-m", "streamtrain.sandbox.mongo_server", "--port", str(self.port or self._port)]
        command += ["--oplog-bytes", str(self._oplog_bytes), "--parent-pipe"]
        if self._data_file is not None:
            command += ["--data-file", str(self._data_file)]
        command += ["--standalone"] if self._replica_set is None else ["--replica-set", self._replica_set]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait(STOP_TIMEOUT)
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

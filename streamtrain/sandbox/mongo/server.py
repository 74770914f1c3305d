"""The server: listens, frames messages, hands them to the dispatcher and keeps house."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path

from streamtrain.clock import Clock, SystemClock
from streamtrain.sandbox.mongo import wire
from streamtrain.sandbox.mongo.authentication import Peer, User
from streamtrain.sandbox.mongo.dispatch import DisconnectError, Dispatcher
from streamtrain.sandbox.mongo.engine import open_engine
from streamtrain.sandbox.mongo.expiry import expire
from streamtrain.sandbox.mongo.faults import Faults

HOUSE_INTERVAL = 1.0
NOOP_INTERVAL = 10.0
"""Seconds between the no-op entries that move the cluster time on while nobody writes, as on a real primary."""
CURSOR_TIMEOUT = 600.0
OPLOG_BYTES = 256 * 1024 * 1024
HIGH_WATER = 64 * 1024 * 1024


class SandboxMongo:
    """A server in the running event loop. `data_file` makes it durable, `replica_set=None` a standalone
    mongod, `users` one that asks for a password."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data_file: Path | None = None,
        replica_set: str | None = "rs0",
        oplog_bytes: int = OPLOG_BYTES,
        fsync: bool = False,
        users: Sequence[User] = (),
        clock: Clock | None = None,
    ) -> None:
        self._host, self._port, self._replica_set = host, port, replica_set
        self._clock = clock or SystemClock()
        self._data_file, self._oplog_bytes, self._fsync = data_file, oplog_bytes, fsync
        self._users = tuple(users)
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
        self._dispatcher = Dispatcher(engine, address=self.address, replica_set=self._replica_set, users=self._users)
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
        self._peer = Peer()
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
            reply = self._server.dispatcher.run(message, self._peer)
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

"""From a request to its reply: finds the command, enters its session, applies faults and stamps the cluster time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

import bson
import bson.errors

from streamtrain.sandbox.mongo import raw
from streamtrain.sandbox.mongo.authentication import Authentication, Peer, User
from streamtrain.sandbox.mongo.catalog import CatalogCommands
from streamtrain.sandbox.mongo.commands import DocumentCommands, Reply, Request, Result
from streamtrain.sandbox.mongo.cursors import Cursors
from streamtrain.sandbox.mongo.deployment import DeploymentCommands
from streamtrain.sandbox.mongo.engine import Engine
from streamtrain.sandbox.mongo.failure import CommandError
from streamtrain.sandbox.mongo.faults import Fault, Faults
from streamtrain.sandbox.mongo.oplog import Namespace
from streamtrain.sandbox.mongo.sessions import Sessions
from streamtrain.sandbox.mongo.wire import Message

WRITES = frozenset(("insert", "update", "delete", "findAndModify", "create", "drop", "dropDatabase", "renameCollection",
                    "collMod", "createIndexes", "dropIndexes"))  # fmt: skip
_SIGNATURE = raw.embedded(
    b"signature", raw.document(b"\x05hash\x00\x14\x00\x00\x00\x00" + bytes(20), b"\x12keyId\x00" + raw.INT64.pack(0))
)


MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    re.error,
    bson.errors.BSONError,
)
"""What handlers run into with commands that have no sense."""


class DisconnectError(Exception):
    """The connection is to be closed; `partial` is what of the reply goes out before."""

    def __init__(self, partial: bytes | None = None) -> None:
        super().__init__("disconnect")
        self.partial = partial


class Dispatcher:
    def __init__(self, engine: Engine, *, address: str, replica_set: str | None, users: Sequence[User] = ()) -> None:
        self.engine = engine
        self.cursors = Cursors()
        self.faults = Faults()
        self._authentication = Authentication(users)
        self.deployment = DeploymentCommands(
            engine, self.cursors, address=address, replica_set=replica_set, mechanisms=self._authentication.mechanisms
        )
        self._replica_set = replica_set
        self._sessions = Sessions(engine, replica_set=replica_set is not None)
        documents = DocumentCommands(engine, self.cursors, replica_set=replica_set is not None)
        self._handlers: dict[str, Callable[[Request], Result]] = {
            **documents.handlers(),
            **CatalogCommands(engine, documents).handlers(),
            **self.deployment.handlers(),
            "commitTransaction": self._sessions.commit,
            "abortTransaction": self._sessions.abort,
            "endSessions": self._end_sessions,
            "saslStart": lambda request: self._authentication.start(request.peer, request.body),
            "saslContinue": lambda request: self._authentication.proceed(request.peer, request.body),
            "connectionStatus": self._connection_status,
            "sandboxFault": self._set_fault,
            "sandboxCutOplog": self._cut_oplog,
            "replSetStepDown": self._step_down,
        }
        engine.on_write = self._wake

    def _wake(self, namespaces: list[Namespace]) -> None:
        for stream in self.cursors.waiting():
            future = stream.woken
            if future is not None and not future.done() and any(map(stream.sees, namespaces)):
                future.set_result(None)

    def run(self, message: Message, peer: Peer) -> bytes | Awaitable[bytes]:
        """The reply's document, at once or awaited. Raises DisconnectError."""
        request = _request(message, peer)
        faults = self.faults.take(request.name, f"{request.db}.{request.body[request.name]}")
        if faults:
            return self._run_with(faults, request)
        return self._run(request)

    async def _run_with(self, faults: list[Fault], request: Request) -> bytes:
        for fault in faults:
            if fault.kind == "delay":
                await asyncio.sleep(fault.seconds)
            elif fault.kind == "drop_before":
                raise DisconnectError
            elif fault.kind == "error":
                return self._stamped(CommandError(fault.code, fault.message, labels=fault.labels).reply())
        reply = self._run(request)
        if not isinstance(reply, bytes):
            reply = await reply
        for fault in faults:
            if fault.kind in ("drop_after", "drop_within"):
                raise DisconnectError(reply if fault.kind == "drop_within" else None)
        return reply

    def _run(self, request: Request) -> bytes | Awaitable[bytes]:
        failed = True
        try:
            handler = self._handlers.get(request.name)
            if handler is None:
                raise CommandError(59, f"no such command: '{request.name}'")
            if not self.deployment.primary and (request.name in WRITES or request.name == "commitTransaction"):
                raise CommandError(10107, "not primary")
            self._authentication.check(request.peer, request.name, request.db)
            answered = self._sessions.begin(request)
            if answered is not None:
                failed = False
                return self._stamped(answered)
            result = handler(request)
            if not isinstance(result, (dict, bytes)):
                failed = False
                return self._awaited(result)
            failed = False
            return self._finished(request, result)
        except CommandError as error:
            return self._stamped(error.reply())
        except MALFORMED as error:
            return self._stamped(_malformed(error).reply())
        finally:
            self._sessions.leave(failed=failed)
            self.engine.flush()

    def _finished(self, request: Request, result: Reply) -> bytes:
        if request.name in WRITES:
            result = self._acknowledged(request, result)
        reply = result if isinstance(result, bytes) else raw.encode(result)
        if request.name in WRITES and "txnNumber" in request.body:
            self._sessions.remember(request, reply)
        return self._stamped(reply)

    def _acknowledged(self, request: Request, result: Reply) -> Reply:
        """A write's reply with what a replica set adds: the entry's time, and an impossible write concern's error."""
        if isinstance(result, bytes) or self._replica_set is None:
            return result
        if request.name in ("insert", "update", "delete"):
            last = self.engine.oplog.last
            optime = {"ts": bson.Timestamp(last >> 32, last & 0xFFFFFFFF), "t": bson.Int64(1)}
            ok = result.pop("ok")
            result |= {"opTime": optime, "electionId": self.deployment.election, "ok": ok}
        concern = request.body.get("writeConcern") or {}
        if isinstance(concern.get("w"), int) and concern["w"] > 1:
            info = {
                "writeConcern": {
                    "w": concern["w"],
                    "wtimeout": concern.get("wtimeout", 0),
                    "provenance": "clientSupplied",
                }
            }
            result["writeConcernError"] = {
                "code": 100,
                "codeName": "UnsatisfiableWriteConcern",
                "errmsg": "Not enough data-bearing nodes",
                "errInfo": info,
            }
        return result

    async def _awaited(self, result: Awaitable[Reply]) -> bytes:
        try:
            return self._stamped(await result)
        except CommandError as error:
            return self._stamped(error.reply())
        except MALFORMED as error:
            return self._stamped(_malformed(error).reply())

    def _stamped(self, reply: Reply) -> bytes:
        data = reply if isinstance(reply, bytes) else raw.encode(reply)
        if self._replica_set is None:
            return data
        ts = raw.UINT64.pack(self.engine.oplog.last)
        return raw.document(
            data[4:-1],
            raw.embedded(b"$clusterTime", raw.document(b"\x11clusterTime\x00", ts, _SIGNATURE)),
            b"\x11operationTime\x00",
            ts,
        )

    def _connection_status(self, request: Request) -> Reply:
        shown = self._authentication.status(request.peer)
        if request.body.get("showPrivileges"):
            shown["authenticatedUserPrivileges"] = []
        return {"authInfo": shown, "ok": 1.0}

    # --- the sandbox's own commands ---

    def _set_fault(self, request: Request) -> Reply:
        self.faults.set_from(request.body)
        return {"ok": 1.0}

    def _cut_oplog(self, request: Request) -> Reply:
        self.engine.cut_oplog(int(request.body.get("keep", 0)))
        return {"ok": 1.0}

    def _step_down(self, request: Request) -> Reply:
        """No other member can take over: the server is a secondary for as long as asked, then primary again."""
        if self._replica_set is None:
            raise CommandError(76, "not running with --replSet")
        self.deployment.primary = False
        seconds = float(request.body["replSetStepDown"])
        asyncio.get_running_loop().call_later(seconds, self._step_up)
        return {"ok": 1.0}

    def _step_up(self) -> None:
        self.deployment.primary = True

    def _end_sessions(self, request: Request) -> Reply:
        self._sessions.end(request)
        return {"ok": 1.0}


def _malformed(error: Exception) -> CommandError:
    return CommandError(9, f"the command could not be understood: {type(error).__name__}: {error}")


def _request(message: Message, peer: Peer) -> Request:
    body = raw.decode(message.body)
    if "$query" in body:
        body = body["$query"]
    name = next(iter(body), "")
    return Request(name, body.get("$db", "admin"), body, message.sequences, peer)

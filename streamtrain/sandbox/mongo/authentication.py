"""Users, for a server that asks for them: SCRAM-SHA-256, and roles that tell readers, writers and root apart."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamtrain.sandbox.mongo.failure import CommandError

MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 4096
_OPEN = frozenset(("hello", "ismaster", "isMaster", "saslStart", "saslContinue", "ping", "buildInfo", "buildinfo",
                   "connectionStatus", "logout", "endSessions", "sandboxFault", "sandboxCutOplog"))  # fmt: skip
_SESSION = frozenset(
    ("startSession", "refreshSessions", "commitTransaction", "abortTransaction", "getMore", "killCursors")
)
_READ = frozenset(("find", "aggregate", "count", "distinct", "listCollections", "listIndexes", "collStats", "dbStats"))


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may connect. Roles are (role, database): root anywhere, readWrite and read in their database."""

    name: str
    password: str
    roles: tuple[tuple[str, str], ...] = (("root", "admin"),)

    def may(self, command: str, db: str) -> bool:
        if ("root", "admin") in self.roles or command in _SESSION:
            return True
        if command in _READ:
            return ("read", db) in self.roles or ("readWrite", db) in self.roles
        return db not in ("admin", "local", "config") and ("readWrite", db) in self.roles


@dataclass(slots=True)
class Peer:
    """What a connection has proved so far."""

    user: User | None = None
    pending: User | None = None
    first: str = ""
    """The client's first message and the server's, which both sides sign."""
    keys: tuple[bytes, bytes] = field(default=(b"", b""))


class Authentication:
    """Without users everybody may do everything, as on a server without access control."""

    def __init__(self, users: Sequence[User]) -> None:
        self._users: Mapping[str, User] = {user.name: user for user in users}

    @property
    def mechanisms(self) -> list[str]:
        return [MECHANISM] if self._users else []

    def check(self, peer: Peer, command: str, db: str) -> None:
        """Raises CommandError 13 for a command that the peer may not run."""
        if not self._users or command in _OPEN:
            return
        if peer.user is None:
            raise CommandError(13, f"Command {command} requires authentication")
        if not peer.user.may(command, db):
            raise CommandError(13, f"not authorized on {db} to execute command {{ {command}: ... }}")

    def start(self, peer: Peer, body: Mapping[str, Any]) -> dict[str, Any]:
        """`saslStart`: the salt for the name that the client gives."""
        peer.user = None
        if body.get("mechanism") != MECHANISM:
            raise CommandError(18, "Authentication failed.")
        bare = bytes(body["payload"]).decode().removeprefix("n,,")
        given = _attributes(bare)
        peer.pending = self._users.get(given.get("n", "").replace("=2C", ",").replace("=3D", "="))
        if peer.pending is None:
            raise CommandError(18, "Authentication failed.")
        salt = os.urandom(24)
        nonce = given["r"] + base64.b64encode(os.urandom(18)).decode()
        challenge = f"r={nonce},s={base64.b64encode(salt).decode()},i={ITERATIONS}"
        salted = hashlib.pbkdf2_hmac("sha256", peer.pending.password.encode(), salt, ITERATIONS)
        peer.keys = (_hmac(salted, b"Client Key"), _hmac(salted, b"Server Key"))
        peer.first = f"{bare},{challenge}"
        return {"conversationId": 1, "done": False, "payload": challenge.encode(), "ok": 1.0}

    def proceed(self, peer: Peer, body: Mapping[str, Any]) -> dict[str, Any]:
        """`saslContinue`: the client's proof against ours."""
        final = bytes(body["payload"]).decode()
        if final == "" and peer.user is not None:
            return {"conversationId": 1, "done": True, "payload": b"", "ok": 1.0}
        without, _, proof = final.rpartition(",p=")
        message = f"{peer.first},{without}".encode()
        client_key, server_key = peer.keys
        signature = _hmac(hashlib.sha256(client_key).digest(), message)
        expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if peer.pending is None or not hmac.compare_digest(expected, base64.b64decode(proof)):
            raise CommandError(18, "Authentication failed.")
        peer.user, peer.pending = peer.pending, None
        verdict = b"v=" + base64.b64encode(_hmac(server_key, message))
        return {"conversationId": 1, "done": True, "payload": verdict, "ok": 1.0}

    def status(self, peer: Peer) -> dict[str, Any]:
        """What `connectionStatus` says of the peer."""
        if peer.user is None:
            return {"authenticatedUsers": [], "authenticatedUserRoles": []}
        roles = [{"role": role, "db": db} for role, db in peer.user.roles]
        return {"authenticatedUsers": [{"user": peer.user.name, "db": "admin"}], "authenticatedUserRoles": roles}


def _attributes(message: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in message.split(",") if "=" in part)


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()

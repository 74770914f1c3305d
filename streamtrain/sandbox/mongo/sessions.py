"""Logical sessions: retryable writes are answered once, and transactions show their writes at commit.

A transaction's writes are applied as they come and undone at abort: other readers see them before the commit, which a
real server does not allow. What streams show, and when, is as it is there.
"""

from __future__ import annotations

from typing import Any

from bson import Int64

from streamtrain.sandbox.mongo import raw
from streamtrain.sandbox.mongo.commands import Request
from streamtrain.sandbox.mongo.engine import Engine, Transaction
from streamtrain.sandbox.mongo.failure import CommandError


class Sessions:
    def __init__(self, engine: Engine, *, replica_set: bool) -> None:
        self._engine, self._replica_set = engine, replica_set
        self._transactions: dict[bytes, Transaction] = {}

    def begin(self, request: Request) -> bytes | None:
        """Enter the command's session; a reply when it is a retry that was answered before. Raises CommandError."""
        number = request.body.get("txnNumber")
        if number is None:
            return None
        if not self._replica_set:
            raise CommandError(20, "Transaction numbers are only allowed on a replica set member or mongos")
        session = _identity(request)
        if request.body.get("autocommit") is False:
            if request.name not in ("commitTransaction", "abortTransaction"):
                self._enter(session, int(number), request)
            return None
        known = self._engine.retries.get(session)
        if known is not None and known[0] == number:
            return known[1]
        if known is not None and known[0] > number:
            raise CommandError(
                225,
                f"Retryable write with txnNumber {number} is prohibited on session because a newer retryable write "
                f"with txnNumber {known[0]} has already started on this session.",
            )
        return None

    def remember(self, request: Request, reply: bytes) -> None:
        """Keep the reply of a retryable write for its repeat."""
        number = request.body.get("txnNumber")
        if number is not None and request.body.get("autocommit") is not False:
            self._engine.remember(_identity(request), int(number), reply)

    def _enter(self, session: bytes, number: int, request: Request) -> None:
        transaction = self._transactions.get(session)
        if request.body.get("startTransaction"):
            if transaction is not None and transaction.state == "open":
                self._engine.abort(transaction)
            user = b"\x05uid\x00\x20\x00\x00\x00\x00" + EMPTY_DIGEST
            marks = (
                b"\x12txnNumber\x00"
                + raw.INT64.pack(number)
                + raw.embedded(b"lsid", raw.document(raw.encode({"id": request.body["lsid"]["id"]})[4:-1], user))
            )
            transaction = self._transactions[session] = Transaction(number, marks)
            self._engine.begin(transaction)
        elif transaction is None or transaction.number != number or transaction.state != "open":
            raise self._unknown(number, transaction)
        self._engine.active = transaction

    def leave(self, *, failed: bool) -> None:
        transaction, self._engine.active = self._engine.active, None
        if failed and transaction is not None and transaction.state == "open":
            self._engine.abort(transaction)

    def commit(self, request: Request) -> dict[str, Any]:
        transaction = self._current(request)
        if transaction.state == "open":
            self._engine.commit(transaction)
        elif transaction.state == "aborted":
            raise CommandError(
                251,
                f"Transaction with {{ txnNumber: {transaction.number} }} has been aborted.",
                labels=("TransientTransactionError",),
            )
        return {"ok": 1.0}

    def abort(self, request: Request) -> dict[str, Any]:
        transaction = self._current(request)
        if transaction.state != "open":
            raise CommandError(
                251,
                f"Transaction with {{ txnNumber: {transaction.number} }} has been {transaction.state}.",
                labels=("TransientTransactionError",),
            )
        self._engine.abort(transaction)
        return {"ok": 1.0}

    def _current(self, request: Request) -> Transaction:
        if not self._replica_set:
            raise CommandError(20, "Transaction numbers are only allowed on a replica set member or mongos")
        number = int(request.body.get("txnNumber", Int64(0)))
        transaction = self._transactions.get(_identity(request))
        if transaction is None or transaction.number != number:
            raise self._unknown(number, transaction)
        return transaction

    def _unknown(self, number: int, transaction: Transaction | None) -> CommandError:
        active = f"; active transaction number is {transaction.number}" if transaction else ""
        return CommandError(
            251,
            f"Given transaction number {number} does not match any in-progress transactions{active}.",
            labels=("TransientTransactionError",),
        )

    def end(self, request: Request) -> None:
        for session in request.body.get(request.name, []):
            transaction = self._transactions.pop(bytes(session.get("id", b"")), None)
            if transaction is not None and transaction.state == "open":
                self._engine.abort(transaction)


def _identity(request: Request) -> bytes:
    session = request.body.get("lsid")
    if session is None:
        raise CommandError(72, "Transaction number requires a session ID to also be specified")
    return bytes(session["id"])


EMPTY_DIGEST = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")

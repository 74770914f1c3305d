"""One worker of a group as the daemon knows it: its connection, and what it still owes an answer to."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from streamtrain.errors import WorkerError
from streamtrain.protocol import Form, Formed, Message, Ready, RoundReported, Save, Saved, StartRound, encode


@dataclass(frozen=True, slots=True)
class Debt:
    """An answer that is due. name: for people. limit_s: the longest it may take, once it is the oldest."""

    answer: type[Formed] | type[RoundReported] | type[Saved]
    name: str
    limit_s: float


class Member:
    """Answers come in the order of the requests: a worker's main thread takes them one after another."""

    def __init__(
        self, *, rank: int, ready: Ready, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, now: float
    ) -> None:
        self.rank = rank
        self.pid = ready.pid
        self.address = f"[{ready.host}]:{ready.port}" if ":" in ready.host else f"{ready.host}:{ready.port}"
        self.reader = reader
        self._writer = writer
        self._debts: deque[Debt] = deque()
        self._oldest_since = now
        self._heard = now
        self._stage = "started"

    def send(self, message: Message, *, now: float, limit_s: float) -> None:
        """Never blocks: what may be in flight is bounded, so the buffer is, even when the worker is frozen."""
        debt = _debt(message, limit_s)
        if debt is not None:
            if not self._debts:
                self._oldest_since = self._heard = now
            self._debts.append(debt)
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    def heard(self, now: float, stage: str) -> None:
        self._heard = now
        self._stage = stage

    def settle(self, answer: Formed | RoundReported | Saved, *, now: float) -> None:
        """Raises WorkerError when this is not the answer that was due."""
        if not self._debts or not isinstance(answer, self._debts[0].answer):
            due = self._debts[0].name if self._debts else "nothing"
            raise WorkerError(f"rank {self.rank} answered {type(answer).__name__} while it owed {due}")
        self._debts.popleft()
        self._oldest_since = self._heard = now

    def overdue(self, now: float, progress_s: float) -> str | None:
        """Why this worker is taken for frozen, if it is."""
        if not self._debts:
            return None
        oldest = self._debts[0]
        if now - self._heard > progress_s:
            return (
                f"rank {self.rank} (pid {self.pid}) has shown no progress for {progress_s:g} s "
                f"in {oldest.name}; last seen: {self._stage}"
            )
        if now - self._oldest_since > oldest.limit_s:
            return f"rank {self.rank} (pid {self.pid}) has not finished {oldest.name} within {oldest.limit_s:g} s"
        return None

    def close(self) -> None:
        """At once: what a frozen worker has not read is dropped."""
        self._writer.transport.abort()


def _debt(message: Message, limit_s: float) -> Debt | None:
    if isinstance(message, Form):
        return Debt(Formed, "forming", limit_s)
    if isinstance(message, StartRound):
        return Debt(RoundReported, f"round {message.round.number}", limit_s)
    if isinstance(message, Save):
        return Debt(Saved, "saving", limit_s)
    return None

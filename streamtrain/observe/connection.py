"""A connection to the admin endpoint. It is closed when nothing happens on it for long: there is room for a limited
number, and one that sends its request a byte a minute must not keep a probe out."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_S = 10.0  # every request is answered in far less


class Connection(H11Protocol):
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        super().connection_lost(exc)

    def _wait_on(self) -> None:
        self._patience = self.loop.call_later(PATIENCE_S, self._look, self.cycle)

    def _look(self, before: object) -> None:
        """Whether another request has begun since; also a client that does not read its answer makes none."""
        if self.cycle is before:
            self.transport.abort()
        else:
            self._wait_on()

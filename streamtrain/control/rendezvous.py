"""Where the workers of one generation meet the daemon: a Unix socket that lets in whoever shows the
generation's one-time token, and nobody else."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from streamtrain.errors import WorkerError
from streamtrain.protocol import Ready, read_message

MAX_SOCKET_PATH_BYTES = 100  # the smallest limit of the systems we run on is 104
GREETING_TIMEOUT_S = 5.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A worker that has shown the token, and its connection."""

    ready: Ready
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Rendezvous:
    """Opened once per generation, closed as soon as the group is complete."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self.arrivals: asyncio.Queue[Arrival] = asyncio.Queue()
        self._folder: Path | None = None
        self._server: asyncio.Server | None = None
        self._greetings: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        """The address that workers connect to. Raises WorkerError: a full disk passes, and then the next try works."""
        try:
            self._folder = _private_folder()
            path = self._folder / "control"
            self._server = await asyncio.start_unix_server(self._arrived, path=path)
        except OSError as error:
            raise WorkerError(
                f"no control socket can be made: {error.strerror or error}",
                hint="is the folder for temporary files (TMPDIR) there, writable, and its disk not full?",
            ) from error
        return f"unix:{path}"

    async def close(self) -> None:
        """Lets nobody else in; who is in stays. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for greeting in self._greetings:
            greeting.cancel()
        await asyncio.gather(*self._greetings, return_exceptions=True)
        while not self.arrivals.empty():
            self.arrivals.get_nowait().writer.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = asyncio.create_task(self._greet(reader, writer))
        self._greetings.add(greeting)
        greeting.add_done_callback(self._greetings.discard)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        welcome = False
        try:
            with suppress(WorkerError, TimeoutError):
                async with asyncio.timeout(GREETING_TIMEOUT_S):
                    message = await read_message(reader)
                if isinstance(message, Ready) and hmac.compare_digest(message.token.encode(), self.token.encode()):
                    welcome = True
                    self.arrivals.put_nowait(Arrival(message, reader, writer))
            if not welcome:
                _log.warning("refused a control connection that did not show this generation's token")
        finally:
            if not welcome:
                writer.close()


def _private_folder() -> Path:
    """A folder of our own whose socket path is short enough: a Unix socket's path is limited, TMPDIR is not."""
    for parent in (None, "/tmp"):
        folder = Path(tempfile.mkdtemp(prefix="streamtrain-", dir=parent))
        if len(bytes(folder / "control")) <= MAX_SOCKET_PATH_BYTES:
            return folder
        folder.rmdir()
    raise WorkerError("no folder for the control socket has a short enough path", hint="set TMPDIR to a short path")

"""The worker's end of the control connection: messages in order, progress at most once a second. When the
daemon closes it the process ends at once, even inside a collective: a worker never outlives its generation."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable

from streamtrain.clock import Clock
from streamtrain.errors import EXIT_INTERNAL, WorkerError
from streamtrain.protocol import Form, Message, Progress, Stop, encode, receive_message

_PROGRESS_EVERY_S = 1.0
_UNIX = "unix:"


def connect(address: str) -> socket.socket:
    """address: `unix:/path`, or `host:port`. Raises WorkerError."""
    try:
        if address.startswith(_UNIX):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(address.removeprefix(_UNIX))
            except OSError:
                connection.close()
                raise
            return connection
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)))
    except (OSError, ValueError) as error:
        raise WorkerError(f"the control address {address} cannot be reached: {error}") from error


class Channel:
    """Messages of one generation, which the first `Form` names; those of any other are dropped."""

    def __init__(
        self,
        *,
        connection: socket.socket,
        clock: Clock,
        on_closed: Callable[[], None] = lambda: os._exit(EXIT_INTERNAL),
    ) -> None:
        """on_closed: called in the reader's thread when the daemon has closed the connection before `Stop`."""
        self._connection = connection
        self._clock = clock
        self._on_closed = on_closed
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._done: dict[str, int] = {}
        self._progress_at = -_PROGRESS_EVERY_S
        self._on_message: Callable[[Message], None] = lambda message: None
        self.generation = 0

    def start(self) -> None:
        threading.Thread(target=self._read, name="control", daemon=True).start()

    def on_message(self, receive: Callable[[Message], None]) -> None:
        """Lets `receive` see each message in the reader's thread, before it is queued for the main thread."""
        self._on_message = receive

    def next(self) -> Message:
        return self._inbox.get()

    def send(self, message: Message) -> None:
        with self._sending:
            self._connection.sendall(encode(message))

    def progress(self, stage: str, done: int) -> None:
        """Reports that `done` more units of a stage are done; from any thread, as often as one likes."""
        if done <= 0:
            return
        with self._sending:
            self._done[stage] = self._done.get(stage, 0) + done
            now = self._clock.monotonic()
            if now - self._progress_at < _PROGRESS_EVERY_S:
                return
            self._progress_at = now
            message = Progress(generation=self.generation, stage=stage, done=self._done.pop(stage))
            self._connection.sendall(encode(message))

    def _read(self) -> None:
        formed = stopped = False
        try:
            while (message := receive_message(self._connection)) is not None:
                if isinstance(message, Form) and not formed:
                    formed, self.generation = True, message.generation
                if message.generation != self.generation:
                    continue
                stopped = stopped or isinstance(message, Stop)
                self._on_message(message)
                self._inbox.put(message)
        finally:
            if not stopped:
                self._on_closed()

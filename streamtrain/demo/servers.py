"""The demo's embedded MongoDB and Kafka, as child processes on free ports. MongoDB keeps its data in memory: it
lives and ends with the demo."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from streamtrain.errors import DependencyError
from streamtrain.sandbox.kafka_broker import KafkaBroker
from streamtrain.sandbox.mongo_server import MongoProcess

_OPLOG_BYTES = 64 * 1024 * 1024


class Servers:
    """Both servers, as a context manager. Starting them takes about a second and blocks, so that a signal cannot
    come between a process' start and the note that it must be ended."""

    def __init__(self, *, directory: Path) -> None:
        self._kafka = KafkaBroker(directory=directory / "kafka")
        self._mongo = MongoProcess(oplog_bytes=_OPLOG_BYTES)

    @property
    def mongo(self) -> str:
        return self._mongo.uri

    @property
    def kafka(self) -> str:
        return self._kafka.bootstrap_servers

    def __enter__(self) -> Self:
        """Raises DependencyError when one of them does not come up."""
        try:
            self._kafka.start()
            self._mongo.start()
        except BaseException as error:
            self._stop()
            if isinstance(error, RuntimeError):
                raise DependencyError(str(error)) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        try:
            self._mongo.stop()
        finally:
            self._kafka.stop()

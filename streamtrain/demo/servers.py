"""The demo's embedded MongoDB and Kafka, on free ports and with their data in the demo's directory."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Self

from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from streamtrain.clock import Clock
from streamtrain.demo.child import Child
from streamtrain.errors import DependencyError
from streamtrain.sandbox.kafka_broker import KafkaBroker, free_ports

_MONGO_START_S = 30.0
_MONGO_STOP_S = 10.0
_PING_MS = 500
_POLL_S = 0.05


class Servers:
    """Both servers, as an async context manager."""

    def __init__(self, *, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._kafka = KafkaBroker(directory=directory / "kafka")
        self._mongo: Child | None = None
        self._mongo_port = free_ports(1)[0]

    @property
    def mongo(self) -> str:
        return f"mongodb://127.0.0.1:{self._mongo_port}/?replicaSet=sandbox"

    @property
    def kafka(self) -> str:
        return self._kafka.bootstrap_servers

    async def __aenter__(self) -> Self:
        """Raises DependencyError when one of them does not come up."""
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stop()

    def check(self) -> None:
        """Raises DependencyError once MongoDB has ended; what uses Kafka says so itself."""
        if self._mongo is not None:
            self._mongo.check()

    async def _start(self) -> None:
        data = self._directory / "mongo"
        data.mkdir()
        command = [sys.executable, "-m", "streamtrain.sandbox.mongo", "--port", str(self._mongo_port)]
        self._mongo = await Child.start(
            "the embedded MongoDB", [*command, "--data", str(data)], log=self._directory / "mongo.log"
        )
        self._kafka.start()  # some ten milliseconds, so it may hold up this loop
        client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(self.mongo, serverSelectionTimeoutMS=_PING_MS)
        deadline = self._clock.monotonic() + _MONGO_START_S
        async with client:
            while True:
                self._mongo.check()
                try:
                    await client.admin.command("ping")
                    return
                except PyMongoError as error:
                    if self._clock.monotonic() > deadline:
                        raise DependencyError(f"the embedded MongoDB does not answer: {error}") from error
                await self._clock.sleep(_POLL_S)

    async def _stop(self) -> None:
        try:
            if self._mongo is not None:
                await self._mongo.stop(within=_MONGO_STOP_S)
        finally:
            await asyncio.shield(asyncio.to_thread(self._kafka.stop))

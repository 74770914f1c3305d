"""`streamtrain sandbox up`: the embedded servers for a developer, until Ctrl-C."""

from __future__ import annotations

import json as jsonlib
import signal
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from streamtrain.errors import EXIT_INTERRUPTED, EXIT_OK, DependencyError, PortInUseError
from streamtrain.observe.admin import bind
from streamtrain.sandbox.kafka_broker import KafkaBroker
from streamtrain.sandbox.mongo_server import MongoProcess


def up(*, mongo_port: int, kafka_port: int, data: str | None, json: bool) -> int:
    """Starts both, prints their addresses on stdout, and waits for a signal."""
    for port in (mongo_port, kafka_port):
        _check_free(port)
    ended = threading.Event()
    received: list[int] = []

    def end(number: int, _frame: object) -> None:
        received.append(number)
        ended.set()

    with ExitStack() as stack:
        folder = Path(data) if data else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamtrain-")))
        try:
            (folder / "kafka").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DependencyError(
                f"cannot keep data in {folder}: {error.strerror}", hint="name a folder that can be written with --data"
            ) from error
        broker = stack.enter_context(KafkaBroker(directory=folder / "kafka", port=kafka_port or None))
        mongo = MongoProcess(port=mongo_port, data_file=folder / "mongodb")
        stack.callback(mongo.stop)
        try:
            mongo.start()
        except RuntimeError as error:
            raise DependencyError(str(error), hint="its own message is above") from error
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        addresses = {"mongodb": mongo.uri, "kafka": broker.bootstrap_servers, "data": str(folder) if data else None}
        if json:
            print(jsonlib.dumps(addresses), flush=True)
        else:
            kept = f"kept in {folder}" if data else "gone when this ends"
            print(
                f"MongoDB  {mongo.uri}\nKafka    {broker.bootstrap_servers}\nFor development only; the data is {kept}. "
                "Ctrl-C ends both.",
                flush=True,
            )
        ended.wait()
    return EXIT_INTERRUPTED if signal.SIGINT in received else EXIT_OK


def _check_free(port: int) -> None:
    if port:
        try:
            bind(f"127.0.0.1:{port}").close()
        except PortInUseError as error:
            raise PortInUseError(
                f"port {port} is in use by another process", hint="choose another with --mongo-port or --kafka-port"
            ) from error
        except DependencyError as error:
            raise DependencyError(f"cannot listen on port {port}: {error.message}") from error

"""MongoDB 7.0 in a container, a replica set of one: what the embedded server must agree with."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

IMAGE = "mongo:7.0"
PORT = 27017
REPLICA_SET = "rs0"
COMMAND = ["mongod", "--replSet", REPLICA_SET, "--bind_ip_all", "--oplogSize", "256", "--wiredTigerCacheSizeGB", "0.5"]
CONFIGURATION = {"_id": REPLICA_SET, "members": [{"_id": 0, "host": f"127.0.0.1:{PORT}"}]}
"""The one member under the name by which it finds itself in its container. Nobody else can use that name, so clients
connect directly instead of by the set's list of members."""
START_TIMEOUT_S = 60.0
SYSTEM_DATABASES = {"admin", "config", "local"}
ALREADY_INITIALIZED = 23
STARTING_UP = (94, 11602, 11600, 13436)
"""NotYetInitialized and what a server answers while it changes its state: asked again."""


class ImageMissingError(Exception):
    """The engine has not got an image and cannot pull it."""


class RealMongo:
    """Starts with `start()`, which raises ImageMissingError, or RuntimeError with the server's last log lines."""

    def __init__(self, *, image: str = IMAGE) -> None:
        from testcontainers.core.container import DockerContainer

        self._container = DockerContainer(image, command=COMMAND).with_exposed_ports(PORT)
        self._container.with_tmpfs_mount("/data/db")
        self.uri = ""

    def start(self) -> None:
        try:
            self._provide_images()
            self._container.start()
            host, port = self._container.get_container_host_ip(), self._container.get_exposed_port(PORT)
            self.uri = direct_uri(host, port)
            self._initiate()
        except BaseException:
            self.stop()
            raise

    def _initiate(self) -> None:
        try:
            initiate(self.uri)
        except (PyMongoError, TimeoutError) as error:
            log = b"\n".join(self._container.get_logs()).decode(errors="replace")[-2_000:]
            raise RuntimeError(f"MongoDB in a container did not come up: {error}\n{log}") from error

    def stop(self) -> None:
        self._container.stop()

    def __enter__(self) -> RealMongo:
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def clear(self) -> None:
        """Drop what earlier tests left, so that each begins as on a server of its own."""
        with MongoClient[dict[str, Any]](self.uri) as client:
            for name in client.list_database_names():
                if name not in SYSTEM_DATABASES:
                    client.drop_database(name)

    def _provide_images(self) -> None:
        """MongoDB's, and that of testcontainers' reaper, which ends the containers of a test run that was killed."""
        import docker.errors
        from testcontainers.core.config import testcontainers_config

        images = self._container.get_docker_client().client.images
        reaper = [] if testcontainers_config.ryuk_disabled else [testcontainers_config.ryuk_image]
        for image in [self._container.image, *reaper]:
            try:
                images.get(image)
            except docker.errors.ImageNotFound:
                try:
                    images.pull(image)
                except docker.errors.APIError as error:
                    raise ImageMissingError(f"no image {image}: {error.explanation or error}") from error


def direct_uri(host: str, port: int) -> str:
    return f"mongodb://{f'[{host}]' if ':' in host else host}:{port}/?directConnection=true"


def initiate(uri: str, *, timeout_s: float = START_TIMEOUT_S) -> None:
    """Make the server at `uri` the primary of a replica set of its own, and wait until it is; harmless on one that
    is already. Raises TimeoutError, or pymongo's error when the server refuses."""
    deadline = time.monotonic() + timeout_s
    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=round(timeout_s * 1000)) as client:
        try:
            client.admin.command("replSetInitiate", CONFIGURATION)
        except OperationFailure as error:
            if error.code != ALREADY_INITIALIZED:
                raise
        while not _is_primary(client):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server did not become primary within {timeout_s:g} s")
            time.sleep(0.05)


def _is_primary(client: MongoClient[dict[str, Any]]) -> bool:
    try:
        return bool(client.admin.command("hello")["isWritablePrimary"])
    except OperationFailure as error:
        if error.code in STARTING_UP:
            return False
        raise

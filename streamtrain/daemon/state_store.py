"""Where the deployment keeps its state: the MongoDB of lease and manifests, and the artifact store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from streamtrain import config
from streamtrain.errors import ConfigError
from streamtrain.mongo_failure import explain

SELECTION_TIMEOUT_S = 8.0


def connect(settings: config.Settings) -> AsyncMongoClient[dict[str, Any]]:
    """A client of the state's cluster; it connects when it is first used. Raises ConfigError."""
    try:
        return AsyncMongoClient(
            _uri(settings), serverSelectionTimeoutMS=int(SELECTION_TIMEOUT_S * 1000), appname="streamtrain"
        )
    except (PyMongoError, ValueError) as error:
        raise ConfigError(
            "state.uri (or the first source's uri) cannot be used",
            hint="it looks like mongodb://user:password@host:27017/?replicaSet=rs0",
        ) from error


async def check(settings: config.Settings) -> None:
    """Raises MongoError, AuthenticationError or PermissionMissingError when the state cannot be read."""
    client = connect(settings)
    try:
        await client[settings.state.database]["jobs"].find_one({"_id": ""})
    except PyMongoError as error:
        raise explain(error, doing="reading the state") from error
    finally:
        await client.close()


def artifact_options(settings: config.Settings) -> dict[str, Any]:
    """What the daemon and its workers open the artifact store with. Holds the URI: never logged."""
    state = settings.state
    if state.artifacts == "gridfs":
        return {"kind": "gridfs", "uri": _uri(settings), "database": state.database}
    return {"kind": "directory", "path": str(Path(state.artifacts).resolve())}


def _uri(settings: config.Settings) -> str:
    return (settings.state.uri or settings.sources[0].uri).get_secret_value()

"""What must be true of a MongoDB before a source follows it, checked once at start: each thing that is not is
an error that says what to do. It must never write, and never show a password."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bson import Timestamp
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError

from streamtrain import config
from streamtrain.errors import ConfigError, MongoError, StreamtrainError
from streamtrain.mongo_failure import UNAUTHORIZED, text
from streamtrain.source.change_stream import ChangeStream
from streamtrain.source.failures import MAKE_REPLICA_SET, meaning
from streamtrain.source.identity import SHARDED, Identity, pipeline_hash
from streamtrain.types import Position, PositionKind

SELECTION_TIMEOUT_S = 8.0
CONNECT_TIMEOUT_S = 8.0
PREFLIGHT_DEADLINE_S = 30.0

# What the URI may set itself.
_OPTIONS: Mapping[str, Any] = {
    "serverSelectionTimeoutMS": int(SELECTION_TIMEOUT_S * 1000),
    "connectTimeoutMS": int(CONNECT_TIMEOUT_S * 1000),
    "appName": "streamtrain",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What a source has to know of its server. full_document: the mode that the stream is opened with.
    operation_time: the cluster's time now, as `seconds << 32 | increment`."""

    identity: Identity
    full_document: str
    operation_time: int

    @property
    def sharded(self) -> bool:
        return self.identity.topology == SHARDED


def connect(spec: config.Source) -> AsyncMongoClient[Any]:
    """A client of the source's cluster; it connects when it is first used. Raises ConfigError."""
    uri = spec.uri.get_secret_value()
    given = {name.lower() for name in re.findall(r"[?&]([^=&]+)=", uri)}
    options = {name: value for name, value in _OPTIONS.items() if name.lower() not in given}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # pymongo would ignore an option that it does not know
            return AsyncMongoClient(uri, **options)
    except (PyMongoError, ValueError, UserWarning) as error:
        raise ConfigError(
            f"the uri of source {spec.name!r} cannot be used: {_without(uri, str(error))}",
            hint="it looks like mongodb://user:password@host:27017/?replicaSet=rs0",
        ) from None


async def check(spec: config.Source, client: AsyncMongoClient[Any]) -> Facts:
    """Raises DependencyError or ConfigError when the source cannot work, and says why."""
    namespace = f"{spec.database}.{spec.collection}"
    try:
        async with asyncio.timeout(PREFLIGHT_DEADLINE_S):
            facts = await _facts(spec, client, namespace)
            await _try_stream(spec, client, facts)
            return facts
    except ServerSelectionTimeoutError as error:
        raise _unreachable(spec, client) from error
    except TimeoutError:
        raise MongoError(
            f"MongoDB at {hosts(spec)} does not answer within {PREFLIGHT_DEADLINE_S:.0f} s",
            hint="is it overloaded, or is something between that drops connections?",
        ) from None
    except PyMongoError as error:
        raise meaning(error, namespace=namespace) or _failed(spec, error) from error


async def _facts(spec: config.Source, client: AsyncMongoClient[Any], namespace: str) -> Facts:
    hello = await client.admin.command("hello")
    topology = hello.get("setName") or (SHARDED if hello.get("msg") == "isdbgrid" else None)
    if topology is None:
        raise MongoError(
            f"MongoDB at {hosts(spec)} is a standalone server: change streams need a replica set",
            hint=MAKE_REPLICA_SET,
        )
    reply = await client.admin.command("ping")
    time = reply.get("operationTime", hello.get("operationTime"))
    if not isinstance(time, Timestamp):
        raise MongoError(
            f"MongoDB at {hosts(spec)} does not tell its cluster time",
            hint="has the replica set been initiated (rs.initiate()), and is there a primary?",
        )
    collection = await _collection(spec, client[spec.database], namespace)
    options: Mapping[str, Any] = collection.get("options") or {}
    images = bool((options.get("changeStreamPreAndPostImages") or {}).get("enabled"))
    if spec.full_document == "required" and collection and not images:
        raise MongoError(
            f"full_document: required needs post-images, which {namespace} does not record",
            hint=f"run db.runCommand({{collMod: '{spec.collection}', changeStreamPreAndPostImages: "
            "{enabled: true}}), or use full_document: auto",
        )
    automatic = "whenAvailable" if images else "updateLookup"
    uuid = (collection.get("info") or {}).get("uuid")
    return Facts(
        identity=Identity(
            topology=topology,
            cluster=await _cluster_id(client, sharded=topology == SHARDED),
            collection=bytes(uuid).hex() if isinstance(uuid, bytes) else "",
        ),
        full_document=automatic if spec.full_document == "auto" else spec.full_document,
        operation_time=time.time << 32 | time.inc,
    )


async def _collection(spec: config.Source, database: AsyncDatabase[Any], namespace: str) -> Mapping[str, Any]:
    """What listCollections says of the collection; nothing where the user may not ask."""
    try:
        cursor = await database.list_collections(filter={"name": spec.collection})
        found: Sequence[Mapping[str, Any]] = await cursor.to_list(1)
    except OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        return {}
    if not found:
        raise MongoError(
            f"there is no collection {namespace} at {hosts(spec)}",
            hint="correct database and collection, or create it first (a collection appears with its first document)",
        )
    if found[0].get("type") == "view":
        raise MongoError(f"{namespace} is a view: views have no change stream", hint="follow the view's collection")
    return found[0]


async def _cluster_id(client: AsyncMongoClient[Any], *, sharded: bool) -> str:
    """The cluster's own id in hex; empty where the user may not read it (see identity.py)."""
    try:
        if sharded:
            version = await client.config.version.find_one({}) or {}
            return str(version.get("clusterId") or "")
        reply = await client.admin.command("replSetGetConfig")
        return str(reply["config"].get("settings", {}).get("replicaSetId") or "")
    except (OperationFailure, KeyError):
        return ""


async def _try_stream(spec: config.Source, client: AsyncMongoClient[Any], facts: Facts) -> None:
    """Opens the stream at the present time and closes it: shows missing privileges before anything depends on it."""
    stream = ChangeStream(
        collection=client[spec.database][spec.collection],
        full_document=facts.full_document,
        position=start_position(spec, facts),
        await_s=0.001,
    )
    try:
        await stream.open()
    finally:
        await stream.close()


def start_position(spec: config.Source, facts: Facts) -> Position:
    """Where a fresh source begins: at the cluster's time when it was asked. The publisher fills the counts."""
    return Position(
        stream=spec.name,
        kind=PositionKind.START,
        token=b"",
        cluster_time=facts.operation_time,
        last_token=b"",
        counts=(),
        cluster=str(facts.identity),
        pipeline=pipeline_hash(spec.database, spec.collection),
        namespaces=(f"{spec.database}.{spec.collection}",),
        publisher_epoch=0,
    )


def hosts(spec: config.Source) -> str:
    """The hosts of the source's uri, without anything secret."""
    return re.sub(r"^[^:]+://(?:[^/?]*@)?", "", spec.uri.get_secret_value()).partition("/")[0].partition("?")[0]


def _unreachable(spec: config.Source, client: AsyncMongoClient[Any]) -> StreamtrainError:
    servers = client.topology_description.server_descriptions().values()
    if not servers:  # the driver drops members of another set
        return MongoError(
            f"MongoDB at {hosts(spec)} does not belong to the replica set that the uri names",
            hint="correct replicaSet in the source's uri (rs.status().set tells its name)",
        )
    errors = sorted({text(server.error) for server in servers if server.error})
    if any(server.server_type_name != "Unknown" for server in servers):
        return MongoError(
            f"MongoDB at {hosts(spec)} has no member that can be read from"
            + (f": {'; '.join(errors)[:300]}" if errors else ""),
            hint="is there a primary (rs.status()), and does the uri's replicaSet name the right set?",
        )
    return MongoError(
        f"MongoDB at {hosts(spec)} cannot be reached: {'; '.join(errors)[:300] or 'no answer'}",
        hint="is it running, is the address right, and is TLS set as the server wants it?",
    )


def _failed(spec: config.Source, error: PyMongoError) -> StreamtrainError:
    return MongoError(
        f"MongoDB at {hosts(spec)} failed when source {spec.name!r} was checked: {text(error)}",
        hint="try again when the server is well",
    )


def _without(uri: str, said: str) -> str:
    """`said` without the uri or its password."""
    secret = re.search(r"://[^/?]*:([^/?]*)@", uri)
    said = said.replace(uri, "<uri>")
    return said.replace(secret[1], "***") if secret and secret[1] else said

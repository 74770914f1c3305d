"""Which cluster, collection and selection a position belongs to, so that it is never resumed elsewhere.

A cluster has one id that is certain, the `replicaSetId` of its configuration (on mongos: the `clusterId` in
`config.version`), but few users may read it. Every user who can follow a collection can see the name of the
replica set and, with the role `read`, the collection's UUID, which is random and the same on all members.
The identity is all that could be read; two are compared by what both know.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from streamtrain.errors import ForeignPositionError
from streamtrain.types import Position, PositionKind

SHARDED = "sharded"
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Identity:
    """topology: name of the replica set, or `sharded`. cluster, collection: ids in hex, empty if unknown."""

    topology: str
    cluster: str = ""
    collection: str = ""

    def __str__(self) -> str:
        parts = (self.cluster or _UNKNOWN, self.collection or _UNKNOWN, self.topology)
        return "/".join(parts)

    @staticmethod
    def parse(text: str) -> Identity:
        cluster, collection, topology = text.split("/", 2)
        return Identity(topology, cluster.removeprefix(_UNKNOWN), collection.removeprefix(_UNKNOWN))

    def completed(self, saved: str) -> Identity:
        """This identity, with what only the saved one knew."""
        before = Identity.parse(saved)
        return Identity(self.topology, self.cluster or before.cluster, self.collection or before.collection)


def pipeline_hash(database: str, collection: str) -> str:
    """Identity of what the stream selects. How a document is fetched is not in it: it may change."""
    selection = {"scope": "collection", "database": database, "collection": collection, "match": None}
    return hashlib.sha256(json.dumps(selection, sort_keys=True).encode()).hexdigest()[:32]


def verify(position: Position, *, identity: Identity, pipeline: str, namespace: str) -> None:
    """Raises ForeignPositionError unless the position may be resumed from here."""
    if position.pipeline != pipeline:
        raise ForeignPositionError(
            f"the saved position of source {position.stream!r} follows {', '.join(position.namespaces)}, "
            f"its configuration says {namespace}",
            hint="a source keeps its collection: give the other collection a source with a new name",
        )
    if (difference := _difference(Identity.parse(position.cluster), identity, position.kind)) is not None:
        raise ForeignPositionError(
            f"the saved position of source {position.stream!r} belongs elsewhere: {difference}",
            hint="correct the source's uri, or give the source a new name to start afresh from now",
        )


def _difference(saved: Identity, now: Identity, kind: PositionKind) -> str | None:
    if saved.cluster and now.cluster:
        if saved.cluster == now.cluster:
            return None
        return f"to the cluster with id {saved.cluster}, this is {now.cluster}"
    if saved.topology != now.topology:
        return f"to {saved.topology}, this is {now.topology}"
    # An invalidated stream goes on with the collection that was created after it.
    expected = kind is PositionKind.INVALIDATE or not saved.collection or not now.collection
    if not expected and saved.collection != now.collection:
        return (
            f"to the collection with UUID {saved.collection}, this is {now.collection}; it was created anew, "
            "or this is another cluster"
        )
    return None

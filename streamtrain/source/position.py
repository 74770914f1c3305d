"""Positions as bytes, and the order in which they may follow each other. A position that is committed never
goes backwards."""

from __future__ import annotations

from typing import Any

import bson
from bson import Timestamp

from streamtrain.codec import from_document, to_document
from streamtrain.errors import SourceError
from streamtrain.types import Position

FORMAT = 1


def encode(position: Position) -> bytes:
    """The value of a position record. Its cluster time is a BSON timestamp: an int64 would end in 2038."""
    document = to_document(position)
    document["cluster_time"] = Timestamp(position.cluster_time >> 32, position.cluster_time & 0xFFFF_FFFF)
    return bson.encode({"v": FORMAT, **document})


def decode(raw: bytes) -> Position:
    """What `encode` wrote. Raises SourceError for anything else, and for what a newer version wrote."""
    try:
        document = bson.decode(raw)
        version = document.pop("v")
        if version > FORMAT:
            raise SourceError(
                f"a saved position has format {version}, this streamtrain reads up to {FORMAT}",
                hint="upgrade streamtrain: a newer one has written it",
            )
        time = document["cluster_time"]
        document["cluster_time"] = time.time << 32 | time.inc
        return from_document(Position, document)
    except (bson.errors.BSONError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise SourceError(
            f"a saved position cannot be read: {type(error).__name__}",
            hint="does something else write to the positions topic?",
        ) from error


def may_follow(after: Position, before: Position) -> bool:
    """Whether `after` is no earlier than `before` in the order of the change stream.

    Resume tokens sort like the events they name, over a change of their format too: they begin with the cluster
    time. Without two of them the cluster times tell.
    """
    tokens = _order(after.token), _order(before.token)
    if isinstance(tokens[0], str) and isinstance(tokens[1], str):
        return tokens[0] >= tokens[1]
    return after.cluster_time >= before.cluster_time


def _order(token: bytes) -> Any:
    return bson.decode(token).get("_data") if token else None

"""The TTL monitor: deletes what an index with `expireAfterSeconds` says is over, as deletes that streams see."""

from __future__ import annotations

from bson import DatetimeMS

from streamtrain.sandbox.mongo import raw, values
from streamtrain.sandbox.mongo.collection import Collection, Index
from streamtrain.sandbox.mongo.engine import Engine


def expire(engine: Engine) -> int:
    """Delete every expired document; how many there were."""
    deleted = 0
    for collections in list(engine.databases.values()):
        for collection in list(collections.values()):
            for index in list(collection.indexes.values()):
                if "expireAfterSeconds" in index.spec and len(index.fields) == 1:
                    deleted += _expire(engine, collection, index)
    if deleted:
        engine.flush()
    return deleted


def _expire(engine: Engine, collection: Collection, index: Index) -> int:
    horizon = engine.wall() - int(index.spec["expireAfterSeconds"] * 1000)
    parts = index.fields[0].split(".")
    over = []
    for key, data in collection.documents.items():
        dates = []
        for value in values.leaves(raw.decode(data), parts):
            dates += value if isinstance(value, list) else [value]
        if any(isinstance(date, DatetimeMS) and int(date) <= horizon for date in dates):
            over.append(key)
    for key in over:
        engine.delete(collection, key)
    return len(over)

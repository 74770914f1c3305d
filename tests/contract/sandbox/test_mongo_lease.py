"""A lease as the deployment holds it: taken, renewed and lost by the server's clock, in one atomic command."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo import MongoClient, ReturnDocument
from pymongo.errors import DuplicateKeyError
from pymongo.synchronous.collection import Collection

from streamtrain.sandbox.mongo_server import ThreadedMongo
from tests.real_mongo import RealMongo

Document = dict[str, Any]


@pytest.fixture
def leases(each_mongo: ThreadedMongo | RealMongo) -> Iterator[Collection[Document]]:
    with MongoClient[Document](each_mongo.uri) as client:
        yield client.state.leases


def take(leases: Collection[Document], holder: str, ttl_ms: int) -> Document | None:
    """The lease if it is free, ours or over; None when another holds it."""
    free = {"_id": "lease", "$or": [{"holder": holder}, {"$expr": {"$lt": ["$expires_at", "$$NOW"]}}]}
    change = [
        {
            "$set": {
                "epoch": {"$cond": [{"$eq": ["$holder", holder]}, "$epoch", {"$add": [{"$ifNull": ["$epoch", 0]}, 1]}]},
                "holder": {"$literal": holder},
                "expires_at": {"$add": ["$$NOW", ttl_ms]},
            }
        }
    ]
    try:
        return leases.find_one_and_update(free, change, upsert=True, return_document=ReturnDocument.AFTER)
    except DuplicateKeyError:
        return None


def test_a_free_lease_is_taken_and_a_held_one_is_not(leases: Collection[Document]) -> None:
    first = take(leases, "a", 60_000)
    assert first is not None
    assert first["epoch"] == 1
    assert take(leases, "b", 60_000) is None


def test_renewing_keeps_the_epoch_and_moves_the_end(leases: Collection[Document]) -> None:
    first, second = take(leases, "a", 10_000), take(leases, "a", 60_000)
    assert first is not None
    assert second is not None
    assert second["epoch"] == first["epoch"]
    assert second["expires_at"] > first["expires_at"]


def test_an_expired_lease_goes_to_the_next_with_a_higher_epoch(leases: Collection[Document]) -> None:
    take(leases, "a", -1)
    taken = take(leases, "b", 60_000)
    assert taken is not None
    assert (taken["holder"], taken["epoch"]) == ("b", 2)


def test_of_many_only_one_gets_it(leases: Collection[Document]) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: take(leases, f"holder-{i}", 60_000), range(40)))
    assert len([result for result in results if result is not None]) == 1


def test_a_write_on_a_stale_epoch_changes_nothing(leases: Collection[Document]) -> None:
    leases.insert_one({"_id": "job", "epoch": 3, "head": "m1"})
    assert leases.find_one_and_update({"_id": "job", "epoch": 2}, {"$set": {"head": "m2"}}) is None
    assert (
        leases.find_one_and_update({"_id": "job", "epoch": {"$lte": 4}}, {"$set": {"head": "m2", "epoch": 4}})
        is not None
    )
    assert leases.find_one({"_id": "job"}) == {"_id": "job", "epoch": 4, "head": "m2"}

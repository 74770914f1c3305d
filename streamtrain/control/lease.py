"""The deployment's single-writer lease: one document in MongoDB, expiring by the server's clock, whose epoch
grows at each acquisition and fences every earlier holder."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pymongo
import structlog
from pymongo import ReturnDocument, WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import PyMongoError

from streamtrain import metrics
from streamtrain.clock import Clock
from streamtrain.errors import FencedError, MongoError
from streamtrain.mongo_failure import explain

COLLECTION = "deployment"
LEASE_ID = "lease"
TTL_S = 10.0
STANDBY_POLL_S = 1.0
RETRY_S = 0.5
_SAFETY_SHARE = 0.2  # of the time to live: what a holder gives up before the server does

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_log = structlog.get_logger()


class LeaseState(StrEnum):
    STANDBY = "standby"  # another process holds it
    HELD = "held"
    SUSPENDED = "suspended"  # not renewed in time; goes on if the epoch still stands
    LOST = "lost"  # a newer holder exists, or it was given back


class Lease:
    """Implements `ports.LeasePort`. `acquire` it, then `run` renews until it is lost; `release` it at the end.

    holder: names this process uniquely. database: of the state, through a client whose write concern is kept.
    """

    def __init__(
        self, *, database: AsyncDatabase[dict[str, Any]], holder: str, clock: Clock, ttl_s: float = TTL_S
    ) -> None:
        self._leases = database.get_collection(
            COLLECTION, write_concern=WriteConcern("majority", wtimeout=round(ttl_s * 1000))
        )
        self._holder = holder
        self._clock = clock
        self._ttl_s = ttl_s
        self._timeout_s = ttl_s / 3
        self._epoch = 0
        self._renewed_at: float | None = None
        self._lost = False
        self.seen_holder: str | None = None

    @property
    def epoch(self) -> int:
        """Of this process; 0 before the first acquisition."""
        return self._epoch

    @property
    def state(self) -> LeaseState:
        if self._lost:
            return LeaseState.LOST
        if self._renewed_at is None:
            return LeaseState.STANDBY
        return LeaseState.HELD if self.held() else LeaseState.SUSPENDED

    def held(self) -> bool:
        """By this process's own monotonic clock, counted from before the renewal was asked for."""
        if self._renewed_at is None or self._lost:
            return False
        return self._clock.monotonic() - self._renewed_at < self._ttl_s * (1 - _SAFETY_SHARE)

    async def acquire(self) -> int:
        """Waits, as a standby, until the lease is free; returns the epoch. Raises AuthenticationError,
        PermissionMissingError, or MongoError when MongoDB cannot be asked the first time: a standby outlives an
        election."""
        trouble: str | None = None
        while True:
            try:
                if await self.try_acquire():
                    return self._epoch
                trouble = ""
            except MongoError as error:
                if trouble is None:
                    raise
                if error.message != trouble:
                    _log.warning("the lease cannot be asked for now", reason=error.message)
                trouble = error.message
            await self._clock.sleep(STANDBY_POLL_S)

    async def try_acquire(self) -> bool:
        try:
            asked_at = self._clock.monotonic()
            with pymongo.timeout(self._timeout_s * 3):
                # Created apart: an upsert may not compare with the server's time.
                await self._leases.update_one(
                    {"_id": LEASE_ID},
                    {"$setOnInsert": {"epoch": 0, "holder": None, "expires_at": _NEVER}},
                    upsert=True,
                )
                found = await self._leases.find_one_and_update(
                    {"_id": LEASE_ID, "$expr": {"$lte": ["$expires_at", "$$NOW"]}},
                    [
                        {
                            "$set": {
                                "holder": self._holder,
                                "epoch": {"$add": ["$epoch", 1]},
                                "acquired_at": "$$NOW",
                                "expires_at": self._expiry(),
                            }
                        }
                    ],
                    return_document=ReturnDocument.AFTER,
                )
                if found is None:
                    await self._stand_by()
                    return False
        except PyMongoError as error:
            raise explain(error, doing="acquiring the deployment's lease") from error
        self._epoch, self._renewed_at, self._lost = int(found["epoch"]), asked_at, False
        self.seen_holder = self._holder
        self._show()
        _log.info("the lease is ours", epoch=self._epoch)
        return True

    async def _stand_by(self) -> None:
        current: Mapping[str, Any] | None = await self._leases.find_one({"_id": LEASE_ID})
        holder = None if current is None else current.get("holder")
        if holder != self.seen_holder:
            _log.info("standing by: another daemon holds the lease", holder=holder)
        self.seen_holder = holder

    async def run(self) -> None:
        """Renews until cancelled. Raises FencedError once another process has acquired the lease; while MongoDB
        cannot be reached it keeps trying, and `held` says so."""
        while True:
            held = self.held()
            await self._clock.sleep(self._ttl_s / 4 if held else RETRY_S)
            try:
                await self._renew()
            except PyMongoError as error:
                if held:
                    _log.warning("the lease could not be renewed", reason=explain(error, doing="renewing").message)
            self._show()

    async def _renew(self) -> None:
        asked_at = self._clock.monotonic()
        with pymongo.timeout(self._timeout_s):
            found = await self._leases.find_one_and_update(
                {"_id": LEASE_ID, "holder": self._holder, "epoch": self._epoch},
                [{"$set": {"expires_at": self._expiry()}}],
            )
        if found is None:
            self._lost = True
            self._show()
            raise FencedError(
                "another daemon has taken over the deployment",
                hint="two daemons share one state database: only one of them may train",
            )
        if not self.held():
            _log.info("the lease is renewed again", epoch=self._epoch)
        self._renewed_at = asked_at

    async def release(self) -> None:
        """Gives the lease back, so that a standby need not wait for its end. Not needed for safety: errors are
        logged only."""
        held, self._lost = self._renewed_at is not None and not self._lost, True
        self._show()
        if not held:
            return
        try:
            with pymongo.timeout(self._timeout_s):
                await self._leases.update_one(
                    {"_id": LEASE_ID, "holder": self._holder, "epoch": self._epoch},
                    [{"$set": {"expires_at": "$$NOW", "holder": None}}],
                )
        except PyMongoError as error:
            _log.warning("the lease runs out by itself", reason=explain(error, doing="releasing").message)

    def _expiry(self) -> dict[str, Any]:
        return {"$add": ["$$NOW", round(self._ttl_s * 1000)]}

    def _show(self) -> None:
        metrics.LEASE_HELD.set(self.held())
        metrics.LEASE_EPOCH.set(self._epoch)

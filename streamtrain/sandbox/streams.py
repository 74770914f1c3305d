"""The example stream: flights as an application would write them. A flight is inserted when it departs, gets its
`arr_delay` when it arrives, and one that was cancelled is deleted. Always the same events in the same order, and
no document holds anything that was not known when it was written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
from pymongo import DeleteOne, InsertOne, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection

from streamtrain.clock import Clock
from streamtrain.sandbox.flights import FlightTable, load_flights

_CANCELLATION_IS_CLEARED_AFTER_MS = 60 * 60_000
# Short enough that the rate looks smooth to a reader of the stream, long enough that a write carries many events.
SLICE_SECONDS = 0.025
_LONGEST_SLICE_S = 0.25
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Write(StrEnum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


_COMMAND_ORDER = {write: place for place, write in enumerate(Write)}


@dataclass(frozen=True, slots=True)
class FlightEvent:
    """A write. time_ms: when it happened in 2013, UTC. fields: the whole document of an insert, what an update
    sets, empty for a delete. dep_delay: the flight's, also in its update; 0 for a cancelled flight."""

    time_ms: int
    write: Write
    id: str
    fields: dict[str, Any]
    dep_delay: int

    def request(self) -> InsertOne[dict[str, Any]] | UpdateOne | DeleteOne:
        if self.write is Write.INSERT:
            return InsertOne(self.fields)
        if self.write is Write.UPDATE:
            return UpdateOne({"_id": self.id}, {"$set": self.fields})
        return DeleteOne({"_id": self.id})


def flights(table: FlightTable | None = None) -> Iterator[FlightEvent]:
    """Every write, in order of time: 336,776 inserts, 327,346 updates that bring `arr_delay`, 8,255 deletes."""
    table = table if table is not None else load_flights()
    rows = np.arange(len(table))
    arrived, cancelled = rows[table.arrived], rows[table.cancelled]
    # Inserts sort before updates before deletes of the same minute, so no write precedes its document's insert.
    times = (table.departs, table.arrives[arrived], table.departs[cancelled] + _CANCELLATION_IS_CLEARED_AFTER_MS)
    who = np.concatenate((rows, arrived, cancelled))
    kinds = np.repeat(np.arange(3), [len(column) for column in times])
    when = np.concatenate(times)
    recent = _RecentArrivals()
    for at in np.lexsort((who, kinds, when)):
        row, time_ms = int(who[at]), int(when[at])
        if kinds[at] == 0:
            yield _insert(table, row, time_ms, recent)
        elif kinds[at] == 1:
            recent.landed(table, row)
            yield _update(table, row, time_ms)
        else:
            yield FlightEvent(time_ms, Write.DELETE, _id(table, row), {}, 0)


@dataclass(slots=True)
class Written:
    """What `stream_flights` has written so far. labels: (dep_delay, arr_delay) in the order of writing, which a
    reader may drain as it goes; `labelled` keeps their number. behind_s: how late the last slice was."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    behind_s: float = 0.0
    seconds: float = 0.0
    flight_time_ms: int = 0
    labels: list[tuple[int, int]] = field(default_factory=list)

    @property
    def events(self) -> int:
        return self.inserts + self.updates + self.deletes

    @property
    def labelled(self) -> int:
        return self.updates


async def stream_flights(
    collection: AsyncCollection[dict[str, Any]],
    *,
    rate: float,
    duration: float,
    stop: asyncio.Event,
    clock: Clock,
    written: Written,
    events: Iterator[FlightEvent] | None = None,
) -> Written:
    """Writes `rate` events a second for `duration` seconds or until `stop` is set, in ordered bulk writes.

    A slow server makes it fall behind, not write ever more at once: a slice has an upper bound.
    Within a slice inserts come before updates before deletes, so it is three commands however the kinds
    alternate; the order of each document's writes, and that of the labels, stays what it was. `written` is
    updated after every acknowledged slice.
    """
    events = events if events is not None else flights()
    most = max(1, int(rate * _LONGEST_SLICE_S))
    began = clock.monotonic()
    offered = 0
    while not stop.is_set():
        elapsed = min(clock.monotonic() - began, duration)
        due = int(elapsed * rate) - offered
        written.behind_s = due / rate
        batch = [event for _, event in zip(range(min(due, most)), events, strict=False)]
        if batch:
            batch.sort(key=lambda event: _COMMAND_ORDER[event.write])
            await collection.bulk_write([event.request() for event in batch], ordered=True)
            _count(written, batch)
        offered += len(batch)
        written.seconds = clock.monotonic() - began
        if elapsed >= duration or (due > 0 and not batch):  # in time, or the year is over
            break
        await clock.sleep(max(0.0, SLICE_SECONDS - (clock.monotonic() - began - elapsed)))
    return written


def _count(written: Written, batch: list[FlightEvent]) -> None:
    for event in batch:
        if event.write is Write.INSERT:
            written.inserts += 1
        elif event.write is Write.UPDATE:
            written.updates += 1
            written.labels.append((event.dep_delay, int(event.fields["arr_delay"])))
        else:
            written.deletes += 1
    written.flight_time_ms = max(event.time_ms for event in batch)


def _datetime(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def _id(table: FlightTable, row: int) -> str:
    return (
        f"2013-{table.month[row]:02d}-{table.day[row]:02d}/{table.carrier[row]}{table.flight[row]}"
        f"/{table.origin[row]}/{table.sched_dep_time[row]:04d}"
    )


class _RecentArrivals:
    """What an airline knows when a flight leaves: how much later than they left flights have been landing
    lately, at its destination, from its origin, and under its own number. Exponentially weighted means."""

    _WEIGHTS: ClassVar = {"dest": 0.2, "origin": 0.05, "flight": 0.3}
    _EXTREME_MINUTES = 60  # one diverted-and-returned flight must not speak for an airport for hours

    def __init__(self) -> None:
        self._means: dict[tuple[str, str], float] = {}

    def landed(self, table: FlightTable, row: int) -> None:
        shift = int(table.arr_delay[row] - table.dep_delay[row])
        shift = max(-self._EXTREME_MINUTES, min(self._EXTREME_MINUTES, shift))
        for kind, key in self._keys(table, row).items():
            mean = self._means.get((kind, key), float(shift))
            self._means[kind, key] = mean + self._WEIGHTS[kind] * (shift - mean)

    def known(self, table: FlightTable, row: int) -> dict[str, float]:
        """Minutes; 0 where nothing has landed yet."""
        return {kind: round(self._means.get((kind, key), 0.0), 2) for kind, key in self._keys(table, row).items()}

    @staticmethod
    def _keys(table: FlightTable, row: int) -> dict[str, str]:
        number = f"{table.carrier[row]}{table.flight[row]}"
        return {"dest": table.dest[row], "origin": table.origin[row], "flight": number}


def _insert(table: FlightTable, row: int, time_ms: int, recent: _RecentArrivals) -> FlightEvent:
    document: dict[str, Any] = {
        "_id": _id(table, row),
        "time": _datetime(time_ms),
        "carrier": table.carrier[row],
        "flight": int(table.flight[row]),
        "tailnum": table.tailnum[row],
        "origin": table.origin[row],
        "dest": table.dest[row],
        "distance": int(table.distance[row]),
        "month": int(table.month[row]),
        "weekday": int(table.weekday[row]),
        "hour": int(table.hour[row]),
        "sched_dep_time": int(table.sched_dep_time[row]),
        "sched_arr_time": int(table.sched_arr_time[row]),
        "block": int(table.block[row]),
        "recent": recent.known(table, row),
    }
    if not table.cancelled[row]:
        document["dep_delay"] = int(table.dep_delay[row])
    return FlightEvent(time_ms, Write.INSERT, document["_id"], document, int(table.dep_delay[row]))


def _update(table: FlightTable, row: int, time_ms: int) -> FlightEvent:
    fields = {
        "arr_delay": int(table.arr_delay[row]),
        "arr_time": _datetime(time_ms),
        "air_time": int(table.air_time[row]),
    }
    return FlightEvent(time_ms, Write.UPDATE, _id(table, row), fields, int(table.dep_delay[row]))

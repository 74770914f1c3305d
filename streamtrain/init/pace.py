"""How much a job should keep and learn at a time, from how large a collection is and how fast it grows."""

from __future__ import annotations

from dataclasses import dataclass

HOUR, DAY = 3600, 86400
_WINDOWS = (HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 3 * DAY, 7 * DAY)
_DEFAULT_WINDOW = 6 * HOUR
_MOST_RECORDS = 500_000
_FEWEST_RECORDS = 10_000
_MEMORY = 1 << 30  # bytes that a window of rows may take
_ROW_OVERHEAD = 200
_RETENTION = 3 * DAY  # the default of kafka.retention


@dataclass(frozen=True, slots=True)
class Pace:
    """count: documents in the collection, None where unknown. per_second: of inserts, updates and replacements, None
    where unknown; measured: how that is known."""

    count: int | None = None
    per_second: float | None = None
    measured: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds and numbers for the settings, each with its reason."""

    window: int
    window_told: str
    max_records: int
    records_told: str
    half_life: int
    retention: int | None
    max_wait_ms: int
    wait_told: str
    batch_size: int
    partitions: int


def budget(pace: Pace, *, numbers: int) -> Budget:
    """numbers: how many numbers a row has for the model."""
    row = _ROW_OVERHEAD + 8 * numbers
    max_records = max(_FEWEST_RECORDS, min(_MOST_RECORDS, _rounded(_MEMORY // row)))
    records_told = (
        f"about {row:,} bytes each: {max_records * row >> 20:,} MiB, over all workers"
        if max_records < _MOST_RECORDS
        else f"whichever limit is reached first; {max_records * row >> 20:,} MiB at most, over all workers"
    )
    rate = pace.per_second
    if rate is None or rate <= 0:
        window, told = _DEFAULT_WINDOW, "how fast the collection grows is not known: a usual value"
    else:
        wanted = max_records / rate
        window = next((each for each in reversed(_WINDOWS) if each <= wanted), _WINDOWS[0])
        told = f"about {rate:,.3g} writes a second ({pace.measured}): {int(min(max_records, rate * window)):,} records"
    slow = rate is not None and rate < 1
    brisk = rate is not None and rate >= 50
    max_wait = 1000 if slow else 100 if brisk else 500
    return Budget(
        window=window,
        window_told=told,
        max_records=max_records,
        records_told=records_told,
        half_life=window // 3,
        retention=2 * window if window > _RETENTION // 2 else None,
        max_wait_ms=max_wait,
        wait_told="at this rate others come soon" if brisk else "few others come: no need to hurry, or to wait long",
        batch_size=64 if rate is None or rate < 200 else 256,
        partitions=24 if rate is not None and rate >= 5000 else 8,
    )


def _rounded(number: int) -> int:
    """Down to one digit and zeros."""
    scale = 1
    while number >= 10 * scale:
        scale *= 10
    return number // scale * scale

"""What the user may ask of the demo, checked before anything is started."""

from __future__ import annotations

import math
from dataclasses import dataclass

from streamtrain.config import parse_duration
from streamtrain.errors import UsageError

PARTITIONS = 8
MAX_RATE = 20_000
MAX_DURATION_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """rate: writes a second. duration: seconds of writing. keep: leave the work directory behind."""

    rate: float
    duration: float
    workers: int
    json: bool
    keep: bool


def parse_options(*, rate: float, duration: str, workers: int, json: bool, keep: bool) -> Options:
    """Raises UsageError with what to write instead."""
    if not math.isfinite(rate) or rate <= 0:
        raise UsageError(f"--rate {rate:g}: the rate must be more than 0 writes a second")
    if rate > MAX_RATE:
        raise UsageError(
            f"--rate {rate:g}: the embedded servers are made for at most {MAX_RATE:,} writes a second",
            hint="run streamtrain against real MongoDB and Kafka for more: see README.md",
        )
    try:
        seconds = float(parse_duration(duration))
    except ValueError as error:
        raise UsageError(f"--duration: {error}") from None
    if not 0 < seconds <= MAX_DURATION_S:
        raise UsageError(f"--duration {duration}: it must be more than 0s and at most 1h")
    if workers < 1:
        raise UsageError(f"--workers {workers}: at least one worker must learn")
    if workers > PARTITIONS:
        raise UsageError(
            f"--workers {workers}: the demo's topic has {PARTITIONS} partitions, and a partition belongs to one worker",
            hint=f"use --workers {PARTITIONS} or fewer",
        )
    return Options(rate=rate, duration=seconds, workers=workers, json=json, keep=keep)

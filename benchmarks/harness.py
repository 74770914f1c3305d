"""What the benchmarks share: CPU time of this process, repeated and interleaved, and one JSON document on stdout.

CPU seconds are compared, not wall time: brokers and servers run beside on the same cores. Variants are measured in
turn, several times, and the smallest time of each counts: noise only ever adds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

REPEATS = 5
NOTE = "CPU time of the measuring process; smallest of interleaved repeats; ratios hold, times depend on the machine"


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds spent on `units` of work."""

    cpu_s: float
    wall_s: float
    units: int

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU per unit."""
        return self.cpu_s / self.units * 1e6


async def measure(work: Callable[[], Awaitable[int]]) -> Sample:
    """One run of `work`, which returns how many units it did."""
    cpu, wall = time.process_time(), time.perf_counter()
    units = await work()
    return Sample(time.process_time() - cpu, time.perf_counter() - wall, units)


async def compare(
    variants: Mapping[str, Callable[[], Awaitable[int]]], *, repeats: int = REPEATS
) -> dict[str, list[Sample]]:
    """All variants in turn, `repeats` times, after one round that is not counted."""
    samples: dict[str, list[Sample]] = {name: [] for name in variants}
    for turn in range(repeats + 1):
        for name, work in variants.items():
            sample = await measure(work)
            if turn:
                samples[name].append(sample)
    return samples


def best(samples: list[Sample]) -> Sample:
    return min(samples, key=lambda sample: sample.cpu_us)


def summary(samples: list[Sample]) -> dict[str, float]:
    fastest = best(samples)
    every = sorted(sample.cpu_us for sample in samples)
    return {
        "cpu_us_per_unit": round(fastest.cpu_us, 3),
        "cpu_us_per_unit_worst": round(every[-1], 3),
        "units_per_s": round(max(sample.units / sample.wall_s for sample in samples)),
    }


def max_rss_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024**2 if sys.platform == "darwin" else 1024), 1)


def run(
    benchmark: Callable[[argparse.Namespace, Path], Coroutine[Any, Any, Mapping[str, Any]]], options: argparse.Namespace
) -> None:
    """Runs a benchmark in a folder that is gone afterwards, and reports its result. What is logged goes to stderr."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with tempfile.TemporaryDirectory() as directory:
        report(asyncio.run(benchmark(options, Path(directory))))


def report(result: Mapping[str, Any]) -> None:
    json.dump({"note": NOTE, **result}, sys.stdout, indent=2)
    print()

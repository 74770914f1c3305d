"""Which versions of a partition are replayed in a round: a draw that depends on nothing but what can be replayed, so
that it is the same wherever and however often the partition was read. Pure."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def draw(
    offsets: npt.NDArray[np.int64], half_lives: npt.NDArray[np.float64], *, count: int, seed: int, partition: int
) -> npt.NDArray[np.int64]:
    """Up to `count` of the versions, without replacement, as indices in no order of time. half_lives: their ages.

    The `count` largest of log(weight) + Gumbel noise are a weighted sample without replacement (Efraimidis
    and Spirakis 2006, in the Gumbel-top-k form); the noise is a hash of seed, partition and offset.
    """
    chosen = np.arange(len(offsets))
    if count < len(offsets):
        noise = -np.log(-np.log(_uniform(offsets, seed, partition)))
        score = noise - half_lives * math.log(2.0)
        chosen = np.argpartition(score, len(score) - count)[len(score) - count :]
    return chosen[np.lexsort((offsets[chosen], _uniform(offsets[chosen], ~seed, partition)))]


def _uniform(offsets: npt.NDArray[np.int64], seed: int, partition: int) -> npt.NDArray[np.float64]:
    """Numbers in (0, 1), independent for all offsets, seeds and partitions (the finaliser of splitmix64, twice)."""
    stream = _mix(np.array([(seed * 0x9E3779B97F4A7C15 + partition + 1) % 2**64], np.uint64))
    mixed = _mix(offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + stream)
    return ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


def _mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))

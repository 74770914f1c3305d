"""Freshness, from the write in MongoDB to the gradient, is counted in the buckets of
`types.FRESHNESS_BUCKETS_MS`. Pure functions over such counts."""

from __future__ import annotations

from collections.abc import Sequence

from streamtrain.types import FRESHNESS_BUCKETS_MS


def quantile(counts: Sequence[int], q: float, bounds: Sequence[float] = FRESHNESS_BUCKETS_MS) -> float | None:
    """In the unit of the buckets' upper `bounds`, interpolated inside the bucket; None without samples. In the last
    bucket, which has no upper bound, its lower one."""
    rank, seen, lower = q * sum(counts), 0, 0.0
    if not rank:
        return None
    for upper, count in zip(bounds, counts, strict=False):
        if count and seen + count >= rank:
            return lower + (upper - lower) * (rank - seen) / count
        seen += count
        lower = upper
    return lower

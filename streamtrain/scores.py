"""Adds up prequential scores and reads their values off the sums. Pure functions over `types.Scores`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from streamtrain.types import FRESHNESS_BUCKETS_MS, Scores


def add(one: Scores, other: Scores) -> Scores:
    """The scores of the rows of both."""
    return Scores(
        rows=one.rows + other.rows,
        weight=one.weight + other.weight,
        loss=one.loss + other.loss,
        sums={
            name: one.sums.get(name, 0.0) + other.sums.get(name, 0.0) for name in sorted(one.sums.keys() | other.sums)
        },
        positives=_add(one.positives, other.positives),
        negatives=_add(one.negatives, other.negatives),
    )


def add_by_label(one: Mapping[str, Scores], other: Mapping[str, Scores]) -> dict[str, Scores]:
    return {label: add(one.get(label, Scores()), other.get(label, Scores())) for label in sorted(one.keys() | other)}


def values(scores: Scores) -> dict[str, float]:
    """`loss`, and what the sums allow: `mae`, `rmse`, `accuracy`, `auc`. Empty when nothing was scored."""
    if scores.weight <= 0:
        return {}
    found = {"loss": scores.loss / scores.weight}
    if "absolute_error" in scores.sums:
        found["mae"] = scores.sums["absolute_error"] / scores.weight
    if "squared_error" in scores.sums:
        found["rmse"] = math.sqrt(max(0.0, scores.sums["squared_error"] / scores.weight))
    if "correct" in scores.sums:
        found["accuracy"] = scores.sums["correct"] / scores.weight
    if (area := auc(scores.positives, scores.negatives)) is not None:
        found["auc"] = area
    return found


def auc(positives: Sequence[float], negatives: Sequence[float]) -> float | None:
    """Area under the ROC curve from histograms of the predicted score; a tie within a bucket counts half
    (the Mann-Whitney statistic). None while one of the classes has not been seen."""
    total = sum(positives) * sum(negatives)
    if total <= 0:
        return None
    below = area = 0.0
    for positive, negative in zip(positives, negatives, strict=True):
        area += positive * (below + negative / 2)
        below += negative
    return area / total


def freshness_quantile(counts: Sequence[int], quantile: float) -> float | None:
    """Milliseconds, interpolated inside the bucket of `FRESHNESS_BUCKETS_MS`; None without samples. In the last
    bucket, which has no upper bound, its lower one."""
    total = sum(counts)
    if not total:
        return None
    rank, seen, lower = quantile * total, 0, 0.0
    for upper, count in zip_longest(FRESHNESS_BUCKETS_MS, counts[: len(FRESHNESS_BUCKETS_MS)], fillvalue=0):
        if count and seen + count >= rank:
            return lower + (upper - lower) * max(0.0, rank - seen) / count
        seen += count
        lower = upper
    return lower


def _add(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0.0))

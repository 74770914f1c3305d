"""Which rows a model cannot learn from: found by halving, each by itself, so that the answer depends neither on the
batch nor on the number of workers. Pure: what is asked of the model is handed in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from streamtrain.types import RoundCounts

LOSS, GRADIENT, STATISTICS, REFUSED = (
    "non-finite-loss",
    "non-finite-gradient",
    "non-finite-statistics",
    "model-refuses",
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that was left out. offset: of its version in the source's topic, negative where that is not known.
    replayed: it had been learned before. held: it belongs to the hold-out. absent: its label was, and its
    record belongs to an earlier round."""

    partition: int
    offset: int
    reason: str
    replayed: bool
    held: bool = False
    absent: bool = False


def find(rows: Sequence[T], bad: Callable[[Sequence[T]], bool]) -> list[T]:
    """Those of the rows that are bad by themselves. bad: of several rows, true if one of them is."""
    if not rows or not bad(rows):
        return []
    if len(rows) == 1:
        return list(rows)
    middle = len(rows) // 2
    return find(rows[:middle], bad) + find(rows[middle:], bad)


def counted(counts: RoundCounts, reasons: dict[str, int], refusals: Sequence[Refusal]) -> RoundCounts:
    """The counts of a round that has left these rows out; `reasons` grows by those that become dead letters. One
    whose label was absent is no record of this round, so no outcome of one either."""
    fresh = [refusal for refusal in refusals if not refusal.replayed]
    for reason, count in Counter(refusal.reason for refusal in fresh).items():
        reasons[reason] = reasons.get(reason, 0) + count
    replayed = len(refusals) - len(fresh)
    absent = sum(refusal.absent for refusal in fresh)
    held = sum(refusal.held for refusal in fresh if not refusal.absent)
    return replace(
        counts,
        learned=counts.learned - (len(fresh) - absent - held),
        held_out=counts.held_out - held,
        dead_letters=counts.dead_letters + len(fresh) - absent,
        absent_labels=counts.absent_labels - sum(refusal.absent and not refusal.held for refusal in fresh),
        replayed=counts.replayed - replayed,
        expelled=counts.expelled + replayed,
    )


def expelled(refusals: Sequence[Refusal]) -> dict[int, tuple[int, ...]]:
    """Per partition the offsets of the versions that must leave the memory."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for refusal in refusals:
        if refusal.offset >= 0:
            found[refusal.partition].add(refusal.offset)
    return {partition: tuple(sorted(offsets)) for partition, offsets in sorted(found.items())}

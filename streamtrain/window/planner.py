"""Cuts rounds from what a topic holds: pure, so the same request gives the same round. It never plans past the
published end, never leaves a gap between rounds, and asks for one without records only for labels that are absent,
or for dead letters that were replayed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from streamtrain.types import Frontier, Learned, OffsetRange, Planned, PlanRequest, PlanSettings, Round, Wait


@dataclass(frozen=True, slots=True)
class _Pending:
    """What one partition holds beyond what is planned. records: at most span, for markers take offsets too."""

    span: int
    records: int


def plan(request: PlanRequest) -> Planned | Wait:
    """The next round, or how long to wait for one.

    A round is cut once `max_wait_s` has passed since its oldest record was seen, or as soon as it is full.
    """
    pending = [_pending(place, request.frontier, p) for p, place in enumerate(request.planned)]
    records = sum(part.records for part in pending)
    if records == 0:
        absent = request.next_absent is not None and request.watermark > request.next_absent
        if not absent and not request.redriven:
            return Wait(until=None)
        return Planned(_round(request, request.planned, fresh_records=0), request.planned)
    settings = request.settings
    if records < settings.max_records:
        due = (request.now if request.waiting_since is None else request.waiting_since) + settings.max_wait_s
        if request.now < due:
            return Wait(until=due)
    shares = share_out(settings.max_records, [part.span if part.records else 0 for part in pending])
    ends = [_advance(*each) for each in zip(request.planned, pending, shares, strict=True)]
    fresh_records = sum(end.count - place.count for end, place in zip(ends, request.planned, strict=True))
    return Planned(_round(request, ends, fresh_records=fresh_records), tuple(ends))


def _pending(place: Learned, frontier: Frontier, partition: int) -> _Pending:
    now = frontier.partitions[partition]
    span = max(0, now.end - place.offset)
    if now.published is None:
        return _Pending(span, span)
    return _Pending(span, min(span, max(0, now.published - place.count)))


def _advance(place: Learned, pending: _Pending, share: int) -> Learned:
    """Where a partition is planned to after `share` of its offsets. The count is exact at the end of what is
    published; before it, records and markers are taken as evenly mixed."""
    if share == 0:
        return place
    return Learned(place.offset + share, place.count + math.ceil(pending.records * share / pending.span))


def share_out(total: int, wishes: Sequence[int]) -> list[int]:
    """Shares of at most `total`, none above its wish: the small wishes in full, the rest evenly (max-min fair)."""
    shares = [0] * len(wishes)
    left = total
    order = sorted((wish, index) for index, wish in enumerate(wishes) if wish > 0)
    for place, (wish, index) in enumerate(order):
        shares[index] = min(wish, left // (len(order) - place))
        left -= shares[index]
    if left and order:  # what the division left over: one each, to the largest wishes
        for wish, index in reversed(order):
            if left and shares[index] < wish:
                shares[index] += 1
                left -= 1
    return shares


def _round(request: PlanRequest, planned: Sequence[Learned], *, fresh_records: int) -> Round:
    frontier, settings = request.frontier, request.settings
    fresh = tuple(
        OffsetRange(frontier.topic, frontier.epoch, partition, before.offset, after.offset)
        for partition, (before, after) in enumerate(zip(request.planned, planned, strict=True))
    )
    begins = tuple(
        min(begin, place.offset) for begin, place in zip(request.window_begins, request.planned, strict=True)
    )
    remembered = [max(0, place.offset - begin) for place, begin in zip(planned, begins, strict=True)]
    return Round(
        number=request.number,
        fresh=fresh,
        window_begins=begins,
        replay=spread(replay_rows(fresh_records, settings), remembered, first=request.number),
        seed=round_seed(settings.seed, request.number),
        batch_size=settings.batch_size,
        scored=request.scored,
        watermark=request.watermark,
        redriven=request.redriven,
    )


def replay_rows(fresh: int, settings: PlanSettings) -> int:
    """Rows to replay beside `fresh` ones: `replay_ratio` of them, and then as many as fill the last step, so
    that a step of a slow stream is not nearly empty. None when replay is off."""
    if settings.replay_ratio == 0:
        return 0
    rows = fresh + round(settings.replay_ratio * fresh)
    return math.ceil(rows / settings.batch_size) * settings.batch_size - fresh


def spread(total: int, weights: Sequence[int], *, first: int) -> tuple[int, ...]:
    """`total` divided in proportion to `weights`; what is left over goes one each to the partitions from
    `first` on, so that over the rounds none is preferred."""
    whole = sum(weights)
    if whole == 0:
        return (0,) * len(weights)
    shares = [total * weight // whole for weight in weights]
    left = total - sum(shares)
    for step in range(len(weights)):
        index = (first + step) % len(weights)
        if left and weights[index]:
            shares[index] += 1
            left -= 1
    return tuple(shares)


def round_seed(seed: int, number: int) -> int:
    """A seed of 63 bits for one round, the same wherever and whenever it is trained again."""
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def window_begins(time_begins: Sequence[int], frontier: Frontier, max_records: int) -> tuple[int, ...]:
    """Where the window begins: where its duration does, and later where it would hold more than `max_records`.

    time_begins: the first offset inside the duration. Records are estimated from offsets by the partition's own
    share of records among its offsets. Never earlier than the log start.
    """
    begins = []
    estimates = []
    for begin, part in zip(time_begins, frontier.partitions, strict=True):
        start = min(max(begin, part.begin), part.end)
        density = 1.0 if not part.published or not part.end else min(1.0, part.published / part.end)
        begins.append(start)
        estimates.append((part.end - start) * density)
    total = sum(estimates)
    if total > max_records:
        kept = max_records / total
        begins = [
            part.end - int((part.end - begin) * kept) for begin, part in zip(begins, frontier.partitions, strict=True)
        ]
    return tuple(begins)

"""What a lineage has learned so far: grows with each report, becomes a manifest, and comes back from one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamtrain import scores
from streamtrain.errors import ContinuityError
from streamtrain.types import (
    Frontier,
    Learned,
    Manifest,
    PartitionFrontier,
    Retrain,
    Round,
    RoundCounts,
    RoundReport,
    Scores,
)

MOST_EXPELLED = 1000
"""Per partition. What is forgotten beyond is found again when it is replayed."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The fields are those of `Manifest` with the same names."""

    lineage: str
    learned: tuple[Learned, ...]
    window_begins: tuple[int, ...]
    rounds: int = 0
    steps: int = 0
    rows_learned: int = 0
    counts: RoundCounts = field(default_factory=RoundCounts)
    scores: Mapping[str, Scores] = field(default_factory=dict)
    retrain_until: tuple[Learned, ...] | None = None
    watermark: int = 0
    holdout: Mapping[str, Scores] = field(default_factory=dict)
    expelled: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    hyper: Mapping[str, Any] = field(default_factory=dict)
    begins: tuple[int, ...] = ()
    redriven: tuple[int, ...] = ()

    def after(self, round: Round, report: RoundReport) -> Progress:
        """Raises ContinuityError when the report is not that of the round, or leaves a part of it out."""
        if report.round != round.number or round.number != self.rounds:
            raise ContinuityError(
                f"a report of round {report.round} where round {round.number} was due, after {self.rounds} rounds"
            )
        learned = list(self.learned)
        for asked in round.fresh:
            place = report.learned.get(asked.partition)
            if place is None and not asked.span:
                continue
            if place is None or place.offset < asked.end or place.count < learned[asked.partition].count:
                raise ContinuityError(
                    f"round {round.number} was to learn partition {asked.partition} "
                    f"through offset {asked.end}, but reports {place}"
                )
            learned[asked.partition] = place
        redriven = list(self.redriven)
        for part in round.redriven:
            if part.span and report.redriven.get(part.partition) != part.end:
                raise ContinuityError(f"round {round.number} was to learn {part}, but reports {report.redriven}")
            redriven[part.partition] = part.end
        return replace(
            self,
            learned=tuple(learned),
            window_begins=round.window_begins,
            rounds=self.rounds + 1,
            steps=self.steps + report.steps,
            rows_learned=self.rows_learned + report.counts.learned + report.counts.absent_labels,
            counts=self.counts + report.counts,
            scores=scores.merge_by_label(self.scores, report.scores),
            retrain_until=None if reached(learned, self.retrain_until) else self.retrain_until,
            watermark=max(self.watermark, round.watermark),
            holdout=scores.merge_by_label(self.holdout, report.holdout),
            expelled=_expelled(self.expelled, report.expelled, round.window_begins),
            redriven=tuple(redriven),
        )


def reached(learned: Sequence[Learned], until: Sequence[Learned] | None) -> bool:
    """By records: between the last one and an end there may be nothing but commit markers, which are never read."""
    return until is None or all(place.count >= end.count for place, end in zip(learned, until, strict=True))


def _expelled(
    known: Mapping[int, tuple[int, ...]], new: Mapping[int, tuple[int, ...]], begins: Sequence[int]
) -> dict[int, tuple[int, ...]]:
    """Of both, what still lies in the window; the newest where there is more than a manifest should hold."""
    found = {}
    for partition in sorted({*known, *new}):
        offsets = sorted({*known.get(partition, ()), *new.get(partition, ())})
        if kept := [offset for offset in offsets if offset >= begins[partition]][-MOST_EXPELLED:]:
            found[partition] = tuple(kept)
    return found


def of_manifest(manifest: Manifest) -> Progress:
    return Progress(
        lineage=manifest.lineage,
        learned=manifest.learned,
        window_begins=manifest.window_begins,
        rounds=manifest.rounds,
        steps=manifest.steps,
        rows_learned=manifest.rows_learned,
        counts=manifest.counts,
        scores=manifest.scores,
        retrain_until=manifest.retrain_until,
        watermark=manifest.watermark,
        holdout=manifest.holdout,
        expelled=manifest.expelled,
        hyper=manifest.hyper,
        begins=manifest.begins,
        redriven=manifest.redriven,
    )


def same_topic(head: Manifest, frontier: Frontier) -> bool:
    """Whether the offsets that the head has learned through are those of this topic."""
    return (head.topic, len(head.learned)) == (frontier.topic, len(frontier.partitions))


def begun(retrain: Retrain, *, base: Manifest | None) -> Progress:
    """The start of a retrain. With the weights of `base` its rows are unscored through what those had learned."""
    until = base.learned if base is not None and base.topic == retrain.topic else None
    if base is not None and until is not None and base.retrain_until is not None:
        until = further(until, base.retrain_until)
    return Progress(
        lineage=retrain.lineage,
        learned=retrain.begins,
        window_begins=tuple(place.offset for place in retrain.begins),
        retrain_until=None if reached(retrain.begins, until) else until,
        hyper=retrain.hyper,
    )


def further(places: Sequence[Learned], others: Sequence[Learned]) -> tuple[Learned, ...]:
    """Of each partition the later place."""
    return tuple(max(pair, key=lambda place: place.offset) for pair in zip(places, others, strict=True))


def capped(frontier: Frontier, until: Sequence[Learned], *, watermark: int = 0) -> Frontier:
    """The frontier as if nothing were published beyond `until`."""
    parts = tuple(
        PartitionFrontier(part.begin, place.offset, place.count) if place.offset <= part.end else part
        for part, place in zip(frontier.partitions, until, strict=True)
    )
    return replace(frontier, partitions=parts, watermark=watermark)


def window_of_range(begins: Sequence[Learned], learned: Sequence[Learned], *, max_records: int) -> tuple[int, ...]:
    """Where the window begins of a lineage that has learned from `begins` on: it is bounded by records only, since
    what is learned again is older than a time that is counted from now."""
    places = list(zip(begins, learned, strict=True))
    records = sum(place.count - begin.count for begin, place in places)
    kept = min(1.0, max_records / records) if records else 1.0
    return tuple(place.offset - int((place.offset - begin.offset) * kept) for begin, place in places)


def remaining(learned: Sequence[Learned], until: Sequence[Learned]) -> int:
    """Records that are still to be learned."""
    return sum(max(0, end.count - place.count) for place, end in zip(learned, until, strict=True))


def skip_removed(places: Sequence[Learned], frontier: Frontier) -> tuple[Learned, ...]:
    """Places moved to the log start where retention has removed nothing but what lies before them: read from
    there, since the offsets themselves are gone."""
    return tuple(
        Learned(max(place.offset, part.begin), place.count)
        for place, part in zip(places, frontier.partitions, strict=True)
    )


def learned_more(progress: Progress, head: Manifest | None) -> bool:
    """Whether there is anything in memory that the head manifest does not say."""
    return progress.rounds > (head.rounds if head is not None and head.lineage == progress.lineage else 0)

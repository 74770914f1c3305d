"""One report of a round from those of its ranks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from streamtrain.errors import WorkerError
from streamtrain.types import FieldCounts, Learned, RoundCounts, RoundReport


def merge_reports(reports: Sequence[RoundReport]) -> RoundReport:
    """reports: of all ranks, in order of rank. Partitions, counts and histograms add up; steps and scores come
    out of the ranks' all-reduce and are the same on each; a timing is that of the slowest rank.

    Raises WorkerError when the ranks do not agree: what they trained is then not one model.
    """
    first = reports[0]
    learned: dict[int, Learned] = {}
    for rank, report in enumerate(reports):
        if report.round != first.round or report.steps != first.steps:
            raise WorkerError(
                f"rank {rank} reports round {report.round} with {report.steps} steps, "
                f"rank 0 round {first.round} with {first.steps}"
            )
        if learned.keys() & report.learned.keys():
            raise WorkerError(f"rank {rank} reports partitions of another rank in round {report.round}")
        learned |= report.learned
    reasons: Counter[str] = Counter()
    of_fields: dict[str, FieldCounts] = {}
    for report in reports:
        reasons.update(report.dead_letter_reasons)
        for name, counts in report.fields.items():
            of_fields[name] = of_fields.get(name, FieldCounts()) + counts
    stages = dict.fromkeys(stage for report in reports for stage in report.timings)
    return RoundReport(
        round=first.round,
        learned=dict(sorted(learned.items())),
        counts=sum((report.counts for report in reports), RoundCounts()),
        steps=first.steps,
        scores=first.scores,
        dead_letter_reasons=dict(reasons),
        freshness_ms=tuple(map(sum, zip(*(report.freshness_ms for report in reports), strict=True))),
        timings={stage: max(report.timings.get(stage, 0.0) for report in reports) for stage in stages},
        memory_rows=sum(report.memory_rows for report in reports),
        memory_bytes=sum(report.memory_bytes for report in reports),
        holdout=first.holdout,
        norms=first.norms,
        fields=of_fields,
        waiting=sum(report.waiting for report in reports),
        next_absent=min((report.next_absent for report in reports if report.next_absent is not None), default=None),
        label_latency=tuple(map(sum, zip_longest(*(report.label_latency for report in reports), fillvalue=0))),
        redriven={partition: place for report in reports for partition, place in sorted(report.redriven.items())},
        expelled={partition: offsets for report in reports for partition, offsets in report.expelled.items()},
    )

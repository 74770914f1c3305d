"""How a lineage beside the job takes its place: through where it must learn, and the manifest that becomes the job's
head. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamtrain.control.end import End
from streamtrain.control.progress import Progress
from streamtrain.types import Frontier, Learned, Manifest

CLOSE_S = 1.0
"""Of learning: with no more of the gap left the job waits for the lineage."""


def gap_end(job: Progress | None, *, learned: Sequence[Learned], frontier: Frontier, last: bool) -> End:
    """Through what the job has learned, and never back from what the lineage has. job: None where there is none that
    can be caught up with. A place that the topic does not hold any more (it was created again) is none either."""
    if job is None:
        return End(tuple(learned), last=last)
    places = tuple(
        theirs if ours.offset < theirs.offset <= part.end else ours
        for ours, theirs, part in zip(learned, job.learned, frontier.partitions, strict=True)
    )
    return End(places, job.watermark if places == job.learned else 0, last)


def promoted(newest: Manifest, *, head: Manifest | None, epoch: int, created_ms: int) -> Manifest:
    """The lineage's newest manifest as the one that follows the job's head, which so stays in the history."""
    sequence = max(newest.sequence, -1 if head is None else head.sequence) + 1
    return replace(
        newest,
        id=f"{newest.job}/{newest.lineage}/{sequence}",
        sequence=sequence,
        parent=None if head is None else head.id,
        epoch=epoch,
        created_ms=created_ms,
    )

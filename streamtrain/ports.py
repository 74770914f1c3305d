"""The ports through which control is handed the other stages by the composition root. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from streamtrain.types import Frontier, Learned, Manifest, Planned, PlanRequest, Retention, Retrain, RoundReport, Wait

Planner = Callable[[PlanRequest], Planned | Wait]
"""`window/planner.py`: a pure function."""

Action = Callable[[str, RoundReport], None]
"""Called with the job's name and each round's merged report (`observe/report.py`)."""


class OffsetsPort(Protocol):
    """A source's topic as control sees it (`window/offsets.py`)."""

    async def frontier(self) -> Frontier: ...

    async def changed(self, since: Frontier) -> None:
        """Returns once more is published than `since` shows."""

    async def window_begins(self, duration_s: float, max_records: int) -> tuple[int, ...]:
        """The first offset inside the window, per partition."""

    async def locate(self, offsets: Sequence[int]) -> tuple[Learned, ...]:
        """For each partition's offset the `n` of the first record at or after it, so that a job can start
        there: the published count where there is none."""

    async def at_time(self, time_ms: int) -> tuple[int, ...]:
        """For each partition the first offset that was appended then or later: its end where there is none."""

    async def oldest_untrained_s(self, learned: Sequence[Learned]) -> float | None:
        """Seconds since the oldest record that is not learned was published; None without one."""

    async def retention(self, learned: Sequence[Learned], oldest_untrained_s: float | None) -> Retention:
        """oldest_untrained_s: None where it is not known; then the headroom is not either."""


class ManifestPort(Protocol):
    """Manifests and each job's head (`registry/store.py`). Writes raise FencedError past their epoch."""

    async def claim(self, job: str, *, epoch: int) -> Manifest | None:
        """The job's head; from now on no daemon of an earlier epoch can commit."""

    async def commit(self, manifest: Manifest, *, epoch: int) -> None:
        """Raises SupersededError when the head is not the manifest's parent."""

    async def prune(self, job: str, *, keep: int, epoch: int) -> Sequence[str]:
        """Removes all but the newest `keep` manifests, their artifacts, and artifacts that no manifest names;
        never the head's. Returns the removed ids. Not while the job is saving."""


class RetrainPort(Protocol):
    """The lineages that are learned beside each job (`registry/retrains.py`). Writes raise FencedError past their
    epoch."""

    async def running(self, job: str, *, epoch: int) -> Sequence[Retrain]:
        """In the order in which they were begun; from now on no daemon of an earlier epoch can change them."""

    async def begin(self, retrain: Retrain, *, epoch: int) -> None: ...

    async def change(self, retrain: Retrain, *, epoch: int) -> None:
        """Stores `state` and `promote`. Raises SupersededError when the retrain is there no more."""

    async def cancel(self, job: str, lineage: str, *, epoch: int) -> None:
        """Ends it, and removes its manifests and artifacts. Not while its workers run."""

    async def promote(self, manifest: Manifest, *, epoch: int) -> None:
        """Makes the manifest the job's head, in place of its parent, and ends the retrain of its lineage: both or
        neither. Raises SupersededError when the head is not the manifest's parent, or the retrain is there no more."""

    async def read(self, id: str) -> Manifest | None:
        """A manifest; None where there is none, or none any more."""

    def manifests(self, lineage: str) -> ManifestPort:
        """Those of one lineage, whose head is not the job's."""


class LeasePort(Protocol):
    """The deployment's single-writer lease (`control/lease.py`)."""

    @property
    def epoch(self) -> int: ...

    def held(self) -> bool:
        """Whether this process may publish and commit now, by its own monotonic clock."""

"""What a source shows of itself: to /readyz, the status page and `streamtrain status`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SourceState(StrEnum):
    STARTING = "starting"
    STREAMING = "streaming"
    BACKING_OFF = "backing-off"  # failed, and tries again by itself
    LOST = "lost"  # the server no longer has the changes from the position on
    INVALIDATED = "invalidated"  # the collection was dropped or renamed
    FAILED = "failed"  # cannot work until somebody changes something
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """reason: why it is in a state other than streaming, empty otherwise. position_age_s: seconds between the
    server's clock at the saved position and now; None before there is a position. last_event_ms: wall time of
    the newest published event, UTC. prefetch_bytes: read from MongoDB, not yet in Kafka. events, bytes,
    transactions and restarts count since this process started the source."""

    source: str
    state: SourceState
    reason: str = ""
    namespace: str = ""
    position_age_s: float | None = None
    last_event_ms: int | None = None
    events: int = 0
    bytes: int = 0
    transactions: int = 0
    restarts: int = 0
    prefetch_bytes: int = 0

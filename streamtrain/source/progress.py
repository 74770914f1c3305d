"""How far a source has come: the committed position, how the next one follows from what was read, and what is
shown of it. It must never move a position backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamtrain import metrics
from streamtrain.clock import Clock
from streamtrain.source.change_stream import Batch
from streamtrain.source.events import token_time
from streamtrain.source.position import may_follow
from streamtrain.source.prefetch import Prefetch
from streamtrain.source.status import SourceState, SourceStatus
from streamtrain.types import ChangeEvent, Position, PositionKind

# Positions of empty batches cost a transaction each.
POSITION_EVERY_S = 10.0
INVALIDATE = "invalidate"


def advance(position: Position, batches: Sequence[Batch]) -> Position:
    """The position behind `batches`, which follow `position`; its counts are still the old ones."""
    last = batches[-1]
    change: ChangeEvent | None = next((batch.changes[-1] for batch in reversed(batches) if batch.changes), None)
    last_token = change.token if change else position.last_token
    kind, token = PositionKind.EVENT, last_token
    if last.others and last.others[-1].operation == INVALIDATE:
        kind, token = PositionKind.INVALIDATE, last.others[-1].token
    elif last.token and not (last.changes and last.token == last_token):
        kind, token = PositionKind.POST_BATCH, last.token
    elif change is None:
        return position
    time = max(position.cluster_time, change.cluster_time if change else 0, token_time(token) or 0)
    target = replace(position, kind=kind, token=token, last_token=last_token, cluster_time=time)
    return target if change is not None or may_follow(target, position) else position


class Progress:
    """Keeps a source's position, counts and state, and exports them as metrics."""

    def __init__(self, *, source: str, namespace: str, clock: Clock) -> None:
        self._clock = clock
        self._status = SourceStatus(source=source, state=SourceState.STARTING, namespace=namespace)
        self._position: Position | None = None
        self._committed_at = 0.0
        self._queue: Prefetch | None = None
        self._export()

    @property
    def position(self) -> Position:
        """What is committed: where a stream is to go on."""
        assert self._position is not None, "no position before the publisher has started"
        return self._position

    def due(self, batch: Batch) -> bool:
        """Whether a batch without changes is worth a transaction of its own."""
        late = self._clock.monotonic() - self._committed_at >= POSITION_EVERY_S
        return late and batch.token not in (b"", self.position.token)

    def state(self, state: SourceState, reason: str = "") -> None:
        if (state, reason) != (self._status.state, self._status.reason):
            self._status = replace(self._status, state=state, reason=reason)
            self._export()

    def restarted(self, reason: str) -> None:
        self._status = replace(self._status, restarts=self._status.restarts + 1)
        metrics.SOURCE_RESTARTS.labels(self._status.source, reason).inc()

    def reads_through(self, queue: Prefetch) -> None:
        self._queue = queue

    def resumed(self, position: Position) -> None:
        self._position = position
        self._committed_at = self._clock.monotonic()

    def committed(self, position: Position, changes: Sequence[ChangeEvent], size: int) -> None:
        """A transaction with `changes`, of `size` bytes of events, is in Kafka."""
        self.resumed(position)
        status = self._status
        newest = changes[-1] if changes else None
        self._status = replace(
            status,
            events=status.events + len(changes),
            bytes=status.bytes + size,
            transactions=status.transactions + 1,
            last_event_ms=_wall_ms(newest) if newest else status.last_event_ms,
        )
        metrics.SOURCE_TRANSACTIONS.labels(status.source).inc()

    def status(self) -> SourceStatus:
        age = None if self._position is None else max(0.0, self._clock.time() - (self._position.cluster_time >> 32))
        return replace(self._status, position_age_s=age, prefetch_bytes=self._queue.held if self._queue else 0)

    def _export(self) -> None:
        for state in SourceState:
            metrics.SOURCE_STATE.labels(self._status.source, state.value).set(state is self._status.state)


def _wall_ms(change: ChangeEvent) -> int:
    return (change.cluster_time >> 32) * 1000 if change.wall_time_ms is None else change.wall_time_ms

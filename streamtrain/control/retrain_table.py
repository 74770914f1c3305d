"""A retrain's states as one table, beside the phases of the controller that learns it. Pure."""

from __future__ import annotations

from enum import StrEnum

from streamtrain.types import RetrainState


class RetrainEvent(StrEnum):
    ENDED = "ended"  # its range is learned and saved
    PROMOTE = "promote"  # the operator wants it in the job's place


_S, _E = RetrainState, RetrainEvent

TABLE: dict[tuple[RetrainState, RetrainEvent, bool], RetrainState] = {
    (_S.LEARNING, _E.ENDED, False): _S.READY,
    (_S.LEARNING, _E.ENDED, True): _S.PROMOTING,
    (_S.READY, _E.PROMOTE, True): _S.PROMOTING,
}
"""The last key: whether it is to be promoted. Cancelling ends every state, and so does taking over PROMOTING."""


def next_state(state: RetrainState, event: RetrainEvent, *, promote: bool) -> RetrainState:
    """An event that a state has no row for changes nothing."""
    return TABLE.get((state, event, promote), state)

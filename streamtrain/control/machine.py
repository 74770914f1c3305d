"""A job's phases as one table: what every event means in every phase. Pure: it decides, the controller acts.

`python -m streamtrain.control.machine` prints the diagram that docs/architecture.md shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

BACKOFF_FIRST_S = 0.25
BACKOFF_MAX_S = 30.0


class Phase(StrEnum):
    IDLE = "idle"  # not allowed to run yet
    FORMING = "forming"  # a generation of workers is starting
    TRAINING = "training"  # rounds run, or wait for data
    SAVING = "saving"  # the rounds in flight end, then artifacts and a manifest are written
    STOPPING = "stopping"  # the same, and then the group goes, because the operator wants something else
    BACKOFF = "backoff"  # a generation failed; the next forms after a pause
    PAUSED = "paused"  # no group, until the operator says so
    DRAINING = "draining"  # as stopping, for good
    STOPPED = "stopped"


class Event(StrEnum):
    START = "start"  # the lease is held and the source has a topic
    FORMED = "formed"
    CHECKPOINT_DUE = "checkpoint due"
    ENDED = "ended"  # a lineage beside the job has learned its range
    SAVED = "saved"
    GROUP_STOPPED = "group stopped"
    FAILED = "failed"
    FATAL = "fatal"  # it would fail the same way again
    BACKOFF_OVER = "backoff over"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    HALT = "halt"  # at once, without saving


class Action(StrEnum):
    """What the controller does on a transition, in this order. FORM, TRAIN, SAVE, STOP and WAIT replace the
    activity that runs; without one of them it goes on."""

    KILL = "kill"  # the group, if there is one
    REVERT = "revert"  # to the head manifest: offsets and weights together
    FORM = "form"
    TRAIN = "train"
    SAVE = "save"
    STOP = "stop"
    WAIT = "wait"


class Goal(StrEnum):
    """What the operator wants once the group is gone."""

    RUN = "run"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class State:
    """failures: generations that failed since the last manifest."""

    phase: Phase = Phase.IDLE
    goal: Goal = Goal.RUN
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """goal: what the goal becomes, None to keep it."""

    to: Phase
    actions: tuple[Action, ...] = ()
    goal: Goal | None = None


Key = tuple[Phase, Event] | tuple[Phase, Event, Goal]

_P, _E, _A, _G = Phase, Event, Action, Goal
_FAILED = Row(_P.BACKOFF, (_A.KILL, _A.REVERT, _A.WAIT))
_FATAL = Row(_P.PAUSED, (_A.KILL, _A.REVERT), _G.RUN)
_ENDED = Row(_P.STOPPED, (_A.KILL,))
_FORM = Row(_P.FORMING, (_A.FORM,), _G.RUN)

TABLE: dict[Key, Row] = {
    (_P.IDLE, _E.START): _FORM,
    (_P.IDLE, _E.PAUSE): Row(_P.PAUSED),
    (_P.IDLE, _E.DRAIN): Row(_P.STOPPED),
    #
    (_P.FORMING, _E.FORMED): Row(_P.TRAINING, (_A.TRAIN,)),
    (_P.FORMING, _E.PAUSE): Row(_P.PAUSED, (_A.KILL, _A.REVERT)),
    (_P.FORMING, _E.DRAIN): _ENDED,
    #
    (_P.TRAINING, _E.CHECKPOINT_DUE): Row(_P.SAVING, (_A.SAVE,)),
    (_P.TRAINING, _E.PAUSE): Row(_P.STOPPING, (_A.SAVE,), _G.PAUSE),
    (_P.TRAINING, _E.ENDED): Row(_P.STOPPING, (_A.SAVE,), _G.PAUSE),
    (_P.TRAINING, _E.DRAIN): Row(_P.DRAINING, (_A.SAVE,)),
    #
    (_P.SAVING, _E.SAVED): Row(_P.TRAINING, (_A.TRAIN,)),
    (_P.SAVING, _E.PAUSE): Row(_P.STOPPING, (), _G.PAUSE),
    (_P.SAVING, _E.DRAIN): Row(_P.DRAINING),
    #
    (_P.STOPPING, _E.SAVED): Row(_P.STOPPING, (_A.STOP,)),
    (_P.STOPPING, _E.PAUSE): Row(_P.STOPPING, (), _G.PAUSE),
    (_P.STOPPING, _E.RESUME): Row(_P.STOPPING, (), _G.RUN),
    (_P.STOPPING, _E.DRAIN): Row(_P.DRAINING),
    (_P.STOPPING, _E.GROUP_STOPPED, _G.RUN): _FORM,
    (_P.STOPPING, _E.GROUP_STOPPED, _G.PAUSE): Row(_P.PAUSED, (), _G.RUN),
    #
    (_P.BACKOFF, _E.BACKOFF_OVER, _G.RUN): _FORM,
    (_P.BACKOFF, _E.BACKOFF_OVER, _G.PAUSE): Row(_P.PAUSED, (), _G.RUN),
    (_P.BACKOFF, _E.PAUSE): Row(_P.PAUSED, (), _G.RUN),
    (_P.BACKOFF, _E.RESUME): _FORM,
    (_P.BACKOFF, _E.DRAIN): Row(_P.STOPPED),
    #
    (_P.PAUSED, _E.RESUME): _FORM,
    (_P.PAUSED, _E.DRAIN): Row(_P.STOPPED),
    #
    (_P.DRAINING, _E.SAVED): Row(_P.DRAINING, (_A.STOP,)),
    (_P.DRAINING, _E.GROUP_STOPPED): Row(_P.STOPPED),
    (_P.DRAINING, _E.FAILED): _ENDED,
    (_P.DRAINING, _E.FATAL): _ENDED,
    #
    **{(phase, _E.FAILED): _FAILED for phase in (_P.IDLE, _P.FORMING, _P.TRAINING, _P.SAVING, _P.STOPPING)},
    **{
        (phase, _E.FATAL): _FATAL
        for phase in (_P.IDLE, _P.FORMING, _P.TRAINING, _P.SAVING, _P.STOPPING, _P.BACKOFF, _P.PAUSED)
    },
    **{(phase, _E.HALT): _ENDED for phase in Phase if phase is not _P.STOPPED},
}


def transition(state: State, event: Event) -> tuple[State, tuple[Action, ...]]:
    """The next state and what to do. An event that a phase has no row for changes nothing."""
    row = TABLE.get((state.phase, event)) or TABLE.get((state.phase, event, state.goal))
    if row is None:
        return state, ()
    failures = state.failures
    if event is Event.FAILED:
        failures += 1
    elif event in (Event.SAVED, Event.RESUME, Event.FATAL):
        failures = 0
    return replace(state, phase=row.to, goal=row.goal or state.goal, failures=failures), row.actions


def backoff_s(failures: int) -> float:
    """The pause before the next generation: doubled from `BACKOFF_FIRST_S`, at most `BACKOFF_MAX_S`."""
    exponent = min(max(failures, 1) - 1, 16)
    return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * float(2**exponent))


def diagram() -> str:
    """The table as a mermaid state diagram. `halt`, which ends every phase, is left out of the drawing."""
    edges: dict[tuple[Phase, Phase], list[str]] = {}
    for key, row in TABLE.items():
        phase, event = key[0], key[1]
        if event is Event.HALT:
            continue
        guard = f" [{key[2]}]" if len(key) == 3 else ""
        edges.setdefault((phase, row.to), []).append(f"{event}{guard}")
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.IDLE}"]
    for (source, target), labels in sorted(edges.items(), key=_drawing_order):
        lines.append(f"    {source} --> {target}: {', '.join(labels)}")
    lines.append(f"    {Phase.STOPPED} --> [*]")
    return "\n".join(lines)


def _drawing_order(edge: tuple[tuple[Phase, Phase], list[str]]) -> tuple[int, int]:
    order = list(Phase)
    (source, target), _ = edge
    return order.index(source), order.index(target)


if __name__ == "__main__":
    print(diagram())  # data on stdout: this module is also a command

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamtrain.control.machine import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    TABLE,
    Action,
    Event,
    Goal,
    Phase,
    State,
    backoff_s,
    diagram,
    transition,
)

ROOT = Path(__file__).resolve().parents[3]
WORKING = (Phase.FORMING, Phase.TRAINING, Phase.SAVING, Phase.STOPPING)
WITHOUT_GROUP = (Phase.IDLE, Phase.BACKOFF, Phase.PAUSED, Phase.STOPPED)
ACTIVITIES = (Action.FORM, Action.TRAIN, Action.SAVE, Action.STOP, Action.WAIT)
states = st.builds(State, st.sampled_from(Phase), st.sampled_from(Goal), st.integers(0, 5))


@given(states)
def test_a_drain_always_reaches_stopped(state: State) -> None:
    """Whatever happens on the way: the work ends well or fails, and failing ends it too."""
    state, _ = transition(state, Event.DRAIN)
    assert state.phase in (Phase.DRAINING, Phase.STOPPED)
    for event in Event:
        after, actions = transition(state, event)
        assert after.phase in (Phase.DRAINING, Phase.STOPPED)
        assert Action.FORM not in actions
    for event in (Event.SAVED, Event.GROUP_STOPPED):
        state, _ = transition(state, event)
    assert state.phase is Phase.STOPPED


@given(states)
def test_a_halt_ends_every_phase_at_once(state: State) -> None:
    after, actions = transition(state, Event.HALT)
    assert after.phase is Phase.STOPPED
    assert actions == (() if state.phase is Phase.STOPPED else (Action.KILL,))


@given(states)
def test_nothing_leaves_stopped(state: State) -> None:
    stopped = State(Phase.STOPPED, state.goal, state.failures)
    assert all(transition(stopped, event) == (stopped, ()) for event in Event)


@pytest.mark.parametrize("phase", [Phase.IDLE, *WORKING])
@pytest.mark.parametrize("goal", Goal)
def test_every_failure_reaches_backoff_with_the_group_gone_and_then_what_was_wanted(phase: Phase, goal: Goal) -> None:
    failed, actions = transition(State(phase, goal), Event.FAILED)
    assert (failed.phase, failed.failures) == (Phase.BACKOFF, 1)
    assert actions == (Action.KILL, Action.REVERT, Action.WAIT)
    over, actions = transition(failed, Event.BACKOFF_OVER)
    assert over.phase is (Phase.PAUSED if goal is Goal.PAUSE else Phase.FORMING)
    assert over.failures == 1


@pytest.mark.parametrize("phase", [Phase.IDLE, *WORKING])
def test_a_fatal_failure_pauses_and_is_not_tried_again(phase: Phase) -> None:
    paused, actions = transition(State(phase, failures=3), Event.FATAL)
    assert paused == State(Phase.PAUSED)
    assert actions == (Action.KILL, Action.REVERT)
    for event in set(Event) - {Event.RESUME, Event.DRAIN, Event.HALT}:
        assert transition(paused, event)[0].phase is Phase.PAUSED


def test_only_a_manifest_or_the_operator_forgets_failures() -> None:
    for state in (State(phase, failures=4) for phase in Phase):
        for event in set(Event) - {Event.SAVED, Event.RESUME, Event.FATAL, Event.FAILED}:
            assert transition(state, event)[0].failures == 4


def test_backoff_grows_to_a_bound() -> None:
    pauses = [backoff_s(failures) for failures in range(1, 100)]
    assert pauses[0] == BACKOFF_FIRST_S
    assert pauses == sorted(pauses)
    assert max(pauses) == BACKOFF_MAX_S


def test_the_last_word_of_the_operator_counts() -> None:
    state = State(Phase.TRAINING)
    for event, goal in (
        (Event.PAUSE, Goal.PAUSE),
        (Event.RESUME, Goal.RUN),
        (Event.PAUSE, Goal.PAUSE),
        (Event.RESUME, Goal.RUN),
    ):
        state, _ = transition(state, event)
        assert (state.phase, state.goal) == (Phase.STOPPING, goal)


def test_a_lineage_that_has_learned_its_range_saves_and_rests() -> None:
    state, actions = transition(State(Phase.TRAINING), Event.ENDED)
    assert (state, actions) == (State(Phase.STOPPING, Goal.PAUSE), (Action.SAVE,))
    for event in (Event.SAVED, Event.GROUP_STOPPED):
        state, _ = transition(state, event)
    assert state == State(Phase.PAUSED)


def test_a_group_is_never_left_without_kill_or_stop() -> None:
    """From a phase that has a group to one that has none the group is killed, or has stopped before."""
    for key, row in TABLE.items():
        if key[0] in (*WORKING, Phase.DRAINING) and row.to in (*WITHOUT_GROUP, Phase.FORMING):
            assert Action.KILL in row.actions or key[1] is Event.GROUP_STOPPED, key


class Job(RuleBasedStateMachine):
    """A controller that does what the machine says; its activities end well or fail in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.activity: Action | None = None
        self.group = False

    def send(self, event: Event) -> None:
        self.state, actions = transition(self.state, event)
        for action in actions:
            if action is Action.KILL:
                self.group, self.activity = False, None
            elif action in ACTIVITIES:
                if action is Action.FORM:
                    assert not self.group, "a generation forms only once the last one is gone"
                    self.group = True
                if action in (Action.TRAIN, Action.SAVE, Action.STOP):
                    assert self.group
                self.activity = action

    @precondition(lambda self: self.state.phase is Phase.IDLE)
    @rule()
    def start(self) -> None:
        self.send(Event.START)

    @rule(event=st.sampled_from([Event.PAUSE, Event.RESUME, Event.DRAIN, Event.HALT]))
    def command(self, event: Event) -> None:
        self.send(event)

    @precondition(lambda self: self.activity is not None)
    @rule(ended=st.booleans())
    def succeed(self, ended: bool) -> None:
        """ended: of training, whether the lineage has learned its range."""
        activity, self.activity = self.activity, None
        assert activity is not None
        if activity is Action.STOP:
            self.group = False
        self.send(
            {
                Action.FORM: Event.FORMED,
                Action.TRAIN: Event.ENDED if ended else Event.CHECKPOINT_DUE,
                Action.SAVE: Event.SAVED,
                Action.STOP: Event.GROUP_STOPPED,
                Action.WAIT: Event.BACKOFF_OVER,
            }[activity]
        )

    @precondition(lambda self: self.activity not in (None, Action.WAIT))
    @rule(event=st.sampled_from([Event.FAILED, Event.FATAL]))
    def fail(self, event: Event) -> None:
        self.activity = None
        self.send(event)

    @invariant()
    def something_goes_on(self) -> None:
        """No dead end: wherever the job is, something runs, or the operator (or the start) is waited for."""
        if self.state.phase in (*WORKING, Phase.BACKOFF, Phase.DRAINING):
            assert self.activity is not None, self.state

    @invariant()
    def a_group_exists_where_one_is_needed_and_nowhere_else(self) -> None:
        assert self.group is (self.state.phase in (*WORKING, Phase.DRAINING))

    @invariant()
    def undisturbed_it_gets_where_it_should(self) -> None:
        """If all goes well from here, a job trains; one that is drained stops; a paused one stays."""
        state, activity = self.state, self.activity
        for _ in range(6):
            event = {
                Action.FORM: Event.FORMED,
                Action.SAVE: Event.SAVED,
                Action.STOP: Event.GROUP_STOPPED,
                Action.WAIT: Event.BACKOFF_OVER,
            }.get(activity or Action.TRAIN)
            if event is None:
                break
            activity = None
            state, actions = transition(state, event)
            activity = next((action for action in reversed(actions) if action in ACTIVITIES), None)
        assert state.phase in (Phase.IDLE, Phase.TRAINING, Phase.PAUSED, Phase.STOPPED)


TestJob = Job.TestCase
TestJob.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def test_the_diagram_in_the_documentation_is_the_table() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawn = re.search(r"<!-- machine -->\n```mermaid\n(.*?)\n```\n<!-- /machine -->", page, re.DOTALL)
    assert drawn is not None
    assert drawn[1] == diagram(), "run: python -m streamtrain.control.machine, and put it into docs/architecture.md"

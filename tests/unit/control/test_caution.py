"""How careful a generation is after the model has refused a row."""

from __future__ import annotations

from streamtrain.clock import FakeClock
from streamtrain.control.caution import LONGER_S, REFUSED, REMEMBERED_S, Caution
from streamtrain.types import Learned


def places(*offsets: int) -> list[Learned]:
    return [Learned(offset, offset) for offset in offsets]


def test_without_a_refused_row_there_is_no_reason_to_be_careful() -> None:
    caution = Caution(clock=FakeClock())
    caution.failed("UnavailableError", places(5, 5))
    assert (caution.until(2), caution.seconds()) == ((), 0.0)


def test_the_next_generation_is_careful_through_what_had_been_planned() -> None:
    caution = Caution(clock=FakeClock())
    caution.failed(REFUSED, places(5, 9))
    assert (caution.until(2), caution.seconds()) == ((5, 9), 0.0)


def test_a_place_that_was_dangerous_once_stays_so() -> None:
    """A retrain comes past it again."""
    caution = Caution(clock=FakeClock())
    caution.failed(REFUSED, places(5, 9))
    caution.failed(REFUSED, places(7, 2))
    assert caution.until(2) == (7, 9)


def test_each_further_refusal_makes_it_careful_for_twice_as_long_but_not_for_ever() -> None:
    clock = FakeClock()
    caution = Caution(clock=clock)
    caution.failed(REFUSED, places(1))
    for longer in (LONGER_S, 2 * LONGER_S, 4 * LONGER_S):
        clock.advance(10)
        caution.failed(REFUSED, places(1))
        assert caution.seconds() == longer
    for _ in range(20):
        caution.failed(REFUSED, places(1))
    assert caution.seconds() == REMEMBERED_S
    clock.advance(REMEMBERED_S)
    assert caution.seconds() == 0.0
    clock.advance(1)
    caution.failed(REFUSED, places(1))
    assert caution.seconds() == 0.0  # the others are too long ago


def test_places_of_another_topic_say_nothing() -> None:
    caution = Caution(clock=FakeClock())
    caution.failed(REFUSED, places(5, 9))
    assert caution.until(4) == ()
    caution.failed(REFUSED, places(1, 1, 1, 1))
    assert caution.until(4) == (1, 1, 1, 1)

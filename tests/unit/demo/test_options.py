"""What cannot be run is refused before anything starts, with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from streamtrain.demo.options import PARTITIONS, UsageError, parse_options

GOOD: dict[str, Any] = {"rate": 2000.0, "duration": "60s", "workers": 2, "json": False, "keep": False}


def test_durations_are_read_with_their_unit() -> None:
    assert parse_options(**{**GOOD, "duration": "2m"}).duration == 120.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rate": 0.0}, "more than 0"),
        ({"rate": -5.0}, "more than 0"),
        ({"rate": float("nan")}, "more than 0"),
        ({"rate": 1e9}, "at most 20,000"),
        ({"duration": "60"}, "write it like"),
        ({"duration": "-5s"}, "write it like"),
        ({"duration": ""}, "write it like"),
        ({"duration": "0s"}, "more than 0s"),
        ({"duration": "2d"}, "at most 1h"),
        ({"workers": 0}, "at least one worker"),
        ({"workers": PARTITIONS + 1}, f"{PARTITIONS} partitions"),
    ],
)
def test_bad_arguments_are_usage_errors_that_say_what_is_wrong(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        parse_options(**{**GOOD, **wrong})
    assert error.value.exit_code == 2


def test_as_many_workers_as_partitions_are_allowed() -> None:
    assert parse_options(**{**GOOD, "workers": PARTITIONS}).workers == PARTITIONS

from __future__ import annotations

import pytest

from streamtrain.init.pace import Pace, budget


@pytest.mark.parametrize(
    ("rate", "window_h", "max_wait_ms", "batch_size"),
    [(None, 6, 500, 64), (0.01, 168, 1000, 64), (10, 12, 500, 64), (100, 1, 100, 64), (5000, 1, 100, 256)],
)
def test_a_window_holds_about_as_much_as_may_be_kept(
    rate: float | None, window_h: int, max_wait_ms: int, batch_size: int
) -> None:
    found = budget(Pace(1000, rate, "seen"), numbers=10)
    assert (found.window // 3600, found.max_wait_ms, found.batch_size) == (window_h, max_wait_ms, batch_size)
    assert found.max_records == 500_000
    assert found.half_life == found.window // 3


def test_wide_rows_are_kept_in_smaller_numbers() -> None:
    assert budget(Pace(), numbers=1000).max_records == 100_000
    assert budget(Pace(), numbers=1_000_000).max_records == 10_000


def test_a_long_window_needs_a_longer_retention() -> None:
    assert budget(Pace(1, 0.01, "seen"), numbers=1).retention == 14 * 86400
    assert budget(Pace(1, 100.0, "seen"), numbers=1).retention is None

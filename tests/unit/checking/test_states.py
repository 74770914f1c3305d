"""Saved states compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from streamtrain.checking.states import difference


def test_the_largest_difference_is_that_of_the_weights_and_every_other_bit_is_named(tmp_path: Path) -> None:
    state = {"weight/0": np.array([1.0, -3.0]), "weight/1": np.array([2]), "optimizer/0": np.array([7.0])}
    np.savez(tmp_path / "one.npz", meta=np.array([1]), **state)
    np.savez(
        tmp_path / "other.npz",
        meta=np.array([2]),
        **{**state, "weight/0": np.array([1.5, -3.0]), "optimizer/0": np.array([9.0])},
    )
    found = difference(tmp_path / "one.npz", tmp_path / "other.npz")
    assert found.largest == 0.5
    assert found.names == ("weight/0", "optimizer/0")
    assert found.scale == 3.0
    assert difference(tmp_path / "one.npz", tmp_path / "one.npz").names == ()

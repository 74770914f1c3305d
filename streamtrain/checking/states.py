"""How far two saved states of a model lie apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

_META = "meta"


@dataclass(frozen=True, slots=True)
class Difference:
    """largest: of all elements, absolute. names: of the variables that are not the same bits, as the file has them.
    scale: the largest weight."""

    largest: float
    names: tuple[str, ...]
    scale: float


def difference(one: Path, other: Path) -> Difference:
    """The files are those of a checkpoint: `state.npz`."""
    largest, scale = 0.0, 0.0
    names = []
    with np.load(one) as left, np.load(other) as right:
        for name in left.files:
            if name == _META:
                continue
            here, there = left[name], right[name]
            if not np.array_equal(here, there):
                names.append(name)
            if here.dtype.kind == "f" and here.size and name.startswith("weight/"):
                largest = max(largest, float(np.abs(here - there).max()))
                scale = max(scale, float(np.abs(here).max()))
    return Difference(largest, tuple(names), scale)

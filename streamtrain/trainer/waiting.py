"""What a checkpoint says of one partition's memory beside the records since the window's begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Waiting:
    """firsts, latests: offsets of the first and the latest version of each document that waits for a label, the former
    ascending. missing: for which. codes, offsets, dues: of the versions in memory whose labels were absent, as in
    the log (log.py). heirs, origins: codes of versions with the features of another one, and the offsets of those."""

    firsts: Ints
    latests: Ints
    missing: Ints
    codes: Ints
    offsets: Ints
    dues: Ints
    heirs: Ints
    origins: Ints

    def again(self) -> Ints:
        """Offsets of the versions that have to be read again for the memory, ascending."""
        return np.unique(np.concatenate([self.offsets, self.origins]))

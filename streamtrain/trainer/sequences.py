"""Lists of any length: the last elements are kept, and what is shorter is padded. An array that is not well-formed is
refused as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamtrain.trainer import bson_types
from streamtrain.trainer.arrays import find_elements
from streamtrain.trainer.columns import (
    INVALID,
    MISSING,
    NOTHING,
    NUMPY_DTYPES,
    OK,
    TYPE,
    States,
    Values,
    read_scalars,
)
from streamtrain.trainer.locate import Positions
from streamtrain.trainer.rows import Column
from streamtrain.types import DType


def read_sequences(
    values: Values, kinds: States, at: Positions, dtype: DType, max_length: int, pad: Any
) -> tuple[Column, States]:
    """The [n, max_length] column of BSON arrays, padded, and what became of each element; a row that is no array has
    that state in all its elements, and only `pad` in the column."""
    column = np.full((len(kinds), max_length), pad, NUMPY_DTYPES[dtype])
    states = np.zeros(column.shape, np.uint8)
    rows = np.where(kinds == bson_types.ARRAY, np.uint8(OK), np.uint8(TYPE))
    rows[np.isin(kinds, NOTHING)] = MISSING
    arrays = np.flatnonzero(rows == OK)
    if len(arrays):
        found = find_elements(values, at[arrays])
        rows[arrays[found.malformed]] = INVALID
        places = found.index - np.maximum(found.counts - max_length, 0)[found.array]
        kept = np.flatnonzero((places >= 0) & ~found.malformed[found.array])
        if len(kept):
            target = (arrays[found.array[kept]], places[kept])
            column[target], states[target] = read_scalars(values, found.kind[kept], found.at[kept], dtype)
    refused = np.flatnonzero(rows != OK)
    states[refused] = rows[refused, np.newaxis]
    return column, states

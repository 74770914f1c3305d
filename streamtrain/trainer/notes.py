"""What a decoder notes of each value beside the value itself: for statistics only, never for what is learned."""

from __future__ import annotations

import numpy as np

from streamtrain.trainer import bson_types, columns
from streamtrain.trainer.columns import States
from streamtrain.types import DType

USUAL, COERCED, MISSING, REFUSED, OUT_OF_RANGE = range(5)

_OWN_TYPES = {
    DType.FLOAT32: (bson_types.DOUBLE,),
    DType.FLOAT64: (bson_types.DOUBLE,),
    DType.INT32: (bson_types.INT32,),
    DType.INT64: (bson_types.INT64, bson_types.INT32),  # drivers write an integer as short as it fits
}
_OF_STATE = np.full(columns.INVALID + 1, REFUSED, np.uint8)
_OF_STATE[[columns.OK, columns.MISSING, columns.NON_FINITE, columns.RANGE]] = USUAL, MISSING, MISSING, OUT_OF_RANGE


def noted(dtype: DType, kinds: States, states: States) -> States:
    """Per value: kinds, its BSON type; states, what became of it before anything was replaced (of a vector, of each
    element)."""
    if states.ndim == 2:
        states = states.max(axis=1, initial=columns.OK)
        return _OF_STATE[states]
    notes = _OF_STATE[states] if states.any() else np.zeros(len(states), np.uint8)
    own = _OWN_TYPES.get(dtype)
    if own is not None and not (kinds == own[0]).all():
        notes[(notes == USUAL) & ~np.isin(kinds, own)] = COERCED
    return notes

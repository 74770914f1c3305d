"""Rows that nobody wrote, in the form of decoded columns: what a model is tried on when there are no documents."""

from __future__ import annotations

import numpy as np

from streamtrain.trainer.columns import FLOATS, NUMPY_DTYPES, configured_value, filler
from streamtrain.trainer.rows import Column
from streamtrain.types import DType, Feature, Schema

ROWS = 16
_SEED = 20_130_101
_WORDS = (b"", b"a", b"UA", b"never seen before", "Z\u00fcrich".encode(), b"0", b" ")
_SMALL = 8  # integers may be places in a table
_YEAR_2000_MS, _YEAR_2030_MS = 946_684_800_000, 1_893_456_000_000


def made_up_columns(schema: Schema, *, blank: bool = False) -> dict[str, Column]:
    """ROWS rows, the same at every call. blank: nothing but zeros and empty strings."""
    rng = np.random.default_rng(_SEED)
    return {feature.field: _column(feature, rng, blank=blank) for feature in schema.features}


def _column(feature: Feature, rng: np.random.Generator, *, blank: bool) -> Column:
    shape = (ROWS,) if feature.width is None else (ROWS, feature.width)
    kind = NUMPY_DTYPES[feature.dtype]
    column: Column = np.full(shape, filler(feature.dtype), kind)
    if blank or feature.dtype is DType.BYTES:  # of which only the model knows what they are
        return column
    if feature.dtype is DType.STRING:
        column[...] = np.array(_WORDS, np.object_)[rng.integers(0, len(_WORDS), shape)]
    elif feature.dtype is DType.DATETIME:
        column[...] = rng.integers(_YEAR_2000_MS, _YEAR_2030_MS, shape)
    elif feature.dtype in FLOATS:
        column[...] = rng.normal(size=shape) * rng.choice([0.1, 1.0, 30.0], shape)
    else:
        column[...] = rng.integers(0, 2 if feature.dtype is DType.BOOL else _SMALL, shape)
    if feature.missing is not None and feature.max_length is None:
        column[::4] = configured_value(feature.field, "missing", feature.dtype, feature.missing)
    if feature.max_length is not None:
        pad = filler(feature.dtype)
        if feature.pad is not None:
            pad = configured_value(feature.field, "pad", feature.dtype, feature.pad)
        lengths = rng.integers(0, feature.max_length + 1, ROWS)
        column[np.arange(feature.max_length)[None, :] >= lengths[:, None]] = pad
    return column

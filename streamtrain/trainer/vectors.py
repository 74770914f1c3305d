"""Fixed-length vectors: arrays of numbers whose layout is compared at once, and float32 vectors in binaries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from streamtrain.trainer import bson_types
from streamtrain.trainer.arrays import find_elements
from streamtrain.trainer.columns import (
    BINARY_HEADER,
    INVALID,
    LENGTH,
    MISSING,
    NON_FINITE,
    NOTHING,
    OK,
    PLAIN_SUBTYPES,
    TYPE,
    States,
    Values,
    empty_column,
    filler,
    read_scalars,
)
from streamtrain.trainer.locate import Positions
from streamtrain.trainer.rows import Column
from streamtrain.types import DType

_BLOCK_BYTES = 8 * 1024 * 1024  # of arrays compared at once
_VECTOR_SUBTYPE = 9  # two bytes before the elements: their type, and padding
_VECTOR_OF_FLOAT32 = 0x0027  # little-endian: type 0x27, no padding

# Element types that are tried on whole arrays; what is of mixed types, or of no fixed size, is walked.
_UNIFORM: dict[DType, tuple[int, ...]] = {
    DType.FLOAT32: (bson_types.DOUBLE, bson_types.INT32, bson_types.INT64),
    DType.FLOAT64: (bson_types.DOUBLE, bson_types.INT32, bson_types.INT64),
    DType.INT32: (bson_types.INT32, bson_types.INT64, bson_types.DOUBLE),
    DType.INT64: (bson_types.INT64, bson_types.INT32, bson_types.DOUBLE),
    DType.BOOL: (bson_types.BOOL,),
    DType.DATETIME: (bson_types.DATETIME,),
    DType.STRING: (),
    DType.BYTES: (),
}


def read_lists(values: Values, kinds: States, at: Positions, dtype: DType, length: int) -> tuple[Column, States]:
    """The [n, length] column of BSON arrays, and what became of each element [n, length]; a row that is no array
    of that length has that state in all its elements."""
    column = empty_column(dtype, (len(kinds), length))
    states = _row_states(kinds, bson_types.ARRAY, length)
    arrays = np.flatnonzero(kinds == bson_types.ARRAY)
    for kind in _UNIFORM[dtype]:
        if len(arrays) == 0:
            break
        alike, offsets = _alike(values, at[arrays], kind, length)
        chosen = arrays[alike]
        if len(chosen):
            places = (at[chosen][:, np.newaxis] + offsets).ravel()
            read, read_states = read_scalars(values, np.full(places.shape, kind, np.uint8), places, dtype)
            column[chosen] = read.reshape(-1, length)
            states[chosen] = read_states.reshape(-1, length)
        arrays = arrays[~alike]
    if len(arrays):
        found = find_elements(values, at[arrays], most=length + 1)
        fits = (found.counts == length) & ~found.malformed
        states[arrays[~fits]] = LENGTH
        states[arrays[found.malformed]] = INVALID
        chosen = np.flatnonzero(fits[found.array])
        if len(chosen):
            target = (arrays[found.array[chosen]], found.index[chosen])
            column[target], states[target] = read_scalars(values, found.kind[chosen], found.at[chosen], dtype)
    return column, states


def _row_states(kinds: States, wanted: int, length: int) -> States:
    rows = np.where(kinds == wanted, np.uint8(OK), np.uint8(TYPE))
    rows[np.isin(kinds, NOTHING)] = MISSING
    return np.repeat(rows[:, np.newaxis], length, axis=1)


def _alike(values: Values, at: Positions, kind: int, length: int) -> tuple[npt.NDArray[np.bool_], Positions]:
    """Which arrays hold exactly `length` elements of type `kind`, and where in them the values are."""
    template, mask, offsets = _template(kind, length)
    alike = values.int32[at] == len(template)
    candidates = np.flatnonzero(alike)
    if len(candidates) == 0:
        return alike, offsets
    windows = sliding_window_view(values.uint8, len(template))
    for block in _blocks(candidates, len(template)):
        alike[block] = ((windows[at[block]] & mask) == template).all(axis=1)
    return alike, offsets


def _template(kind: int, length: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], Positions]:
    """An array of `length` elements with its values zero, the mask of everything else, and the values' places."""
    size = bson_types.FIXED_SIZES[kind]
    body = b""
    headers = b"\xff" * 4
    offsets = []
    for index in range(length):
        header = bytes([kind]) + str(index).encode() + b"\0"
        offsets.append(4 + len(body) + len(header))
        body += header + bytes(size)
        headers += b"\xff" * len(header) + bytes(size)
    template = (len(body) + 5).to_bytes(4, "little") + body + b"\0"
    return (
        np.frombuffer(template, np.uint8),
        np.frombuffer(headers + b"\xff", np.uint8),
        np.array(offsets, np.int64),
    )


def _blocks(rows: Positions, row_bytes: int) -> Iterator[Positions]:
    step = max(1, _BLOCK_BYTES // row_bytes)
    for begin in range(0, len(rows), step):
        yield rows[begin : begin + step]


def read_binaries(values: Values, kinds: States, at: Positions, dtype: DType, length: int) -> tuple[Column, States]:
    """The same of little-endian float32 vectors in binaries, plain or of the vector subtype."""
    column = empty_column(dtype, (len(kinds), length))
    states = _row_states(kinds, bson_types.BINARY, length)
    binaries = np.flatnonzero(kinds == bson_types.BINARY)
    if len(binaries) == 0:
        return column, states
    places = at[binaries]
    sizes = values.int32[places]
    subtypes = values.uint8[places + 4]
    vector = (subtypes == _VECTOR_SUBTYPE) & (sizes >= 2)
    vector &= (values.int32[places + BINARY_HEADER] & 0xFFFF) == _VECTOR_OF_FLOAT32
    begins = places + BINARY_HEADER + np.where(vector, 2, 0)
    elements = sizes - np.where(vector, 2, 0)
    known = vector | np.isin(subtypes, PLAIN_SUBTYPES)
    fits = elements == 4 * length
    states[binaries[~known]] = TYPE
    states[binaries[known & ~fits]] = LENGTH
    good = known & fits
    chosen = binaries[good]
    if len(chosen):
        floats = sliding_window_view(values.uint8, 4 * length)[begins[good]].view("<f4")
        finite = np.isfinite(floats)
        column[chosen] = floats
        states[chosen] = np.where(finite, np.uint8(OK), np.uint8(NON_FINITE))
        if not finite.all():
            column[states != OK] = filler(dtype)
    return column, states

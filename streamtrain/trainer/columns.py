"""From located BSON values to one column: every value exact to the field's dtype, or refused with a reason.
A refused or missing row leaves the column's other values as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
from bson.decimal128 import Decimal128

from streamtrain.errors import ConfigError
from streamtrain.trainer import bson_types
from streamtrain.trainer.locate import ABSENT, Positions
from streamtrain.trainer.rows import Column
from streamtrain.types import DType

# What became of a value; the order says which reason a vector reports when its elements differ.
OK, MISSING, NON_FINITE, RANGE, LENGTH, TYPE, INVALID = range(7)
REASONS = {MISSING: "missing", NON_FINITE: "non-finite", RANGE: "range", LENGTH: "length", TYPE: "type"}

States = npt.NDArray[np.uint8]

NUMPY_DTYPES: dict[DType, type[np.generic]] = {
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.BOOL: np.bool_,
    DType.STRING: np.object_,
    DType.DATETIME: np.int64,
    DType.BYTES: np.object_,
}
FLOATS = (DType.FLOAT32, DType.FLOAT64)
INTEGERS = (DType.INT32, DType.INT64)
NOTHING = (ABSENT, bson_types.NULL, bson_types.UNDEFINED)
BINARY_HEADER = 5  # int32 length, subtype
PLAIN_SUBTYPES = (0x00, 0x80)  # of binary data: generic, user defined
_EXACT_FLOAT64 = 2**53  # every integer up to here is a float64


def filler(dtype: DType) -> Any:
    """What stands in a column where there is no value."""
    return b"" if dtype in (DType.STRING, DType.BYTES) else 0


def empty_column(dtype: DType, shape: tuple[int, ...]) -> Column:
    return np.full(shape, filler(dtype), NUMPY_DTYPES[dtype])


@dataclass(frozen=True, slots=True)
class Values:
    """Bytes that hold values, with typed views that may be read at any place."""

    data: bytes
    uint8: npt.NDArray[np.uint8]
    int32: npt.NDArray[np.int32]
    int64: npt.NDArray[np.int64]
    float64: npt.NDArray[np.float64]

    @classmethod
    def of(cls, data: bytes) -> Values:
        def view(dtype: str, size: int) -> npt.NDArray[np.generic]:
            return np.ndarray((max(0, len(data) - size + 1),), dtype, buffer=data, strides=(1,))

        return cls(data, np.frombuffer(data, np.uint8), view("<i4", 4), view("<i8", 8), view("<f8", 8))  # type: ignore[arg-type]


def read_scalars(values: Values, kinds: States, at: Positions, dtype: DType) -> tuple[Column, States]:
    """The column of the values of BSON types `kinds` at `at`, and what became of each."""
    column = empty_column(dtype, kinds.shape)
    states = np.full(kinds.shape, TYPE, np.uint8)
    readers = _READERS[dtype]
    first = int(kinds[0]) if len(kinds) else ABSENT
    present = [first] if (kinds == first).all() else np.unique(kinds).tolist()
    for kind in present:
        chosen: slice | Positions = slice(None) if len(present) == 1 else np.flatnonzero(kinds == kind)
        if kind in NOTHING:
            states[chosen] = MISSING
        elif kind in readers:
            column[chosen], states[chosen] = readers[kind](values, at[chosen], dtype)
    bad = states != OK
    if bad.any():
        column[bad] = filler(dtype)
    return column, states


def to_float(numbers: npt.NDArray[np.float64], dtype: DType) -> tuple[Column, States]:
    """float64 rounded to the dtype; what becomes infinite only by that is out of range."""
    states = np.zeros(numbers.shape, np.uint8)
    finite = np.isfinite(numbers)
    if not finite.all():
        states[~finite] = NON_FINITE
    if dtype is DType.FLOAT64:
        return numbers, states
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        narrow = numbers.astype(np.float32)
    states[np.isinf(narrow) & finite] = RANGE
    return narrow, states


def _double_to_float(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    return to_float(values.float64[at], dtype)


def _int32_to_float(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    return to_float(values.int32[at].astype(np.float64), dtype)


def _int64_to_float(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    """Integers that are no float64 are refused: two different ids must not become one."""
    integers = values.int64[at]
    column, states = to_float(integers.astype(np.float64), dtype)
    for row in np.flatnonzero((integers > _EXACT_FLOAT64) | (integers < -_EXACT_FLOAT64)).tolist():
        if int(float(integers[row])) != int(integers[row]):
            states[row] = RANGE
    return column, states


def _double_to_integer(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    numbers = values.float64[at]
    states = np.zeros(numbers.shape, np.uint8)
    finite = np.isfinite(numbers)
    limits = np.iinfo(NUMPY_DTYPES[dtype])  # type: ignore[type-var]
    # 2**63 is a float64 and one more than the largest int64: the upper limit is exclusive.
    fits = finite & (numbers >= float(limits.min)) & (numbers < float(limits.max // 2 + 1) * 2.0)
    fits &= np.where(finite, np.trunc(numbers) == numbers, False)
    states[~fits] = RANGE
    states[~finite] = NON_FINITE
    return np.where(fits, numbers, 0.0).astype(NUMPY_DTYPES[dtype]), states


def _int32_to_integer(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    return values.int32[at].astype(NUMPY_DTYPES[dtype]), np.zeros(at.shape, np.uint8)


def _int64_to_integer(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    integers = values.int64[at]
    states = np.zeros(integers.shape, np.uint8)
    if dtype is DType.INT32:
        limits = np.iinfo(np.int32)
        states[(integers < limits.min) | (integers > limits.max)] = RANGE
    return integers.astype(NUMPY_DTYPES[dtype]), states


def _decimals(values: Values, at: Positions) -> list[Decimal]:
    return [Decimal128.from_bid(values.data[place : place + 16]).to_decimal() for place in at.tolist()]


def _decimal_to_float(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    """Rounded to the nearest float64 once, as the document's author would have had to."""
    decimals = _decimals(values, at)
    column, states = to_float(np.array([_as_float(d) for d in decimals], np.float64), dtype)
    for row, decimal in enumerate(decimals):
        if decimal.is_finite() and states[row] == NON_FINITE:
            states[row] = RANGE
    return column, states


def _as_float(decimal: Decimal) -> float:
    return float("nan") if decimal.is_nan() else float(decimal)


def _decimal_to_integer(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    column = np.zeros(at.shape, NUMPY_DTYPES[dtype])
    states = np.zeros(at.shape, np.uint8)
    limits = np.iinfo(NUMPY_DTYPES[dtype])  # type: ignore[type-var]
    for row, decimal in enumerate(_decimals(values, at)):
        if not decimal.is_finite():
            states[row] = NON_FINITE
        # Compared as a Decimal first: an exponent of thousands must not be written out.
        elif not limits.min <= decimal <= limits.max or decimal != decimal.to_integral_value():
            states[row] = RANGE
        else:
            column[row] = int(decimal)
    return column, states


def _bool(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    flags = values.uint8[at]
    return flags == 1, np.where(flags > 1, np.uint8(INVALID), np.uint8(OK))


def _datetime(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    return values.int64[at], np.zeros(at.shape, np.uint8)


def _string(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    data = values.data
    begins = (at + 4).tolist()
    ends = (at + 3 + values.int32[at]).tolist()  # without the terminator
    texts = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
    states = np.zeros(at.shape, np.uint8)
    if not b"".join(texts).isascii():
        for row, text in enumerate(texts):
            if not text.isascii() and not _is_utf8(text):
                states[row] = INVALID
    column = np.empty(at.shape, np.object_)
    column[:] = texts
    return column, states


def _bytes(values: Values, at: Positions, dtype: DType) -> tuple[Column, States]:
    """Binary data as it is; that of a subtype with a meaning of its own (a UUID, a vector, encrypted) is refused."""
    data = values.data
    begins = at + BINARY_HEADER
    column = np.empty(at.shape, np.object_)
    column[:] = [
        data[begin:end] for begin, end in zip(begins.tolist(), (begins + values.int32[at]).tolist(), strict=True)
    ]
    return column, np.where(np.isin(values.uint8[at + 4], PLAIN_SUBTYPES), np.uint8(OK), np.uint8(TYPE))


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


_Reader = Callable[[Values, Positions, DType], tuple[Column, States]]
_FLOAT_READERS: dict[int, _Reader] = {
    bson_types.DOUBLE: _double_to_float,
    bson_types.INT32: _int32_to_float,
    bson_types.INT64: _int64_to_float,
    bson_types.DECIMAL128: _decimal_to_float,
}
_INTEGER_READERS: dict[int, _Reader] = {
    bson_types.DOUBLE: _double_to_integer,
    bson_types.INT32: _int32_to_integer,
    bson_types.INT64: _int64_to_integer,
    bson_types.DECIMAL128: _decimal_to_integer,
}
_READERS: dict[DType, dict[int, _Reader]] = {
    DType.FLOAT32: _FLOAT_READERS,
    DType.FLOAT64: _FLOAT_READERS,
    DType.INT32: _INTEGER_READERS,
    DType.INT64: _INTEGER_READERS,
    DType.BOOL: {bson_types.BOOL: _bool},
    DType.STRING: {bson_types.STRING: _string},
    DType.DATETIME: {bson_types.DATETIME: _datetime},
    DType.BYTES: {bson_types.BINARY: _bytes},
}


def configured_value(field: str, key: str, dtype: DType, value: float | int | bool | str) -> Any:
    """What `missing` or `pad` (key) says, as the column holds it. Raises ConfigError."""
    wrong = ConfigError(f"feature {field!r}: {key}: {value!r} is no {dtype.value}")
    if dtype in (DType.STRING, DType.BYTES):
        if not isinstance(value, str):
            raise wrong
        return value.encode()
    if isinstance(value, str) or isinstance(value, bool) != (dtype is DType.BOOL):
        raise wrong
    if dtype in FLOATS or dtype is DType.BOOL:
        return value
    limits = np.iinfo(NUMPY_DTYPES[dtype])  # type: ignore[type-var]
    if value != value or value in (float("inf"), float("-inf")):
        raise wrong
    if value != int(value) or not limits.min <= value <= limits.max:
        raise wrong
    return int(value)

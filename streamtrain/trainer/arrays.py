"""The elements of many BSON arrays at once: where they are and of which types. Never interprets a value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamtrain.trainer import bson_types
from streamtrain.trainer.columns import States, Values
from streamtrain.trainer.locate import Positions

_FEW = 8  # with fewer arrays the array operations cost more than the plain walk
_LAST_INDEX = 999_999  # whose element header still fits a 64-bit word
_TYPE_BYTE = 0xFF

# What a value takes: `_EXTRA` bytes, and as many as the int32 at its place says where it is `_PREFIXED`.
_KNOWN, _PREFIXED = np.zeros(256, np.bool_), np.zeros(256, np.bool_)
_EXTRA, _LEAST = np.zeros(256, np.int64), np.zeros(256, np.int64)
for _kind, _size in bson_types.FIXED_SIZES.items():
    _KNOWN[_kind], _EXTRA[_kind] = True, _size
for _kind in (bson_types.STRING, bson_types.BINARY):
    _KNOWN[_kind] = _PREFIXED[_kind] = True
    _EXTRA[_kind], _LEAST[_kind] = bson_types.LENGTH_PREFIXED[_kind]


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of n arrays, in no order: which array each is of, its index there, its BSON type and where its
    value is. counts [n]: how many were found. malformed [n]: not well-formed as far as it was walked."""

    array: Positions
    index: Positions
    kind: States
    at: Positions
    counts: npt.NDArray[np.int64]
    malformed: npt.NDArray[np.bool_]


def find_elements(values: Values, arrays: Positions, *, most: int | None = None) -> Elements:
    """Of the arrays that begin at `arrays`; of each no more than `most` elements."""
    return _Walk(values, arrays, most).elements()


class _Walk:
    """Steps through all arrays at once, element by element; what is odd is walked on its own from there."""

    def __init__(self, values: Values, arrays: Positions, most: int | None) -> None:
        self._values = values
        self._most = most
        self._at = arrays + 4
        self._last = arrays + values.int32[arrays] - 1
        self._malformed = np.zeros(len(arrays), np.bool_)
        self._found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.int64))]

    def elements(self) -> Elements:
        going = np.arange(len(self._at))
        index = 0
        while index != self._most:
            going = going[self._at[going] < self._last[going]]
            if len(going) < _FEW or index > _LAST_INDEX:
                break
            plain = self._step(going, index)
            for array in going[~plain].tolist():
                self._alone(array, index)
            going = going[plain]
            index += 1
        for array in going.tolist():
            self._alone(array, index)
        array, place, kind, at = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        return Elements(array, place, kind, at, np.bincount(array, minlength=len(self._at)), self._malformed)

    def _step(self, going: Positions, index: int) -> npt.NDArray[np.bool_]:
        """Over the element `index` of these arrays; says in which it is as MongoDB writes it, and whole."""
        values, at = self._values, self._at[going]
        name = str(index).encode() + b"\0"
        words = values.int64[at].view(np.uint64)
        mask = np.uint64((1 << 8 * (len(name) + 1)) - 1 - _TYPE_BYTE)
        kinds = values.uint8[at]
        begins = at + 1 + len(name)
        plain = ((words & mask) == np.uint64(int.from_bytes(name, "little") << 8)) & _KNOWN[kinds]
        lengths = np.where(_PREFIXED[kinds], values.int32[begins], 0)
        ends = begins + lengths + _EXTRA[kinds]
        plain &= (lengths >= _LEAST[kinds]) & (ends <= self._last[going])
        plain &= (kinds != bson_types.STRING) | (values.uint8[np.where(plain, ends - 1, 0)] == 0)
        whole = going[plain]
        self._at[whole] = ends[plain]
        self._found.append((whole, np.full(len(whole), index), kinds[plain], begins[plain]))
        return np.asarray(plain, np.bool_)

    def _alone(self, array: int, index: int) -> None:
        """One array, from where it stands to its end."""
        data, last = self._values.data, int(self._last[array])
        at = int(self._at[array])
        kinds: list[int] = []
        places: list[int] = []
        while at < last and index + len(kinds) != self._most:
            terminator = data.find(0, at + 1, last)
            size = None if terminator < 0 else bson_types.value_size(data, data[at], terminator + 1, last)
            if size is None:
                self._malformed[array] = True
                return
            kinds.append(data[at])
            places.append(terminator + 1)
            at = terminator + 1 + size
        indices = np.arange(index, index + len(kinds))
        self._found.append((np.full(len(kinds), array), indices, np.array(kinds, np.uint8), np.array(places, np.int64)))

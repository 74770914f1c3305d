"""A job's filter over raw documents, many at once: only the fields that it names are read, and the rest of a document
is never built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import bson
import numpy as np
import numpy.typing as npt
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import InvalidBSON

from streamtrain.filters import Filter
from streamtrain.trainer import bson_types
from streamtrain.trainer.columns import Values
from streamtrain.trainer.locate import ABSENT, Locator, Positions

NO, YES, UNREADABLE = np.uint8(0), np.uint8(1), np.uint8(2)

_BATCH = 4096
# Text that is no UTF-8 is compared, like all other, by its bytes.
_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="surrogateescape"
)


class Filtering:
    """Raises FilterError for what is no query."""

    def __init__(self, query: Mapping[str, Any]) -> None:
        self._filter = Filter(query)
        self._fields = self._filter.fields
        self._locator = Locator(self._fields)

    def answers(self, documents: Sequence[bytes]) -> npt.NDArray[np.uint8]:
        """Per document YES, NO, or UNREADABLE where a field that the answer depends on is malformed."""
        found = np.empty(len(documents), np.uint8)
        for first in range(0, len(documents), _BATCH):
            found[first : first + _BATCH] = self._some(documents[first : first + _BATCH])
        return found

    def _some(self, documents: Sequence[bytes]) -> npt.NDArray[np.uint8]:
        located = self._locator.locate(documents)
        values = Values.of(located.data)
        parts: list[dict[str, Any]] = [{} for _ in documents]
        unreadable = located.malformed.copy()
        for place, field in enumerate(self._fields):
            kinds, at = located.kind[place], located.at[place]
            for kind in np.unique(kinds).tolist():
                if kind == ABSENT:
                    continue
                rows = np.flatnonzero(kinds == kind)
                for row, value in zip(rows.tolist(), _read(values, kind, at[rows]), strict=True):
                    parts[row][field] = value
                    unreadable[row] |= value is _MALFORMED
        matches = self._filter.matches
        answers = np.fromiter(
            (not bad and matches(part) for part, bad in zip(parts, unreadable.tolist(), strict=True)),
            np.uint8,
            len(parts),
        )
        answers[unreadable] = UNREADABLE
        return answers


_MALFORMED = object()


def _read(values: Values, kind: int, at: Positions) -> list[Any]:
    """The values of one BSON type that lie at `at`."""
    if kind == bson_types.DOUBLE:
        return list(values.float64[at].tolist())
    if kind == bson_types.INT32:
        return list(values.int32[at].tolist())
    if kind == bson_types.BOOL:
        return list((values.uint8[at] != 0).tolist())
    if kind == bson_types.NULL:
        return [None] * len(at)
    if kind == bson_types.STRING:
        data = values.data
        ends = (at + 3 + values.int32[at]).tolist()  # without the terminator
        return [
            data[begin:end].decode("utf-8", "surrogateescape")
            for begin, end in zip((at + 4).tolist(), ends, strict=True)
        ]
    return [_decoded(values.data, kind, place) for place in at.tolist()]


def _decoded(data: bytes, kind: int, at: int) -> Any:
    """The value by itself, as the only field of a document."""
    size = bson_types.value_size(data, kind, at, len(data))
    if size is None:
        return _MALFORMED
    document = (size + 8).to_bytes(4, "little") + bytes((kind, 0x76, 0)) + data[at : at + size] + b"\0"
    try:
        return bson.decode(document, _CODEC)["v"]
    except InvalidBSON:
        return _MALFORMED

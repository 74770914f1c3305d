"""The shape that successive change events share, so that most are cut with four calls instead of a walk over
their elements. An event of another shape is told apart, never read wrongly."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from streamtrain.source.elements import elements
from streamtrain.types import ChangeEvent

_Run = tuple[Callable[[bytes, int], tuple[Any, ...]], tuple[bytes, ...], int]

# Formats of the values that have one size, by type byte; the two that are wanted are integers.
_VALUES = {0x01: "8s", 0x07: "12s", 0x08: "1s", 0x09: "q", 0x10: "4s", 0x11: "Q", 0x12: "8s", 0x13: "16s"}
_LENGTH_OF_DOCUMENT = "i"
_DOCUMENTS = (0x03, 0x04)


class Shape:
    """Learned from one event that `EventParser` has read by its elements.

    An event is seen as runs, each constant bytes and values in turn, `c v c v ... c l`, where `l` is the
    length of a document that begins there; the next run follows that document. Constant are the fields' names
    in their order, the operation and the namespace: so all of them need not be read again.
    """

    def __init__(self, runs: list[_Run], places: tuple[int, int, int, int, int], event: ChangeEvent) -> None:
        self._runs = runs
        self._token, self._key, self._document, self._cluster_time, self._wall_time = places
        self._operation = event.operation
        self._namespace = event.namespace

    @staticmethod
    def of(batch: bytes, at: int, event: ChangeEvent) -> Shape | None:
        """The shape of the event that begins at `at`; None if it has parts whose place cannot be foretold."""
        runs: list[_Run] = []
        found: dict[bytes, int] = {}
        formats, constants, constant = ["<"], [], batch[at:at]
        values = 0

        def value(form: str) -> None:
            nonlocal constant, values
            formats.extend((f"{len(constant)}s", form))
            constants.append(constant)
            constant = b""
            values += 1

        def finish() -> None:
            layout = struct.Struct("".join(formats))
            runs.append((layout.unpack_from, tuple(constants), layout.size))
            del formats[1:], constants[:]

        formats.append("4x")  # the event's own length
        for tag, begin, end in elements(batch, at):
            constant += tag + b"\x00"
            kind = tag[0]
            if tag in (b"\x02operationType", b"\x03ns"):
                constant += batch[begin:end]
            elif kind in _DOCUMENTS:
                found[tag] = values
                value(_LENGTH_OF_DOCUMENT)
                finish()
            elif kind == 0x0A:
                pass  # null has no bytes
            elif kind in _VALUES:
                found[tag] = values
                value(_VALUES[kind])
            elif kind == 0x05:  # binary, as collectionUUID: one that has another length is another shape
                constant += batch[begin : begin + 5]
                value(f"{end - begin - 5}s")
            else:
                return None
        constant += b"\x00"
        value("0s")
        finish()
        wanted = (b"\x03_id", b"\x03documentKey", b"\x03fullDocument", b"\x11clusterTime", b"\x09wallTime")
        token, key, document, cluster_time, wall_time = (found.get(tag, -1) for tag in wanted)
        return Shape(runs, (token, key, document, cluster_time, wall_time), event)

    def cut(self, batch: bytes, at: int, end: int) -> ChangeEvent | None:
        """The event in `batch[at:end]`, None if it has another shape."""
        got: list[Any] = []
        position = at
        try:
            for unpack, constants, size in self._runs:
                values = unpack(batch, position)
                if values[::2] != constants:
                    return None
                got += values[1::2]
                position += size
                length = values[-1]
                if length.__class__ is int:
                    if length < 5:
                        return None
                    begin = position - 4
                    position = begin + length
                    got[-1] = batch[begin:position]
        except struct.error:
            return None  # it is shorter
        if position != end:
            return None
        return ChangeEvent(
            got[self._token],
            self._operation,
            self._namespace,
            got[self._key],
            got[self._document] if self._document >= 0 else None,
            got[self._cluster_time],
            got[self._wall_time] if self._wall_time >= 0 else None,
        )

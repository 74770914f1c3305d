"""Where the schema's values lie inside raw BSON: walks many documents at once, touching only their top level and
what the paths name. It never interprets a value, and a malformed document never disturbs its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streamtrain.trainer.bson_types import (
    ARRAY,
    DOCUMENT,
    FIXED_SIZES,
    LENGTH_PREFIXED,
    TERMINATED,
    value_size,
)

Positions = npt.NDArray[np.int64]

ABSENT = 0  # no element of that name; also what a document holds that was found malformed
PADDING = 512  # bytes after the last document, so that headers can be compared past its end
_LONGEST_NAME = PADDING - 16  # longer ones are walked document by document
_LONGEST_TEMPLATE = 512  # elements of the pilot document that are tried on the others
_PASSES = 6  # templates tried on a level before the rest is walked document by document
_TYPE_BYTE = np.uint64(0xFF)
_FEW = 8  # with fewer documents the array operations cost more than the plain walk


@dataclass(frozen=True, slots=True)
class Located:
    """For n documents and the paths in order: kind [paths, n] is the BSON type byte of the first element of that
    name (ABSENT where there is none), at [paths, n] where its value begins in `data`; malformed [n]."""

    data: bytes
    kind: npt.NDArray[np.uint8]
    at: Positions
    malformed: npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Node:
    """A level of the paths' trie: by element name, the path that ends there and the level below."""

    leaf: int | None = None
    below: dict[bytes, _Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Header:
    """An element header of the pilot document, with its first eight bytes as a number to compare at once."""

    kind: int
    name: bytes
    size: int  # type byte, name and terminator
    word: np.uint64
    mask: np.uint64
    tail: tuple[tuple[int, np.uint64, np.uint64], ...]  # the bytes after the first eight: (offset, word, mask)


class Locator:
    """Finds dotted paths. A path descends into documents and arrays (whose names are indices); of duplicate
    names the first one counts, as in MongoDB's own queries."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = len(paths)
        self._root = _Node()
        for leaf, path in enumerate(paths):
            node = self._root
            for name in path.split("."):
                node = node.below.setdefault(name.encode(), _Node())
            node.leaf = leaf

    def locate(self, documents: Sequence[bytes]) -> Located:
        """Raises nothing for whatever the documents hold."""
        data = b"".join((*documents, bytes(PADDING)))
        n = len(documents)
        ends = np.fromiter(map(len, documents), np.int64, n).cumsum()
        starts = np.zeros(n, np.int64)
        starts[1:] = ends[:-1]
        return self._walk(data, starts, ends)

    def _walk(self, data: bytes, starts: Positions, ends: Positions) -> Located:
        located = self._nothing(data, len(starts))
        walk = _Walk(located)
        rows = np.arange(len(starts))
        sound = walk.framed(starts, ends - starts)
        if not sound.all():
            located.malformed[~sound] = True
            rows, starts, ends = rows[sound], starts[sound], ends[sound]
        walk.level(rows, starts + 4, ends - 1, self._root)
        if located.malformed.any():
            located.kind[:, located.malformed] = ABSENT
        return located

    def locate_one_by_one(self, documents: Sequence[bytes]) -> Located:
        """The same, each document walked on its own: what `locate` falls back to, and is tested against."""
        data = b"".join((*documents, bytes(PADDING)))
        located = self._nothing(data, len(documents))
        walk = _Walk(located)
        start = 0
        for row, document in enumerate(documents):
            end = start + len(document)
            if walk.framed_one(start, len(document)):
                walk.one(row, start + 4, end - 1, self._root)
            else:
                located.malformed[row] = True
            if located.malformed[row]:
                located.kind[:, row] = ABSENT
            start = end
        return located

    def _nothing(self, data: bytes, documents: int) -> Located:
        return Located(
            data=data,
            kind=np.zeros((self._paths, documents), np.uint8),
            at=np.zeros((self._paths, documents), np.int64),
            malformed=np.zeros(documents, np.bool_),
        )


class _Walk:
    """One walk over `data`. `last` is always the place of the terminator of the level that is walked."""

    def __init__(self, located: Located) -> None:
        self._data = located.data
        self._located = located
        self._bytes = np.frombuffer(located.data, np.uint8)
        words = len(located.data) - 7
        self._words = np.ndarray((words,), "<u8", buffer=located.data, strides=(1,))
        self._lengths = np.ndarray((words,), "<i4", buffer=located.data, strides=(1,))

    def framed(self, starts: Positions, sizes: Positions) -> npt.NDArray[np.bool_]:
        """Whether a document of `sizes` bytes says so itself, and ends with its terminator."""
        lengths = self._lengths[starts]
        closed = self._bytes[starts + np.maximum(sizes, 1) - 1] == 0
        framed: npt.NDArray[np.bool_] = (sizes >= 5) & (lengths == sizes) & closed
        return framed

    def framed_one(self, start: int, size: int) -> bool:
        data = self._data
        return (
            size >= 5
            and int.from_bytes(data[start : start + 4], "little", signed=True) == size
            and data[start + size - 1] == 0
        )

    def level(self, rows: Positions, at: Positions, last: Positions, node: _Node) -> None:
        """Walks all `rows` from `at` to the end of their level."""
        for _ in range(_PASSES):
            if len(rows) < _FEW:
                break
            self._follow_template(rows, at, last, node)
            left = np.flatnonzero(at < last)
            if len(left) == 0:
                return
            rows, at, last = rows[left], at[left], last[left]
        for row, position, end in zip(rows.tolist(), at.tolist(), last.tolist(), strict=True):
            self.one(row, position, end, node)

    def _follow_template(self, rows: Positions, at: Positions, last: Positions, node: _Node) -> None:
        """Advances `at` in place: documents that lack an element of the pilot wait for its next one."""
        rank = len(rows) * 9 // 10  # long documents are likely to have all elements, the longest to be odd
        pilot = int(np.argpartition(last - at, rank)[rank])
        for header in self._headers(int(at[pilot]), int(last[pilot])):
            words = self._words[at]
            if ((words & header.mask) == header.word).all() and self._same_tail(at, header):
                self._advance(header, header.kind, None, rows, at, last, node)
                continue
            # Type bytes may differ from document to document: then only the names are compared.
            nameless = header.mask & ~_TYPE_BYTE
            chosen = np.flatnonzero(((words & nameless) == (header.word & nameless)) & (at < last))
            for offset, word, mask in header.tail:
                chosen = chosen[(self._words[at[chosen] + offset] & mask) == word]
            kinds = words[chosen].astype(np.uint8)
            for kind in np.unique(kinds).tolist():
                self._advance(header, kind, chosen[kinds == kind], rows, at, last, node)
        if at[pilot] < last[pilot]:  # malformed, or longer than a template
            self.one(int(rows[pilot]), int(at[pilot]), int(last[pilot]), node)
            at[pilot] = last[pilot]

    def _headers(self, at: int, last: int) -> list[_Header]:
        """The pilot's elements from `at` on, as far as they are well-formed."""
        headers: list[_Header] = []
        data = self._data
        while at < last and len(headers) < _LONGEST_TEMPLATE:
            terminator = data.find(0, at + 1, last)
            size = None if terminator < 0 else value_size(data, data[at], terminator + 1, last)
            if size is None or terminator - at > _LONGEST_NAME:
                break
            headers.append(_header(data[at : terminator + 1]))
            at = terminator + 1 + size
        return headers

    def _same_tail(self, at: Positions, header: _Header) -> bool:
        return all(((self._words[at + offset] & mask) == word).all() for offset, word, mask in header.tail)

    def _advance(
        self,
        header: _Header,
        kind: int,
        chosen: Positions | None,
        rows: Positions,
        at: Positions,
        last: Positions,
        node: _Node,
    ) -> None:
        """Steps over one element of type `kind` in the `chosen` documents (None: in all of them)."""
        if chosen is not None:
            rows, starts, ends = rows[chosen], at[chosen], last[chosen]
        else:
            starts, ends = at, last
        values = starts + header.size
        after, sound = self._after(kind, values, ends)
        if not sound.all():
            self._located.malformed[rows[~sound]] = True
            after = np.where(sound, after, ends)
        at[slice(None) if chosen is None else chosen] = after
        found = node.below.get(header.name)
        if found is not None:
            if not sound.all():
                rows, values, after = rows[sound], values[sound], after[sound]
            self._found(found, kind, rows, values, after)

    def _after(self, kind: int, values: Positions, ends: Positions) -> tuple[Positions, npt.NDArray[np.bool_]]:
        """Where the values end, and which of them lie inside their level and are closed."""
        if kind in FIXED_SIZES:
            after = values + FIXED_SIZES[kind]
            return after, after <= ends
        if kind in LENGTH_PREFIXED:
            extra, least = LENGTH_PREFIXED[kind]
            lengths = self._lengths[values].astype(np.int64)
            after = values + lengths + extra
            sound = (lengths >= least) & (after <= ends)
            if kind in TERMINATED:
                sound &= self._bytes[np.where(sound, after - 1 - TERMINATED[kind], 0)] == 0
            return after, sound
        sizes = [
            value_size(self._data, kind, value, end) for value, end in zip(values.tolist(), ends.tolist(), strict=True)
        ]
        sound = np.array([size is not None for size in sizes], np.bool_)
        return values + np.array([size or 0 for size in sizes], np.int64), sound

    def _found(self, found: _Node, kind: int, rows: Positions, values: Positions, after: Positions) -> None:
        if found.leaf is not None:
            kinds, places = self._located.kind[found.leaf], self._located.at[found.leaf]
            first = kinds[rows] == ABSENT
            if first.all():
                kinds[rows], places[rows] = kind, values
            else:
                kinds[rows[first]], places[rows[first]] = kind, values[first]
        if found.below and kind in (DOCUMENT, ARRAY) and len(rows):
            self.level(rows, values + 4, after - 1, found)

    def one(self, row: int, at: int, last: int, node: _Node) -> None:
        """The same for one document."""
        data = self._data
        while at < last:
            terminator = data.find(0, at + 1, last)
            size = None if terminator < 0 else value_size(data, data[at], terminator + 1, last)
            if size is None:
                self._located.malformed[row] = True
                return
            value = terminator + 1
            found = node.below.get(data[at + 1 : terminator])
            if found is not None:
                kind = data[at]
                if found.leaf is not None and self._located.kind[found.leaf, row] == ABSENT:
                    self._located.kind[found.leaf, row] = kind
                    self._located.at[found.leaf, row] = value
                if found.below and kind in (DOCUMENT, ARRAY):
                    self.one(row, value + 4, value + size - 1, found)
            at = value + size


def _header(raw: bytes) -> _Header:
    """raw: type byte, name and terminator."""
    words = []
    for offset in range(0, len(raw), 8):
        part = raw[offset : offset + 8]
        bits = (1 << 8 * len(part)) - 1
        words.append((offset, np.uint64(int.from_bytes(part, "little")), np.uint64(bits)))
    _, first, mask = words[0]
    return _Header(kind=raw[0], name=raw[1:-1], size=len(raw), word=first, mask=mask, tail=tuple(words[1:]))

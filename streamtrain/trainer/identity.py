"""Which version in memory a record is about. Identity is (namespace, documentKey): an exact match first, else a
version of the same `_id` whose documentKey has no differing value among the fields that both name, because the
shape of a documentKey changes when a collection is sharded, refined or resharded."""

from __future__ import annotations

from collections.abc import Iterator

from streamtrain.trainer.bson_types import value_size

# A document's version in memory: its code (log.py), where its documentKey is its key `{_id}`, else (documentKey, code);
# several documents of the same `_id` are a list of these.
Version = tuple[bytes, int]
Entry = int | Version | list[Version]


class Identities:
    """The documents of one namespace that are in memory."""

    __slots__ = ("_namesakes", "entries")

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self._namesakes = 0  # documents beside the first of their `_id`

    def __len__(self) -> int:
        return len(self.entries) + self._namesakes

    def find(self, key: bytes, document_key: bytes) -> Version | None:
        """The version that a record with this key and documentKey is about."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        if isinstance(entry, int):  # known by its `_id` alone
            return (key, entry)
        if isinstance(entry, tuple):
            return entry if entry[0] == document_key or agree(key, entry[0], document_key) else None
        for version in entry:
            if version[0] == document_key:
                return version
        fitting = [version for version in entry if agree(key, version[0], document_key)]
        return max(fitting, key=lambda version: version[1], default=None)

    def put(self, key: bytes, replaced: Version | None, version: Version | None) -> None:
        """Puts `version` (None: nothing) in the place of `replaced` (None: beside what is there)."""
        before = _versions(key, self.entries.get(key))
        versions = [v for v in before if v != replaced]
        if version is not None:
            versions.append(version)
        self._namesakes += max(1, len(versions)) - max(1, len(before))
        if not versions:
            self.entries.pop(key, None)
        elif len(versions) > 1:
            self.entries[key] = versions
        else:
            self.entries[key] = _compact(key, versions[0])

    def replace(self, key: bytes, replaced: Version | None, version: Version) -> None:
        """`put`, quickly where the key has one document."""
        if replaced is None or isinstance(self.entries[key], list):
            self.put(key, replaced, version)
        else:
            self.entries[key] = _compact(key, version)

    def versions(self) -> Iterator[Version]:
        for key, entry in self.entries.items():
            yield from _versions(key, entry)

    def forget(self, key: bytes, code: int) -> None:
        """Removes the version with this code, if it is still the latest of its document."""
        self.recode(key, code, None)

    def recode(self, key: bytes, code: int, new: int | None) -> bool:
        """Gives the version with this code another one (None: removes it), if it is still the latest of its document;
        returns whether it was."""
        entry = self.entries.get(key)
        if entry == code and new is None:  # by far the most common: the window slides on
            del self.entries[key]
            return True
        for version in _versions(key, entry):
            if version[1] == code:
                self.put(key, version, None if new is None else (version[0], new))
                return True
        return False


def _versions(key: bytes, entry: Entry | None) -> list[Version]:
    if entry is None:
        return []
    if isinstance(entry, int):
        return [(key, entry)]
    return [entry] if isinstance(entry, tuple) else entry


def _compact(key: bytes, version: Version) -> Entry:
    return version[1] if version[0] == key else version


def agree(key: bytes, one: bytes, other: bytes) -> bool:
    """Both have the same `_id`."""
    if key in (one, other):
        return True
    ours, theirs = _elements(one), _elements(other)
    return all(theirs.get(name, value) == value for name, value in ours.items())


def _elements(document: bytes) -> dict[bytes, bytes]:
    """Type and value bytes by name; what is malformed ends the document."""
    elements: dict[bytes, bytes] = {}
    at, last = 4, len(document) - 1
    while at < last:
        terminator = document.find(0, at + 1, last)
        size = None if terminator < 0 else value_size(document, document[at], terminator + 1, last)
        if size is None:
            break
        end = terminator + 1 + size
        elements[document[at + 1 : terminator]] = document[at : at + 1] + document[terminator + 1 : end]
        at = end
    return elements

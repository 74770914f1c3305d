"""What an application does to a collection, as its change stream showed for some seconds: how often it writes, what
its inserts bring and what its updates set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from streamtrain.init.profile import leaves

_MOST_PATHS = 3000
_MOST_UPDATES = 2000


class Habits:
    """seconds: how long it was watched. unseen: why it could not be, where it was not."""

    def __init__(self, *, seconds: float = 0.0, unseen: str = "") -> None:
        self.seconds = seconds
        self.unseen = unseen
        self.inserts = self.updates = self.replaces = self.deletes = 0
        self._inserted: Counter[str] = Counter()
        self._updates: Counter[frozenset[str]] = Counter()

    def add(self, event: Mapping[str, Any]) -> None:
        """A change event."""
        match event.get("operationType"):
            case "insert":
                self.inserts += 1
                for path, value in leaves(event.get("fullDocument") or {}):
                    if value is not None and (path in self._inserted or len(self._inserted) < _MOST_PATHS):
                        self._inserted[path] += 1
            case "update":
                self.updates += 1
                touched = _touched(event.get("updateDescription") or {})
                if touched in self._updates or len(self._updates) < _MOST_UPDATES:
                    self._updates[touched] += 1
            case "replace":
                self.replaces += 1
            case "delete":
                self.deletes += 1

    @property
    def writes(self) -> int:
        return self.inserts + self.updates + self.replaces

    def per_second(self, count: int) -> float:
        return count / self.seconds if self.seconds else 0.0

    def inserted(self, path: str) -> int:
        """Inserts that brought the field."""
        return self._inserted[path]

    def updated(self, path: str) -> int:
        """Updates that set the field, or a document around it."""
        names = _with_parents(path)
        return sum(count for touched, count in self._updates.items() if touched & names)

    def most_updated(self, limit: int) -> list[tuple[str, float]]:
        """The paths that updates set most often, each with its share of the updates."""
        counts: Counter[str] = Counter()
        for touched, count in self._updates.items():
            counts.update(dict.fromkeys(touched, count))
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return [(path, count / self.updates) for path, count in ranked[:limit]]


def _touched(description: Mapping[str, Any]) -> frozenset[str]:
    """Paths of the fields an update set or removed; a place in an array counts as the array."""
    names = [*(description.get("updatedFields") or {}), *(description.get("removedFields") or ())]
    names += [truncated.get("field", "") for truncated in description.get("truncatedArrays") or ()]
    return frozenset(_without_places(str(name)) for name in names[:200])


def _without_places(path: str) -> str:
    names: list[str] = []
    for name in path.split("."):
        if name.isdecimal() and names:
            break
        names.append(name)
    return ".".join(names)


def _with_parents(path: str) -> frozenset[str]:
    names = path.split(".")
    return frozenset(".".join(names[:depth]) for depth in range(1, len(names) + 1))

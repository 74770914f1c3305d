"""Manifests as stored documents, and which of them, and of their artifacts, are still needed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamtrain.codec import from_document, to_document
from streamtrain.errors import StreamtrainError
from streamtrain.types import Manifest

FORMAT = 1
_EPOCH_IN_NAME = re.compile(r"/e(\d+)-g\d+-r\d+/")


def to_stored(manifest: Manifest) -> dict[str, Any]:
    """The document: `_id` is the manifest's id. Labels and hyper-parameters may have dots in their names, so scores,
    holdout and hyper are lists."""
    document = to_document(manifest)
    document["hyper"] = pairs(document["hyper"])
    for name in ("scores", "holdout"):
        document[name] = [{"label": label, **score} for label, score in document[name].items()]
    return {"_id": document.pop("id"), "format": FORMAT, **document}


def from_stored(document: Mapping[str, Any]) -> Manifest:
    """Raises StreamtrainError for what a newer version has written, or what is no manifest."""
    fields = dict(document)
    if fields.pop("format", 0) > FORMAT:
        raise StreamtrainError(
            f"the manifest {document['_id']} was written by a newer streamtrain", hint="upgrade this one"
        )
    try:
        for name, known in (("scores", fields["scores"]), ("holdout", fields.get("holdout", ()))):
            fields[name] = {score["label"]: {k: v for k, v in score.items() if k != "label"} for score in known}
        hyper = {pair["key"]: pair["value"] for pair in fields.pop("hyper", ())}
        return from_document(Manifest, {"id": fields.pop("_id"), **fields, "hyper": hyper})
    except (ValueError, KeyError, TypeError) as error:
        raise StreamtrainError(f"the manifest {document['_id']} cannot be read: {type(error).__name__}") from error


def pairs(mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A mapping whose keys may have dots in them, as MongoDB keeps it."""
    return [{"key": key, "value": value} for key, value in mapping.items()]


@dataclass(frozen=True, slots=True)
class Entry:
    """What pruning looks at of a stored manifest."""

    id: str
    parent: str | None
    epoch: int
    artifacts: tuple[str, ...]
    lineage: str

    @classmethod
    def of_stored(cls, document: Mapping[str, Any]) -> Entry:
        names = tuple(str(ref["name"]) for ref in document["artifacts"].values())
        return cls(document["_id"], document["parent"], document["epoch"], names, document.get("lineage", ""))


def chain(entries: Sequence[Entry], *, head: str | None, keep: int) -> list[Entry]:
    """The newest `keep` manifests that lead to the head, the head among them. One that was written and never
    became the head is in no chain."""
    by_id = {entry.id: entry for entry in entries}
    kept: list[Entry] = []
    while head is not None and (entry := by_id.get(head)) is not None and len(kept) < keep:
        kept.append(entry)
        head = entry.parent
    return kept


def orphans(names: Sequence[str], *, kept: Sequence[Entry], epoch: int) -> list[str]:
    """Artifacts that no kept manifest names, and that no daemon newer than `epoch` can have written."""
    needed = {name for entry in kept for name in entry.artifacts}
    return [name for name in names if name not in needed and _written_by(name, epoch)]


def _written_by(name: str, epoch: int) -> bool:
    """By that daemon or an earlier one. What is not named like an artifact of ours is nobody's to remove."""
    match = _EPOCH_IN_NAME.search(name)
    return match is not None and int(match[1]) <= epoch

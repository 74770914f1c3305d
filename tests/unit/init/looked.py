"""What `init` has seen, made from documents without a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import bson

from streamtrain.config import Settings
from streamtrain.init.collection import CODEC
from streamtrain.init.habits import Habits
from streamtrain.init.pace import Pace
from streamtrain.init.profile import Profile
from streamtrain.init.suggestion import Seen, Suggestion
from streamtrain.init.text import render
from streamtrain.settings import settings_file

Document = Mapping[str, Any]


def profile(documents: Iterable[Document]) -> Profile:
    """Of documents as a server would give them back."""
    found = Profile()
    for document in documents:
        raw = bson.encode(document)
        found.add(bson.decode(raw, CODEC), size=len(raw))
    return found


def seen(
    documents: Sequence[Document],
    *,
    newest: Sequence[Document] = (),
    events: Sequence[Document] = (),
    seconds: float = 0.0,
    pace: Pace | None = None,
) -> Seen:
    habits = Habits(seconds=seconds or (1.0 if events else 0.0))
    for event in events:
        habits.add(event)
    return Seen(
        database="shop",
        collection="orders",
        profile=profile(documents),
        newest=profile(newest),
        habits=habits,
        pace=pace or Pace(),
    )


def loaded(suggestion: Suggestion, folder: Path, *, uri: str = "mongodb://127.0.0.1:27017") -> Settings:
    """The settings that its file says."""
    file = folder / "streamtrain.yaml"
    file.write_text(render(suggestion, kafka="127.0.0.1:9092", uri=uri, uri_file=None))
    return settings_file.load(file, environ={}).settings

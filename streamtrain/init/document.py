"""A suggestion for programs: what `init --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamtrain.init.suggestion import Suggestion


def document(suggestion: Suggestion, *, file: str, uri_file: str | None) -> Mapping[str, Any]:
    seen, budget = suggestion.seen, suggestion.budget
    habits, pace = seen.habits, seen.pace
    return {
        "file": file,
        "uri_file": uri_file,
        "namespace": f"{seen.database}.{seen.collection}",
        "sampled": seen.profile.documents,
        "count": pace.count,
        "writes_per_second": pace.per_second,
        "watched": {
            "seconds": round(habits.seconds, 3),
            "inserts": habits.inserts,
            "updates": habits.updates,
            "replaces": habits.replaces,
            "deletes": habits.deletes,
            "unseen": habits.unseen or None,
        },
        "source": suggestion.source,
        "job": suggestion.job,
        "label": suggestion.label.document(),
        "candidates": [each.document() for each in suggestion.others],
        "features_as_of": "first" if suggestion.changing else "label",
        "features": [{**each.spec(), "why": each.told} for each in suggestion.features],
        "left_out": [{"field": each.field, "why": each.why} for each in suggestion.left_out],
        "window": {"duration_s": budget.window, "max_records": budget.max_records},
    }

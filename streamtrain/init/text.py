"""The settings file of a suggestion. Every value is written with the reason for it, and everything that came from
documents is quoted so that no name of a field can be more than a name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from streamtrain.init.suggestion import Suggestion
from streamtrain.settings.settings_text import duration
from streamtrain.types import DType, Task

_PLAIN = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*$")
_WORDS_OF_YAML = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})
_WIDTH = 118
_SHOWN_LEFT_OUT = 60
_SHOWN_UPDATED = 8


def render(suggestion: Suggestion, *, kafka: str, uri: str | None, uri_file: str | None) -> str:
    """uri: without credentials, to be written into the file; else uri_file: the name of the file that holds it."""
    return "\n".join(_lines(suggestion, kafka, uri, uri_file)) + "\n"


def _lines(s: Suggestion, kafka: str, uri: str | None, uri_file: str | None) -> Iterator[str]:
    seen, label, budget = s.seen, s.label, s.budget
    namespace = f"{seen.database}.{seen.collection}"
    yield from _comment(
        f"Written by `streamtrain init` from {seen.profile.documents:,} documents of {_safe(namespace)}. It is a "
        "start: what is predicted, and from what, is for you to decide. `streamtrain validate --connect` checks it, "
        "`streamtrain config --schema` says what else there is.",
        "",
    )
    yield "kafka:"
    yield f"  bootstrap_servers: {_text(kafka)}   # where your brokers are"
    if budget.retention is not None:
        yield f"  retention: {duration(budget.retention)}   # twice the window below: an outage that long loses nothing"
    yield ""
    yield from _comment(
        "Checkpoints and the lease. They are in the same MongoDB unless `uri` names another one; the user needs the "
        "role readWrite on this database, and read on the source's.",
        "",
    )
    yield "state:"
    yield "  database: streamtrain"
    yield ""
    yield "sources:"
    yield f"  - name: {s.source}"
    if uri_file is not None:
        yield from _comment(
            "The URI is in a file of its own, for it holds a password; keep that file out of version control.", "    "
        )
        yield f"    uri_file: {_text(uri_file)}"
    else:
        yield f"    uri: {_text(uri or '')}"
    yield f"    database: {_text(seen.database)}"
    yield f"    collection: {_text(seen.collection)}"
    yield f"    partitions: {budget.partitions}   # of its topic, for good: also the most workers that a job can have"
    yield ""
    yield from _habits(s)
    yield "jobs:"
    yield f"  - name: {s.job}"
    yield f"    source: {s.source}"
    yield from _label(s)
    yield from _versions(s)
    yield "    features:"
    for each in s.features:
        yield from _beside(f"      - {_flow(each.spec())}", each.told, "      ")
    yield from _left_out(s)
    yield from _beside("    window:", "what is kept in memory to learn again from", "    ")
    yield from _beside(f"      duration: {duration(budget.window)}", budget.window_told, "      ")
    yield from _beside(f"      max_records: {budget.max_records}", budget.records_told, "      ")
    yield from _beside(
        f"      half_life: {duration(budget.half_life)}", "after it a document is learned again half as often", "      "
    )
    yield "    round:"
    yield from _beside(f"      max_wait: {duration(budget.max_wait_ms / 1000)}", budget.wait_told, "      ")
    yield from _beside(
        f"      batch_size: {budget.batch_size}", "rows of a gradient step; fewer learn sooner, more faster", "      "
    )
    yield "    checkpoint:"
    yield from _beside("      every: 30s", "the most that is learned twice after a crash", "      ")
    yield "    workers:"
    yield from _beside(
        "      min: 1", "processes that train it; more for more than some thousand rows a second", "      "
    )
    if label.task is Task.CLASSIFICATION and label.classes == 2:
        yield from _comment("Rare positives? `weight: {classes: {1: 5.0}}` makes each count as five.", "    ")


def _habits(s: Suggestion) -> Iterator[str]:
    habits = s.seen.habits
    if habits.unseen:
        yield from _comment(f"How the collection is written to could not be watched: {_safe(habits.unseen)}", "")
    elif habits.seconds:
        kinds = (
            ("inserts", habits.inserts),
            ("updates", habits.updates),
            ("replacements", habits.replaces),
            ("deletes", habits.deletes),
        )
        counts = ", ".join(
            f"{count:,} {kind} ({habits.per_second(count):.3g} a second)" for kind, count in kinds if count
        )
        yield from _comment(f"In {habits.seconds:.0f} s of watching there were {counts or 'no writes'}.", "")
        if habits.updates:
            set_ = ", ".join(f"{_safe(path)} ({share:.0%})" for path, share in habits.most_updated(_SHOWN_UPDATED))
            yield from _comment(f"What updates set most often: {set_}.", "")
    if habits.deletes:
        yield from _comment(
            "A deleted document is forgotten: it is not learned again. If your deletes only clear away what is "
            "finished (TTL, archiving), set on_delete: keep in the job.",
            "",
        )


def _label(s: Suggestion) -> Iterator[str]:
    label = s.label
    reasons = "; ".join(label.reasons) or "you named it"
    yield "    labels:"
    asked = "you named it; " if s.asked and label.reasons else ""
    yield from _comment(f"What is predicted: {_safe(label.field)} ({asked}{_safe(reasons)}).", "      ")
    if label.note:
        yield from _comment(f"{label.note[:1].upper()}{label.note[1:]}.", "      ")
    for each in s.others:
        told = f"It could also have been {_safe(each.field)} ({_safe('; '.join(each.reasons))})."
        yield from _comment(told, "      ")
    if label.late and label.absent_value is None:
        yield from _comment("A document waits without it, and is learned from when an update brings it.", "      ")
    if not label.late:
        yield from _comment(
            "It is there from the start, so only what you want to know before it is known should be a feature.",
            "      ",
        )
    spec: dict[str, Any] = {"field": label.field, "dtype": label.dtype.value, "task": label.task.value}
    if label.task is Task.CLASSIFICATION:
        spec["classes"] = label.classes
    if label.absent_value is not None:
        spec["absent_after"] = "24h"
        spec["absent_value"] = bool(label.absent_value) if label.dtype is DType.BOOL else label.absent_value
        yield from _comment(
            "It was only ever seen to be true: absence means no, learned when it has not come for a day. Set the time "
            "after which it will not come any more.",
            "      ",
        )
    yield f"      - {_flow(spec)}"


def _versions(s: Suggestion) -> Iterator[str]:
    if s.changing:
        named = ", ".join(_safe(field) for field in s.changing[:5])
        more = " and others" if len(s.changing) > 5 else ""
        yield from _comment(
            f"Updates change {named}{more} while the label is awaited, or with it: the features are taken from the "
            "first version, as they will be when you ask for a prediction.",
            "    ",
        )
        yield "    features_as_of: first"


def _left_out(s: Suggestion) -> Iterator[str]:
    if not s.left_out:
        return
    yield from _comment("Left out:", "    ")
    for each in s.left_out[:_SHOWN_LEFT_OUT]:
        yield from _comment(f"  {_safe(each.field)}: {_safe(each.why)}", "    ", hang="    ")
    if len(s.left_out) > _SHOWN_LEFT_OUT:
        yield from _comment(f"  and {len(s.left_out) - _SHOWN_LEFT_OUT:,} more (--json names them all)", "    ")


def _beside(line: str, told: str, indent: str) -> Iterator[str]:
    """A line with its comment, or below the comment where that would be too long."""
    told = _safe(told)
    if len(line) + len(told) + 5 <= _WIDTH:
        yield f"{line}   # {told}"
    else:
        yield from _comment(told, indent)
        yield line


def _comment(text: str, indent: str, *, hang: str = "") -> Iterator[str]:
    """Wrapped; leading spaces are kept."""
    lead = text[: len(text) - len(text.lstrip())]
    line = ""
    for word in text.split():
        if line and len(indent) + 2 + len(lead) + len(line) + 1 + len(word) > _WIDTH:
            yield f"{indent}# {lead}{line}"
            lead, line = (hang or lead), word
        else:
            line = f"{line} {word}" if line else word
    yield f"{indent}# {lead}{line}".rstrip()


def _safe(text: str) -> str:
    """One line of printable characters, whatever a field is called."""
    shown = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


def _flow(spec: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_value(value)}" for key, value in spec.items()) + "}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    """As YAML, quoted wherever it could be taken for something else."""
    if _PLAIN.match(text) and text.lower() not in _WORDS_OF_YAML:
        return text
    quoted: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=float("inf"))
    return quoted.rstrip("\n")

"""What `init` tells a person once the file is written."""

from __future__ import annotations

from collections.abc import Iterator

from streamtrain.init.command import Written


def summary(written: Written) -> str:
    return "\n".join(_lines(written))


def _lines(written: Written) -> Iterator[str]:
    found = written.suggestion
    label, seen = found.label, found.seen
    yield f"wrote {written.file}"
    if written.uri_file is not None:
        yield f"wrote {written.uri_file}: the URI with its password, readable by you only"
    why = f" ({'; '.join(label.reasons)})" if label.reasons else ""
    yield f"  predicts  {label.field}, a {label.task.value}{why}"
    if found.others and not found.asked:
        yield f"            or, with --label: {', '.join(each.field for each in found.others)}"
    yield f"  from      {len(found.features)} fields; {len(found.left_out)} are left out, the file says why"
    yield f"  seen      {seen.profile.documents:,} documents" + (
        f" of about {seen.pace.count:,}" if seen.pace.count else ""
    )
    if seen.habits.unseen:
        yield f"  watched   not: {seen.habits.unseen}"
    elif seen.habits.seconds:
        habits = seen.habits
        yield (
            f"  watched   {habits.seconds:.0f} s: {habits.inserts:,} inserts, {habits.updates:,} updates, "
            f"{habits.replaces:,} replacements, {habits.deletes:,} deletes"
        )
    yield ""
    named = "" if written.file.name == "streamtrain.yaml" and written.file.parent.name == "" else f" -c {written.file}"
    yield "read it, correct what is wrong, then:"
    yield f"  streamtrain validate --connect{named}"
    yield f"  streamtrain check-model{named}   # tries the model on documents; a minute or two"
    yield f"  streamtrain run{named}"

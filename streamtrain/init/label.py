"""Which field an application may want to have predicted. A label is a number or a boolean that is not there when a
document is new, or one that is called like a label; what speaks for it is said, for the user decides."""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamtrain.init.field import Field
from streamtrain.init.habits import Habits
from streamtrain.init.profile import Profile
from streamtrain.types import LARGEST_TARGET, DType, Task

ENOUGH = 3
"""The least score with which a field is taken without being asked for."""

_NAMED = frozenset({
    "label", "target", "y", "outcome", "class", "response", "result", "success", "succeeded", "failed", "accepted",
    "approved", "clicked", "converted", "conversion", "purchased", "bought", "returned", "cancelled", "canceled", "won",
    "lost", "churn", "churned", "default", "defaulted", "fraud", "fraudulent", "spam", "survived", "diagnosis",
    "rating", "stars",
})  # fmt: skip
_HINTED = frozenset({
    "delay", "price", "amount", "duration", "score", "revenue", "sales", "demand", "quality", "total", "cost", "value",
    "eta", "wait",
})  # fmt: skip
_UNLIKELY = frozenset({
    "id", "at", "time", "timestamp", "date", "created", "updated", "version", "index", "number", "no", "seq",
})  # fmt: skip
_ORDINAL = frozenset({"rating", "stars", "score", "count", "grade", "level", "rank"})
_FEW_WRITES = 20
_LATE = 0.5  # new documents hold it at most half as often as all do
_OFTEN = 0.02
_OFF_TYPE = 0.01
_MOST_CLASSES = 30
_MOSTLY = 0.95  # of the documents hold what is there from the start
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True, slots=True)
class Candidate:
    """score: how much speaks for it. reasons: what does. late: it comes after its document. absent_value: what its
    absence means, where it has only been seen with one value. note: what to know when it is used."""

    field: str
    dtype: DType
    task: Task
    classes: int
    score: int
    reasons: tuple[str, ...]
    late: bool
    absent_value: int | None = None
    note: str = ""

    def document(self) -> dict[str, object]:
        return {
            "field": self.field,
            "dtype": self.dtype.value,
            "task": self.task.value,
            "classes": self.classes if self.task is Task.CLASSIFICATION else None,
            "score": self.score,
            "late": self.late,
            "reasons": list(self.reasons),
        }


def candidates(profile: Profile, newest: Profile, habits: Habits) -> list[Candidate]:
    """Every field that can be a label, the likeliest first; equal ones in the order of the documents."""
    found = [each for field in profile.fields.values() if (each := candidate(field, profile, newest, habits))]
    return sorted(found, key=lambda each: -each.score)


def candidate(field: Field, profile: Profile, newest: Profile, habits: Habits) -> Candidate | None:
    """The field as a label; None where it cannot be one (`refusal` says why)."""
    if refusal(field, profile):
        return None
    score, reasons = 0, []
    late = why_late(field.path, profile, newest, habits)
    if late:
        score += 3
        reasons.append(late)
    words = {word.lower() for word in _WORD.findall(field.path.rpartition(".")[2])}
    if named := words & _NAMED:
        score += 3
        reasons.append(f"is called {sorted(named)[0]!r}")
    elif hinted := words & _HINTED:
        score += 1
        reasons.append(f"has {sorted(hinted)[0]!r} in its name")
    if words & _UNLIKELY:
        score -= 2
    dtype, task, classes, note = _kind(field, words)
    single = field.distinct == 1
    awaited = bool(late) or profile.rate(field.path) < _MOSTLY  # a document without it waits, whatever the reason
    if awaited and not late:
        reasons.append(f"is in {profile.rate(field.path):.0%} of the documents")
    if single and not late:
        score = min(score, ENOUGH - 1)  # always the same: nothing to predict
    return Candidate(
        field=field.path,
        dtype=dtype,
        task=task,
        classes=classes,
        score=score,
        reasons=tuple(reasons),
        late=awaited,
        absent_value=_absent_value(field) if single and awaited and task is Task.CLASSIFICATION else None,
        note=note,
    )


def refusal(field: Field, profile: Profile) -> str:
    """Why the field cannot be a label; empty where it can."""
    if field.path == "_id" or field.path.startswith("_id."):
        return "is the document's key"
    if not field.present:
        return "holds nothing but null"
    if not field.families.keys() & {"number", "bool"}:
        told = "texts: write a number for each class beside them" if field.family == "string" else field.family
        return f"holds {told}; a label is a number or a boolean"
    off = field.present - field.families[field.family]
    if field.family not in ("number", "bool") or off > _OFF_TYPE * field.present:
        types = ", ".join(f"{name} in {count / field.present:.1%}" for name, count in field.families.items())
        return f"holds several types ({types}): a document with another than the label's would be refused"
    if field.family == "number" and not field.numbers:
        return "holds no finite number"
    if field.family == "number" and max(abs(field.low), abs(field.high)) > LARGEST_TARGET:
        return f"holds numbers up to {field.high:.3g}; a label's are at most {LARGEST_TARGET:g}"
    return ""


def why_late(path: str, profile: Profile, newest: Profile, habits: Habits) -> str:
    """What says that the field comes after its document, if it does."""
    updated = habits.updated(path)
    if habits.inserts >= _FEW_WRITES and updated and habits.inserted(path) <= _OFTEN * habits.inserts:
        return f"was set by {updated:,} updates and brought by {_share(habits.inserted(path), habits.inserts)} inserts"
    everywhere, now = profile.rate(path), newest.rate(path)
    if habits.inserts >= _FEW_WRITES:
        now = min(now, habits.inserted(path) / habits.inserts)
    known = newest.documents >= _FEW_WRITES or habits.inserts >= _FEW_WRITES
    if known and everywhere >= _OFTEN and now <= _LATE * everywhere:
        return f"is in {everywhere:.0%} of all documents and in {now:.0%} of the newest"
    return ""


def _kind(field: Field, words: set[str]) -> tuple[DType, Task, int, str]:
    if field.family == "bool":
        return DType.BOOL, Task.CLASSIFICATION, 2, ""
    numbers = sorted(set(field.numbers))
    classes = field.whole and numbers[0] >= 0 and numbers[-1] < _MOST_CLASSES and len(numbers) <= _MOST_CLASSES
    dense = classes and len(numbers) >= 0.6 * (numbers[-1] - numbers[0] + 1)
    often = field.present >= 10 * len(numbers) or field.present <= _FEW_WRITES
    if classes and dense and often and numbers[0] <= 1 and not words & _ORDINAL:
        highest = int(numbers[-1])
        unseen = "" if numbers[0] == 0 else "; there was no class 0"
        return DType.INT32, Task.CLASSIFICATION, max(2, highest + 1), f"classes are 0 to {max(1, highest)}{unseen}"
    if numbers[0] == -1 and numbers[-1] == 1 and len(numbers) <= 3:
        return DType.FLOAT32, Task.REGRESSION, 2, "for a classification write 0 and 1 rather than -1 and 1"
    return DType.FLOAT32, Task.REGRESSION, 2, ""


def _absent_value(field: Field) -> int | None:
    """Of a yes that comes or does not: the no."""
    return 0 if field.most_common in (True, 1.0) else None


def _share(part: int, whole: int) -> str:
    if part == 0:
        return "none of the"
    return f"{100 * part / whole:.2g} % of the"

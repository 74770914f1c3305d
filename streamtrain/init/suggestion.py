"""From what was seen to what the settings should say: one label, the features that are known when it is not, and
what is left out, each with its reason. A pure function."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamtrain.errors import UsageError
from streamtrain.init.feature import Chosen, LeftOut, feature
from streamtrain.init.habits import Habits
from streamtrain.init.label import ENOUGH, Candidate, candidate, candidates, refusal, why_late
from streamtrain.init.pace import Budget, Pace, budget
from streamtrain.init.profile import Profile

MOST_FEATURES = 100  # and the numbers that the built-in model gets of them: its linear part takes their square
MOST_NUMBERS = 1500
_SHOWN_FIELDS = 40
_OTHERS = 5
_MANY_SIBLINGS = 10
_GIVEN_AWAY = 0.99


@dataclass(frozen=True, slots=True)
class Seen:
    """What the shell has found out about a collection. newest: of the documents written last."""

    database: str
    collection: str
    profile: Profile
    newest: Profile
    habits: Habits
    pace: Pace


@dataclass(frozen=True, slots=True)
class Suggestion:
    """asked: whether the user named the label. others: further candidates, the likeliest first. changing: features
    that updates set beside the label, so that the first version is what was known."""

    seen: Seen
    source: str
    job: str
    label: Candidate
    asked: bool
    others: tuple[Candidate, ...]
    features: tuple[Chosen, ...]
    left_out: tuple[LeftOut, ...]
    changing: tuple[str, ...]
    budget: Budget


def suggest(seen: Seen, *, label: str | None = None, job: str | None = None) -> Suggestion:
    """Raises UsageError when there is no label that it can be sure of, when the one that was named cannot be one,
    and when nothing is left that a model could learn from."""
    found = candidates(seen.profile, seen.newest, seen.habits)
    chosen = _named(seen, label) if label is not None else _likeliest(seen, found)
    features, left_out = _features(seen, chosen)
    if not features:
        reasons = "".join(f"\n    {each.field}: {each.why}" for each in left_out[:_SHOWN_FIELDS])
        raise UsageError(
            f"{seen.database}.{seen.collection} has no field to predict {chosen.field!r} from:{reasons}",
            hint="write the fields that the prediction can rest on into the documents, and run init again",
        )
    source = _name(seen.collection, "source")
    return Suggestion(
        seen=seen,
        source=source,
        job=job or _name(f"{seen.collection}-{chosen.field}", "job"),
        label=chosen,
        asked=label is not None,
        others=tuple(each for each in found if each.field != chosen.field and each.score >= ENOUGH)[:_OTHERS],
        features=tuple(features),
        left_out=tuple(left_out),
        changing=_changing(seen.habits, chosen, features),
        budget=budget(seen.pace, numbers=sum(each.numbers for each in features)),
    )


def _named(seen: Seen, label: str) -> Candidate:
    field = seen.profile.fields.get(label)
    if field is None or seen.profile.inner(label):
        where = f"{seen.profile.documents:,} documents of {seen.database}.{seen.collection}"
        told = "holds a document: name a field inside it" if field else f"is in none of {where}"
        raise UsageError(f"--label {label}: {told}", hint=_choices(seen))
    found = candidate(field, seen.profile, seen.newest, seen.habits)
    if found is None:
        raise UsageError(f"--label {label}: {refusal(field, seen.profile)}", hint=_choices(seen))
    return found


def _likeliest(seen: Seen, found: Sequence[Candidate]) -> Candidate:
    if found and found[0].score >= ENOUGH:
        return found[0]
    raise UsageError(
        f"no field of {seen.database}.{seen.collection} looks like what is to be predicted: none comes after its "
        "document, and none is called like a label",
        hint=f"name it: --label FIELD; {_choices(seen)}",
    )


def _choices(seen: Seen) -> str:
    fields = [each.field for each in candidates(seen.profile, seen.newest, seen.habits)]
    if not fields:
        return "there is no number or boolean in the documents that could be one"
    more = f" and {len(fields) - _SHOWN_FIELDS:,} more" if len(fields) > _SHOWN_FIELDS else ""
    return f"those that can be one: {', '.join(fields[:_SHOWN_FIELDS])}{more}"


def _features(seen: Seen, label: Candidate) -> tuple[list[Chosen], list[LeftOut]]:
    profile = seen.profile
    features: list[Chosen] = []
    left_out = [LeftOut(path, why) for path, why in profile.unreachable.items()]
    numbers = 0
    for field in profile.fields.values():
        if field.path == label.field or profile.inner(field.path):
            continue
        if late := why_late(field.path, profile, seen.newest, seen.habits):
            left_out.append(LeftOut(field.path, f"{late}: not known when {label.field} is predicted"))
            continue
        found = feature(field, profile)
        if isinstance(found, Chosen) and (
            len(features) == MOST_FEATURES or (features and numbers + found.numbers > MOST_NUMBERS)
        ):
            found = LeftOut(field.path, f"beyond {MOST_FEATURES} features or {MOST_NUMBERS:,} numbers: choose")
        if isinstance(found, LeftOut):
            left_out.append(found)
        else:
            features.append(_warned(found, profile, label))
            numbers += found.numbers
    if profile.untold:
        left_out.append(LeftOut("(others)", f"{profile.untold:,} values at paths beyond the first few thousand"))
    return features, _gathered(left_out)


def _warned(found: Chosen, profile: Profile, label: Candidate) -> Chosen:
    """With a remark where the feature says what the label will be: it may be written together with it."""
    r = profile.correlation(found.field, label.field)
    if r is None or abs(r) < _GIVEN_AWAY:
        return found
    told = f"{found.told}; follows {label.field} almost exactly (r = {r:.3f}): is it known before?"
    return replace(found, told=told)


def _gathered(left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """Rare fields of one parent as one: a document whose names are data, such as counts by user."""
    siblings = Counter(each.field.rpartition(".")[0] for each in left_out if each.rare)
    gathered: dict[str, LeftOut] = {}
    for each in left_out:
        parent = each.field.rpartition(".")[0]
        if each.rare and siblings[parent] >= _MANY_SIBLINGS:
            told = f"{siblings[parent]:,} names, each in few documents: names that are data"
            gathered.setdefault(f"{parent}.*".lstrip("."), LeftOut(f"{parent}.*".lstrip("."), told))
        else:
            gathered[each.field] = each
    return list(gathered.values())


def _changing(habits: Habits, label: Candidate, features: Sequence[Chosen]) -> tuple[str, ...]:
    """Features that change while a document waits for its label, or with it."""
    return tuple(each.field for each in features if habits.updated(each.field)) if label.late else ()


def _name(text: str, default: str) -> str:
    """As sources and jobs are called."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
    return name or default

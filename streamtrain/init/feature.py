"""What a field of a sample becomes: an input of the model with what the documents show of it, or left out with the
reason. What is not in every document gets a value that stands in, since a document without it would be refused."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from streamtrain.init.field import LARGEST_FLOAT32, NUMBERS, Field
from streamtrain.init.profile import Profile
from streamtrain.types import DType

BUILTIN_BUCKETS = 512  # what the built-in model hashes a text into, if nothing is said
_ENOUGH = 20  # documents from which "always the same" says something
_RARE = 0.05
_MANY = 0.5  # different values for each document: an identifier, or free text
_FEWEST_FOR_MANY = 50
_LONG_TEXT = 40.0
_EXACT_FLOAT32 = 2**24
_MOST_ELEMENTS = 1024
_MAX_BUCKETS = 1 << 20


@dataclass(frozen=True, slots=True)
class Chosen:
    """missing: stands in for an absent value; None where it is always there. told: why, for a comment. numbers: how
    many the model gets of it."""

    field: str
    dtype: DType
    told: str
    missing: float | int | bool | str | None = None
    length: int | None = None
    encoding: str = "list"
    buckets: int | None = None
    numbers: int = 1

    def spec(self) -> dict[str, object]:
        """As the settings have it."""
        spec: dict[str, object] = {"field": self.field, "dtype": self.dtype.value}
        if self.length is not None:
            spec["length"] = self.length
        if self.encoding != "list":
            spec["encoding"] = self.encoding
        if self.missing is not None:
            spec["missing"] = self.missing
        if self.buckets is not None:
            spec["buckets"] = self.buckets
        return spec


@dataclass(frozen=True, slots=True)
class LeftOut:
    """rare: whether because hardly any document has it."""

    field: str
    why: str
    rare: bool = False


def feature(field: Field, profile: Profile) -> Chosen | LeftOut:
    """late fields and the label are the caller's business."""
    if why := _unfit(field, profile):
        return LeftOut(field.path, why)
    if field.present < _RARE * profile.documents:
        return LeftOut(field.path, f"is in {field.present / profile.documents:.1%} of the documents only", rare=True)
    match field.family:
        case "number":
            return _number(field, profile)
        case "bool":
            return _boolean(field, profile)
        case "string":
            return _text(field, profile)
        case "date":
            return _date(field, profile)
        case "array":
            return _list(field, profile)
        case "binData":
            return _binary(field, profile)
    return LeftOut(field.path, f"holds {_a(field.family)}, which is no input of a model")


def _unfit(field: Field, profile: Profile) -> str:
    if field.path == "_id" or field.path.startswith("_id."):
        return "the document's key"
    if "/" in field.path:
        return "has a slash in its name, which Keras refuses for an input"
    if not field.present:
        return "was null in every document"
    if field.mixed:
        shares = ", ".join(f"{name} in {count / field.present:.1%}" for name, count in field.families.items())
        return f"holds several types ({shares}): a document with another than the configured one would be refused"
    return ""


def _number(field: Field, profile: Profile) -> Chosen | LeftOut:
    if field.inexact:
        return LeftOut(field.path, "holds numbers too large to be exact in a model: an identifier?")
    if not field.numbers:
        return LeftOut(field.path, "was never a finite number")
    if field.distinct == 1 and profile.documents >= _ENOUGH:
        return LeftOut(field.path, "was the same number wherever it was")
    if _is_identifier(field):
        return LeftOut(
            field.path, f"an identifier by its name: {field.distinct:,} different ones in {field.present:,} documents"
        )
    wide = max(abs(field.low), abs(field.high))
    large = wide > LARGEST_FLOAT32 or (field.whole and wide > _EXACT_FLOAT32)
    told = [f"{_kinds(field)}, {_shown(field.low)} to {_shown(field.high)}"]
    if field.whole and field.distinct <= 12:
        told.append(f"{field.distinct} different ones; if they are codes rather than amounts, write them as texts")
    missing: float | int | None = None
    if gaps := _gaps(field, profile):
        missing = _round(field.median, whole=field.whole)
        told.append(f"{gaps}: the median stands in")
    dtype = DType.FLOAT64 if large else DType.FLOAT32
    return Chosen(field.path, dtype, "; ".join(told), missing)


def _is_identifier(field: Field) -> bool:
    name = field.path.rpartition(".")[2]
    named = name.lower() in ("id", "uuid", "guid", "key", "pk") or name.endswith(("_id", "Id", "ID", "_uuid", "_key"))
    many = field.present >= _FEWEST_FOR_MANY and field.distinct > _MANY * field.present
    return named and field.whole and many


def _boolean(field: Field, profile: Profile) -> Chosen | LeftOut:
    gaps = _gaps(field, profile)
    common = bool(field.most_common)
    if field.distinct == 1 and profile.documents >= _ENOUGH and not gaps:
        return LeftOut(field.path, f"was always {str(common).lower()}")
    if not gaps:
        return Chosen(field.path, DType.BOOL, "true or false")
    if field.distinct == 1:
        return Chosen(field.path, DType.BOOL, f"always {str(common).lower()} where it is; {gaps}", missing=not common)
    return Chosen(field.path, DType.BOOL, f"{gaps}: what is more frequent stands in", missing=common)


def _text(field: Field, profile: Profile) -> Chosen | LeftOut:
    n, distinct = field.present, field.distinct
    if field.damaged:
        return LeftOut(field.path, "holds bytes that are no UTF-8: such a document would be refused")
    if distinct == 1 and profile.documents >= _ENOUGH:
        return LeftOut(field.path, "was the same text wherever it was")
    many = n >= _FEWEST_FOR_MANY and distinct > _MANY * n
    if field.texts_like_numbers == n and many:
        return LeftOut(field.path, "holds numbers written as texts: write them as numbers to use them")
    if field.texts_like_dates == n and many:
        return LeftOut(field.path, "holds times written as texts: write them as dates to use them")
    if field.spaced > n / 2 and field.characters / n > _LONG_TEXT:
        return LeftOut(field.path, "holds free text: for a model of your own (docs/models.md)")
    if many:
        return LeftOut(field.path, f"an identifier or free text: {distinct:,} different ones in {n:,} documents")
    told = [f"category, {distinct:,} different ones in {n:,} documents"]
    buckets = None
    if field.estimated_distinct > BUILTIN_BUCKETS / 2:
        buckets = _power_of_two(2 * field.estimated_distinct)
        told.append(f"perhaps {field.estimated_distinct:,} in all, hashed into so many buckets that few collide")
    gaps = _gaps(field, profile)
    if gaps:
        told.append(f"{gaps}: a category of its own")
    return Chosen(field.path, DType.STRING, "; ".join(told), "" if gaps else None, buckets=buckets)


def _date(field: Field, profile: Profile) -> Chosen | LeftOut:
    if field.distinct == 1 and profile.documents >= _ENOUGH:
        return LeftOut(field.path, "was the same time wherever it was")
    gaps = _gaps(field, profile)
    told = f"time, {_day(field.low)} to {_day(field.high)}; the built-in model takes its place in day, week and year"
    middle = int(field.low + (field.high - field.low) / 2)
    return Chosen(
        field.path,
        DType.DATETIME,
        f"{told}; {gaps}: the middle stands in" if gaps else told,
        middle if gaps else None,
        numbers=6,
    )


def _list(field: Field, profile: Profile) -> Chosen | LeftOut:
    lengths = sorted(field.lengths)
    if lengths == [0]:
        return LeftOut(field.path, "lists without elements")
    if field.elements - {"number"} or not field.elements:
        holds = ", ".join(sorted(field.elements)) or "nothing"
        advice = "; with a model of your own: max_length (docs/models.md)" if field.elements <= {"string"} else ""
        return LeftOut(field.path, f"lists of {lengths[0]} to {lengths[-1]} elements that hold {holds}{advice}")
    if field.bad_elements:
        return LeftOut(field.path, "lists with elements that are no finite numbers, or of very many lengths")
    if len(lengths) > 1:
        return LeftOut(
            field.path,
            f"lists of {lengths[0]} to {lengths[-1]} numbers: the built-in model takes those of one length; "
            f"with a model of your own: max_length: {lengths[-1]} (docs/models.md)",
        )
    return _vector(field, profile, lengths[0], f"list of {lengths[0]} numbers in every document", "list")


def _binary(field: Field, profile: Profile) -> Chosen | LeftOut:
    if field.bad_elements or len(field.lengths) != 1:
        return LeftOut(field.path, "binary data that is no float32 vector of one length")
    length = next(iter(field.lengths))
    return _vector(field, profile, length, f"float32 vector of {length} numbers in binary data", "binary")


def _vector(field: Field, profile: Profile, length: int, told: str, encoding: str) -> Chosen | LeftOut:
    if length > _MOST_ELEMENTS:
        return LeftOut(field.path, f"a vector of {length:,} numbers is more than the built-in model takes well")
    gaps = _gaps(field, profile)
    return Chosen(
        field.path,
        DType.FLOAT32,
        f"{told}; {gaps}: zeros stand in" if gaps else told,
        0 if gaps else None,
        length=length,
        encoding=encoding,
        numbers=length,
    )


def _gaps(field: Field, profile: Profile) -> str:
    """How often there is nothing that a model could take, and of what kind; empty where there always is."""
    absent, nulls = profile.documents - field.types.total(), field.types["null"]
    parts = [(absent, "absent"), (nulls, "null"), (field.non_finite, "not finite")]
    return ", ".join(f"{told} in {count / profile.documents:.1%}" for count, told in parts if count)


def _kinds(field: Field) -> str:
    return "/".join(name for name, _ in field.types.most_common() if name in NUMBERS)


def _round(number: float, *, whole: bool) -> float | int:
    if whole:
        return int(number)
    return float(f"{number:.4g}")


def _shown(number: float) -> str:
    whole = number == math.trunc(number) and abs(number) < 1e15
    return f"{int(number):,}" if whole else f"{number:.4g}"


def _day(milliseconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        return "outside of the calendar"


def _power_of_two(number: int) -> int:
    return int(min(_MAX_BUCKETS, 1 << max(number - 1, 1).bit_length()))


def _a(family: str) -> str:
    return {"object": "empty documents", "objectId": "object ids"}.get(family, f"values of the type {family}")

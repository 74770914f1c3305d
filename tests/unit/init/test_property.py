"""Whatever a collection holds, `init` says what is wrong or writes settings that load, and with which every document
of the sample is learned, or waits for its label."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import hypothesis
from bson import Binary, Code, DatetimeMS, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from hypothesis import strategies as st

from streamtrain.errors import UsageError
from streamtrain.init.label import candidates
from streamtrain.init.suggestion import suggest
from streamtrain.trainer.decode import BAD, Decoder
from tests.unit.init.looked import loaded, seen

NAMES = st.one_of(
    st.sampled_from(
        ["a", "b", "y", "label", "user_id", "true", "null", "a b", "a.b", "$x", "", "x/y", "- c", "#", "é"]
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.integers(0, 3),
    st.floats(),
    st.floats(width=32),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5),
    st.sampled_from(["red", "green", "2020-01-01", "12.5"]),
    st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2100, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)),
    st.integers(-(2**62), 2**62).map(DatetimeMS),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9).map(Decimal128),
    st.sampled_from([Decimal128("1E+6000"), Decimal128("NaN"), Decimal128("-Infinity"), Decimal128("1E+39")]),
    st.binary(max_size=12),
    st.binary(max_size=8).map(lambda data: Binary(data, 5)),
    st.sampled_from([ObjectId(), Timestamp(1, 1), Regex("a"), MaxKey(), Code("f"), {"$ref": "a", "$id": 1}]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2),
        st.dictionaries(NAMES, inner, max_size=3),
    ),
    max_leaves=6,
)


@st.composite
def collections(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Documents that mostly share a shape: fields of one kind each, some absent, some of another kind now and then."""
    shape = draw(
        st.dictionaries(NAMES, st.sampled_from(["any", "number", "flag", "vector", "text", "time"]), max_size=6)
    )
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "any": VALUES,
        "number": st.one_of(st.integers(-5, 50), st.floats(allow_nan=True, allow_infinity=True), st.none()),
        "flag": st.booleans(),
        "vector": st.lists(st.floats(), min_size=2, max_size=2),
        "text": st.sampled_from(["red", "green", "blue"]),
        "time": st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2100, 1, 1)),
    }
    drawn = {name: kinds[kind] for name, kind in shape.items()}
    always = {name: drawn.pop(name) for name in list(drawn)[: draw(st.integers(0, len(drawn)))]}
    if draw(st.booleans()):
        always["score"] = st.integers(-3, 30)
    return draw(st.lists(st.fixed_dictionaries(always, optional=drawn), min_size=1, max_size=40))


@hypothesis.settings(max_examples=300, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(collections(), st.integers(0, 5))
def test_any_documents_give_settings_that_learn_them_or_an_error_that_says_why(
    documents: list[dict[str, Any]], which: int
) -> None:
    documents = [{"_id": number, **document} for number, document in enumerate(documents)]
    looked = seen(documents, newest=documents[-20:])
    possible = candidates(looked.profile, looked.newest, looked.habits)
    label = possible[which].field if which < len(possible) else None
    try:
        suggestion = suggest(looked, label=label)
    except UsageError:
        hypothesis.event("refused")
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = loaded(suggestion, Path(folder))
    hypothesis.event("written")
    (job,) = settings.jobs
    assert [each.field for each in job.features] == [each.field for each in suggestion.features]
    decoded = Decoder(job.schema_()).decode([bson.encode(document) for document in documents])
    bad = {reason for row, reason in decoded.reasons.items() if decoded.outcome[row] == BAD}
    label_field = job.labels[0].field
    assert {reason for reason in bad if not reason.endswith(f":{label_field}")} == set()

"""The vectorised decoder gives what the plain one gives, for any documents."""

from __future__ import annotations

import random
from typing import Any

import bson
import numpy as np
import pytest
from bson.binary import Binary
from bson.code import Code
from bson.codec_options import CodecOptions
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtrain.errors import ConfigError
from streamtrain.trainer import locate
from streamtrain.trainer.decode import BAD, LABELLED, WAITING, Decoder
from streamtrain.trainer.locate import Locator
from streamtrain.types import DType, Feature, Label, Schema, Task
from tests.unit.trainer.reference_decoder import decode_one

LABEL = Label("y", DType.FLOAT32, Task.REGRESSION)
SCHEMA = Schema(
    features=(
        Feature("f", DType.FLOAT32),
        Feature("d", DType.FLOAT64, missing=-1.5),
        Feature("i", DType.INT32, missing=7),
        Feature("j", DType.INT64),
        Feature("b", DType.BOOL, missing=True),
        Feature("s", DType.STRING, missing="?"),
        Feature("t", DType.DATETIME, missing=0),
        Feature("in.ner", DType.FLOAT32, missing=0),
        Feature("in.more.x", DType.INT32, missing=0),
        Feature("list", DType.FLOAT32, length=3, missing=0),
        Feature("ints", DType.INT64, length=2, missing=0),
        Feature("names", DType.STRING, length=2, missing=""),
        Feature("bin", DType.FLOAT32, length=2, encoding="binary", missing=0),
        Feature("raw", DType.BYTES, missing=""),
        Feature("clicks", DType.FLOAT32, max_length=3, missing=0, pad=-1),
        Feature("ids", DType.INT64, max_length=2),
        Feature("tags", DType.STRING, max_length=3, missing="?", pad="-"),
        Feature("times", DType.DATETIME, max_length=2, missing=0),
    ),
    labels=(LABEL,),
)

numbers = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(),
    st.sampled_from([2.0**31, 2.0**63, -(2.0**63), 2.0**53, 3.0, 1e39, float("nan"), float("inf")]),
    st.sampled_from(["1", "1.5", "NaN", "Infinity", "1E+400", "-0", "9223372036854775807", "1E+6000"]).map(Decimal128),
)
scalars = st.one_of(
    numbers,
    numbers,
    st.none(),
    st.booleans(),
    st.text(max_size=5),
    st.binary(max_size=9),
    st.sampled_from([0, 2, 3, 9, 0x80]).flatmap(lambda kind: st.binary(max_size=10).map(lambda b: Binary(b, kind))),
    st.integers(-(2**63), 2**63 - 1).map(DatetimeMS),
    st.sampled_from(
        [
            ObjectId(b"0" * 12),
            Regex("a", "i"),
            Code("x"),
            Code("x", {"a": 1}),
            Timestamp(1, 2),
            MinKey(),
            MaxKey(),
            DBRef("c", 1),
            Binary(b"\x27\x00" + bytes(8), 9),
            Binary(bytes(8)),
        ]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["ner", "more", "x", "0", "zz"]), inner, max_size=4),
    ),
    max_leaves=6,
)
vectors = st.one_of(st.lists(numbers, min_size=3, max_size=3), st.lists(st.floats(width=32), min_size=3, max_size=3))


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Mostly what the schema expects, in any order, with some values of any type."""
    document: dict[str, Any] = {
        "f": draw(st.floats(width=32)),
        "d": draw(st.floats()),
        "i": draw(st.integers(-(2**31), 2**31 - 1)),
        "j": draw(numbers),
        "b": draw(st.booleans()),
        "s": draw(st.text(max_size=6)),
        "t": DatetimeMS(draw(st.integers(-(2**63), 2**63 - 1))),
        "in": {"ner": draw(numbers), "more": {"x": draw(numbers)}},
        "list": draw(vectors),
        "ints": draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=2)),
        "names": draw(st.lists(st.text(max_size=3), min_size=2, max_size=2)),
        "bin": draw(st.binary(min_size=8, max_size=8)),
        "raw": draw(st.binary(max_size=9)),
        "clicks": draw(st.lists(numbers, max_size=5)),
        "ids": draw(st.lists(st.integers(-(2**63), 2**63 - 1).map(Int64), max_size=12)),
        "tags": draw(st.lists(st.text(max_size=3), max_size=5)),
        "times": draw(st.lists(st.integers(-(2**63), 2**63 - 1).map(DatetimeMS), max_size=3)),
        "y": draw(st.one_of(numbers, st.none())),
    }
    for name in draw(st.lists(st.sampled_from([*document, "other", "f0"]), max_size=4)):
        document[name] = draw(values)
    for name in draw(st.lists(st.sampled_from(sorted(document)), max_size=3)):
        document.pop(name, None)
    order = list(document)
    if draw(st.booleans()):
        random.Random(draw(st.integers(0, 9))).shuffle(order)
    return bson.encode({name: document[name] for name in order})


def assert_decodes_like_the_reference(schema: Schema, batch: list[bytes]) -> None:
    decoded = Decoder(schema).decode(batch)
    assert len(decoded) == len(batch)
    for row, document in enumerate(batch):
        outcome, expected = decode_one(schema, document)
        if outcome == "bad":
            assert decoded.outcome[row] == BAD
            assert decoded.reasons[row] == expected
        elif outcome == "waiting":
            assert decoded.outcome[row] == WAITING
        else:
            assert decoded.outcome[row] == LABELLED, decoded.reasons[row]
            assert row not in decoded.reasons
            for field, value in expected.items():
                column = decoded.columns[field] if field in decoded.columns else decoded.labels[field]
                np.testing.assert_array_equal(column[row], value, strict=False)


@given(st.lists(documents(), min_size=1, max_size=24))
@settings(deadline=None, max_examples=60)
def test_any_documents_decode_like_the_plain_decoder(batch: list[bytes]) -> None:
    assert_decodes_like_the_reference(SCHEMA, batch)


@given(st.lists(documents(), min_size=9, max_size=12), st.data())
@settings(deadline=None, max_examples=50)
def test_damaged_documents_are_found_alike_and_harm_no_other(batch: list[bytes], data: st.DataObject) -> None:
    damaged = [bytearray(document) for document in batch]
    for index in data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=6)):
        kind = data.draw(st.sampled_from(["byte", "cut", "tail", "length"]))
        document = damaged[index]
        if kind == "byte" and document:
            document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del document[data.draw(st.integers(0, len(document))) :]
        elif kind == "tail":
            document += b"\x00x"
        elif len(document) >= 4:
            document[:4] = data.draw(st.integers(-(2**31), 2**31 - 1)).to_bytes(4, "little", signed=True)
    hostile = [bytes(document) for document in damaged]
    locator = Locator([feature.field for feature in SCHEMA.features])
    together, one_by_one = locator.locate(hostile), locator.locate_one_by_one(hostile)
    np.testing.assert_array_equal(together.malformed, one_by_one.malformed)
    np.testing.assert_array_equal(together.kind, one_by_one.kind)
    present = together.kind != 0
    np.testing.assert_array_equal(together.at[present], one_by_one.at[present])
    decoded = Decoder(SCHEMA).decode(hostile)
    unharmed = Decoder(SCHEMA).decode(batch)
    for row, (document, original) in enumerate(zip(hostile, batch, strict=True)):
        if document == original:
            assert decoded.outcome[row] == unharmed.outcome[row]
            assert decoded.reasons.get(row) == unharmed.reasons.get(row)
            for field, column in unharmed.columns.items():
                np.testing.assert_array_equal(decoded.columns[field][row], column[row])


def assert_row_equal(decoded: Any, row: int, alone: Any) -> None:
    for field, column in alone.columns.items():
        np.testing.assert_array_equal(decoded.columns[field][row], column[0])


def hostile_documents(count: int) -> list[bytes]:
    choose = random.Random(20)
    every_type: list[Any] = [
        1, Int64(1), 1.5, float("nan"), float("-inf"), "x", "\u20ac", b"x", Binary(b"x" * 8, 0x80), True, None, [], {},
        [1, 2, 3], [1.0, float("nan"), None], [[1.0]], {"ner": {"ner": 1}}, ObjectId(), DatetimeMS(2**62), Regex("["),
        Code("x"), Code("x", {"y": 1}), Timestamp(1, 1), Decimal128("1E+6144"), MinKey(), MaxKey(), DBRef("c", 1),
    ]  # fmt: skip
    deep: Any = 1.0
    for _ in range(200):
        deep = {"in": deep}
    wide = bson.encode({f"field{number}": number for number in range(100_000)})
    good = {"f": 1.0, "d": 2.0, "i": 3, "j": Int64(4), "b": True, "s": "x", "t": DatetimeMS(5), "in": {"ner": 6.0}}
    good |= {"list": [1.0, 2.0, 3.0], "ints": [1, 2], "names": ["a", "b"], "bin": bytes(8), "y": 1.0}
    good |= {"raw": b"\x00\xff", "clicks": [1.0] * 4, "ids": [1] * 12, "tags": ["x", "yy"], "times": [DatetimeMS(6)]}
    hostile: list[bytes] = [wide, wide[:-50_000], b"", b"\x05", b"\x05\x00\x00\x00\x00", bytes(300)]
    options: CodecOptions[Any] = CodecOptions()
    while len(hostile) < count:
        document = dict(good)
        for name in choose.sample(sorted(good), choose.randint(0, 4)):
            document[name] = choose.choice([*every_type, deep])
        if choose.random() < 0.3:
            del document[choose.choice(sorted(document))]
        raw = bytearray(bson.encode(document, codec_options=options))
        kind = choose.random()
        if kind < 0.1:
            raw[choose.randrange(len(raw))] = choose.randrange(256)
        elif kind < 0.2:
            del raw[choose.randrange(len(raw)) :]
        elif kind < 0.3:  # the same name twice
            raw = raw[:-1] + b"\x10f\x00\x01\x00\x00\x00\x00"
            raw[:4] = len(raw).to_bytes(4, "little")
        elif kind < 0.4:
            raw = raw.replace(b"\x02s\x00\x02\x00\x00\x00x", b"\x02s\x00\x02\x00\x00\x00\xff")
        hostile.append(bytes(raw))
    choose.shuffle(hostile)
    return hostile


def test_ten_thousand_hostile_documents_decode_or_are_refused_with_a_reason() -> None:
    hostile = hostile_documents(10_000)
    decoded = Decoder(SCHEMA).decode(hostile)
    assert set(decoded.reasons) == set(np.flatnonzero(decoded.outcome == BAD).tolist())
    kinds = {reason.partition(":")[0] for reason in decoded.reasons.values()}
    assert kinds == {"missing", "non-finite", "range", "length", "type", "invalid-bson"}
    assert (decoded.outcome == LABELLED).sum() > 500
    for column in decoded.columns.values():
        assert len(column) == len(hostile)
        if column.dtype.kind == "f":
            assert np.isfinite(column).all()
    for row in range(0, len(hostile), 37):
        alone = Decoder(SCHEMA).decode([hostile[row]])
        assert alone.outcome[0] == decoded.outcome[row]
        assert_row_equal(decoded, row, alone)


def test_lists_of_any_length_keep_their_last_elements_and_are_padded_behind() -> None:
    schema = Schema(
        (
            Feature("x", DType.FLOAT32, max_length=3),
            Feature("s", DType.STRING, max_length=2, pad="-"),
            Feature("m", DType.INT32, max_length=2, missing=7),
        ),
        (LABEL,),
    )
    lists = [[], [1], [1, 2, 3], list(range(200))]
    batch = [bson.encode({"x": each, "s": [str(n) for n in each], "y": 1}) for each in lists] * 4
    decoded = Decoder(schema).decode(batch)
    assert decoded.columns["x"][:4].tolist() == [[0, 0, 0], [1, 0, 0], [1, 2, 3], [197, 198, 199]]
    assert decoded.columns["s"][:4].tolist() == [[b"-", b"-"], [b"1", b"-"], [b"2", b"3"], [b"198", b"199"]]
    assert decoded.columns["m"][:4].tolist() == [[0, 0]] * 4  # absent, and `missing` stands in for elements alone
    decoded = Decoder(schema).decode([bson.encode({"x": [1], "s": [], "m": [None, 5, None], "y": 1})])
    assert decoded.columns["m"].tolist() == [[5, 7]]


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "missing"), ([1, None], "missing"), ("1", "type"), ([1, "1"], "type"), ([float("nan")], "non-finite")],
)
@pytest.mark.parametrize("documents", [1, 20])
def test_a_list_that_cannot_be_read_is_refused_with_a_reason(value: Any, reason: str, documents: int) -> None:
    schema = Schema((Feature("x", DType.FLOAT32, max_length=2),), (LABEL,))
    good = bson.encode({"x": [1.0], "y": 1})
    decoded = Decoder(schema).decode([bson.encode({"x": value, "y": 1}), good] * documents)
    assert decoded.reasons == dict.fromkeys(range(0, 2 * documents, 2), f"{reason}:x")
    assert decoded.columns["x"][1::2].tolist() == [[1.0, 0.0]] * documents


@pytest.mark.parametrize("documents", [1, 20])
def test_an_array_that_is_not_whole_is_refused_and_harms_no_other(documents: int) -> None:
    schema = Schema((Feature("x", DType.STRING, max_length=2),), (LABEL,))
    good = bson.encode({"y": 1, "x": ["abc", "def"]})
    bad = [good.replace(old, new) for old, new in ((b"\x04\x00\x00\x00d", b"\xff\x00\x00\x00d"), (b"f\x00", b"f!"))]
    unnamed = good.replace(b"\x020\x00", b"\x02k\x00")  # MongoDB reads any name
    decoded = Decoder(schema).decode([good, *bad, unnamed] * documents)
    assert set(decoded.reasons.values()) == {"invalid-bson"}
    assert len(decoded.reasons) == 2 * documents
    assert decoded.columns["x"][[0, 3]].tolist() == [[b"abc", b"def"]] * 2


def test_bytes_come_as_they_are_and_those_with_a_meaning_of_their_own_are_refused() -> None:
    schema = Schema((Feature("x", DType.BYTES), Feature("many", DType.BYTES, max_length=2)), (LABEL,))
    image = bytes(range(256)) * 3
    batch = [
        bson.encode({"x": Binary(image, kind), "many": [b"\x00", image, image], "y": 1})
        for kind in (0, 0x80, 2, 3, 4, 5, 6, 9)
    ]
    decoded = Decoder(schema).decode(batch)
    assert decoded.columns["x"][:2].tolist() == [image, image]
    assert decoded.columns["many"][0].tolist() == [image, image]
    assert decoded.reasons == dict.fromkeys(range(2, 8), "type:x")


def test_optional_fields_and_mixed_number_types_stay_on_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(3)
    batch = [
        bson.encode({f"f{n}": choose.choice([1, 1.5, Int64(2)]) for n in range(20) if choose.random() < 0.9} | {"y": 1})
        for _ in range(500)
    ]
    batch.append(bson.encode({f"f{n}": n for n in range(20)} | {"y": 1}))
    schema = Schema(tuple(Feature(f"f{n}", DType.FLOAT32, missing=0) for n in range(20)), (LABEL,))
    one_by_one: list[object] = []
    original = locate._Walk.one
    monkeypatch.setattr(locate._Walk, "one", lambda self, *args: (one_by_one.append(args), original(self, *args)))
    assert_decodes_like_the_reference(schema, batch)
    assert len(one_by_one) < len(batch) / 10


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (DType.FLOAT64, Int64(2**53), 2.0**53),
        (DType.FLOAT64, Int64(2**53 + 1), "range"),
        (DType.FLOAT64, Int64(2**63 - 1), "range"),
        (DType.FLOAT32, Int64(2**60 + 2**40), np.float32(2.0**60 + 2.0**40)),
        (DType.FLOAT32, 1e39, "range"),
        (DType.FLOAT32, Decimal128("0.1"), np.float32(0.1)),
        (DType.INT32, 2.0**31, "range"),
        (DType.INT32, 3.5, "range"),
        (DType.INT32, 3.0, 3),
        (DType.INT64, -(2.0**63), -(2**63)),
        (DType.INT64, 2.0**63, "range"),
        (DType.INT64, Decimal128("9223372036854775807"), 2**63 - 1),
        (DType.INT64, Decimal128("9223372036854775808"), "range"),
        (DType.INT64, True, "type"),
        (DType.BOOL, 1, "type"),
        (DType.DATETIME, DatetimeMS(2**63 - 1), 2**63 - 1),
        (DType.STRING, "\u20ac", "\u20ac".encode()),
    ],
)
def test_a_value_is_exact_to_the_field_s_dtype_or_refused(dtype: DType, value: Any, expected: Any) -> None:
    batch = [bson.encode({"x": value, "y": 1.0})] * 9
    decoded = Decoder(Schema((Feature("x", dtype),), (LABEL,))).decode(batch)
    if isinstance(expected, str):
        assert set(decoded.reasons.values()) == {f"{expected}:x"}
    else:
        assert decoded.columns["x"].tolist() == [expected] * 9


@pytest.mark.parametrize("dtype", [DType.INT32, DType.FLOAT32, DType.BOOL])
def test_a_class_outside_the_label_s_range_is_refused(dtype: DType) -> None:
    schema = Schema((Feature("x", DType.FLOAT32),), (Label("y", dtype, Task.CLASSIFICATION, classes=3),))
    right, wrong = (True, 1) if dtype is DType.BOOL else (2, 3)
    decoded = Decoder(schema).decode([bson.encode({"x": 1.0, "y": y}) for y in (right, wrong)])
    assert decoded.outcome.tolist() == [LABELLED, BAD]
    assert decoded.reasons[1] == ("type:y" if dtype is DType.BOOL else "range:y")


@pytest.mark.parametrize(
    ("dtype", "right", "wrong"), [(DType.FLOAT32, -1e15, 3e38), (DType.FLOAT64, 1e15, -1e16), (DType.INT64, 5, 2**60)]
)
def test_a_target_whose_squared_error_would_overflow_is_refused(dtype: DType, right: Any, wrong: Any) -> None:
    schema = Schema((Feature("x", DType.FLOAT32),), (Label("y", dtype, Task.REGRESSION),))
    decoded = Decoder(schema).decode([bson.encode({"x": 1.0, "y": y}) for y in (right, wrong)])
    assert decoded.reasons == {1: "range:y"}


def test_a_document_without_its_label_waits_whatever_its_features_hold() -> None:
    schema = Schema((Feature("x", DType.FLOAT32),), (LABEL,))
    decoded = Decoder(schema).decode([bson.encode({"x": "?"}), bson.encode({"x": 1.0, "y": None})])
    assert decoded.outcome.tolist() == [WAITING, WAITING]
    assert not decoded.reasons


def test_of_two_fields_with_one_name_the_first_counts() -> None:
    raw = bytearray(bson.encode({"x": 1.0, "z": 2.0, "y": 3.0}).replace(b"z\x00", b"x\x00"))
    for batch in ([bytes(raw)], [bytes(raw)] * 20):
        decoded = Decoder(Schema((Feature("x", DType.FLOAT64),), (LABEL,))).decode(batch)
        assert decoded.columns["x"][0] == 1.0


def test_a_vector_of_any_length_is_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamtrain.trainer.vectors._BLOCK_BYTES", 1000)
    choose = np.random.default_rng(1)
    schema = Schema((Feature("x", DType.FLOAT64, length=100),), (LABEL,))
    rows = choose.normal(size=(30, 100))
    decoded = Decoder(schema).decode([bson.encode({"x": row.tolist(), "y": 1.0}) for row in rows])
    np.testing.assert_array_equal(decoded.columns["x"], rows)


@pytest.mark.parametrize(
    "feature",
    [
        Feature("x", DType.INT32, missing=0.5),
        Feature("x", DType.INT32, missing=2**31),
        Feature("x", DType.INT64, missing=float("nan")),
        Feature("x", DType.FLOAT32, missing="0"),
        Feature("x", DType.FLOAT32, missing=True),
        Feature("x", DType.STRING, missing=0),
        Feature("x", DType.BOOL, missing=0),
        Feature("x", DType.INT32, length=2, encoding="binary"),
        Feature("x", DType.FLOAT32, encoding="binary"),
        Feature("x", DType.FLOAT32, length=2, max_length=2),
        Feature("x", DType.FLOAT32, max_length=0),
        Feature("x", DType.INT32, max_length=2, pad=0.5),
    ],
)
def test_a_schema_that_cannot_be_decoded_is_refused(feature: Feature) -> None:
    with pytest.raises(ConfigError, match="'x'"):
        Decoder(Schema((feature,), (LABEL,)))


def test_a_label_of_a_type_that_cannot_be_predicted_is_refused() -> None:
    with pytest.raises(ConfigError, match="'y'"):
        Decoder(Schema((Feature("x", DType.FLOAT32),), (Label("y", DType.STRING, Task.CLASSIFICATION),)))

"""Decodes one document at a time from `bson.decode`, value by value: slow, and plain enough to be believed."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import bson
import numpy as np
from bson.binary import Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64

from streamtrain.types import DType, Feature, Label, Schema, Task

_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_NOTHING = object()
_SEVERITY = ["missing", "non-finite", "range", "length", "type"]


class RefusedError(Exception):
    """reason: as in the dead letter, without the field."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def decode_one(schema: Schema, document: bytes) -> tuple[str, Any]:
    """("labelled", {field: value}), ("waiting", None) or ("bad", reason)."""
    try:
        values = bson.decode(document, _OPTIONS)
    except bson.errors.InvalidBSON:
        return "bad", "invalid-bson"
    decoded: dict[str, Any] = {}
    problems: list[str] = []
    for feature in schema.features:
        try:
            decoded[feature.field] = _feature(feature, _find(values, feature.field))
        except RefusedError as refused:
            problems.append(f"{refused.reason}:{feature.field}")
    for label in schema.labels:
        try:
            decoded[label.field] = _label(label, _find(values, label.field))
        except RefusedError as refused:
            if refused.reason == "missing":
                return "waiting", None
            problems.append(f"{refused.reason}:{label.field}")
    return ("bad", problems[0]) if problems else ("labelled", decoded)


def _find(document: Any, path: str) -> Any:
    value = document
    for name in path.split("."):
        if isinstance(value, list):
            value = value[int(name)] if name.isdigit() and int(name) < len(value) else _NOTHING
        elif isinstance(value, dict):
            value = value.get(name, _NOTHING)
        else:
            return _NOTHING
    return value


def _feature(feature: Feature, value: Any) -> Any:
    if feature.max_length is not None:
        return _sequence(feature, feature.max_length, value)
    if feature.length is None:
        return _or_missing(feature, value)
    if value is _NOTHING or value is None:
        return np.array([_or_missing(feature, _NOTHING)] * feature.length)
    elements = _binary(feature, value) if feature.encoding == "binary" else _list(feature, value)
    return np.array(_elements(feature, elements))


def _sequence(feature: Feature, max_length: int, value: Any) -> Any:
    if value is _NOTHING or value is None:
        if feature.missing is None:
            raise RefusedError("missing")
        value = []
    if not isinstance(value, list):
        raise RefusedError("type")
    pad: Any = feature.pad if feature.pad is not None else "" if feature.dtype in (DType.STRING, DType.BYTES) else 0
    decoded = _elements(feature, value[-max_length:])
    padding = [pad.encode() if isinstance(pad, str) else pad] * (max_length - len(decoded))
    return np.array(decoded + padding, object)


def _elements(feature: Feature, elements: list[Any]) -> list[Any]:
    decoded, problems = [], []
    for element in elements:
        try:
            decoded.append(_or_missing(feature, element))
        except RefusedError as refused:
            problems.append(refused.reason)
    if problems:
        raise RefusedError(max(problems, key=_SEVERITY.index))
    return decoded


def _list(feature: Feature, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RefusedError("type")
    if len(value) != feature.length:
        raise RefusedError("length")
    return value


def _binary(feature: Feature, value: Any) -> list[float]:
    subtype = value.subtype if isinstance(value, Binary) else 0
    if not isinstance(value, bytes) or subtype not in (0, 9, 0x80):
        raise RefusedError("type")
    raw = bytes(value)
    if subtype == 9:
        if raw[:2] != b"\x27\x00":
            raise RefusedError("type")
        raw = raw[2:]
    if len(raw) != 4 * (feature.length or 0):
        raise RefusedError("length")
    return list(struct.unpack(f"<{feature.length}f", raw))


def _or_missing(feature: Feature, value: Any) -> Any:
    try:
        return _scalar(feature.dtype, value)
    except RefusedError as refused:
        if feature.missing is None or refused.reason not in ("missing", "non-finite"):
            raise
        return feature.missing.encode() if isinstance(feature.missing, str) else feature.missing


def _label(label: Label, value: Any) -> Any:
    decoded = _scalar(label.dtype, value)
    if label.task is Task.CLASSIFICATION and not 0 <= decoded < label.classes:
        raise RefusedError("range")
    if label.task is Task.CLASSIFICATION and decoded != int(decoded):
        raise RefusedError("range")
    if label.task is Task.REGRESSION and abs(decoded) > 1e15:
        raise RefusedError("range")
    return decoded


def _scalar(dtype: DType, value: Any) -> Any:
    if value is _NOTHING or value is None:
        raise RefusedError("missing")
    if dtype is DType.BOOL:
        return _only(bool, value)
    if dtype is DType.STRING:
        return _only(str, value).encode()
    if dtype is DType.BYTES:
        if not isinstance(value, bytes) or (isinstance(value, Binary) and value.subtype not in (0, 0x80)):
            raise RefusedError("type")
        return bytes(value)
    if dtype is DType.DATETIME:
        return int(_only(DatetimeMS, value))
    if type(value) not in (int, Int64, float, Decimal128):
        raise RefusedError("type")
    if isinstance(value, Decimal128):
        value = value.to_decimal()
        if not value.is_finite():
            raise RefusedError("non-finite")
    elif not math.isfinite(value):
        raise RefusedError("non-finite")
    return _integer(dtype, value) if dtype in (DType.INT32, DType.INT64) else _float(dtype, value)


def _only(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise RefusedError("type")
    return value


def _integer(dtype: DType, value: int | float | Decimal) -> int:
    bits = 31 if dtype is DType.INT32 else 63
    if not -(2**bits) <= value < 2**bits or value != int(value):
        raise RefusedError("range")
    return int(value)


def _float(dtype: DType, value: int | float | Decimal) -> float:
    number = float(value)
    if isinstance(value, int) and int(number) != value:
        raise RefusedError("range")
    with np.errstate(over="ignore"):
        narrow = np.float32(number) if dtype is DType.FLOAT32 else np.float64(number)
    if not math.isfinite(narrow):
        raise RefusedError("range")
    return float(narrow)

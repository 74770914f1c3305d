"""What `POST /v1/jobs/{job}/retrain` may say. Read once, here: the rest gets times and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from streamtrain.config import parse_duration
from streamtrain.errors import UsageError


def parse_time(text: str) -> float | datetime:
    """`6h` (ago, in seconds) or an ISO time, which is UTC where it does not say. Raises ValueError."""
    try:
        return float(parse_duration(text))
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a duration like 6h nor a time like 2026-12-01T06:00") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _checked(text: str | None) -> str | None:
    if text is not None:
        parse_time(text)
    return text


def _storable(value: Any) -> Any:
    """What MongoDB stores and JSON shows: finite numbers, integers of 64 bits."""
    if isinstance(value, dict):
        return {key: _storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, (int, float)) and not (math.isfinite(value) and -(2.0**63) <= value < 2.0**63):
        raise ValueError(f"{value!r} is no number that can be stored")
    return value


Time = Annotated[str | None, AfterValidator(_checked)]


class RetrainRequest(BaseModel):
    """start: `scratch`, `weights`, or the id of a manifest."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    start: str = Field("weights", alias="from", min_length=1)
    since: Time = None
    until: Time = None
    hyper: Annotated[dict[str, Any], AfterValidator(_storable)] = Field(default_factory=dict)
    workers: int | None = Field(None, ge=1, le=1024)
    promote: bool = False

    def since_ms(self, now_s: float) -> int | None:
        return _milliseconds(self.since, now_s)

    def until_ms(self, now_s: float) -> int | None:
        return _milliseconds(self.until, now_s)


def read_request(body: Mapping[str, Any]) -> RetrainRequest:
    """Raises UsageError with the first thing that is wrong."""
    try:
        return RetrainRequest.model_validate(dict(body), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise UsageError(f"unknown key {key!r}; known here: from, since, until, hyper, workers, promote") from None
        raise UsageError(f"{key}: {first['msg'].removeprefix('Value error, ')}") from None


def _milliseconds(text: str | None, now_s: float) -> int | None:
    if text is None:
        return None
    at = parse_time(text)
    return int((at.timestamp() if isinstance(at, datetime) else now_s - at) * 1000)

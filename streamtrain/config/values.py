"""The values of settings as a person writes them: durations, sizes, shares, names, addresses; and what a section is."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*$")
_DURATION_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SHARE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%\s*$")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB)\s*$")
_SIZE_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_NOT_IN_DATABASE = ' .$/\\\0"'
NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


def parse_duration(value: Any) -> Any:
    """`30s`, `100ms`, `6h`, `1d` -> seconds. A bare number is refused: its unit would be a guess."""
    if isinstance(value, str) and (match := _DURATION.match(value)):
        return float(match[1]) * _DURATION_SECONDS[match[2]]
    raise ValueError(f"{value!r} is not a duration: write it like 100ms, 30s, 5m, 6h or 1d")


def parse_size(value: Any) -> Any:
    """`64MiB` -> bytes."""
    if isinstance(value, str) and (match := _SIZE.match(value)):
        return int(float(match[1]) * _SIZE_BYTES[match[2]])
    raise ValueError(f"{value!r} is not a size: write it like 512KiB, 64MiB or 2GiB")


def parse_share(value: Any) -> Any:
    """`1%` -> 0.01; a number is a share already."""
    if isinstance(value, str) and (match := _SHARE.match(value)):
        return float(match[1]) / 100
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is not a share: write it like 1%, or as a number like 0.01")


WRITTEN = "written"
"""Validation context of settings that a person wrote: durations and sizes must carry their unit. Without it
(sections that a program hands on) they may also be seconds and bytes."""


def seconds(value: Any, info: ValidationInfo) -> Any:
    written = bool(info.context and info.context.get(WRITTEN))
    return value if isinstance(value, float) and not written else parse_duration(value)


def size_in_bytes(value: Any, info: ValidationInfo) -> Any:
    written = bool(info.context and info.context.get(WRITTEN))
    return value if isinstance(value, int) and not written else parse_size(value)


def _text(pattern: re.Pattern[str], example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern.pattern, "examples": [example]})


Duration = Annotated[float, BeforeValidator(seconds), Field(ge=0), _text(_DURATION, "30s")]
PositiveDuration = Annotated[Duration, Field(gt=0)]
Holdout = Annotated[float, BeforeValidator(parse_share), Field(ge=0, le=0.5), _text(_SHARE, "1%")]
Size = Annotated[int, BeforeValidator(size_in_bytes), Field(gt=0), _text(_SIZE, "64MiB")]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


def _port(address: str) -> str:
    """The address; the system would take a larger port for another one."""
    port = address.rpartition(":")[2]
    if int(port) > 65535:
        raise ValueError(f"{port} is no port: the largest is 65535")
    return address


def _servers(value: str) -> str:
    servers = [server.strip() for server in value.split(",") if server.strip()]
    for server in servers:
        if not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/@\[\]]+):\d{1,5}", server):
            raise ValueError(f"{server!r} is not host:port")
        _port(server)
    if not servers:
        raise ValueError("names no broker")
    return ",".join(servers)


def _exact(value: str) -> str:
    """A name that MongoDB compares byte by byte: white space around it would silently match nothing."""
    if value != value.strip():
        raise ValueError(f"{value!r} has white space around it, and MongoDB would look for exactly that")
    return value


def _mongo_uri(value: SecretStr) -> SecretStr:
    # The value itself must not be in the message: it may hold a password.
    if not re.match(r"^mongodb(\+srv)?://\S+$", value.get_secret_value()):
        raise ValueError("not a MongoDB URI: it begins with mongodb:// or mongodb+srv:// and holds no white space")
    return value


def _database(value: str) -> str:
    if wrong := [character for character in value if character in _NOT_IN_DATABASE]:
        raise ValueError(f"the name of a MongoDB database cannot hold {wrong[0]!r}")
    return value


Address = Annotated[str, AfterValidator(_port)]
Servers = Annotated[str, AfterValidator(_servers)]
ExactName = Annotated[str, Field(min_length=1), AfterValidator(_exact)]
DatabaseName = Annotated[ExactName, Field(max_length=63), AfterValidator(_database)]
MongoUri = Annotated[SecretStr, AfterValidator(_mongo_uri)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def located(path: tuple[str | int, ...], message: str, value: object) -> InitErrorDetails:
    """An error at a place inside the settings, so that the file's line can be shown."""
    return InitErrorDetails(type=PydanticCustomError("reference", message), loc=path, input=value)

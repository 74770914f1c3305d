"""The effective settings, and their JSON schema, as text that may be shown: secrets are masked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml
from pydantic import BaseModel, BeforeValidator, SecretStr

from streamtrain import config
from streamtrain.masking import MASK, Mask
from streamtrain.settings.settings_file import Loaded

# Longest unit first that divides the value: 21600.0 s is shown as 6h.
_DURATIONS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_SIZES = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024), ("B", 1))


def effective(loaded: Loaded) -> dict[str, Any]:
    """What `load` would accept again, but for the secrets: of a URI only its credentials are masked."""
    shown = _shown(loaded.settings)
    masked: dict[str, Any] = loaded.mask.value(shown)
    return masked


def to_yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def schema() -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **config.Settings.model_json_schema()}


def duration(seconds: float) -> str:
    if seconds and seconds < 1:
        return f"{seconds * 1000:g}ms"
    unit, factor = next((u, f) for u, f in _DURATIONS if seconds % f == 0 or f == 1)
    return f"{seconds / factor:g}{unit}" if seconds else "0s"


def size(count: int) -> str:
    unit, factor = next((u, f) for u, f in _SIZES if count % f == 0)
    return f"{count // factor}{unit}"


def _unit(metadata: Iterable[Any]) -> str | None:
    """Whether a field is a duration or a size, by the validator that reads it."""
    validators = {getattr(item, "func", None) for item in metadata if isinstance(item, BeforeValidator)}
    return "duration" if config.seconds in validators else "size" if config.size_in_bytes in validators else None


def _shown(value: Any, unit: str | None = None) -> Any:
    if isinstance(value, BaseModel):
        units = {name: _unit(info.metadata) for name, info in type(value).model_fields.items()}
        return {name: _shown(getattr(value, name), units[name]) for name in units}
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        return Mask().text(secret) if "://" in secret else MASK
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value]
    if unit is not None and value is not None:
        return duration(value) if unit == "duration" else size(value)
    return getattr(value, "value", value)

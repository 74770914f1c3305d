"""Keeps secrets out of everything that is written for people or machines to read (invariant I9). It masks
the values that the settings name as secrets, and credentials inside any URI, whoever put them there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from pydantic import BaseModel, SecretStr

MASK = "********"
_URI_CREDENTIALS = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^\s/?#\"'@]*(?:@[^\s/?#\"'@]*)*@", re.IGNORECASE)
# Options of a MongoDB URI: the passwords of key files and proxies, and the session token among the properties.
_SECRET_OPTIONS = re.compile(r"(?:password=|AWS_SESSION_TOKEN:)([^&,#]+)", re.IGNORECASE)
_MIN_SECRET_LENGTH = 3  # shorter ones would mask half of every sentence, and protect nothing


class Mask:
    """Replaces known secrets in texts and nested values."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spellings: set[str] = set()
        for secret in secrets:
            if len(secret) >= _MIN_SECRET_LENGTH:
                spellings |= {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}
        longest_first = sorted(spellings, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @classmethod
    def of(cls, values: Iterable[str]) -> Mask:
        """Of secret settings: passwords, tokens, URIs (of which the password is the secret)."""
        return cls(part for value in values for part in _parts(value))

    def text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        return _URI_CREDENTIALS.sub(rf"\g<scheme>{MASK}@", text) if "://" in text else text

    def value(self, value: Any) -> Any:
        """The same value with every text in it masked."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value


def secrets_of(section: BaseModel) -> set[str]:
    """Every secret in the settings: of a URI its password and secret options, since the rest of it may be shown."""
    return set(_secrets(section))


def _secrets(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield from _parts(value.get_secret_value())
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _secrets(getattr(value, name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _secrets(item)


def _parts(secret: str) -> Iterator[str]:
    _scheme, separator, rest = secret.partition("://")
    if not separator:
        yield secret
        return
    credentials, _at, _host = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")
    found = [credentials.partition(":")[2], *_SECRET_OPTIONS.findall(rest)]
    yield from {spelling for password in found if password for spelling in (password, unquote(password))}

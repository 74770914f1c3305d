"""Resume tokens `{_data: hex}`: the server's key strings, so that they order like strings and show their cluster time.

A token is the cluster time, then for a high-water mark nothing that names an event, and for an event its place in the
transaction, whether it is an invalidate, the collection's UUID and the document key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from streamtrain.sandbox.mongo import raw
from streamtrain.sandbox.mongo.failure import CommandError

_EVENT = "2B022C0100"
_HIGH_WATER = "2B0229296E04"


@dataclass(frozen=True, slots=True)
class Token:
    ts: int
    high_water: bool
    index: int = 0
    invalidate: bool = False
    text: str = ""


def high_water(ts: int) -> str:
    return f"82{ts:016X}{_HIGH_WATER}"


def event(ts: int, index: int, uuid: str, key: bytes, *, invalidate: bool = False) -> str:
    place = "29" if index == 0 else _integer(index)
    flag = "6F" if invalidate else "6E"
    identity = f"5A1004{uuid}" if uuid else ""
    return f"82{ts:016X}{_EVENT}{place}{flag}{identity}{_key(key)}04"


def _key(element: bytes) -> str:
    if not element:
        return ""
    kind = element[0]
    if kind == 7:
        return f"46645F69640064{element[5:].hex().upper()}00"
    if kind in (16, 18):
        number = (raw.INT32 if kind == 16 else raw.INT64).unpack_from(element, 5)[0]
        return f"461E5F696400{'29' if number == 0 else _integer(number)}00"
    if kind == 2:
        return f"463C5F6964003C{element[9:-1].hex().upper()}0000"
    value = element[5:]
    return f"465A5F6964005A{len(value) & 0xFF:02X}{kind:02X}{value.hex().upper()}00"


def _integer(number: int) -> str:
    magnitude = abs(number) << 1
    length = max(1, (magnitude.bit_length() + 7) // 8)
    if number > 0:
        return f"{0x2A + length:02X}{magnitude:0{2 * length}X}"
    return f"{0x28 - length:02X}{(1 << 8 * length) - 1 - magnitude:0{2 * length}X}"


def type_bits(element: bytes) -> bytes:
    """What a token adds beside `_data` when the key's number is no int32: the type that the key string lost."""
    return _TYPE_BITS.get(element[0], b"") if element else b""


_TYPE_BITS = {
    kind: b"\x05_typeBits\x00" + raw.INT32.pack(len(bits)) + b"\x00" + bits
    for kind, bits in ((1, b"@"), (18, b"\x81\x80"), (19, b"\x82\xc0\x1e"))
}


def document(text: str, bits: bytes = b"") -> bytes:
    return raw.document(raw.string(b"_data", text), bits)


_SHAPE = re.compile(
    r"82([0-9A-F]{16})2B(?:02|04)(?:(29)296E04|2C0100(29|2B[0-9A-F]{2}|2C[0-9A-F]{4}|2D[0-9A-F]{6})(6E|6F).*)"
)


def parse(token: Any) -> Token:
    """Raises CommandError with the code that the server has for each way a token can be broken."""
    from streamtrain.sandbox.mongo.updates import shell

    if not isinstance(token, dict) or not isinstance(token.get("_data"), str):
        raise CommandError(
            40647, f"Bad resume token: _data of missing or of wrong type. Expected string, got {_shown(token, shell)}"
        )
    text = token["_data"]
    if text == "":
        raise CommandError(40649, "invalid empty resume token")
    if len(text) % 2 or not re.fullmatch(r"[0-9A-Fa-f]+", text):
        raise CommandError(9, "resume token string was not a valid hex string")
    match = _SHAPE.match(text.upper())
    if match is None:
        raise CommandError(15, "Invalid advance (1) past end of buffer[0] at offset: 0")
    ts = int(match[1], 16)
    if match[2]:
        return Token(ts, True, text=text)
    place = match[3]
    index = 0 if place == "29" else int(place[2:], 16) >> 1
    return Token(ts, False, index, match[4] == "6F", text)


def _shown(token: Any, shell: Any) -> str:
    if isinstance(token, dict):
        return "{" + ", ".join(f"{k}: {shell(v)}" for k, v in token.items()) + "}"
    return str(shell(token))

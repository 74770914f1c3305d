"""The MongoDB wire protocol: OP_MSG with its sections, and the OP_QUERY that old handshakes begin with."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from streamtrain.sandbox.mongo import raw

HEADER = struct.Struct("<iiii")
OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013
MORE_TO_COME, CHECKSUM = 2, 1
MAX_MESSAGE = 48_000_000


class ProtocolError(Exception):
    """Bytes that are no message; the connection is closed."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request: the command's document and, by name, the documents that came beside it."""

    request_id: int
    opcode: int
    flags: int
    body: bytes
    sequences: dict[str, list[bytes]]


def parse(data: bytes) -> Message:
    """A whole message, header included. Raises ProtocolError."""
    try:
        return _parse(data)
    except (struct.error, ValueError, IndexError) as error:
        raise ProtocolError(f"malformed message: {error}") from error


def _parse(data: bytes) -> Message:
    length, request_id, _, opcode = HEADER.unpack_from(data)
    if opcode == OP_QUERY:
        flags = raw.INT32.unpack_from(data, 16)[0]
        at = data.index(b"\x00", 20) + 1 + 8
        size = raw.INT32.unpack_from(data, at)[0]
        return Message(request_id, opcode, flags, data[at : at + size], {})
    if opcode != OP_MSG:
        raise ProtocolError(f"opcode {opcode} is not supported")
    flags = struct.unpack_from("<I", data, 16)[0]
    end = length - 4 if flags & CHECKSUM else length
    at, body, sequences = 20, b"", {}
    while at < end:
        kind = data[at]
        size = raw.INT32.unpack_from(data, at + 1)[0]
        if size < 5 or at + 1 + size > end:
            raise ProtocolError("section does not fit its message")
        if kind == 0:
            body = data[at + 1 : at + 1 + size]
        elif kind == 1:
            stop = data.index(b"\x00", at + 5)
            sequences[data[at + 5 : stop].decode()] = raw.split(data, stop + 1, at + 1 + size)
        else:
            raise ProtocolError(f"section kind {kind}")
        at += 1 + size
    if not body:
        raise ProtocolError("message without a body")
    return Message(request_id, opcode, flags, body, sequences)


def reply(message: Message, number: int, document: bytes) -> bytes:
    if message.opcode == OP_QUERY:
        head = HEADER.pack(36 + len(document), number, message.request_id, OP_REPLY)
        return head + struct.pack("<iqii", 8, 0, 0, 1) + document
    return HEADER.pack(21 + len(document), number, message.request_id, OP_MSG) + b"\x00\x00\x00\x00\x00" + document

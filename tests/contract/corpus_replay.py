"""Replays recorded OP_MSG exchanges with a real MongoDB against a server, and says where the answers differ.

Values that no two runs share (cursor ids, tokens, cluster times, uuids, addresses) are matched by kind; a request that
names one of them is sent with what the server under test gave in its place. Events are compared per cursor, since one
server may show them a getMore earlier than another.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bson
from bson import CodecOptions, DatetimeMS, Int64, ObjectId, Timestamp
from bson.codec_options import DatetimeConversion

OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
RECORDED = (1_796_067_600, 1_796_080_000)
"""The seconds within which the corpus was recorded: times between them came from the server's clock."""
WAIT_MS = 20
"""How long a replayed getMore waits: everything was written before it is sent."""
NOT_PRIMARY = 10107
STEP_DOWN, ELECTION = 0.5, 20.0
TOKEN = re.compile(r"82[0-9A-F]{16}2B[0-9A-F]+")


@dataclass(frozen=True, slots=True)
class Message:
    number: int
    connection: int
    request: bool
    identifier: int
    answers: int
    flags: int
    body: dict[str, Any]
    sequences: list[tuple[str, list[bytes]]]
    shortened: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """`where` is SCENARIO:MESSAGE and the path in the reply."""

    scenario: str
    number: int
    command: str
    path: str
    recorded: Any
    answered: Any

    def __str__(self) -> str:
        where = f"{self.scenario}:{self.number} {self.command} {self.path}"
        return f"{where}: recorded {self.recorded!r}, answered {self.answered!r}"


class Connection:
    """A raw client connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._number = 0

    def send(self, body: dict[str, Any], sequences: list[tuple[str, list[bytes]]], flags: int) -> dict[str, Any] | None:
        self._number += 1
        data = b"\x00" + bson.encode(body, codec_options=OPTIONS)
        for name, documents in sequences:
            section = name.encode() + b"\x00" + b"".join(documents)
            data += b"\x01" + struct.pack("<i", len(section) + 4) + section
        self._socket.sendall(struct.pack("<iiiiI", 20 + len(data), self._number, 0, 2013, flags) + data)
        if flags & 2:
            return None
        head = self._read(16)
        length = struct.unpack_from("<i", head)[0]
        return bson.decode(self._read(length - 16)[5:], OPTIONS)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            assert part, "the server closed the connection"
            data += part
        return data

    def close(self) -> None:
        self._socket.close()


def read(path: Path) -> Iterator[Message]:
    with path.open("rb") as file:
        for raw in bson.decode_file_iter(file, OPTIONS):
            yield Message(
                number=raw["n"],
                connection=raw["conn"],
                request=raw["dir"] == "request",
                identifier=raw["id"],
                answers=raw["to"],
                flags=raw["flags"],
                body=bson.decode(raw["body"], OPTIONS),
                sequences=[(s["name"], [bytes(d) for d in s["docs"]]) for s in raw["sequences"]],
                shortened=bool(raw.get("shortened")),
            )


@dataclass(slots=True)
class _Stream:
    """What a recorded cursor and its counterpart have shown so far."""

    opened: int
    recorded: list[dict[str, Any]] = field(default_factory=list)
    answered: list[dict[str, Any]] = field(default_factory=list)
    compared: int = 0
    finished: bool = False


class Replay:
    """One scenario against one server; `run` gives the differences."""

    def __init__(
        self, scenario: str, port: int, set_time: Callable[[int], None], before: Mapping[int, Callable[[], None]]
    ) -> None:
        self._scenario, self._port, self._set_time, self._before = scenario, port, set_time, before
        self._connections: dict[int, Connection] = {}
        self._cursors: dict[int, int] = {}
        self._tokens: dict[str, str] = {}
        self._times: dict[int, Timestamp] = {}
        self._streams: dict[int, _Stream] = {}
        self.differences: list[Difference] = []
        self.compared = 0
        self.events = 0

    def run(self, messages: list[Message], left_out: frozenset[str]) -> None:
        replies = {(m.connection, m.answers): m for m in messages if not m.request}
        try:
            for message in messages:
                if not message.request:
                    self._follow_clock(message.body)
                    continue
                reply = replies.get((message.connection, message.identifier))
                name = next(iter(message.body))
                if name in left_out or (reply is None and not message.flags & 2):
                    continue
                self._exchange(name, message, reply)
            for number, stream in self._streams.items():
                self._compare_events(number, stream, final=True)
        finally:
            for connection in self._connections.values():
                connection.close()

    def _follow_clock(self, body: dict[str, Any]) -> None:
        stamp = (body.get("$clusterTime") or {}).get("clusterTime")
        if stamp is not None:
            self._set_time(stamp.time)

    def _exchange(self, name: str, message: Message, reply: Message | None) -> None:
        if message.connection not in self._connections:
            self._connections[message.connection] = Connection(self._port)
        body = self._translated(message.body)
        body.pop("$clusterTime", None)
        if name == "replSetStepDown":
            body[name] = STEP_DOWN
        if name == "getMore":
            if "maxTimeMS" in body:
                body["maxTimeMS"] = WAIT_MS
            stream = self._streams.get(message.body["getMore"])
            if stream is not None and stream.finished:
                assert reply is not None
                stream.recorded += reply.body.get("cursor", {}).get("nextBatch", [])
                return
        if reply is not None:
            self._follow_clock(reply.body)
        if message.number in self._before:
            self._before[message.number]()
        answer = self._connections[message.connection].send(body, message.sequences, message.flags)
        if reply is None or answer is None:
            return
        if answer.get("code") == NOT_PRIMARY and reply.body.get("code") != NOT_PRIMARY:
            answer = self._until_primary(message, body)
        self.compared += 1
        self._compare_replies(name, message, reply, answer)

    def _until_primary(self, message: Message, body: dict[str, Any]) -> dict[str, Any]:
        """The recording waited for an election here."""
        deadline = time.monotonic() + ELECTION
        while True:
            answer = self._connections[message.connection].send(body, message.sequences, message.flags)
            assert answer is not None
            if answer.get("code") != NOT_PRIMARY or time.monotonic() > deadline:
                return answer
            time.sleep(0.02)

    # --- requests ---

    def _translated(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._translated(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._translated(item) for item in value]
        if isinstance(value, Int64) and int(value) in self._cursors:
            return Int64(self._cursors[int(value)])
        if isinstance(value, Timestamp):
            return self._times.get(_number(value), value)
        if isinstance(value, str) and value.startswith("82"):
            for known, own in self._tokens.items():
                if value.startswith(known):
                    return own + value[len(known) :]
        return value

    # --- replies ---

    def _compare_replies(self, name: str, message: Message, reply: Message, answer: dict[str, Any]) -> None:
        recorded = dict(reply.body)
        self._differ(message.number, name, ".stamps", _stamps(recorded), _stamps(answer))
        if "operationTime" in recorded and "operationTime" in answer:
            self._times.setdefault(_number(recorded["operationTime"]), answer["operationTime"])
        answer = dict(answer)
        for stamp in ("$clusterTime", "operationTime"):
            recorded.pop(stamp, None)
            answer.pop(stamp, None)
        theirs, own = recorded.get("cursor"), answer.get("cursor")
        if isinstance(theirs, dict) and isinstance(own, dict):
            self._follow_cursor(name, message, theirs, own)
            if "postBatchResumeToken" in theirs:
                recorded["cursor"], answer["cursor"] = _envelope(theirs), _envelope(own)
        if not reply.shortened:
            self._compare(message.number, name, "", recorded, answer)

    def _follow_cursor(self, name: str, message: Message, theirs: dict[str, Any], own: dict[str, Any]) -> None:
        if theirs["id"] and own["id"]:
            self._cursors[theirs["id"]] = own["id"]
        if "postBatchResumeToken" not in theirs or "postBatchResumeToken" not in own:
            return
        opened = message.body["getMore"] if name == "getMore" else theirs["id"] or -message.number
        stream = self._streams.setdefault(opened, _Stream(message.number))
        stream.recorded += theirs.get("firstBatch", theirs.get("nextBatch"))
        stream.answered += own.get("firstBatch", own.get("nextBatch"))
        stream.finished = own["id"] == 0
        self._compare_events(opened, stream)
        token, mine = theirs["postBatchResumeToken"]["_data"], own["postBatchResumeToken"]["_data"]
        if len(stream.recorded) == len(stream.answered):
            self._tokens.setdefault(token, mine)

    def _compare_events(self, _: int, stream: _Stream, *, final: bool = False) -> None:
        for i in range(stream.compared, min(len(stream.recorded), len(stream.answered))):
            theirs, own = stream.recorded[i], stream.answered[i]
            self.events += 1
            if isinstance(theirs.get("_id"), dict) and isinstance(own.get("_id"), dict):
                self._tokens[theirs["_id"].get("_data", "")] = own["_id"].get("_data", "")
            if isinstance(theirs.get("clusterTime"), Timestamp) and isinstance(own.get("clusterTime"), Timestamp):
                self._times[_number(theirs["clusterTime"])] = own["clusterTime"]
            self._compare(stream.opened, "event", f"{theirs.get('operationType')}[{i}]", theirs, own)
            stream.compared = i + 1
        if final:
            count = len(stream.recorded)
            self._differ(stream.opened, "event", "count", count, len(stream.answered))

    def _compare(self, number: int, name: str, path: str, theirs: Any, own: Any) -> None:
        if isinstance(theirs, dict) and isinstance(own, dict):
            for key in theirs.keys() | own.keys():
                if key not in own or key not in theirs:
                    self._differ(number, name, f"{path}.{key}", theirs.get(key, "absent"), own.get(key, "absent"))
                else:
                    self._compare(number, name, f"{path}.{key}", theirs[key], own[key])
            shared = [key for key in theirs if key in own]
            order = [key for key in own if key in theirs]
            self._differ(number, name, f"{path}.<order>", shared, order)
        elif isinstance(theirs, list) and isinstance(own, list) and len(theirs) == len(own):
            for i, (a, b) in enumerate(zip(theirs, own, strict=True)):
                self._compare(number, name, f"{path}.{i}", a, b)
        elif not self._alike(path, theirs, own):
            self._differ(number, name, path, theirs, own)

    def _alike(self, path: str, theirs: Any, own: Any) -> bool:
        if type(theirs) is not type(own):
            return False
        if isinstance(theirs, float) and theirs != theirs:
            return bool(own != own)
        if theirs == own:
            return True
        last = path.rpartition(".")[2]
        if isinstance(theirs, Timestamp):
            return RECORDED[0] <= theirs.time <= RECORDED[1]
        if isinstance(theirs, DatetimeMS):
            return RECORDED[0] <= int(theirs) // 1000 <= RECORDED[1]
        if isinstance(theirs, str) and TOKEN.fullmatch(theirs):
            return ("2B022C" in theirs) == ("2B022C" in own) and TOKEN.fullmatch(own) is not None
        if isinstance(theirs, ObjectId):
            return last in ("electionId", "processId")
        if last in ("uuid", "collectionUUID") and path.endswith(("info.uuid", "collectionUUID")):
            return True
        if isinstance(theirs, Int64):
            return path.endswith("cursor.id") or ".cursors" in path or last == "t"
        if last == "errmsg":
            return _plain(theirs) == _plain(own)
        return last in ("primary", "me", "you", "syncSourceHost") or ".hosts." in path

    def _differ(self, number: int, name: str, path: str, theirs: Any, own: Any) -> None:
        if theirs != own:
            self.differences.append(Difference(self._scenario, number, name, path, theirs, own))


def _number(stamp: Timestamp) -> int:
    return (stamp.time << 32) | stamp.inc


def _stamps(reply: dict[str, Any]) -> set[str]:
    return reply.keys() & {"$clusterTime", "operationTime"}


def _envelope(cursor: dict[str, Any]) -> dict[str, Any]:
    """A change stream's cursor without its events and with its token by kind only: both depend on timing."""
    return {k: v for k, v in cursor.items() if k not in ("firstBatch", "nextBatch", "postBatchResumeToken", "id")} | {
        "token": list(cursor["postBatchResumeToken"]) if "postBatchResumeToken" in cursor else None
    }


def _plain(message: str) -> str:
    """A message without the numbers, tokens and times of its run."""
    return re.sub(r"\d{6,}", "N", TOKEN.sub("TOKEN", message))

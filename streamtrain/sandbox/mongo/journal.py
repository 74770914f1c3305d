"""The append-only file behind a server: every applied write as one BSON record, written before it is acknowledged.

A record is handed to the operating system before the reply is sent, so acknowledged writes survive kill -9 of the
server; they survive a power failure only with `fsync=True`. A torn last record is cut off at the next start. The file
only grows: a server that is to start afresh gets a new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamtrain.sandbox.mongo import raw


class Journal:
    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self._path, self._fsync = path, fsync
        self._file: int | None = None
        self._pending: list[bytes] = []

    def replay(self) -> Iterator[dict[str, Any]]:
        """The records so far, oldest first; then the file is open for more, without its torn tail."""
        data = self._path.read_bytes() if self._path.exists() else b""
        at = 0
        while at + 5 <= len(data):
            size = raw.INT32.unpack_from(data, at)[0]
            if size < 5 or at + size > len(data) or data[at + size - 1] != 0:
                break
            yield _record(data[at : at + size])
            at += size
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, at)
        os.lseek(self._file, at, os.SEEK_SET)

    def append(self, record: bytes) -> None:
        self._pending.append(record)

    def flush(self) -> None:
        if not self._pending or self._file is None:
            return
        data = memoryview(b"".join(self._pending))
        self._pending.clear()
        while data:
            data = data[os.write(self._file, data) :]
        if self._fsync:
            os.fsync(self._file)

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _record(data: bytes) -> dict[str, Any]:
    """A record's fields; documents stay raw."""
    fields: dict[str, Any] = {}
    for e in raw.elements(data):
        if e.kind == 3:
            fields[e.name.decode()] = data[e.value : e.end]
        elif e.kind == 5:
            fields[e.name.decode()] = data[e.value + 5 : e.end]
        elif e.kind == 17:
            fields[e.name.decode()] = raw.UINT64.unpack_from(data, e.value)[0]
        elif e.kind in (9, 18):
            fields[e.name.decode()] = raw.INT64.unpack_from(data, e.value)[0]
        elif e.kind == 16:
            fields[e.name.decode()] = raw.INT32.unpack_from(data, e.value)[0]
        elif e.kind == 2:
            fields[e.name.decode()] = data[e.value + 4 : e.end - 1].decode()
    return fields


def binary(name: bytes, data: bytes) -> bytes:
    return b"\x05" + name + b"\x00" + raw.INT32.pack(len(data)) + b"\x00" + data

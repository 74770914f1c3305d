"""Documents from files."""

from __future__ import annotations

from pathlib import Path

import bson
import pytest
from bson.int64 import Int64

from streamtrain.checking.samples import from_file
from streamtrain.errors import UsageError


def test_json_lines_and_bson_files_hold_documents(tmp_path: Path) -> None:
    lines = tmp_path / "documents.jsonl"
    lines.write_text('{"x": 1, "at": {"$date": "2026-01-01T00:00:00Z"}}\n\n{"x": {"$numberLong": "5"}}\n{"x": 3}\n')
    found = from_file(lines, 2)
    assert [bson.decode(each)["x"] for each in found] == [1, Int64(5)]
    dump = tmp_path / "dump.bson"
    dump.write_bytes(b"".join(found))
    assert from_file(dump, 10) == found


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"x": 1}\n{x}\n', "a.jsonl:2: no document"),
        ("a.jsonl", b"\n", "holds no document"),
        ("a.bson", b'{"x": 1}', "is no BSON file"),
        ("a.bson", None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_holds_none_says_why(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        from_file(tmp_path / name, 10)

"""Both artifact stores keep the same promises."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymongo
import pytest

from streamtrain.artifacts import BUCKET, ArtifactStore, DirectoryStore, open_store
from streamtrain.errors import ArtifactError, ConfigError, DependencyError, MongoError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(params=["directory", "gridfs"])
def store(request: pytest.FixtureRequest, directory: Path) -> Iterator[ArtifactStore]:
    options: dict[str, Any] = {"kind": "directory", "path": str(directory)}
    if request.param == "gridfs":
        options = {"kind": "gridfs", "uri": request.getfixturevalue("mongo_server").uri, "database": "streamtrain"}
    opened = open_store(options)
    yield opened
    opened.close()


def test_what_is_put_is_read_back(store: ArtifactStore, tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    source = tmp_path / "source"
    source.write_bytes(content)
    for name, given in (("j/l/e1-g1-r1/state.npz", content), ("j/l/e1-g1-r1/model.keras", source)):
        ref = store.put(name, given)
        assert (ref.name, ref.bytes, ref.sha256) == (name, len(content), hashlib.sha256(content).hexdigest())
        store.get(ref, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == content


def test_putting_the_same_again_changes_nothing(store: ArtifactStore) -> None:
    assert store.put("a/b", b"content") == store.put("a/b", b"content")
    assert store.list("a/") == ["a/b"]


def test_other_content_under_the_same_name_replaces_it(store: ArtifactStore, tmp_path: Path) -> None:
    old = store.put("a/b", b"old")
    new = store.put("a/b", b"new")
    store.get(new, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"new"
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        store.get(old, tmp_path / "back")


def test_a_failed_read_leaves_no_file_and_no_harm(store: ArtifactStore, tmp_path: Path) -> None:
    ref = store.put("a/b", b"content")
    kept = tmp_path / "target" / "kept"
    kept.parent.mkdir()
    kept.write_bytes(b"before")
    for wrong in (replace(ref, sha256="0" * 64), replace(ref, name="a/missing")):
        with pytest.raises(ArtifactError):
            store.get(wrong, kept)
    assert kept.read_bytes() == b"before"
    assert list(kept.parent.iterdir()) == [kept]


def test_names_are_listed_by_prefix_in_order(store: ArtifactStore) -> None:
    for name in ("job/l1/x", "job/l2/x", "job-2/l1/x", "job/l1/a"):
        store.put(name, b"")
    assert store.list("job/") == ["job/l1/a", "job/l1/x", "job/l2/x"]
    assert store.list("job/l1/") == ["job/l1/a", "job/l1/x"]
    assert store.list("nothing") == []


def test_a_folder_that_goes_away_while_names_are_listed_is_no_failure(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs prune the same root, each in a thread of its own."""
    store = open_store({"kind": "directory", "path": str(directory)})
    store.put("j/l1/a", b"")
    store.put("j/l2/b", b"")
    scandir = os.scandir

    def meanwhile(path: Any) -> Any:
        if Path(path).name == "l1":
            store.delete("j/l1/a")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", meanwhile)
    assert store.list("j/") == ["j/l2/b"]


def test_deleting_twice_is_fine(store: ArtifactStore) -> None:
    store.put("a/b/c", b"content")
    store.delete("a/b/c")
    store.delete("a/b/c")
    assert store.list("") == []


def test_an_upload_that_broke_off_is_listed_replaced_and_deleted(mongo_server: Any, tmp_path: Path) -> None:
    opened = open_store({"kind": "gridfs", "uri": mongo_server.uri, "database": "streamtrain"})
    with pymongo.MongoClient(mongo_server.uri) as client:
        chunks = client["streamtrain"][f"{BUCKET}.chunks"]
        for name in ("a/torn", "a/again"):
            chunks.insert_one({"files_id": name, "n": 0, "data": b"half"})
        assert opened.list("a/") == ["a/again", "a/torn"]
        opened.delete("a/torn")
        opened.get(opened.put("a/again", b"whole"), tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"whole"
        assert chunks.count_documents({}) == 1
    opened.close()


def test_an_unreachable_server_is_no_damaged_artifact(mongo_server: Any) -> None:
    opened = open_store({"kind": "gridfs", "uri": mongo_server.uri, "database": "streamtrain"})
    mongo_server.faults.error("find", 13436, times=5)
    with pytest.raises(MongoError):
        opened.put("a/b", b"content")
    opened.close()


def test_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    opened = open_store({"kind": "directory", "path": str(tmp_path / "file")})
    with pytest.raises(DependencyError, match="could not be stored"):
        opened.put("a/b", b"content")


@pytest.mark.parametrize("there", [True, False])
def test_a_directory_that_is_not_mounted_is_no_lost_artifact(tmp_path: Path, there: bool) -> None:
    ref = DirectoryStore(path=tmp_path / "store").put("job/state.npz", b"weights")
    unmounted = tmp_path / "unmounted"
    if there:
        unmounted.mkdir()
    with pytest.raises(DependencyError, match="mounted"):
        DirectoryStore(path=unmounted).get(ref, tmp_path / "read")


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/.arriving-1", ""])
def test_a_directory_store_takes_no_name_that_leads_elsewhere(directory: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="not a name"):
        open_store({"kind": "directory", "path": str(directory)}).put(name, b"")


def test_an_unknown_kind_of_store_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="unknown kind"):
        open_store({"kind": "s3"})

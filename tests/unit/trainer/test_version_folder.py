"""A version is there whole or not at all, and none is ever changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from streamtrain.errors import DependencyError
from streamtrain.trainer.version_folder import VersionFolder

NOW = 1_764_549_000.9


def publish(root: Path, content: str, *, now: float = NOW) -> Path:
    with VersionFolder(root=root, job="delay").arriving() as arriving:
        (arriving.version / "variables").mkdir()
        (arriving.version / "variables" / "data").write_text(content)
        (arriving.scratch / "state.npz").write_text("in passing")
        return arriving.publish(now=now)


def everything(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_a_version_is_numbered_by_the_time_and_nothing_else_is_left(tmp_path: Path) -> None:
    assert publish(tmp_path, "first") == tmp_path / "delay" / "1764549000"
    assert everything(tmp_path) == [
        "delay",
        "delay/1764549000",
        "delay/1764549000/variables",
        "delay/1764549000/variables/data",
    ]


def test_the_number_grows_when_the_clock_does_not_and_no_version_is_changed(tmp_path: Path) -> None:
    paths = [publish(tmp_path, str(number), now=NOW - number) for number in range(3)]
    assert [path.name for path in paths] == ["1764549000", "1764549001", "1764549002"]
    assert [(path / "variables" / "data").read_text() for path in paths] == ["0", "1", "2"]


def test_numbers_of_others_are_passed_over_and_other_files_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "delay"
    (folder / "9999999999").mkdir(parents=True)
    (folder / "labels.txt").write_text("mine")
    assert publish(tmp_path, "x").name == "10000000000"
    assert (folder / "labels.txt").read_text() == "mine"


def test_what_fails_before_it_is_published_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with VersionFolder(root=tmp_path, job="delay").arriving() as arriving:
            (arriving.version / "half").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert everything(tmp_path) == ["delay"]


def test_exports_at_the_same_time_get_versions_of_their_own(tmp_path: Path) -> None:
    threads = [threading.Thread(target=publish, args=(tmp_path, str(number))) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    contents = {(path / "variables" / "data").read_text() for path in (tmp_path / "delay").iterdir()}
    assert contents == {str(number) for number in range(8)}


KILLED = """
import os, signal, sys
from pathlib import Path
from streamtrain.trainer import version_folder
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
with version_folder.VersionFolder(root=Path(sys.argv[1]), job="delay").arriving() as arriving:
    (arriving.version / "saved_model.pb").write_text("half")
    if sys.argv[2] == "writing": die()
    if sys.argv[2] == "syncing": version_folder._sync = die
    arriving.publish(now=1.0)
"""


@pytest.mark.parametrize("when", ["writing", "syncing"])
def test_a_process_that_is_killed_leaves_no_version_and_the_next_one_clears_up(tmp_path: Path, when: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), when], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    folder = tmp_path / "delay"
    assert [path for path in folder.iterdir() if not path.name.startswith(".")] == []
    assert len(list(folder.iterdir())) == 1
    assert list(folder.iterdir()) != [publish(tmp_path, "next")]
    assert [path.name for path in folder.iterdir()] == ["1764549000"]


def test_what_another_process_is_writing_is_not_cleared_up(tmp_path: Path) -> None:
    with VersionFolder(root=tmp_path, job="delay").arriving() as arriving:
        (arriving.version / "data").write_text("first")
        second = publish(tmp_path, "second")
        first = arriving.publish(now=NOW)
    assert (first / "data").read_text() == "first"
    assert int(first.name) > int(second.name)


def test_a_place_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DependencyError, match=r"nothing can be exported to .*/file/delay: Not a directory"):
        publish(tmp_path / "file", "x")


FULL = """
import resource, sys
from pathlib import Path
from streamtrain.errors import DependencyError
from streamtrain.trainer.version_folder import VersionFolder
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    with VersionFolder(root=Path(sys.argv[1]), job="delay").arriving() as arriving:
        (arriving.version / "data").write_bytes(bytes(100_000))
        arriving.publish(now=1.0)
except DependencyError as error:
    print(error)
"""


def test_a_disk_without_room_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "nothing can be exported to" in done.stdout
    assert "with room" in done.stdout
    assert everything(tmp_path) == ["delay"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "delay").mkdir(mode=0o500)
    with pytest.raises(DependencyError, match="Permission denied"):
        publish(tmp_path, "x")

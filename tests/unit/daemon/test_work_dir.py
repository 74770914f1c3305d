from __future__ import annotations

import errno
import tempfile

import pytest

from streamtrain.daemon import work_dir
from streamtrain.errors import DependencyError


def test_a_full_disk_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(DependencyError, match="No space left on device") as told, work_dir.made():
        pass
    assert "TMPDIR" in told.value.hint


def test_the_folder_is_the_daemons_own_and_goes_however_it_ends() -> None:
    with pytest.raises(KeyError), work_dir.made() as folder:  # noqa: PT012
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("left")
        raise KeyError
    assert not folder.exists()

"""`DIR/<job>/<number>/`, as TensorFlow Serving looks for it: a version is there whole or not at all, and none is ever
changed. Knows nothing of what lies in a version."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamtrain.errors import DependencyError

_ARRIVING = ".arriving-"  # TensorFlow Serving passes over what is no number
_VERSION = "version"


class VersionFolder:
    """One job's versions. Raises DependencyError for what the file system refuses."""

    def __init__(self, *, root: Path, job: str) -> None:
        self.path = root / job

    @contextmanager
    def arriving(self) -> Iterator[Arriving]:
        """A folder to write a version in, on the same file system. Gone afterwards, whatever was not published with
        it; what a process that was killed has left behind goes as well."""
        with _refused(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            with _locked(self.path):
                for left in self.path.glob(f"{_ARRIVING}*"):
                    _remove_abandoned(left)
                scratch = Path(tempfile.mkdtemp(prefix=_ARRIVING, dir=self.path))
                lock = os.open(scratch, os.O_RDONLY)
                fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends, however it does
            try:
                yield Arriving(self, scratch)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
                os.close(lock)

    def newest(self) -> int:
        """0 without any."""
        return max((int(path.name) for path in self.path.iterdir() if path.name.isdecimal()), default=0)


class Arriving:
    """version: becomes the version. scratch: for files in passing."""

    def __init__(self, folder: VersionFolder, scratch: Path) -> None:
        self._folder = folder
        self.scratch = scratch
        self.version = scratch / _VERSION
        self.version.mkdir()

    def publish(self, *, now: float) -> Path:
        """Makes the version visible once all of it is on disk. Its number is the time, in seconds since 1970, and
        always larger than any there: TensorFlow Serving serves the largest, also when that is an older model."""
        for folder, _, files in os.walk(self.version, topdown=False):
            for file in files:
                _sync(Path(folder, file))
            _sync(Path(folder))
        number = max(int(now), self._folder.newest() + 1)
        while True:
            target = self._folder.path / str(number)
            try:
                if not target.exists():  # an empty folder would give way to a rename
                    self.version.rename(target)
                    break
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            number += 1
        _sync(self._folder.path)
        return target


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Says what the file system refuses."""
    try:
        yield
    except OSError as error:
        raise DependencyError(
            f"nothing can be exported to {path}: {error.strerror or error}",
            hint="the folder must be writable, with room for the model",
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """No other process is between making its folder and holding it."""
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _remove_abandoned(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass  # its process is at work
    finally:
        os.close(lock)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

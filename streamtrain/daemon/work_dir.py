"""The daemon's folder for files in passing, its workers' too."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamtrain.errors import DependencyError


@contextmanager
def made() -> Iterator[Path]:
    """Gone afterwards, however the block ends. Raises DependencyError when there can be none."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="streamtrain-"))
    except OSError as error:
        raise DependencyError(
            f"no folder for temporary files can be made: {error.strerror or error}",
            hint="is the folder for temporary files (TMPDIR) there, writable, and its disk not full?",
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

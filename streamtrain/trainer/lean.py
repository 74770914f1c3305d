"""Keeps what no worker needs out of its imports. Keras imports scikit-learn and pandas where they are installed, for
wrappers and data frames: that is a quarter of the time in which a worker starts, and tens of megabytes in each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

NOT_NEEDED = ("sklearn", "pandas")


@contextmanager
def lean(names: Sequence[str] = NOT_NEEDED) -> Iterator[None]:
    """Inside, an import of these packages fails as if they were not installed; afterwards a model may use them."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: the import system's word for it
    try:
        yield
    finally:
        for name in hidden:
            if sys.modules.get(name, name) is None:
                del sys.modules[name]

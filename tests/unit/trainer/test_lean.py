from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from streamtrain.trainer.lean import lean


def test_a_package_is_as_if_not_installed_inside_and_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy_package.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError), lean(["heavy_package"]):
        importlib.import_module("heavy_package")
    assert importlib.import_module("heavy_package").loaded
    with lean(["heavy_package"]):  # what is there already stays
        assert importlib.import_module("heavy_package").loaded
    del sys.modules["heavy_package"]


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_worker_imports_neither_scikit_learn_nor_pandas() -> None:
    code = (
        "import sys\n"
        "from streamtrain.trainer.lean import lean\n"
        "with lean():\n"
        "    import streamtrain.trainer.rank\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'sklearn', 'pandas'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"

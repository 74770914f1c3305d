"""The wheel holds the package, typed, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENTRANCES = {"testing"}  # for users: it may import what a command may
SHARED = {"config", "kafka", "settings"}
"""Packages that stages import like a leaf."""


def test_wheel_holds_the_whole_package_and_nothing_else(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "streamtrain").rglob("*.py")}
    assert sources <= names
    assert "streamtrain/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"streamtrain"}
    (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
    (license_,) = [name for name in names if name.endswith("LICENSE")]
    assert entry_points
    assert license_


def test_no_module_of_the_top_level_is_forgotten_by_the_import_contracts() -> None:
    """import-linter checks what it is told of: a new leaf must be told of, or it may import what it likes."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    told = {
        each["name"]: {module.removeprefix("streamtrain.") for module in each.get("source_modules", ())}
        for each in contracts
    }
    package = ROOT / "streamtrain"
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    stages = {path.parent.name for path in package.glob("*/__init__.py")}
    assert told["Leaves import no stage"] == (modules - ENTRANCES) | SHARED
    assert told["Only the trainer imports TensorFlow"] == (modules | stages) - {"trainer"}

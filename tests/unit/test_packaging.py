"""The wheel holds the package, typed, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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

"""Runs every benchmark of this folder one after the other, each in a process of its own, and keeps what it prints
(one JSON document) in bench-results/. Benchmarks measure their limits in the same run: compare ratios, not times.

    python benchmarks/run.py [NAME ...]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER.parent / "bench-results"


def main() -> int:
    known = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "run" and _is_script(path))
    names = sys.argv[1:] or known
    if unknown := set(names) - set(known):
        print(f"there is no benchmark {min(unknown)!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    RESULTS.mkdir(exist_ok=True)
    failed = False
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, str(FOLDER / f"{name}.py")], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            print(f"{name} ended with exit code {done.returncode}", file=sys.stderr)
            failed = True
            continue
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        document = {"benchmark": name, "machine": machine, "result": json.loads(done.stdout)}
        (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
        print(json.dumps(document, indent=2), flush=True)
    return 1 if failed else 0


def _is_script(path: Path) -> bool:
    return '__name__ == "__main__"' in path.read_text()


if __name__ == "__main__":
    sys.exit(main())

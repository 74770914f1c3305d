"""The quality benchmark runs to its end and prints its table, on a few rows of each stream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "quality.py"


def test_the_quality_benchmark_compares_the_model_with_rivals_and_baselines() -> None:
    options = ["bananas", "flights", "--rows", "40", "--labels", "60", "--seeds", "1"]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    streams = json.loads(done.stdout)["streams"]
    assert streams["bananas"]["rows"] == 40
    assert streams["flights"]["rows"] == 60
    for name, kinds in {"bananas": ("built-in", "river"), "flights": ("built-in", "baselines", "river")}.items():
        for kind in kinds:
            assert streams[name][kind]
            for entry in streams[name][kind].values():
                assert entry["score"] > 0
    assert "adaptive random forest" in done.stderr
    assert "dep_delay + running median" in done.stderr


def test_the_quality_benchmark_names_a_stream_that_it_does_not_have() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "pears"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "there is no stream 'pears'" in done.stderr

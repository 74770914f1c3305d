"""The documentation names tests that exist, and links and settings that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from streamtrain.config import Settings
from streamtrain.settings.settings_file import load

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
REFERENCE = re.compile(r"`((?:unit|contract|integration|chaos)/[\w/]+\.py)(?:::(\w+))?`")


def test_every_test_that_the_docs_name_exists() -> None:
    missing = []
    for page in PAGES:
        for path, name in REFERENCE.findall((ROOT / page).read_text()):
            file = ROOT / "tests" / path
            if not file.exists() or (name and f"def {name}(" not in file.read_text()):
                missing.append(f"{page}: {path}::{name}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_links_between_the_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_every_configuration_in_the_docs_is_valid(page: str, tmp_path: Path) -> None:
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)):
        if "jobs" in yaml.safe_load(block):
            file = tmp_path / f"{number}.yaml"
            file.write_text(block)
            assert isinstance(load(file, environ={}).settings, Settings)

"""What the pages say exists: paths, tools, configuration keys and make targets."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from async_agent_rl.config_loading import load_config
from async_agent_rl.errors import ConfigError
from tools.config_reference import render


def _pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def test_the_configuration_page_is_current(project_root: Path) -> None:
    assert (project_root / "docs" / "configuration.md").read_text() == render(), "run python -m tools.config_reference"


def test_every_link_leads_somewhere(project_root: Path) -> None:
    missing = [
        f"{page.name}: {target}"
        for page in _pages(project_root)
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert missing == []


def test_every_module_that_is_run_exists(project_root: Path) -> None:
    names = {name for page in _pages(project_root) for name in re.findall(r"python -m ([\w.]+)", page.read_text())}
    assert {"async_agent_rl.launch", "tools.tail", "tools.evaluate"} <= names
    missing = [name for name in names if name != "tools.NAME" and importlib.util.find_spec(name) is None]
    assert missing == []


def test_every_override_on_the_pages_is_a_key(project_root: Path) -> None:
    sections = "run|env|model|group|train|staleness|offpolicy|actors|buffer|gigpo|learner|checkpoint|evaluation"
    pattern = re.compile(rf"\b((?:{sections})\.[\w.]+)=(\w[\w./:-]*)")
    wrong = []
    for page in _pages(project_root):
        for key, value in pattern.findall(page.read_text()):
            try:
                load_config("smoke", [f"{key}={value.rstrip('.')}"])
            except ConfigError as error:
                if "no such key" in str(error) or "no key" in str(error):
                    wrong.append(f"{page.name}: {key}: {error}")
    assert wrong == []


@pytest.mark.parametrize("target", ["train", "test", "smoke", "check", "bench"])
def test_make_knows_the_targets_of_the_pages(target: str, project_root: Path) -> None:
    assert re.search(rf"^{target}:", (project_root / "Makefile").read_text(), re.MULTILINE)

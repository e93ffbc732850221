"""Who may import whom, and what stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED = {
    "async_agent_rl": {"async_agent_rl"},
    "actors": {"actors", "async_agent_rl"},
    "learner": {"learner", "async_agent_rl"},
    "envs": {"envs", "async_agent_rl"},
}
OURS = {*ALLOWED, "tools"}
CONTRACTS = ("config", "env", "errors", "policy", "protocol", "roles", "seeds", "metrics", "reports", "plan", "launch")


def _imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_what_they_may(package: str, project_root: Path) -> None:
    files = list((project_root / package).rglob("*.py"))
    assert files
    offenders = {
        str(path.relative_to(project_root)): sorted(wrong)
        for path in files
        if (wrong := (_imported_packages(path) & OURS) - ALLOWED[package])
    }
    assert offenders == {}


@pytest.mark.parametrize("module", CONTRACTS)
def test_contract_modules_load_without_torch(module: str, project_root: Path) -> None:
    code = f"import async_agent_rl.{module}, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=project_root, check=False).returncode == 0


def test_files_stay_short(project_root: Path) -> None:
    long = {
        str(path.relative_to(project_root)): count
        for folder in (*OURS, "tests")
        for path in (project_root / folder).rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 400
    }
    assert long == {}

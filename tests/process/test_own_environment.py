"""The example of docs/environments.md is real: taken from the page, it trains."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from async_agent_rl.metrics import read_metrics


def test_the_documented_example_trains(project_root: Path, tmp_path: Path) -> None:
    page = (project_root / "docs" / "environments.md").read_text()
    source = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    command = re.search(r"python -m async_agent_rl\.launch (.*?)\n```", page, re.DOTALL)
    assert source is not None
    assert command is not None
    (tmp_path / "color_shelf.py").write_text(source.group(1))
    arguments = command.group(1).replace("\\\n", " ").split()
    result = subprocess.run(
        [sys.executable, "-m", "async_agent_rl.launch", *arguments, "evaluation.n=16"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={"PYTHONPATH": str(project_root), "PATH": "/usr/bin:/bin"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    records = read_metrics(next((tmp_path / "runs").iterdir()))
    first = sum(record.success for record in records[:3]) / 3
    last = sum(record.success for record in records[-3:]) / 3
    assert len(records) == 20
    assert last > first + 0.15, [record.success for record in records]

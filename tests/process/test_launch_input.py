"""What a person gets wrong ends with status 2 and one sentence; a dry run starts nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest


def launch(root: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "async_agent_rl.launch", *arguments],
        cwd=cwd or root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", ["webshop_tiny", "smoke", "webshop_qwen_1_5b"])
def test_a_dry_run_prints_the_plan_and_starts_nothing(name: str, project_root: Path, tmp_path: Path) -> None:
    result = launch(project_root, "--config-name", name, "--dry-run", f"run.dir={tmp_path / 'runs'}")
    assert result.returncode == 0, result.stderr
    assert "effective staleness" in result.stdout
    assert "groups_per_update" in result.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["staleness.max=-1"], "staleness.max=-1"),
        (["no.such.key=1"], "no.such.key=1"),
        (["model.path=/no/such/model"], "model.path=/no/such/model: no such folder"),
        (["env=no_such_module:World"], "no_such_module"),
        (["env=async_agent_rl.errors:Nothing"], "has no 'Nothing'"),
        (["env.webshop.products=/no/such/items.json"], "/no/such/items.json"),
        (["env.webshop.no_such_option=1"], "no_such_option"),
        (["run.max_size_mb=50"], "run.max_size_mb=50"),
        (["model.max_prompt_tokens=100000"], "positions"),
        (["--config-name", "nothing"], "nothing"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(arguments: list[str], sentence: str, project_root: Path) -> None:
    result = launch(project_root, "--dry-run", *arguments)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


def test_a_port_in_use_is_named(project_root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = launch(project_root, "--dry-run", f"buffer.port={port}")
    assert result.returncode == 2
    assert f"buffer.port={port} is in use" in result.stderr


def test_a_model_folder_without_tokenizer_is_named(project_root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    result = launch(project_root, "--dry-run", f"model.path={folder}")
    assert result.returncode == 2
    assert "no tokenizer.json" in result.stderr


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('[{"asin": "A1",\n  broken}]', "line 2"),
        ('[{"name": "no asin"}]', "asin"),
    ],
)
def test_a_broken_catalogue_is_named(content: str, sentence: str, project_root: Path, tmp_path: Path) -> None:
    products, attributes = tmp_path / "items.json", tmp_path / "ins.json"
    products.write_text(content)
    attributes.write_text("{}")
    result = launch(
        project_root, "--dry-run", f"env.webshop.products={products}", f"env.webshop.attributes={attributes}"
    )
    assert result.returncode == 2
    assert "items.json" in result.stderr
    assert sentence in result.stderr


def test_a_folder_that_hides_ours_is_named(project_root: Path, tmp_path: Path) -> None:
    decoy = tmp_path / "envs"
    decoy.mkdir()
    (decoy / "__init__.py").write_text("")
    result = launch(project_root, "--dry-run", cwd=tmp_path)
    assert result.returncode == 2
    assert str(decoy) in result.stderr
    assert str(project_root / "envs") in result.stderr

"""A world of one's own with a mistake in it is answered by one sentence with the place of the mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from async_agent_rl.config import EnvSection
from async_agent_rl.config_loading import load_config
from async_agent_rl.errors import ConfigError
from async_agent_rl.plugins import guarded, load_world


@pytest.mark.parametrize(
    ("name", "source", "parts"),
    [
        ("shop_ctor", "class W:\n    def __init__(self, options):\n        raise ValueError('boom')\n", ["boom", ":3"]),
        ("shop_syntax", "class W:\n    def broken(:\n", ["SyntaxError", ":2"]),
        ("shop_import", "import no_such_library_here\n", ["no_such_library_here", ":1"]),
        ("shop_empty", "class W:\n    def __init__(self, options): ...\n", ["lacks num_tasks and new_env"]),
    ],
)
def test_a_broken_world_is_named_with_its_place(
    name: str, source: str, parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        load_world(EnvSection(target=f"{name}:W"))
    assert all(part in str(caught.value) for part in [*parts, f"env={name}:W"]), str(caught.value)


def test_what_a_world_raises_later_is_a_sentence_too() -> None:
    with pytest.raises(ConfigError, match="KeyError: 'train'"):
        guarded("shop:W", lambda: {"validation": 1}["train"])


def test_a_config_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    with pytest.raises(ConfigError, match="no valid YAML"):
        load_config(str(tmp_path / "broken.yaml"))

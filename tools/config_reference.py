"""`python -m tools.config_reference`: docs/configuration.md, written from the sources of the configuration.

Types and defaults come from the structs, meanings from the docstrings below their fields, so the page cannot drift.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from async_agent_rl.errors import EXIT_OK
from async_agent_rl.layout import project_root

_PAGE = project_root() / "docs" / "configuration.md"
_HEAD = """# Configuration

Every key of a run, as `KEY=VALUE` on the command line of `python -m async_agent_rl.launch` or in a YAML file. Values
are taken from the defaults below, then from `--config-name` (a file of `configs/` or a path), then from the command
line. Unknown keys, wrong types and contradictory combinations are refused with exit status 2. The resolved
configuration is printed and saved as `config.yaml` in the run folder; `--config-name runs/.../config.yaml` repeats it.

This page is written by `python -m tools.config_reference`.
"""


@dataclasses.dataclass(frozen=True)
class Key:
    """One row of the page."""

    name: str
    kind: str
    default: str
    meaning: str


def section_keys(source: str, class_name: str) -> Iterator[Key]:
    """The annotated fields of a class, with the docstring below each."""
    tree = ast.parse(source)
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        meaning = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            meaning = " ".join(str(following.value.value).split())
        default = ast.unparse(node.value) if node.value else "required"
        yield Key(node.target.id, ast.unparse(node.annotation), default, meaning)


def render() -> str:
    """The whole page."""
    config = (project_root() / "async_agent_rl" / "config.py").read_text()
    options = (project_root() / "envs" / "webshop" / "options.py").read_text()
    parts = [_HEAD]
    top = list(section_keys(config, "Config"))
    parts.append(_table("Top level", "", [key for key in top if not key.kind.endswith("Section")]))
    for key in top:
        if key.kind.endswith("Section"):
            parts.append(_table(f"`{key.name}`", f"{key.name}.", section_keys(config, key.kind)))
    parts.append(_table("`env.webshop`", "env.webshop.", section_keys(options, "WebShopOptions")))
    return "\n".join(parts)


def _table(title: str, prefix: str, keys: Iterator[Key] | list[Key]) -> str:
    lines = [f"## {title}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
    for key in keys:
        kind, meaning = key.kind.replace("|", "\\|"), key.meaning.replace("|", "\\|")
        lines.append(f"| `{prefix}{key.name}` | `{kind}` | `{key.default}` | {meaning} |")
    return "\n".join([*lines, ""])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.config_reference", description="Write the reference.")
    parser.add_argument("--out", type=Path, default=_PAGE)
    arguments = parser.parse_args(argv)
    arguments.out.write_text(render())
    print(arguments.out)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())

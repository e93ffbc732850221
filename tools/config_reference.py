"""`python -m tools.config_reference`: docs/configuration.md, written from the sources of the configuration.

Types and defaults come from the structs, meanings from the docstrings below their fields, so the page cannot drift.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec

from async_agent_rl.config import Config, Section
from async_agent_rl.errors import EXIT_OK
from async_agent_rl.layout import project_root
from envs.webshop.options import WebShopOptions

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


def section_keys(section: type[msgspec.Struct]) -> Iterator[Key]:
    """The fields of a section, with the docstring below each in its source."""
    tree = ast.parse(inspect.getsource(section))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef))
    meanings = {}
    for node, following in pairwise([*body, ast.Pass()]):
        if not isinstance(node, ast.AnnAssign):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            meanings[ast.unparse(node.target)] = " ".join(str(following.value.value).split())
    for field in msgspec.structs.fields(section):
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        yield Key(field.name, _type_name(field.type), repr(default), meanings.get(field.name, ""))


def _type_name(kind: Any) -> str:
    """As it is written in the source, aliases resolved."""
    name = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return name.replace("typing.", "")


def render() -> str:
    """The whole page."""
    parts = [_HEAD]
    sections = {field.name: field.type for field in msgspec.structs.fields(Config) if _is_section(field.type)}
    parts.append(_table("Top level", "", [key for key in section_keys(Config) if key.name not in sections]))
    for name, section in sections.items():
        parts.append(_table(f"`{name}`", f"{name}.", section_keys(section)))
    parts.append(_table("`env.webshop`", "env.webshop.", section_keys(WebShopOptions)))
    return "\n".join(parts)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


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

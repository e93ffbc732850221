"""Opens WebShop's data files and says in one sentence what is wrong with one that is not what it should be.

Knows the three kinds of files by their shape, but not what their records mean (that is catalog.py).
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from async_agent_rl.errors import InputError

Role = Literal["products", "attributes", "human_goals"]
"""What a file is given for: the names are keys of `env.webshop`."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_GZIP_MAGIC = b"\x1f\x8b"
_FETCH_AGAIN = "the download was cut short; fetch the file again"
# JSON's scanner stops at the start of these when their end is missing.
_CUT_WORD = re.compile(r"-|t|tr|tru|f|fa|fal|fals|n|nu|nul|\\?u[0-9a-fA-F]{0,4}")
_HASH_CHARS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class DataFile:
    """One parsed file."""

    path: Path
    content: Any
    digest: bytes
    """SHA-256 of the JSON text as bytes, so that compression makes no difference."""


def open_data(path: Path, role: Role) -> DataFile:
    """Read a .json or .json.gz file.

    Raises:
        InputError: it is missing, a Git-LFS pointer, cut short, not JSON, or a WebShop file of another role.
    """
    data = _read_bytes(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: byte {error.start} is {error.reason}") from None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(_what_is_wrong(path, text, error)) from None
    found = _recognise(content)
    if found is not None and found != role:
        raise InputError(
            f"{path} was given as env.webshop.{role}, but holds {_NAMES[found]}; " + _where_it_belongs(found, role)
        )
    return DataFile(path, content, hashlib.sha256(data).digest())


def hash_catalog(digests: Mapping[Role, bytes]) -> str:
    """The name of a catalogue: a hash over its files' contents, wherever they lie and however they are compressed.

    Args:
        digests: `DataFile.digest` by role; `human_goals` only where human goals are used.

    Returns:
        16 hexadecimal digits.
    """
    total = hashlib.sha256()
    for role, digest in sorted(digests.items()):
        total.update(f"{role}:".encode() + digest)
    return total.hexdigest()[:_HASH_CHARS]


def kind(value: Any) -> str:
    """What JSON calls the value."""
    if value is None:
        return "null"
    names = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return names[type(value)]


def _read_bytes(path: Path) -> bytes:
    """The content, uncompressed."""
    try:
        data = path.read_bytes()
        if data.startswith(_LFS_POINTER):
            raise InputError(f"{path} is a Git-LFS pointer, not the data itself: {_describe_pointer(data)}")
        if path.suffix == ".gz":
            return gzip.decompress(data)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give the path of a WebShop data file") from None
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}): {_FETCH_AGAIN}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if data.startswith(_GZIP_MAGIC):
        raise InputError(f"{path} is compressed; let its name end in .gz")
    return data


def _describe_pointer(data: bytes) -> str:
    size = re.search(rb"^size (\d+)$", data, re.MULTILINE)
    promised = f" ({int(size[1]):,} bytes)" if size else ""
    return f"run `git lfs pull` where it came from, or download the file itself{promised}"


def _what_is_wrong(path: Path, text: str, error: json.JSONDecodeError) -> str:
    rest = text[error.pos :].rstrip()
    if not text.strip():
        return f"{path} is empty: {_FETCH_AGAIN}"
    if text.lstrip().startswith("<"):
        return f"{path} is a web page, not JSON: open it to read why the download was refused, and fetch the file again"
    if not rest or error.msg.startswith("Unterminated string") or _CUT_WORD.fullmatch(rest):
        names = list(_complete_records(text))
        last = f", the last of them {names[-1]}" if names else ""
        return f"{path} ends in the middle of record {len(names)}, after {len(names)} whole ones{last}: {_FETCH_AGAIN}"
    return f"{path} is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"


def _complete_records(text: str) -> Iterator[str]:
    """Names of the records that are whole, in order: the key in an object, the asin in a list."""
    decoder = json.JSONDecoder()
    position = _skip(text, 0)
    is_list = text[position : position + 1] == "["
    while True:
        name = ""
        try:
            position = _skip(text, position + 1)
            if not is_list:
                name, position = decoder.raw_decode(text, position)
                position = _skip(text, _skip(text, position) + 1)
            record, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError:
            return
        position = _skip(text, position)
        if position == len(text) and isinstance(record, int | float):
            return  # may be the start of a longer number
        yield str(record.get("asin", "without asin")) if is_list and isinstance(record, dict) else str(name)


def _skip(text: str, position: int) -> int:
    """The next position that is not blank."""
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _recognise(content: Any) -> Role | Literal["texts"] | None:
    """Which of WebShop's files this is, by its first record; None where the shape says nothing."""
    if not isinstance(content, (list, dict)) or not content:
        return None
    first = content[0] if isinstance(content, list) else next(iter(content.values()))
    if isinstance(content, list):
        if isinstance(first, str):
            return "texts"
        return "products" if isinstance(first, dict) and "asin" in first and "name" in first else None
    if isinstance(first, list) and first and isinstance(first[0], dict) and "instruction" in first[0]:
        return "human_goals"
    if isinstance(first, dict) and ("attributes" in first or "instruction_attributes" in first):
        return "attributes"
    return None


def _where_it_belongs(found: Role | Literal["texts"], role: Role) -> str:
    if found == "texts":
        return f"give {_NAMES[role]} here"
    return f"give it as env.webshop.{found}, and {_NAMES[role]} here"


_NAMES: dict[Role | Literal["texts"], str] = {
    "products": "WebShop's items (items_shuffle*.json)",
    "attributes": "WebShop's mined attributes (items_ins_v2*.json)",
    "human_goals": "WebShop's human instructions (items_human_ins.json)",
    "texts": "bare texts (such as human_goals.json), no records",
}

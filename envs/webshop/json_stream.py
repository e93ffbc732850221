"""Reads the records of a JSON list one after the other, whatever the size of the file.

Knows nothing of products, except that a record may name its asin when something is wrong behind it.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from async_agent_rl.errors import InputError

Advance = Callable[[int], None]
"""Told how many more bytes of a file have been read."""

_CHUNK_BYTES = 4 << 20
_LARGEST_RECORD = 64 << 20  # characters; more than that behind one opening brace is damage, not a record
_NUMBER_SIGNS = "0123456789.eE+-"
_BLANKS = " \t\r\n"


def stream_list(path: Path, advance: Advance | None = None) -> Iterator[Any]:
    """The records of a .json or .json.gz file that holds a list. Memory: a few chunks of 4 MiB.

    Raises:
        InputError: the file is missing, damaged, cut short, or not a list.
    """
    try:
        with path.open("rb") as raw:
            yield from _Scanner(path, raw, advance).records()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give the path of a WebShop data file") from None
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}): fetch the file again") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def digest_text(path: Path, advance: Advance | None = None) -> bytes:
    """SHA-256 of the file's text, uncompressed. Raises InputError where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as raw:
            for chunk in _chunks(path, raw, advance):
                digest.update(chunk)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give the path of a WebShop data file") from None
    except (EOFError, zlib.error, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}; fetch the file again") from None
    return digest.digest()


def _chunks(path: Path, raw: IO[bytes], advance: Advance | None) -> Iterator[bytes]:
    packed = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else None
    source = cast("IO[bytes]", packed) if packed is not None else raw
    seen = 0
    while chunk := source.read(_CHUNK_BYTES):
        if advance is not None:
            advance(raw.tell() - seen)
            seen = raw.tell()
        yield chunk


class _Scanner:
    """A window that slides over the text of one file."""

    def __init__(self, path: Path, raw: IO[bytes], advance: Advance | None) -> None:
        self._path = path
        self._chunks = _chunks(path, raw, advance)
        self._decode_bytes = codecs.getincrementaldecoder("utf-8")().decode
        self._decode_json = json.JSONDecoder().raw_decode
        self._window = ""
        self._place = 0
        self._num_lines = 0
        self._is_at_end = False
        self._num_records = 0
        self._last_record: Any = None

    def records(self) -> Iterator[Any]:
        if self._next_sign() != "[":
            start = self._window[self._place :][:20]
            raise InputError(
                f"{self._path} must hold a JSON list of products, but starts with {start!r}; check that the paths of "
                "products and attributes are not exchanged"
            )
        self._place += 1
        is_open = self._next_sign() != "]"
        if not is_open:
            self._place += 1
        while is_open:
            yield self._record()
            sign = self._next_sign()
            if sign not in (",", "]"):
                raise self._cut() if not sign else self._damage(f"{sign!r} instead of a comma")
            self._place += 1
            is_open = sign == ","
            self._next_sign()
        if self._next_sign():
            raise self._damage("more text behind the end of the list")

    def _record(self) -> Any:
        while True:
            try:
                record, end = self._decode_json(self._window, self._place)
            except json.JSONDecodeError as error:
                if self._is_at_end:
                    raise (self._cut() if self._is_cut(error) else self._damage(error.msg)) from None
                if len(self._window) - self._place > _LARGEST_RECORD:
                    raise self._damage(error.msg) from None
            else:
                # A number may go on behind the end of the window.
                is_whole = not isinstance(record, int | float) or self._window[end:].strip(_NUMBER_SIGNS)
                if is_whole or self._is_at_end:
                    self._place = end
                    self._num_records += 1
                    self._last_record = record
                    return record
            self._slide()

    def _next_sign(self) -> str:
        """The next sign that is not blank, without taking it; empty at the end of the file."""
        while True:
            while self._place < len(self._window) and self._window[self._place] in _BLANKS:
                self._place += 1
            if self._place < len(self._window):
                return self._window[self._place]
            if self._is_at_end:
                return ""
            self._slide()

    def _slide(self) -> None:
        """Drop what has been read and add the next chunk."""
        chunk = next(self._chunks, b"")
        self._is_at_end = not chunk
        self._num_lines += self._window.count("\n", 0, self._place)
        self._window = self._window[self._place :] + self._decode_bytes(chunk, final=self._is_at_end)
        self._place = 0

    def _is_cut(self, error: json.JSONDecodeError) -> bool:
        return error.msg.startswith("Unterminated string") or not self._window[error.pos :].strip()

    def _cut(self) -> InputError:
        last = self._last_record.get("asin") if isinstance(self._last_record, dict) else None
        behind = f", the last of them {last}" if last else ""
        return InputError(
            f"{self._path} ends in the middle of record {self._num_records}, after {self._num_records} whole ones"
            f"{behind}: the download was cut short; fetch the file again"
        )

    def _damage(self, reason: str) -> InputError:
        line = self._num_lines + self._window.count("\n", 0, self._place) + 1
        return InputError(f"{self._path} is not valid JSON: record {self._num_records} (line {line}): {reason}")

"""The versions of the policy's weights, one safetensors file and one manifest each, in <run_dir>/weights.

A version exists once its manifest does; the manifest appears only after the weights are complete on disk. Knows
nothing of models, roles or who reads when.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import safetensors
import safetensors.torch
import torch

from async_agent_rl.errors import RunError

Bytes = bytes | memoryview

_CHUNK_BYTES = 1 << 20
_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a version is: written beside its weights as v000012.json."""

    version: int
    incarnation: int
    file: str
    """Name of the weights file in the same folder."""
    size_bytes: int
    sha256: str
    """Hex digest of the whole file."""


class WeightStore:
    """One writer (the learner), any number of readers. Nothing here is shared but the folder."""

    def __init__(self, directory: Path, keep: int) -> None:
        """
        Args:
            directory: made by the first `publish`.
            keep: newest versions kept; at least 1. A reader needs a version until it has loaded it.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self._directory = directory
        self._keep = keep

    def publish(self, version: int, incarnation: int, tensors: Mapping[str, torch.Tensor]) -> Manifest:
        """Write a version and announce it; versions older than the `keep` newest go.

        Args:
            tensors: name -> tensor of any shape, on any device. Tied copies are best left out: they are written twice.

        Raises:
            RunError: it cannot be written (disk full, no permission); no earlier version is touched then.
            ValueError: a dtype that safetensors files do not have.
        """
        path = self._directory / f"{_stem(version)}.safetensors"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            # A version written anew after a resume is withdrawn before its weights change under its manifest.
            self._manifest_path(version).unlink(missing_ok=True)
            size_bytes, digest = _write_whole(path, _safetensors_parts(tensors))
            manifest = Manifest(
                version=version, incarnation=incarnation, file=path.name, size_bytes=size_bytes, sha256=digest
            )
            _write_whole(self._manifest_path(version), [msgspec.json.encode(manifest)])
        except OSError as error:
            raise RunError(f"weights of version {version} cannot be written to {path}: {error.strerror}") from error
        self._prune()
        return manifest

    def latest(self) -> Manifest | None:
        """The newest announced version; None before the first. Raises RunError when its manifest is damaged."""
        while versions := self._versions():
            try:
                return self._read_manifest(versions[-1])
            except FileNotFoundError:
                continue  # pruned since we looked, so there is a newer one
        return None

    def manifest(self, version: int) -> Manifest:
        """Raises RunError when the version was never announced, is gone, or its manifest is damaged."""
        try:
            return self._read_manifest(version)
        except OSError as error:
            raise RunError(
                f"weights of version {version} are not in {self._directory}: {error.strerror} "
                f"(the {self._keep} newest are kept)"
            ) from error

    def _read_manifest(self, version: int) -> Manifest:
        path = self._manifest_path(version)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise RunError(f"manifest {path} is damaged: {error}") from error

    def load(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Read a version, verified once.

        Returns:
            name -> CPU tensor; backed by the file until it is copied, so copy it into the model and let go.

        Raises:
            RunError: the file is gone, or is not the one that was announced.
        """
        path = self._directory / manifest.file
        try:
            size_bytes = path.stat().st_size
            if size_bytes != manifest.size_bytes:
                raise RunError(f"weights {path} are damaged: {size_bytes} bytes, announced were {manifest.size_bytes}")
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != manifest.sha256:
                raise RunError(f"weights {path} are damaged: their sha256 is not the announced one")
            return safetensors.torch.load_file(path)
        except OSError as error:
            raise RunError(
                f"weights of version {manifest.version} cannot be read from {path}: {error.strerror}"
            ) from error
        except safetensors.SafetensorError as error:
            raise RunError(f"weights {path} are no safetensors file: {error}") from error

    def _versions(self) -> list[int]:
        names = [path.stem for path in self._directory.glob("v*.json")]
        return sorted(int(name[1:]) for name in names if name[1:].isdigit())

    def _manifest_path(self, version: int) -> Path:
        return self._directory / f"{_stem(version)}.json"

    def _prune(self) -> None:
        for version in self._versions()[: -self._keep]:
            # The manifest goes first: one that is there always has its weights.
            self._manifest_path(version).unlink(missing_ok=True)
            (self._directory / f"{_stem(version)}.safetensors").unlink(missing_ok=True)
        for stray in self._directory.glob(".v*.tmp"):  # of a writer that was killed
            stray.unlink(missing_ok=True)


def _stem(version: int) -> str:
    return f"v{version:06d}"


def _safetensors_parts(tensors: Mapping[str, torch.Tensor]) -> Iterator[Bytes]:
    """A safetensors file piece by piece, straight from the tensors' memory.

    The library's own `save` copies everything twice first, which costs more than hashing it. The format: 8 bytes
    little-endian length of the header, the header (JSON, padded with spaces to a multiple of 8), then the data.
    """
    # Widest elements first, so that each tensor is aligned for its dtype when the file is mapped.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, object] = {}
    offset = 0
    for name, tensor in ordered:
        if tensor.dtype not in _DTYPE_NAMES:
            raise ValueError(f"tensor {name} has dtype {tensor.dtype}, which safetensors files do not have")
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield flat.numpy().data


def _write_whole(path: Path, parts: Iterable[Bytes]) -> tuple[int, str]:
    """Write a file that is either absent or complete, durable on return. Returns its size in bytes and its sha256."""
    temporary = path.with_name(f".{path.name}.tmp")
    digest = hashlib.sha256()
    size_bytes = 0
    try:
        with temporary.open("wb", buffering=0) as file:
            for part in parts:
                view = memoryview(part)
                for start in range(0, len(view), _CHUNK_BYTES):  # hashed while still in the processor's cache
                    chunk = view[start : start + _CHUNK_BYTES]
                    digest.update(chunk)
                    while chunk:
                        chunk = chunk[file.write(chunk) :]
                size_bytes += len(view)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # only there when something went wrong
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a crash
    finally:
        os.close(folder)
    return size_bytes, digest.hexdigest()

"""Versioned weights: complete before they are announced, verified before they are used."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from async_agent_rl import weights
from async_agent_rl.errors import RunError
from async_agent_rl.weights import WeightStore


def tensors_of(version: int) -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.full((3, 2), float(version)), "layer.bias": torch.arange(3) + version}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_published_is_what_is_loaded(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "weights", keep=2)
    tensors = {
        "bf16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "byte": torch.tensor([7], dtype=torch.uint8),
        "empty": torch.zeros(0, 4),
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(3.25),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "wide": torch.tensor([2**40]),
        "wider.é": torch.tensor([1e300], dtype=torch.float64),
    }
    manifest = store.publish(4, 1, tensors)
    assert (manifest.version, manifest.incarnation, manifest.file) == (4, 1, "v000004.safetensors")
    assert store.latest() == store.manifest(4) == manifest
    loaded = store.load(manifest)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name], tensor)


def test_the_file_is_an_ordinary_safetensors_file(tmp_path: Path) -> None:
    manifest = WeightStore(tmp_path, keep=1).publish(0, 0, tensors_of(5))
    data = (tmp_path / manifest.file).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (manifest.size_bytes, manifest.sha256)
    assert torch.equal(safetensors.torch.load(data)["layer.weight"], torch.full((3, 2), 5.0))


def test_there_is_no_version_before_the_first(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "none", keep=1)
    assert store.latest() is None
    with pytest.raises(RunError, match="version 3 are not in"):
        store.manifest(3)


def test_only_the_newest_versions_are_kept(tmp_path: Path) -> None:
    store = WeightStore(tmp_path, keep=2)
    first = store.publish(8, 0, tensors_of(8))
    for version in (9, 10, 11):
        store.publish(version, 0, tensors_of(version))
    assert names_in(tmp_path) == ["v000010.json", "v000010.safetensors", "v000011.json", "v000011.safetensors"]
    assert [store.manifest(version).version for version in (10, 11)] == [10, 11]
    with pytest.raises(RunError, match="version 8 cannot be read"):
        store.load(first)


def test_loaded_weights_outlive_their_file_and_cannot_change_it(tmp_path: Path) -> None:
    store = WeightStore(tmp_path, keep=1)
    manifest = store.publish(0, 0, tensors_of(1))
    loaded = store.load(manifest)
    loaded["layer.bias"][0] = 99
    assert store.load(manifest)["layer.bias"].tolist() == [1, 2, 3]
    store.publish(1, 0, tensors_of(2))
    assert loaded["layer.weight"].sum() == 6.0


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_damaged_weights_are_refused(tmp_path: Path, damage: str) -> None:
    store = WeightStore(tmp_path, keep=1)
    manifest = store.publish(0, 0, tensors_of(1))
    path = tmp_path / manifest.file
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "flipped":
        data[-1] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    reason = {"cut": "bytes, announced were", "flipped": "sha256 is not the announced", "gone": "No such file"}[damage]
    with pytest.raises(RunError, match=reason):
        store.load(manifest)


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    store = WeightStore(tmp_path, keep=1)
    store.publish(0, 0, tensors_of(1))
    (tmp_path / "v000000.json").write_text('{"version": 0')
    with pytest.raises(RunError, match=r"v000000\.json is damaged"):
        store.latest()


def test_a_writer_killed_at_any_point_leaves_the_last_version_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Die before each rename in turn: a reader sees version 1 or a complete version 2, never something between."""

    class KilledError(BaseException):
        """Passes every handler, as SIGKILL would."""

    real_replace = os.replace
    seen: list[int] = []
    for survived in range(3):
        folder = tmp_path / str(survived)
        store = WeightStore(folder, keep=1)
        store.publish(1, 0, tensors_of(1))
        left = [survived]

        def replace(source: Path, target: Path, left: list[int] = left) -> None:
            if left[0] == 0:
                raise KilledError
            left[0] -= 1
            real_replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            with contextlib.suppress(KilledError):
                store.publish(2, 0, tensors_of(2))
        manifest = WeightStore(folder, keep=1).latest()
        assert manifest is not None
        seen.append(manifest.version)
        assert torch.equal(store.load(manifest)["layer.weight"], tensors_of(manifest.version)["layer.weight"])
    assert seen == [1, 1, 2]


def test_a_version_written_anew_is_withdrawn_before_its_weights_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WeightStore(tmp_path, keep=2)
    store.publish(3, 0, tensors_of(3))
    announced: list[bool] = []
    real_replace = os.replace

    def replace(source: Path, target: Path) -> None:
        announced.append((tmp_path / "v000003.json").exists())
        real_replace(source, target)

    monkeypatch.setattr(os, "replace", replace)
    manifest = store.publish(3, 1, tensors_of(30))
    assert announced == [False, False]
    assert store.manifest(3).incarnation == 1
    assert store.load(manifest)["layer.bias"].tolist() == [30, 31, 32]


def test_a_full_disk_is_a_run_error_and_costs_no_earlier_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WeightStore(tmp_path, keep=1)
    store.publish(1, 0, tensors_of(1))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"version 2 cannot be written to .*: No space left on device"):
        store.publish(2, 0, tensors_of(2))
    assert names_in(tmp_path) == ["v000001.json", "v000001.safetensors"]
    manifest = store.latest()
    assert manifest is not None
    assert store.load(manifest)["layer.bias"].tolist() == [1, 2, 3]


def test_a_reader_overtaken_by_pruning_finds_the_newer_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = WeightStore(tmp_path, keep=1), WeightStore(tmp_path, keep=1)
    writer.publish(1, 0, tensors_of(1))
    looked = WeightStore._versions(reader)
    writer.publish(2, 0, tensors_of(2))
    answers: Iterable[list[int]] = iter([looked])
    monkeypatch.setattr(reader, "_versions", lambda: next(answers, None) or WeightStore._versions(writer))  # type: ignore[call-overload]
    manifest = reader.latest()
    assert manifest is not None
    assert manifest.version == 2


def test_a_dtype_that_files_cannot_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tensor z has dtype torch\.complex64"):
        WeightStore(tmp_path, keep=1).publish(0, 0, {"z": torch.zeros(1, dtype=torch.complex64)})
    with pytest.raises(ValueError, match="keep must be at least 1"):
        WeightStore(tmp_path, keep=0)


def test_a_manifest_is_plain_json(tmp_path: Path) -> None:
    WeightStore(tmp_path, keep=1).publish(12, 3, tensors_of(1))
    fields = json.loads((tmp_path / "v000012.json").read_bytes())
    assert fields.keys() == {"version", "incarnation", "file", "size_bytes", "sha256"}
    assert (fields["version"], fields["incarnation"]) == (12, 3)
    assert weights.Manifest(**fields).file == "v000012.safetensors"

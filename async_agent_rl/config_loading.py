"""From a primary config file and `key=value` overrides to a checked `Config`.

Hydra composes (defaults < configs/NAME.yaml < overrides); a strict typed conversion then refuses what Hydra lets
through: unknown keys, wrong types, contradictory combinations.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from async_agent_rl.config import Config, EnvSection
from async_agent_rl.errors import ConfigError
from async_agent_rl.layout import config_dir

DEFAULT_CONFIG = "webshop_tiny"
_FREE_FORM = ("env.webshop", "env.options")


def config_names() -> list[str]:
    return sorted(path.stem for path in config_dir().glob("*.yaml"))


def load_config(name: str = DEFAULT_CONFIG, overrides: Sequence[str] = ()) -> Config:
    """Compose and check one configuration.

    Args:
        name: a file of `configs/` without its ending, or a path to a YAML file.
        overrides: Hydra-style, e.g. `staleness.max=0`, `env=my_pkg.my_env:MyEnv`, `env.webshop.history=3`.

    Raises:
        ConfigError: one sentence naming the key and the value.
    """
    prepared = [_prepare(text) for text in overrides]
    _refuse_contradictions(prepared)
    return _convert(_compose(name, prepared))


def _prepare(text: str) -> str:
    """Our shorthands in Hydra's grammar: `env=` means env.target; keys of a world's own options need no `+`."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[+~]{0,2}[A-Za-z_][\w.]*", key):
        raise ConfigError(f"{text!r} is no override: write key=value, for example staleness.max=1")
    if key == "env":
        return f"env.target='{value.strip(chr(39))}'"
    if re.fullmatch(r"[^\[{'\"][^\[{'\"=]*,[^\[{'\"=]*", value):
        text = f"{key}='{value}'"  # Hydra would read a bare comma as a sweep over several values
    if key.startswith("~"):
        raise ConfigError(f"{text}: keys cannot be removed, only set")
    if key.lstrip("+").startswith(tuple(f"{prefix}." for prefix in _FREE_FORM)):
        return f"++{text.lstrip('+')}"
    return text


def _refuse_contradictions(overrides: Sequence[str]) -> None:
    given = dict(text.lstrip("+").partition("=")[::2] for text in overrides)
    if given.get("mode") == "sync" and given.get("staleness.max", "0") != "0":
        raise ConfigError(
            f"staleness.max={given['staleness.max']} contradicts mode=sync, which trains only on current data: "
            f"leave one of them out"
        )
    webshop_keys = [key for key in given if key.startswith("env.webshop.")]
    target = given.get("env.target", EnvSection().target).strip("'")
    if webshop_keys and target != EnvSection().target:
        raise ConfigError(f"{webshop_keys[0]} is a key of WebShop, but env={target}; use env.options.NAME=VALUE for it")


def _compose(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    # Imported here because only launchers and tools need Hydra, and it is slow to import.
    import yaml
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    folder, stem = _locate(name)
    ConfigStore.instance().store(name="defaults_of_all", node=msgspec.to_builtins(Config()))
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base="1.3"):
            composed = compose(stem, overrides=list(overrides))
        result = OmegaConf.to_container(composed, resolve=True)
    except yaml.YAMLError as error:
        raise ConfigError(f"config {name}: the file is no valid YAML: {' '.join(str(error).split())}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_first_sentence(error, overrides)) from error
    if not isinstance(result, dict):
        raise ConfigError(f"config {name}: the file must hold keys and values")
    return {str(key): value for key, value in result.items()}


def _locate(name: str) -> tuple[Path, str]:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"--config-name {name}: there is no such file")
        return path.resolve().parent, path.stem
    if not (config_dir() / f"{name}.yaml").is_file():
        raise ConfigError(f"--config-name {name}: there is none; choose from {', '.join(config_names())}")
    return config_dir(), name


def _first_sentence(error: Exception, overrides: Sequence[str]) -> str:
    """Hydra's errors span lines and cite its internals; keep what names the key."""
    message = str(error)
    unknown = re.search(r"Could not override '([^']+)'", message) or re.search(
        r"Key '([^']+)' is not in struct", message
    )
    if unknown:
        key = unknown.group(1) or unknown.group(2)
        culprit = next((text for text in overrides if text.lstrip("+").startswith(f"{key}=")), key)
        return f"{culprit}: there is no key {key!r}{_did_you_mean(key)}"
    return message.strip().splitlines()[0]


def _did_you_mean(key: str) -> str:
    known: list[str] = []

    def walk(node: Any, prefix: str) -> None:
        for name, value in node.items():
            known.append(f"{prefix}{name}")
            if isinstance(value, dict):
                walk(value, f"{prefix}{name}.")

    walk(msgspec.to_builtins(Config()), "")
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _convert(raw: dict[str, Any]) -> Config:
    try:
        return msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        text = str(error)
        cause = error.__cause__
        if isinstance(cause, ConfigError):
            raise cause from None
        match = re.fullmatch(r"(.*?)(?: - at `\$\.?(.*)`)?", text)
        what, key = match.groups("") if match else (text, "")
        unknown = re.search(r"unknown field `(\w+)`", what)
        if unknown:
            full = f"{key}.{unknown.group(1)}" if key else unknown.group(1)
            raise ConfigError(f"{full}={_at(raw, full)}: there is no such key{_did_you_mean(full)}") from error
        if what.startswith("Invalid enum value"):
            what = f"must be one of {', '.join(_choices(key))}"
        raise ConfigError(f"{key}={_at(raw, key)}: {what[0].lower()}{what[1:]}") from error


def _choices(key: str) -> list[str]:
    """The values a Literal-typed key may have."""
    kind: Any = Config
    for part in key.split("."):
        kind = get_type_hints(kind)[part]
    return [str(choice) for choice in get_args(kind)]


def _at(raw: Any, key: str) -> Any:
    for part in key.split("."):
        raw = raw.get(part) if isinstance(raw, dict) else None
    return raw

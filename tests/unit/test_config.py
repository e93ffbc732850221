"""The configuration refuses what it should, naming the key and the value."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from async_agent_rl.config import Config, parse_latency
from async_agent_rl.config_loading import config_names, load_config
from async_agent_rl.errors import ConfigError
from async_agent_rl.run_folder import resolved_yaml


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["staleness.max=-1"], ["staleness.max=-1", "at least 0"]),
        (["staleness.mx=1"], ["staleness.mx=1", "did you mean 'staleness.max'"]),
        (["staleness.max=two"], ["staleness.max=two", "int"]),
        (["run.seed=1.5"], ["run.seed=1.5", "int"]),
        (["+foo=1"], ["foo=1", "no such key"]),
        (["+learner.foo=3"], ["learner.foo=3", "no such key"]),
        (["mode=lockstep"], ["mode=lockstep", "async, sync"]),
        (["mode=sync", "staleness.max=2"], ["staleness.max=2", "mode=sync"]),
        (["learner.kl_coef=0.1"], ["learner.skip_zero_advantage=true", "0.1"]),
        (["learner.entropy_coef=0.001"], ["learner.skip_zero_advantage=true", "0.001"]),
        (["learner.micro_batch_rows=512"], ["learner.micro_batch_rows=512", "mini_batch_rows=256"]),
        (["run.deterministic=true"], ["run.deterministic=true", "staleness.max=2"]),
        (["run.deterministic=true", "mode=sync", "actors.num=2"], ["actors.num=2"]),
        (["run.deterministic=true", "mode=sync", "actors.slots=8"], ["actors.slots=8", "64"]),
        (["buffer.host=0.0.0.0"], ["buffer.host=0.0.0.0", "loopback"]),
        (["env.latency=slow"], ["env.latency=slow", "lognormal:MEDIAN_S,SIGMA"]),
        (["env=my_env"], ["env=my_env", "package.module:ClassName"]),
        (["env=my.env:Mine", "env.webshop.products=a.json"], ["env.webshop.products", "my.env:Mine"]),
        (["group.size"], ["'group.size'", "key=value"]),
        (["~run.seed"], ["~run.seed"]),
        (["run.name=a/b"], ["run.name=a/b"]),
    ],
)
def test_a_bad_override_is_refused_by_key_and_value(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("webshop_tiny", overrides)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_an_unknown_config_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="smoke, webshop_qwen_1_5b, webshop_tiny"):
        load_config("webshop_big")


@pytest.mark.parametrize("name", config_names())
def test_every_shipped_config_is_valid(name: str) -> None:
    assert isinstance(load_config(name), Config)


def test_the_shorthand_env_names_the_world() -> None:
    config = load_config("webshop_tiny", ["env=pkg.module:World", "env.options.size=5"])
    assert config.env.target == "pkg.module:World"
    assert config.env.world_options() == {"size": 5}


def test_webshop_options_need_no_plus_sign() -> None:
    config = load_config("webshop_tiny", ["env.webshop.products=/data/my items.json", "env.webshop.history=3"])
    assert config.env.world_options()["products"] == "/data/my items.json"
    assert config.env.world_options()["history"] == 3


def test_a_comma_in_a_value_is_not_a_sweep() -> None:
    assert load_config("webshop_tiny", ["env.latency=lognormal:0.15,1.0"]).env.latency == "lognormal:0.15,1.0"


def test_sync_ignores_the_presets_bound() -> None:
    assert load_config("webshop_tiny", ["mode=sync"]).effective_staleness == 0
    assert load_config("webshop_tiny").effective_staleness == 2


def test_the_saved_configuration_gives_the_same_run(tmp_path: Path) -> None:
    config = load_config("webshop_tiny", ["run.seed=7", "learner.learning_rate=0.001"])
    saved = tmp_path / "config.yaml"
    saved.write_bytes(resolved_yaml(config))
    assert load_config(str(saved)) == config


def test_the_qwen_preset_states_the_published_hyper_parameters() -> None:
    """GiGPO spec, section 9, column WebShop."""
    config = load_config("webshop_qwen_1_5b")
    learner = config.learner
    assert (config.train.groups_per_update, config.group.size, config.env.max_steps) == (16, 8, 15)
    assert (config.model.max_prompt_tokens, config.model.max_response_tokens) == (4096, 512)
    assert (config.gigpo.gamma, config.gigpo.step_weight, config.gigpo.mode) == (0.95, 1.0, "mean_norm")
    assert (learner.learning_rate, learner.mini_batch_rows, learner.micro_batch_rows) == (1e-6, 64, 8)
    assert (learner.kl_coef, learner.kl_estimator, learner.entropy_coef) == (0.01, "low_var_kl", 0.001)
    assert (learner.clip_low, learner.clip_high, learner.clip_dual, learner.invalid_penalty) == (0.2, 0.2, 3.0, 0.1)
    assert (config.train.temperature, config.evaluation.temperature, config.evaluation.n) == (1.0, 0.4, 256)
    assert (config.train.updates, config.env.webshop["history"]) == (150, 2)


def test_latency_forms() -> None:
    assert parse_latency("lognormal:0.15,1.0").median_s == 0.15
    assert parse_latency("fixed:0.2").kind == "fixed"
    for text in ("fixed", "fixed:-1", "lognormal:0.1", "none:3", "fixed:a"):
        with pytest.raises(ConfigError):
            parse_latency(text)


def test_an_unknown_field_is_refused_in_every_section() -> None:
    for section in Config.__struct_fields__:
        if section == "mode":
            continue
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({section: {"no_such_key": 1}}, Config)

"""Every key of the configuration: its type, default, unit and meaning, and the combinations that make no sense.

Knows nothing of Hydra, files or roles; `config_loading` fills these structs from YAML and the command line.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from async_agent_rl.errors import ConfigError


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: immutable, keyword-only, unknown keys refused."""


def _require(condition: bool, key: str, value: object, rule: str) -> None:
    if not condition:
        raise ConfigError(f"{key}={value}: {rule}")


class Latency(msgspec.Struct, frozen=True):
    """Distribution of the waiting time added to each environment step, in seconds."""

    kind: Literal["none", "fixed", "lognormal"]
    median_s: float = 0.0
    sigma: float = 0.0


def parse_latency(text: str) -> Latency:
    """Read `none`, `fixed:0.2` or `lognormal:0.15,1.0` (median in seconds, sigma of the log).

    Raises:
        ConfigError: the text has none of these forms, or a number is negative.
    """
    kind, _, rest = text.partition(":")
    try:
        numbers = [float(part) for part in rest.split(",")] if rest else []
    except ValueError:
        numbers = [-1.0]
    if all(number >= 0 for number in numbers):
        if kind == "none" and not numbers:
            return Latency("none")
        if kind == "fixed" and len(numbers) == 1:
            return Latency("fixed", numbers[0])
        if kind == "lognormal" and len(numbers) == 2:
            return Latency("lognormal", numbers[0], numbers[1])
    raise ConfigError(f"env.latency={text}: must be none, fixed:SECONDS or lognormal:MEDIAN_S,SIGMA")


class RunSection(Section, frozen=True, kw_only=True):
    name: str = "webshop"
    """Ends the folder name: <dir>/<time>-<name>/."""
    dir: str = "runs"
    seed: int = 0
    deterministic: bool = False
    """Same seed, same bits: one torch thread, one actor, lock-step batches. Needs an effective staleness of 0."""
    max_size_mb: int = 2000
    """Upper bound of the run folder. Logs and episode files rotate, old weights and checkpoints go."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        _require(self.max_size_mb >= 50, "run.max_size_mb", self.max_size_mb, "must be at least 50 (megabytes)")
        _require(bool(self.name) and "/" not in self.name, "run.name", self.name, "must be a plain name without '/'")
        _require(self.seed >= 0, "run.seed", self.seed, "must not be negative")


class EnvSection(Section, frozen=True, kw_only=True):
    target: str = "envs.webshop.env:WebShop"
    """The world, as package.module:Class. `env=...` on the command line is short for this key."""
    options: dict[str, Any] = {}
    """Handed to a world of one's own as it is. WebShop reads `env.webshop` instead."""
    webshop: dict[str, Any] = {}
    """WebShop's own keys; their types and defaults stand in envs/webshop/options.py, which checks them."""
    max_steps: int = 15
    """Steps after which an episode is cut off (it then counts as not won)."""
    latency: str = "none"
    """Waiting time added to each step, for benchmarks: none | fixed:SECONDS | lognormal:MEDIAN_S,SIGMA."""
    step_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        _require(self.max_steps >= 1, "env.max_steps", self.max_steps, "must be at least 1")
        _require(self.step_timeout_s > 0, "env.step_timeout_s", self.step_timeout_s, "must be positive")
        module, _, name = self.target.partition(":")
        _require(bool(module) and bool(name), "env", self.target, "must have the form package.module:ClassName")
        parse_latency(self.latency)

    def world_options(self) -> dict[str, Any]:
        """The mapping the world is constructed with."""
        return self.webshop if self.target == "envs.webshop.env:WebShop" else self.options


class ModelSection(Section, frozen=True, kw_only=True):
    path: str = "configs/models/webshop_tiny"
    """Folder of a Hugging Face causal LM (config, tokenizer, safetensors). Looked up from the current directory, then
    from the project's."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    max_prompt_tokens: int = 512
    max_response_tokens: int = 24

    def __post_init__(self) -> None:
        _require(self.max_prompt_tokens >= 8, "model.max_prompt_tokens", self.max_prompt_tokens, "must be at least 8")
        _require(self.max_response_tokens >= 1, "model.max_response_tokens", self.max_response_tokens, "must be >= 1")


class GroupSection(Section, frozen=True, kw_only=True):
    size: int = 8
    """G: trajectories of one task that are compared with each other."""
    max_failures: int = 3
    """Failures of one member that are answered by playing it again; one more drops the group."""
    deadline_s: float = 600.0
    """From a group's first lease to its last trajectory, replacements included."""

    def __post_init__(self) -> None:
        _require(self.size >= 1, "group.size", self.size, "must be at least 1")
        _require(self.max_failures >= 0, "group.max_failures", self.max_failures, "must not be negative")
        _require(self.deadline_s > 0, "group.deadline_s", self.deadline_s, "must be positive")


class TrainSection(Section, frozen=True, kw_only=True):
    groups_per_update: int = 8
    """B: complete groups in one update."""
    updates: int = 60
    temperature: float = 1.0
    """Sampling temperature of the rollouts; log-probs are those of this distribution."""

    def __post_init__(self) -> None:
        _require(self.groups_per_update >= 1, "train.groups_per_update", self.groups_per_update, "must be at least 1")
        _require(self.updates >= 1, "train.updates", self.updates, "must be at least 1")
        _require(
            self.temperature > 0,
            "train.temperature",
            self.temperature,
            "must be positive",
        )


class StalenessSection(Section, frozen=True, kw_only=True):
    max: int = 2
    """S: updates between sampling a token and training on it. 0 equals sync."""

    def __post_init__(self) -> None:
        _require(self.max >= 0, "staleness.max", self.max, "must be at least 0")


class OffPolicySection(Section, frozen=True, kw_only=True):
    correction: Literal["decoupled", "none"] = "decoupled"
    """decoupled: weight min(pi_prox/pi_b, cap) per token, clip on pi_theta/pi_prox. none: no weight."""
    cap: float = 2.0

    def __post_init__(self) -> None:
        _require(self.cap >= 1, "offpolicy.cap", self.cap, "must be at least 1")


class ActorsSection(Section, frozen=True, kw_only=True):
    num: int = 1
    slots: int = 96
    """Episodes one actor plays at once."""
    threads: int = 1
    """torch threads of each actor; 0 = all cores."""
    max_batch: int = 128
    """Rows generated together at most."""

    def __post_init__(self) -> None:
        _require(self.num >= 1, "actors.num", self.num, "must be at least 1")
        _require(self.slots >= 1, "actors.slots", self.slots, "must be at least 1")
        _require(self.threads >= 0, "actors.threads", self.threads, "must not be negative (0 = all cores)")
        _require(self.max_batch >= 1, "actors.max_batch", self.max_batch, "must be at least 1")


class BufferSection(Section, frozen=True, kw_only=True):
    order: Literal["lease", "ready"] = "lease"
    """lease: groups are trained strictly in the order they were leased. ready: oldest complete one first."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 = any free port."""

    def __post_init__(self) -> None:
        _require(0 <= self.port <= 65535, "buffer.port", self.port, "must be in 0..65535")
        _require(
            self.host in ("127.0.0.1", "::1", "localhost"),
            "buffer.host",
            self.host,
            "only a loopback address is allowed: traffic is neither encrypted nor authenticated",
        )


class GigpoSection(Section, frozen=True, kw_only=True):
    """Advantages (GiGPO spec, section 1; arXiv 2505.10978)."""

    gamma: float = 0.95
    step_weight: float = 1.0
    """w: weight of the step-level term."""
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    anchor: Literal["state", "observation"] = "state"
    """state: the environment's true state key. observation: the page text, as verl-agent compares."""
    episode_stats: Literal["trajectory", "rows"] = "trajectory"
    """What a group's mean and std are taken over; rows is verl-agent's."""
    penalty: Literal["in_reward", "post_return"] = "in_reward"
    """Where the invalid-action penalty enters; post_return is verl-agent's."""
    singleton_episode: Literal["zero", "raw"] = "zero"
    """Advantage of the only trajectory of a group; raw is verl-agent's."""

    def __post_init__(self) -> None:
        _require(0 <= self.gamma <= 1, "gigpo.gamma", self.gamma, "must be in [0, 1]")
        _require(self.step_weight >= 0, "gigpo.step_weight", self.step_weight, "must not be negative")


class LearnerSection(Section, frozen=True, kw_only=True):
    threads: int = 1
    """torch threads; 0 = all cores."""
    learning_rate: float = 5e-4
    adam_betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup_updates: int = 5
    """Updates over which the learning rate rises linearly from 1/n of its value."""
    max_grad_norm: float = 1.0
    epochs: int = 1
    mini_batch_rows: int = 256
    """Rows per optimizer step, about: an update is cut into equal parts of nearly this size."""
    micro_batch_rows: int = 32
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_dual: float = 3.0
    kl_coef: float = 0.0
    """Weight of the KL to the start policy in the loss; 0 = no reference pass."""
    kl_estimator: Literal["k1", "k2", "low_var_kl"] = "low_var_kl"
    entropy_coef: float = 0.0
    invalid_penalty: float = 0.1
    """Taken off the reward of a step whose response lacks the demanded form."""
    penalize: Literal["format", "admissible"] = "format"
    """What counts as invalid for the penalty: a broken form, or also an action the page does not offer."""
    advantage_scale: float = 1.0
    """Advantages are multiplied by this before the loss (WebShop pays 10, so 0.1 makes them about 1)."""
    skip_zero_advantage: bool = False
    """Leave out rows whose advantage is 0; only exact while neither KL nor entropy is in the loss."""

    def __post_init__(self) -> None:
        _require(self.threads >= 0, "learner.threads", self.threads, "must not be negative (0 = all cores)")
        _require(self.learning_rate > 0, "learner.learning_rate", self.learning_rate, "must be positive")
        _require(self.epochs >= 1, "learner.epochs", self.epochs, "must be at least 1")
        _require(self.mini_batch_rows >= 1, "learner.mini_batch_rows", self.mini_batch_rows, "must be at least 1")
        _require(self.micro_batch_rows >= 1, "learner.micro_batch_rows", self.micro_batch_rows, "must be at least 1")
        _require(
            self.micro_batch_rows <= self.mini_batch_rows,
            "learner.micro_batch_rows",
            self.micro_batch_rows,
            f"must not exceed learner.mini_batch_rows={self.mini_batch_rows}",
        )
        _require(0 < self.clip_low < 1, "learner.clip_low", self.clip_low, "must be in (0, 1)")
        _require(self.clip_high > 0, "learner.clip_high", self.clip_high, "must be positive")
        _require(self.clip_dual > 1, "learner.clip_dual", self.clip_dual, "must be above 1")
        _require(self.advantage_scale > 0, "learner.advantage_scale", self.advantage_scale, "must be positive")
        for key in ("kl_coef", "entropy_coef", "invalid_penalty", "weight_decay", "warmup_updates", "max_grad_norm"):
            _require(getattr(self, key) >= 0, f"learner.{key}", getattr(self, key), "must not be negative")
        if self.skip_zero_advantage and (self.kl_coef > 0 or self.entropy_coef > 0):
            raise ConfigError(
                f"learner.skip_zero_advantage=true: rows with zero advantage still carry KL and entropy, so it needs "
                f"learner.kl_coef=0 and learner.entropy_coef=0 (got {self.kl_coef} and {self.entropy_coef})"
            )


class CheckpointSection(Section, frozen=True, kw_only=True):
    every: int = 10
    """Updates between checkpoints; one is always written at the end."""
    keep: int = 3
    """The newest ones kept, beside the start policy; each is a point on the learning curve."""

    def __post_init__(self) -> None:
        _require(self.every >= 1, "checkpoint.every", self.every, "must be at least 1")
        _require(self.keep >= 1, "checkpoint.keep", self.keep, "must be at least 1")


class EvaluationSection(Section, frozen=True, kw_only=True):
    n: int = 256
    """Tasks of the fixed validation panel scored before and after the run; 0 = no evaluation."""
    temperature: float = 0.4
    greedy: bool = True
    """Score greedy decoding as well."""

    def __post_init__(self) -> None:
        _require(self.n >= 0, "evaluation.n", self.n, "must not be negative")
        _require(self.temperature >= 0, "evaluation.temperature", self.temperature, "must not be negative (0 = greedy)")


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration of one run."""

    mode: Literal["async", "sync"] = "async"
    """sync: actors wait for the learner and the learner for them; the baseline."""
    run: RunSection = RunSection()
    env: EnvSection = EnvSection()
    model: ModelSection = ModelSection()
    group: GroupSection = GroupSection()
    train: TrainSection = TrainSection()
    staleness: StalenessSection = StalenessSection()
    offpolicy: OffPolicySection = OffPolicySection()
    actors: ActorsSection = ActorsSection()
    buffer: BufferSection = BufferSection()
    gigpo: GigpoSection = GigpoSection()
    learner: LearnerSection = LearnerSection()
    checkpoint: CheckpointSection = CheckpointSection()
    evaluation: EvaluationSection = EvaluationSection()

    def __post_init__(self) -> None:
        if self.run.deterministic:
            self._check_deterministic()

    def _check_deterministic(self) -> None:
        why = "run.deterministic=true needs"
        if self.effective_staleness != 0:
            raise ConfigError(f"{why} mode=sync or staleness.max=0, got staleness.max={self.staleness.max}")
        if self.actors.num != 1:
            raise ConfigError(f"{why} actors.num=1, got actors.num={self.actors.num}")
        if self.actors.slots < self.trajectories_per_update:
            raise ConfigError(
                f"{why} actors.slots >= groups_per_update x group.size = {self.trajectories_per_update}, "
                f"got actors.slots={self.actors.slots}"
            )
        if self.actors.threads != 1 or self.learner.threads != 1:
            raise ConfigError(
                f"{why} one torch thread per role, got actors.threads={self.actors.threads} and "
                f"learner.threads={self.learner.threads}"
            )

    @property
    def effective_staleness(self) -> int:
        """S as it is enforced: 0 in sync mode."""
        return 0 if self.mode == "sync" else self.staleness.max

    @property
    def trajectories_per_update(self) -> int:
        return self.train.groups_per_update * self.group.size

    @property
    def total_groups(self) -> int:
        return self.train.updates * self.train.groups_per_update

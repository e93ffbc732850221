"""WebShop's own keys (`env.webshop.*`): defaults, meanings, and the checks that need no file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from async_agent_rl.errors import ConfigError
from envs.webshop.nouns import DEFAULT_MODEL

EMBEDDED_CATALOG = Path(__file__).parent / "data" / "catalog"


def default_cache() -> Path:
    """Where prepared catalogues lie unless told otherwise: in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "async-agent-rl" / "webshop"


class WebShopOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be chosen about the shop. Relative paths are looked up from the current directory."""

    products: str | None = None
    """WebShop's items file (.json or .json.gz); None takes the embedded catalogue."""
    attributes: str | None = None
    """The attributes file that belongs to `products`."""
    human_goals: str | None = None
    """WebShop's human instructions; needed for goals=human."""
    goals: Literal["synthetic", "human"] = "synthetic"
    split: Literal["by_product", "paper", "verl_agent"] = "by_product"
    """Which goals train, validate and test: `by_product` shares no product between them, `paper` has test 0-499,
    validation 500-1499 and train from 1500, `verl_agent` has validation 0-499 and train from 500."""
    results_per_page: int = 10
    """Products on one results page; 10 in WebShop."""
    show_attributes: bool = False
    """Offer the page with a product's listed attributes; off in WebShop."""
    special_queries: bool = False
    """Answer WebShop's `<r>`, `<c>`, `<q>` and `<a>` queries instead of taking them for words."""
    mode: Literal["text", "text_rich", "html", "url"] = "text"
    """How a page is shown: WebShop's `text`, `text_rich`, `html` or `url`."""
    num_prev_obs: int = 0
    """With prompt=plain: earlier observations in front of the current one."""
    num_prev_actions: int = 0
    """With prompt=plain: earlier actions in front of the current observation."""
    history: int = 2
    """Past steps told in the prompt."""
    prompt: Literal["verl_agent", "compact", "plain"] = "verl_agent"
    """`compact` is one short line for tiny models, `plain` WebShop's observation and nothing else."""
    overflow: Literal["tokens", "chars13000"] = "tokens"
    """What shortens the history: the model's token budget, or verl-agent's limit of 13,000 characters."""
    parser: Literal["strict", "legacy"] = "strict"
    """`legacy` reads responses as verl-agent does."""
    spacy_model: str = DEFAULT_MODEL
    """Installed English spaCy pipeline that finds the nouns of titles, or its path."""
    cache: str | None = None
    """Folder for large catalogues prepared for quick opening, and for the nouns of titles; None takes
    `~/.cache/async-agent-rl/webshop`, and keeps no nouns of a small catalogue."""
    store_above_mb: int = 64
    """Size of `products` in MiB, uncompressed, from which the catalogue is kept on disk instead of in memory."""

    def __post_init__(self) -> None:
        if self.results_per_page < 1:
            raise ConfigError(f"env.webshop.results_per_page must be at least 1, got {self.results_per_page}")
        for key in ("history", "num_prev_obs", "num_prev_actions", "store_above_mb"):
            if getattr(self, key) < 0:
                raise ConfigError(f"env.webshop.{key} must be at least 0, got {getattr(self, key)}")
        self._check_combination()
        if (self.products is None) != (self.attributes is None):
            raise ConfigError(
                "env.webshop.products and env.webshop.attributes belong together, "
                f"got products={self.products!r} and attributes={self.attributes!r}"
            )
        if self.goals == "human" and self.human_goals is None:
            raise ConfigError("env.webshop.goals=human needs env.webshop.human_goals=FILE, got none")

    def _check_combination(self) -> None:
        if self.prompt == "compact" and self.mode != "text":
            raise ConfigError(f"env.webshop.prompt=compact shows text pages only, got mode={self.mode}")
        for key in ("num_prev_obs", "num_prev_actions"):
            if self.prompt != "plain" and getattr(self, key):
                raise ConfigError(
                    f"env.webshop.{key}={getattr(self, key)} needs prompt=plain, got prompt={self.prompt}; "
                    "use env.webshop.history there"
                )

    @property
    def products_path(self) -> Path:
        return Path(self.products) if self.products is not None else EMBEDDED_CATALOG / "products.json.gz"

    @property
    def attributes_path(self) -> Path:
        return Path(self.attributes) if self.attributes is not None else EMBEDDED_CATALOG / "attributes.json.gz"

    @property
    def cache_path(self) -> Path:
        return Path(self.cache) if self.cache is not None else default_cache()

    @property
    def human_goals_path(self) -> Path | None:
        """None where human goals are not asked for: the file is then not even opened."""
        return Path(self.human_goals) if self.human_goals is not None and self.goals == "human" else None


def parse_options(options: Mapping[str, Any]) -> WebShopOptions:
    """The typed options; raises ConfigError naming the key and the value."""
    for key, value in options.items():
        if key not in WebShopOptions.__struct_fields__:
            known = ", ".join(WebShopOptions.__struct_fields__)
            raise ConfigError(f"env.webshop.{key}={value!r} is not a key of WebShop; the keys are {known}")
    try:
        return msgspec.convert(dict(options), WebShopOptions)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        reason, _, path = str(error).partition(" - at `$.")
        key = path.rstrip("`")
        raise ConfigError(f"env.webshop.{key}={options.get(key)!r}: {reason}") from None

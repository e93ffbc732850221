"""A vector of shops in processes of their own."""

from __future__ import annotations

from pathlib import Path

import gymnasium

from envs.webshop.gym import ENV_ID
from tests.webshop_samples import raw_product, write_files


def test_a_vector_can_run_in_processes_of_its_own(tmp_path: Path) -> None:
    entry = {"attributes": ["solid wood"], "instruction": "Find me tables", "instruction_attributes": ["solid wood"]}
    files = write_files(tmp_path, [raw_product(f"A{n}") for n in range(8)], {f"A{n}": entry for n in range(8)})
    vector = gymnasium.make_vec(
        ENV_ID,
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"shared_memory": False, "context": "spawn"},
        options=files,
    )
    try:
        observations, info = vector.reset(seed=3)
        assert all(text.startswith("WebShop") for text in observations)
        assert len(set(info["catalog"])) == 1
        observations = vector.step(("search[tables]", "search[oak]"))[0]
        assert all("Page 1 (Total results: 8)" in text for text in observations)
    finally:
        vector.close(terminate=True)

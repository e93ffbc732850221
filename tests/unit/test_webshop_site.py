"""The original's site functions, against the facts of its own tests."""

from __future__ import annotations

import json
from pathlib import Path

from envs.webshop.site import completion_code, map_colors, map_sizes, session_logger

CASES = json.loads((Path(__file__).parents[1] / "golden" / "webshop_cases.json").read_text())


def test_colors_and_sizes_of_a_price_table() -> None:
    case = CASES["normalize_color_size"]
    assert map_colors(row[1] for row in case["in_product_prices"]) == case["expect_color"]
    assert map_sizes(row[2] for row in case["in_product_prices"]) == case["expect_size"]


def test_completion_codes() -> None:
    for case in CASES["mturk_code"]:
        assert completion_code(case["in"]) == case["out"]


def test_a_session_has_a_log_of_its_own(tmp_path: Path) -> None:
    case = CASES["setup_logger"]
    logger = session_logger(case["session_id"], tmp_path)
    logger.info("Hello there")
    for handler in logger.handlers:
        handler.close()
    assert logger.level == 20
    assert (tmp_path / "ABC.jsonl").read_text().strip("\n") == "Hello there"

"""The benchmark of the shop, at a size that takes seconds: it measures what it says and keeps what it built."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from async_agent_rl.errors import EXIT_BAD_INPUT
from envs.webshop.pages import item_page, results_page
from tests.webshop_samples import make_goal, make_product
from tools import bench_webshop
from tools.bench_webshop import Check
from tools.bench_webshop_catalog import measure_catalog
from tools.bench_webshop_steps import OriginalSteps, measure_steps


def test_ours_is_faster_and_leaves_no_session_behind() -> None:
    steps = measure_steps()
    # A busy machine slows both down, but never by that much.
    assert steps.ratio > 20
    assert steps.num_sessions_left == 0
    assert 0 < steps.session_bytes < 100_000


def test_the_reenactment_shows_the_pages_we_show() -> None:
    product = make_product("B01", options={"size": ["s", "m"], "color": ["red & blue"]})
    instruction = make_goal(product).instruction
    original = OriginalSteps("abc", instruction)
    assert original.open_results(["oak"], 2, 30, [product]) == results_page(instruction, 2, 30, [product]).text
    assert (
        original.open_item(["oak"], 2, product, {"size": "m"})
        == item_page(instruction, product, show_attributes=False).text
    )


def test_a_large_catalogue_is_made_once_and_measured_again(tmp_path: pathlib.Path) -> None:
    first = measure_catalog(tmp_path / "data", 5_000, tmp_path / "cache")
    again = measure_catalog(tmp_path / "data", 5_000, tmp_path / "cache")
    assert first.num_products == again.num_products == 5_000
    assert first.build_s is not None
    assert first.build_s == again.build_s > first.open_s
    assert again.num_queries > 1_000
    assert 0 < again.search_p50_ms <= again.search_p99_ms <= again.search_worst_ms
    assert again.private_mb > again.private_before_mb > 0


def test_a_missed_limit_shows() -> None:
    assert [Check("a", 2, 1, "ms").is_met, Check("a", 1, 1, "ms").is_met] == [False, True]
    assert [Check("a", 2, 1, "x", at_most=False).is_met, Check("a", 0, 1, "x", at_most=False).is_met] == [True, False]


def test_too_few_products_are_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_webshop.main(["--products", "10"]) == EXIT_BAD_INPUT
    assert re.search(r"at least \d+, got 10", capsys.readouterr().err)


def test_the_report_holds_every_check(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out.json"
    bench_webshop.main(["--steps-only", "--json", str(out)])
    report = json.loads(out.read_text())
    assert report["catalog"] is None
    assert {"name", "value", "limit", "is_met"} <= set(report["checks"][0])
    assert report["steps"]["ratio"] > 0

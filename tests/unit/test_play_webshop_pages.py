"""The pages of the shop and of a replay, as a browser would ask for them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from envs.webshop.env import WebShop
from tests.play_samples import make_world, record_group, winning_actions, write_lines, write_shop
from tools.webshop_play.markup import Markup, element, join
from tools.webshop_play.recording import read_recording
from tools.webshop_play.server import MOST_VISITS, Site


class Browser:
    """Asks for pages, follows redirections, and presses buttons by the fields they send."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.client = TestClient(TestServer(site.make_app()))
        self.path = "/"
        self.status = 0
        self.page = ""

    async def get(self, path: str, **headers: str) -> str:
        async with self.client.get(path, headers=headers) as response:
            self.path, self.status, self.page = response.url.path_qs, response.status, await response.text()
        return self.page

    async def post(self, path: str, fields: dict[str, str], **headers: str) -> str:
        async with self.client.post(path, data=fields, headers=headers) as response:
            self.path, self.status, self.page = response.url.path_qs, response.status, await response.text()
        return self.page

    async def open(self, task: int = 0) -> str:
        return await self.post("/visits", {"split": "train", "task": str(task)})

    async def act(self, action: str) -> str:
        """Press the button of an action on the page that is open now."""
        (step, *_) = re.findall(r'name="step" value="(\d+)"', self.page)
        return await self.post(self.path, {"step": step, "action": action})

    def agent_sees(self, what: str) -> str:
        (text,) = re.findall(rf'<pre data-what="{what}"[^>]*>(.*?)</pre>', self.page, re.DOTALL)
        return str(text)


@pytest.fixture
def world(tmp_path: Path) -> WebShop:
    return make_world(write_shop(tmp_path))


@pytest.fixture
async def browser(world: WebShop, tmp_path: Path) -> AsyncIterator[Browser]:
    """A browser before a shop with a recording."""
    recording = read_recording(str(write_lines(tmp_path / "episodes.jsonl", await record_group(world))))
    browser = Browser(Site(world, recording, "train", 0))
    async with browser.client:
        yield browser


def test_texts_cannot_become_elements() -> None:
    hostile = '<script>alert("x")</script>'
    assert "<script" not in element("p", hostile, title=hostile, data_what=hostile)
    assert element("p", element("b", "a & b"), None, hidden=True, class_="c") == (
        '<p hidden class="c"><b>a &amp; b</b></p>'
    )
    assert join(Markup("<b>"), "\x1b\x00\ud800") == "<b>␛�?"


async def test_goals_are_listed_and_found_by_words(browser: Browser) -> None:
    assert "4 train goals" in await browser.get("/")
    assert 'name="task" value="3"' in browser.page
    assert "No goal here holds all of these words" in await browser.get("/?split=train&words=zebra")
    assert "2 test goals" in await browser.get("/?split=test&words=&start=0")


async def test_a_goal_is_done_by_hand(browser: Browser, world: WebShop) -> None:
    await browser.open()
    for action in winning_actions(world):
        assert browser.status == 200
        await browser.act(action)
    assert '<strong id="score">1</strong>' in browser.page
    assert "1 × (0.333 × 1.000 + 0.333 × 1.000 + 0.333 × 1.000) = 1.0000" in browser.page


async def test_the_search_field_searches_from_any_page(browser: Browser) -> None:
    await browser.open()
    await browser.post(browser.path, {"step": "0", "query": "oak table", "do": "search"})
    assert "Page 1 (Total results: 4)" in browser.page
    await browser.act("click[a0]")
    await browser.post(browser.path, {"step": "2", "query": "zebra", "do": "search"})
    assert "No product on this page." in browser.page


async def test_the_panel_shows_the_agents_view(browser: Browser) -> None:
    await browser.open()
    await browser.act("search[tables]")
    await browser.act("click[a0]")
    await browser.act("click[large]")
    assert browser.agent_sees("state-key") == (
        "[&quot;item&quot;, &quot;tables&quot;, 1, &quot;A0&quot;, [[&quot;size&quot;, &quot;large&quot;]], null]"
    )
    assert "[SEP] &#x27;small&#x27; [SEP] &#x27;large&#x27; [SEP]" in browser.agent_sees("text")
    assert "expert at buying things in WebShop" in browser.agent_sees("prompt")
    assert "<code>click[buy now]</code>" in browser.page
    assert re.search(r'value="click\[large\]" aria-pressed="true"', browser.page)
    assert re.search(r'value="click\[small\]" aria-pressed="false"', browser.page)


async def test_a_button_of_an_earlier_page_does_nothing(browser: Browser) -> None:
    await browser.open()
    await browser.act("search[tables]")
    await browser.post(browser.path, {"step": "0", "action": "click[a0]"})
    assert "That button was on an earlier page" in browser.page
    assert "Page 1 (Total results: 4)" in browser.page
    assert "earlier page" not in await browser.get(browser.path)


async def test_what_is_no_action_here_says_so(browser: Browser) -> None:
    await browser.open()
    assert "is not possible here: nothing changed" in await browser.act("<b>click[a0]\n</b>")
    assert "<b>" not in browser.page
    assert "write some words first" in await browser.post(browser.path, {"step": "1", "query": "", "do": "search"})
    assert browser.status == 200


async def test_product_texts_are_escaped(tmp_path: Path) -> None:
    browser = Browser(Site(make_world(write_shop(tmp_path, name="<script>x</script> & table")), None, "train", 0))
    async with browser.client:
        await browser.open()
        await browser.act("search[table]")
        assert "&lt;script&gt;x&lt;/script&gt; &amp; table" in browser.page
        assert "<script>x" not in browser.page


async def test_every_browser_window_has_a_visit_of_its_own(browser: Browser) -> None:
    await browser.open(0)
    first = browser.path
    await browser.open(0)
    await browser.act("search[tables]")
    assert browser.path != first
    assert "0 steps" in await browser.get(first)


async def test_the_visit_not_used_for_longest_is_forgotten(browser: Browser) -> None:
    await browser.open()
    first = browser.path
    await browser.open()
    second = browser.path
    for _ in range(MOST_VISITS - 1):
        await browser.get(first)
        await browser.open()
    assert browser.site.num_visits == MOST_VISITS
    await browser.get(first)
    assert browser.status == 200
    assert "This visit is over" in await browser.get(second)
    assert browser.status == 404


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/visit/x", "/replay/1", "/replay/x", "/replay/0/2/1", "/replay/0/0/5", "/replay/0/0/0"),
        *("/replay?start=x", "/?start=x", "/?split=x", "/assets/server.py", "/assets/..%2Fserver.py"),
    ],
)
async def test_what_does_not_exist_is_a_page_that_says_so(browser: Browser, path: str) -> None:
    assert "Nothing here" in await browser.get(path)
    assert browser.status == 404


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"split": "train", "task": "99"},
        {"split": "train", "task": "-1"},
        {"split": "nowhere", "task": "0"},
        {"split": "train", "task": "0", "position": "0", "place": "0", "step": "0"},
        {"split": "train", "task": "0", "position": "5", "place": "0", "step": "1"},
    ],
)
async def test_a_visit_to_nowhere_is_refused(browser: Browser, fields: dict[str, str]) -> None:
    await browser.post("/visits", fields)
    assert browser.status == 404
    assert browser.site.num_visits == 0


async def test_too_long_a_form_is_refused(browser: Browser) -> None:
    await browser.open()
    await browser.post(browser.path, {"step": "0", "action": "x" * 100_000})
    assert browser.status == 413


async def test_only_this_machines_own_pages_are_answered(browser: Browser) -> None:
    await browser.get("/", Host="shop.example")
    assert browser.status == 403
    await browser.get("/", Host="localhost:80")
    assert browser.status == 200
    await browser.post("/visits", {"split": "train", "task": "0"}, **{"Sec-Fetch-Site": "cross-site"})
    assert (browser.status, browser.site.num_visits) == (403, 0)


async def test_pages_load_nothing_from_elsewhere(browser: Browser) -> None:
    await browser.get("/replay/0/0/2")
    assert re.findall(r'(?:src|href)="(?:https?:)?//[^"]*"', browser.page) == []
    async with browser.client.get("/assets/style.css") as response:
        assert "url(" not in await response.text()
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]


async def test_a_group_is_shown_with_advantages_by_sign(browser: Browser) -> None:
    await browser.get("/replay")
    assert ">group 7</a>" in browser.page
    await browser.get("/replay/0")
    assert re.findall(r'<span class="number (\w+-\d)">([^<]*)</span>', browser.page) == [
        ("plus-2", "+10.00"),
        ("minus-3", "−20.00"),
    ]
    assert re.findall(r'<td class="number (\w+-\d)">([^<]*)</td>', browser.page) == [
        ("plus-1", "+1.00"),
        ("minus-1", "−2.00"),
    ]
    assert "won, score 1.00" in browser.page
    assert "cut off at the step limit, score 0.00" in browser.page


async def test_a_recorded_step_shows_its_page_response_and_values(browser: Browser, world: WebShop) -> None:
    await browser.get("/replay/0/0/3")
    assert "Group 7, member 0, step 3 of 4" in browser.page
    assert "<dt>Thought</dt><dd>step 2</dd>" in browser.page
    assert "0 to 2" in browser.page
    option = winning_actions(world)[2]
    assert re.search(rf'value="{re.escape(option)}" class="highlight" disabled', browser.page)
    assert 'rel="prev"' in browser.page
    assert 'href="/replay/0/0/4" rel="next"' in browser.page
    await browser.get("/replay/0/0/4")
    assert 'href="/replay/0/1/1" rel="next"' in browser.page
    await browser.get("/replay/0/1/1")
    assert 'rel="next"' not in browser.page


async def test_one_can_go_on_from_a_recorded_step(browser: Browser, world: WebShop) -> None:
    fields = {"split": "train", "task": "0", "position": "0", "place": "0", "step": "4"}
    await browser.post("/visits", fields)
    assert "3 steps" in browser.page
    await browser.act("click[buy now]")
    assert '<strong id="score">1</strong>' in browser.page


async def test_a_recording_from_another_shop_shows_prompts_only(world: WebShop, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "episodes.jsonl", await record_group(world))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = make_world(write_shop(elsewhere, name="Lamp", query="lamps", full_description="", small_description=""))
    for shop in (None, other):
        browser = Browser(Site(shop, read_recording(str(path)), "train", 0))
        async with browser.client:
            assert "expert at buying things" in await browser.get("/replay/0/0/3")
            assert "The shop" not in browser.page
        if shop is None:
            async with Browser(Site(shop, read_recording(str(path)), "train", 0)).client as client:
                async with client.get("/") as response:
                    assert response.url.path == "/replay/0"
                async with client.post("/visits", data={"split": "train", "task": "0"}) as response:
                    assert response.status == 404

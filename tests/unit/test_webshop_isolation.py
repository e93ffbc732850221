"""Any text is an action that never raises; sessions know nothing of each other and go when nobody holds them."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import tempfile
import weakref
from pathlib import Path
from typing import Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from async_agent_rl.env import Task
from envs.webshop.env import WebShop
from envs.webshop.observation import observe
from envs.webshop.session import Session
from tests.webshop_samples import WordTagger, raw_product, write_files

_WORDS = (
    "<r>",
    "<a>",
    "<c>",
    "<q>",
    "<a> x",
    "search",
    "buy now",
    "[",
    "]",
    "\n",
    " ",
    "</action>",
    "item_page",
    "\u0130",
)
_ACTIONS = st.one_of(
    st.text(max_size=20),
    st.lists(st.sampled_from(_WORDS), max_size=4).map("".join).map(lambda words: f"search[{words}]"),
    st.lists(st.sampled_from(_WORDS), max_size=4).map("".join).map(lambda words: f"click[{words}]"),
    st.integers(0, 30),  # the n-th clickable of the page
)


@functools.cache
def make_world(special_queries: bool = True) -> WebShop:
    """Twelve tables, some with options that clash with buttons or with each other."""
    options = {"Kind": [{"value": "Features"}, {"value": "İX/ß"}, {"value": "none"}], "Base": [{"value": "None"}]}
    products = [raw_product(f"A{n}", customization_options=options if n % 2 else "") for n in range(12)]
    entry = {"attributes": ["solid wood"], "instruction": "Find me tables", "instruction_attributes": ["solid wood"]}
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), products, {f"A{n}": entry for n in range(12)})
        return WebShop({**files, "special_queries": special_queries}, tagger=WordTagger())


def open_session(number: int) -> Session:
    world = make_world()
    return world.session(world.goals[number], str(number))


def look(session: Session) -> tuple[str, ...]:
    return (session.state_key, *(observe(session, mode) for mode in ("text", "text_rich", "html", "url")))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1]), _ACTIONS), max_size=12))
def test_random_actions_never_raise_and_never_change_another_session(steps: list[tuple[int, str | int]]) -> None:
    sessions = [open_session(0), open_session(1)]
    for actor, action in steps:
        session, other = sessions[actor], sessions[1 - actor]
        if isinstance(action, int):
            clickables = session.page.clickables or ("x",)
            action = f"click[{clickables[action % len(clickables)]}]"
        before, theirs = look(session), look(other)
        outcome = session.act(action)
        assert look(other) == theirs
        assert 0 <= outcome.reward <= 1
        if not outcome.executed:
            assert look(session) == before
            assert (outcome.reward, outcome.done) == (0.0, False)


@settings(max_examples=50, deadline=None)
@given(st.lists(_ACTIONS.filter(lambda action: isinstance(action, str)), max_size=8))
def test_the_same_actions_lead_to_the_same_pages(actions: list[str]) -> None:
    one, two = open_session(3), open_session(3)
    for action in actions:
        assert one.act(action).reward == two.act(action).reward
        assert look(one) == look(two)


_TAGS = st.sampled_from(
    ["<think>", "</think>", "<action>", "</action>", "click[", "search[", "]", "a1", "buy now", "\u4e2d"]
)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(["strict", "legacy"]), st.lists(st.lists(_TAGS | st.text(max_size=5), max_size=9), max_size=4))
def test_random_responses_never_raise(parser: Literal["strict", "legacy"], responses: list[list[str]]) -> None:
    world = copy.copy(make_world())
    world.options = msgspec.structs.replace(world.options, parser=parser)

    async def play() -> None:
        env = world.new_env()
        await env.reset(Task(split="train", index=0, seed=0))
        for response in responses:
            result = await env.step("".join(response))
            assert (result.reward, result.won) in ((0.0, False), (10.0, True))
            assert result.observation.prompts

    asyncio.run(play())


def test_every_clickable_of_every_page_but_search_can_be_clicked() -> None:
    session = open_session(0)
    session.act("search[table]")
    for asin in session.page.clickables[2:]:
        session.act(f"click[{asin}]")
        for clickable in session.page.clickables[2:-1]:
            assert session.act(f"click[{clickable}]").executed, clickable
            session.act("search[table]")
            session.act(f"click[{asin}]")
        session.act("click[< prev]")


def test_a_thousand_sessions_at_a_time_keep_apart_and_are_freed() -> None:
    world = make_world()
    sessions = [open_session(number % len(world.goals)) for number in range(1000)]
    for number, session in enumerate(sessions):
        session.act(f"search[table {number}]")
    for session in sessions:
        session.act(f"click[{session.page.clickables[2]}]")
    for number, session in enumerate(sessions):
        assert session.keywords == f"table {number}"
        assert session.act("click[< prev]").page.texts[1] == session.goal.instruction
    alive = [weakref.ref(session) for session in sessions]
    del session, sessions
    gc.collect()
    assert [reference() for reference in alive] == [None] * 1000

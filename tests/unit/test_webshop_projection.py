"""Responses become actions: the strict reading and verl-agent's."""

from __future__ import annotations

import pytest

from envs.webshop.projection import NO_ACTION, Projection, project_like_verl_agent, project_strictly


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("<think>a</think><action>click[red]</action>", "click[red]"),
        ("<think>a</think>\n<action> Click[Buy Now] </action>\n", "click[buy now]"),
        ("<think> </think> <action> click[ red] </action>", "click[red]"),
        ("<think></think><action>search[ red shoes ]</action>", "search[red shoes]"),
        ("<think>a<action>click[x]</action></think><action>click[y]</action>", "click[y]"),
        ("<THINK>a</THINK><ACTION>click[y]</ACTION>", "click[y]"),
        ("<think>a</think>b</think><action>click[y]</action>", "click[y]"),
        ("<think>红</think><action>search[红]</action>", "search[红]"),
        ("<think>a</think><action>jump</action>", "jump"),
        ("<think>a</think><action>search[ ]</action>", "search[]"),
    ],
)
def test_the_strict_reading_takes_the_one_action_after_the_thoughts(response: str, action: str) -> None:
    assert project_strictly(response) == Projection(action, format_ok=True)


@pytest.mark.parametrize(
    "response",
    [
        "",
        "click[red]",
        "<action>click[red]</action>",
        "<think>a<action>click[red]</action>",
        "a</think><action>click[red]</action>",
        "<think>a</think>",
        "<think>a</think><action></action>",
        "<think>a</think><action>  </action>",
        "<think>a</think><action>click[red]",
        "<think>a</think></action>click[red]<action>",
        "<think>a</think><action>click[a]</action><action>click[b]</action>",
        "<think>a</think><action><action>click[a]</action>",
        "<think>a</think><action>click[a]</action></action>",
        "<action>click[a]</action><think>a</think>",
        "</think><think><action>click[a]</action>",
    ],
)
def test_the_strict_reading_does_nothing_on_any_other_form(response: str) -> None:
    assert project_strictly(response) == Projection(NO_ACTION, format_ok=False)


@pytest.mark.parametrize(
    ("response", "action", "format_ok"),
    [
        ("<think>a</think><action> Click[Red] </action>", "click[red]", True),
        ("I will: CLICK[BUY NOW] please", "lick[buy now] please", False),
        ("short", "short", False),
        ("<think>a</think><action>click[a]", "ink><action>click[a]", False),
        ("<think>a</think>click[a]</action>", "nk>click[a]</action>", False),
        ("<think>a</think></action>x<action>click[a]", "", True),
        ("<think><action>click[a]</action></think><action>click[b]</action>", "click[a]", True),
        ("<action>click[a]</action>", "click[a]", False),
        ("<think><action>click[a]</action>", "click[a]", False),
        ("</think><action>click[a]</action><think>", "click[a]", True),
        ("<THINK>a</THINK><ACTION>click[a]</ACTION>", "click[a]", False),
        ("<think>红</think><action>click[a]</action>", "click[a]", False),
        ("<think>é ア</think><action>click[a]</action>", "click[a]", True),
        ("<think>a</think><action>click[ a ]</action>", "click[ a ]", True),
        ("<think>a</think><action></action>", "", True),
    ],
)
def test_verl_agents_reading_is_reproduced(response: str, action: str, format_ok: bool) -> None:
    assert project_like_verl_agent(response) == Projection(action, format_ok)

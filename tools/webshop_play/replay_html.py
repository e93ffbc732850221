"""A recorded group for a browser: every step with its page, response, reward and advantages.

Knows nothing of requests. Where the shop the run played in is at hand, its page is shown as it was, inert.
"""

from __future__ import annotations

from envs.webshop.env import WebShop
from envs.webshop.session import Session
from learner.episodes import EpisodeLine, EpisodeTurn
from tools.webshop_play.frame import facts, post_button, pre
from tools.webshop_play.markup import Markup, element, join
from tools.webshop_play.recording import (
    RecordedGroup,
    Recording,
    flags_text,
    outcome_text,
    signed,
    take_apart,
    versions_text,
)
from tools.webshop_play.shop_html import ShopPage

_GROUPS_LISTED = 200


def groups_main(recording: Recording, start: int) -> Markup:
    """The recorded groups, newest first.

    Args:
        recording: what was read.
        start: so many of the newest are left out.
    """
    positions = range(len(recording.groups) - 1 - start, -1, -1)[:_GROUPS_LISTED]
    rows = []
    for position in positions:
        group = recording.groups[position]
        score = sum(episode.score for episode in group.episodes) / len(group.episodes)
        link = element("a", f"group {group.group}", href=f"/replay/{position}")
        won = f"{group.num_won} of {len(group.episodes)}"
        cells = (f"{group.version}", f"{group.episodes[0].task_index}", won, f"{score:.2f}")
        rows.append(element("tr", element("th", link, scope="row"), *(element("td", cell) for cell in cells)))
    older = start + len(positions)
    return element(
        "section",
        element("h1", "Recorded groups"),
        element("p", f"{recording.path}", class_="quiet"),
        _table(("group", "update", "task", "won", "mean score"), rows),
        element("p", element("a", "Older groups", href=f"/replay?start={older}"))
        if older < len(recording.groups)
        else None,
        class_="page",
    )


def group_main(group: RecordedGroup, position: int) -> Markup:
    """All trajectories of a group beside each other; every step is a link."""
    longest = max(len(episode.turns) for episode in group.episodes)
    scale = _scale(group)
    rows = [
        element(
            "tr",
            element("th", element("a", f"{episode.member}", href=f"/replay/{position}/{place}/1"), scope="row"),
            element("td", outcome_text(episode)),
            element("td", signed(episode.turns[0].discounted_return), class_="number"),
            _valued("td", episode.turns[0].episode_advantage, scale),
            *(
                _step_cell(turn, f"/replay/{position}/{place}/{step}", scale)
                for step, turn in enumerate(episode.turns, start=1)
            ),
            *(element("td") for _ in range(longest - len(episode.turns))),
        )
        for place, episode in enumerate(group.episodes)
    ]
    heads = ("member", "outcome", "return", "episode adv.", *(f"step {step}" for step in range(1, longest + 1)))
    return element(
        "section",
        element("h1", f"Group {group.group}"),
        element(
            "p",
            f"Task {group.episodes[0].task_index}, trained in update {group.version}; {group.num_won} of "
            f"{len(group.episodes)} won. A step's colour and number are its step advantage.",
            class_="quiet",
        ),
        _table(heads, rows),
        class_="page",
    )


def step_main(group: RecordedGroup, position: int, place: int, step: int, world: WebShop | None) -> Markup:
    """One step of one trajectory; `step` is 1-based."""
    episode = group.episodes[place]
    turn = episode.turns[step - 1]
    heading = f"Group {group.group}, member {episode.member}, step {step} of {len(episode.turns)}"
    session = session_before(world, episode, step) if world is not None else None
    take_over = None
    if session is not None:
        fields = {"position": str(position), "place": str(place), "step": str(step)}
        take_over = post_button(
            "/visits", "Go on from here by hand", {**fields, "split": "train", "task": str(episode.task_index)}
        )
    main = element(
        "div",
        element("h1", heading),
        _ways(group, position, place, step),
        element(
            "section",
            _values(turn, _scale(group)),
            _response(turn),
            _end(episode) if step == len(episode.turns) else None,
            class_="page",
        ),
        _shop_page(session, turn) if session is not None else None,
        take_over,
    )
    aside = element(
        "aside",
        element("h2", "What the agent saw"),
        element("h3", "Page (the prompt it was given)"),
        pre(turn.prompt, "prompt"),
        element("h3", "State key"),
        pre(turn.state_key, "state-key"),
        aria_label="What the agent saw",
    )
    return element("div", main, aside, class_="columns")


def session_before(world: WebShop, episode: EpisodeLine, step: int) -> Session | None:
    """The visit as it stood before a step (1-based); None where this shop is not the one that was played in."""
    if not 0 <= episode.task_index < world.num_tasks("train"):
        return None
    session = world.session(world.goal("train", episode.task_index))
    for turn in episode.turns[: step - 1]:
        session.act(turn.action)
    return session if session.state_key == episode.turns[step - 1].state_key else None


def _values(turn: EpisodeTurn, scale: float) -> Markup:
    cells = (
        ("reward", element("span", signed(turn.reward), class_="number")),
        ("return", element("span", signed(turn.discounted_return), class_="number")),
        ("episode advantage", _valued("span", turn.episode_advantage, scale)),
        ("step advantage", _valued("span", turn.step_advantage, scale)),
        ("versions", element("span", versions_text(turn), class_="number")),
        ("form", element("span", flags_text(turn))),
    )
    return element("dl", *(element("div", element("dt", n), element("dd", v)) for n, v in cells), class_="values")


def _response(turn: EpisodeTurn) -> Markup:
    response = take_apart(turn)
    known = [("Thought", response.thought), ("Action", response.action)]
    rows = [(name, text) for name, text in known if text is not None]
    return element(
        "section",
        facts(*rows, ("Did", element("code", turn.action))),
        element("details", element("summary", "Response as written"), pre(response.raw, "response")),
        class_="response",
    )


def _end(episode: EpisodeLine) -> Markup:
    return element("p", f"End: {outcome_text(episode)}", class_="notice")


def _shop_page(session: Session, turn: EpisodeTurn) -> Markup:
    page = ShopPage(session, inert=True, highlight=turn.action).render()
    label = "The shop's page then; what was clicked is marked"
    return element("section", element("h2", label, class_="above"), element("div", page, class_="page inert"))


def _ways(group: RecordedGroup, position: int, place: int, step: int) -> Markup:
    """Links to the neighbours, across trajectories; keys.js binds the arrow keys to them."""
    places = [(p, s) for p, episode in enumerate(group.episodes) for s in range(1, len(episode.turns) + 1)]
    here = places.index((place, step))
    before = places[here - 1] if here else None
    after = places[here + 1] if here + 1 < len(places) else None
    members = [
        element(
            "a",
            f"member {episode.member}",
            href=f"/replay/{position}/{other}/1",
            aria_current="true" if other == place else None,
        )
        for other, episode in enumerate(group.episodes)
    ]
    return element(
        "nav",
        _way("← Back", before, position, "prev"),
        _way("Next →", after, position, "next"),
        element("a", "Overview", href=f"/replay/{position}"),
        element("span", *members, class_="members"),
        aria_label="Steps",
        class_="controls",
    )


def _way(label: str, target: tuple[int, int] | None, position: int, rel: str) -> Markup:
    if target is None:
        return element("span", label, class_="quiet")
    return element("a", label, href=f"/replay/{position}/{target[0]}/{target[1]}", rel=rel)


def _step_cell(turn: EpisodeTurn, href: str, scale: float) -> Markup:
    value = _valued("span", turn.step_advantage, scale)
    reward = element("span", f" reward {signed(turn.reward)}", class_="number") if turn.reward else None
    return element("td", element("a", turn.action, href=href, class_="step"), join(value, reward))


def _table(heads: tuple[str, ...], rows: list[Markup]) -> Markup:
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in heads)))
    return element("div", element("table", head, element("tbody", *rows)), class_="scroll", tabindex="0")


def _scale(group: RecordedGroup) -> float:
    values = (
        abs(value)
        for e in group.episodes
        for turn in e.turns
        for value in (turn.episode_advantage, turn.step_advantage)
    )
    return max(values, default=0.0)


def _valued(name: str, value: float, scale: float) -> Markup:
    """A number coloured by its sign, stronger the larger it is; the sign itself is written too."""
    text = signed(value)
    if text == "0.00":
        return element(name, text, class_="number")
    share = abs(value) / scale if scale > 0 else 0.0
    strength = 1 if share < 1 / 3 else 2 if share < 2 / 3 else 3
    return element(name, text, class_=f"number {'plus' if value > 0 else 'minus'}-{strength}")

"""Serves the shop and a recording as pages on this machine's loopback address.

Knows nothing of how pages look. Visits are kept in memory, a bounded number of them.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import secrets
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

from aiohttp import web

from async_agent_rl.env import SPLITS, Split
from async_agent_rl.errors import InputError
from envs.webshop.env import WebShop
from tools.webshop_play.frame import document, message_page
from tools.webshop_play.markup import Markup
from tools.webshop_play.recording import RecordedGroup, Recording
from tools.webshop_play.replay_html import group_main, groups_main, session_before, step_main
from tools.webshop_play.shop_html import home_main, visit_main
from tools.webshop_play.visit import Visit, find_goals, open_visit

MOST_VISITS = 64
"""Kept at once; the one not used for longest is forgotten for a new one."""
_HOST = "127.0.0.1"
_LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
_LARGEST_POST_BYTES = 64_000
_ASSETS = {"style.css": "text/css", "keys.js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclasses.dataclass(eq=False)
class _Open:
    """A visit and what to say on its next page."""

    visit: Visit
    notice: str = ""


class Site:
    """All pages. Either the shop or the recording may be missing, not both."""

    def __init__(
        self, world: WebShop | None, recording: Recording | None, split: Split, task: int, position: int = 0
    ) -> None:
        """
        Args:
            world: the shop; without it nothing can be played by hand.
            recording: to step through.
            split: whose goals are listed first.
            task: where that list starts.
            position: of the recorded group that the start page leads to.
        """
        self._world = world
        self._recording = recording
        self._split: Split = split
        self._task = task
        self._position = position
        self._visits: collections.OrderedDict[str, _Open] = collections.OrderedDict()

    @property
    def num_visits(self) -> int:
        return len(self._visits)

    @property
    def start_path(self) -> str:
        """Where a person begins."""
        return "/" if self._recording is None else f"/replay/{self._position}"

    def make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=_LARGEST_POST_BYTES)
        app.add_routes(
            [
                web.get("/", self._home),
                web.post("/visits", self._open),
                web.get("/visit/{id}", self._show),
                web.post("/visit/{id}", self._act),
                web.get("/replay", self._groups),
                web.get("/replay/{position}", self._group),
                web.get("/replay/{position}/{place}/{step}", self._step),
                web.get("/assets/{name}", self._asset),
            ]
        )
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answers only this machine's own pages, and turns what went wrong into a page."""
        name = request.host.rpartition(":")[0] if request.host.rpartition(":")[2].isdecimal() else request.host
        is_foreign_form = request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none")
        if name not in _LOCAL_NAMES or (request.method == "POST" and is_foreign_form):
            return web.Response(status=403, text="This shop answers only its own pages on this machine.\n")
        try:
            response = await handler(request)
        except web.HTTPNotFound as error:
            response = self._message(404, "Nothing here", error.text or "This page does not exist.")
        except InputError as error:
            response = self._message(404, "Nothing here", f"{error}.")
        except web.HTTPRequestEntityTooLarge:
            response = self._message(413, "Too long", "That is more text than the shop reads.")
        response.headers.update(_HEADERS)
        return response

    async def _home(self, request: web.Request) -> web.Response:
        if self._world is None:
            raise web.HTTPSeeOther(self.start_path)
        split = _split(request.query.get("split", self._split))
        is_first = not request.query
        start = self._task if is_first else _number(request.query.get("start", "0"))
        words = request.query.get("words", "")
        goals = find_goals(self._world, split, words, start)
        main = home_main(goals, split, words, start, self._world.num_tasks(split))
        return self._page("Goals", main, "shop")

    async def _open(self, request: web.Request) -> web.Response:
        if self._world is None:
            _missing("Only the recording is open here.")
        form = await request.post()
        split = _split(str(form.get("split", "")))
        visit = await open_visit(self._world, split, _number(str(form.get("task", ""))))
        if "position" in form:
            await self._catch_up(visit, *(str(form.get(name, "")) for name in ("position", "place", "step")))
        visit_id = secrets.token_urlsafe(9)
        self._visits[visit_id] = _Open(visit)
        while len(self._visits) > MOST_VISITS:
            self._visits.popitem(last=False)
        raise web.HTTPSeeOther(f"/visit/{visit_id}")

    async def _catch_up(self, visit: Visit, position: str, place: str, step: str) -> None:
        """Do what was recorded before a step."""
        assert self._world is not None
        episode = self._recorded_group(position).episodes[_within(place, len(self._recorded_group(position).episodes))]
        number = _within(step, len(episode.turns) + 1)
        if number < 1 or session_before(self._world, episode, number) is None:
            _missing("This step was not played in this shop.")
        for turn in episode.turns[: number - 1]:
            await visit.act(turn.action)

    async def _show(self, request: web.Request) -> web.Response:
        visit_id, opened = self._visit(request)
        notice, opened.notice = opened.notice, ""
        return self._page(f"Task {opened.visit.index}", visit_main(opened.visit, visit_id, notice), "shop")

    async def _act(self, request: web.Request) -> web.Response:
        visit_id, opened = self._visit(request)
        form = await request.post()
        action = str(form.get("action", ""))
        if "do" in form:
            action = f"search[{form.get('query', '')}]"
        visit = opened.visit
        if str(form.get("step", "")) != str(len(visit.steps)):
            opened.notice = "That button was on an earlier page; this is where you are now."
        elif action in ("", "search[]"):
            opened.notice = "Nothing was asked for: write some words first."
        elif not (await visit.act(action)).is_admissible:
            opened.notice = f"{visit.steps[-1].action!r} is not possible here: nothing changed."
        raise web.HTTPSeeOther(f"/visit/{visit_id}")

    async def _groups(self, request: web.Request) -> web.Response:
        if self._recording is None:
            _missing("No recording is open; start with --replay.")
        start = _within(request.query.get("start", "0"), len(self._recording.groups))
        return self._page("Recorded groups", groups_main(self._recording, start), "replay")

    async def _group(self, request: web.Request) -> web.Response:
        position = request.match_info["position"]
        group = self._recorded_group(position)
        return self._page(f"Group {group.group}", group_main(group, int(position)), "replay")

    async def _step(self, request: web.Request) -> web.Response:
        position = request.match_info["position"]
        group = self._recorded_group(position)
        place = _within(request.match_info["place"], len(group.episodes))
        step = _within(request.match_info["step"], len(group.episodes[place].turns) + 1)
        if step < 1:
            _missing("Steps are counted from 1.")
        main = step_main(group, int(position), place, step, self._world)
        return self._page(f"Group {group.group}, step {step}", main, "replay")

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _ASSETS:
            _missing("There is no such file.")
        body = (Path(__file__).parent / "assets" / name).read_bytes()
        return web.Response(body=body, content_type=_ASSETS[name], charset="utf-8")

    def _visit(self, request: web.Request) -> tuple[str, _Open]:
        visit_id = request.match_info["id"]
        if visit_id not in self._visits:
            _missing("This visit is over: the shop was restarted or has had many visits since. Start another one.")
        self._visits.move_to_end(visit_id)
        return visit_id, self._visits[visit_id]

    def _recorded_group(self, position: str) -> RecordedGroup:
        if self._recording is None:
            _missing("No recording is open; start with --replay.")
        return self._recording.groups[_within(position, len(self._recording.groups))]

    def _page(self, title: str, main: Markup, here: str) -> web.Response:
        text = document(
            title, main, here=here, has_shop=self._world is not None, has_replay=self._recording is not None
        )
        return web.Response(text=text, content_type="text/html")

    def _message(self, status: int, title: str, sentence: str) -> web.Response:
        text = message_page(title, sentence, has_shop=self._world is not None, has_replay=self._recording is not None)
        return web.Response(status=status, text=text, content_type="text/html")


async def serve(site: Site, port: int, announce: Callable[[str], None]) -> None:
    """Serve on loopback until SIGINT or SIGTERM.

    Args:
        site: the pages.
        port: 0 takes a free one.
        announce: told the address once it answers.

    Raises:
        InputError: the port cannot be had.
    """
    runner = web.AppRunner(site.make_app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, _HOST, port).start()
        except OSError as error:
            raise InputError(f"--port {port}: cannot be opened on {_HOST}: {error.strerror}") from error
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        announce(f"http://{_HOST}:{runner.addresses[0][1]}{site.start_path}")
        await stop.wait()
    finally:
        await runner.cleanup()


def _missing(sentence: str) -> NoReturn:
    raise web.HTTPNotFound(text=sentence)


def _number(words: str) -> int:
    if not (words.isascii() and words.isdecimal() and len(words) < 10):
        _missing(f"{words[:40]!r} is no number.")
    return int(words)


def _within(words: str, end: int) -> int:
    number = _number(words)
    if number >= end:
        _missing(f"{number} is beyond the last one.")
    return number


def _split(words: str) -> Split:
    for split in SPLITS:
        if split == words:
            return split
    return _missing(f"{words[:40]!r} is no split.")

"""The shop in a terminal: pages with numbered actions, one line of input a step.

Knows nothing of browsers or recordings.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from typing import get_args

import rich.console
from rich.columns import Columns
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from async_agent_rl.env import SPLITS, Split
from async_agent_rl.errors import InputError
from envs.webshop.env import WebShop
from envs.webshop.pages import SegmentKind
from envs.webshop.prompt import SEARCH_ENTRY
from tools.webshop_play.console import ReadLine, visible
from tools.webshop_play.purchase import explain, formula, wanted_product
from tools.webshop_play.visit import Visit, find_goals, open_visit

SHOWN = ("all", "page", "text", "prompt")
_RAW_ACTION = re.compile(r"\w+\[.*\]")
_HELP = """NUMBER           do the action of that number
search WORDS     search, from any page
NAME[ARGUMENT]   a raw action, such as click[back to search]
show WHAT        what each page shows: all, page, text or prompt
goals WORDS      list goals of this split that hold the words
task NUMBER      another goal of this split; also: split NAME, next, again
help             this list
q                quit"""


@dataclasses.dataclass
class TerminalGame:
    """One person at one terminal, through any number of visits."""

    world: WebShop
    console: rich.console.Console
    read_line: ReadLine
    shown: str = "all"

    def play(self, split: Split, index: int) -> None:
        """Until `q` or the end of the input.

        Raises:
            InputError: the first task does not exist.
        """
        with asyncio.Runner() as runner:
            self._runner = runner
            self._open(split, index)
            while (line := self.read_line("> ")) is not None:
                words = line.strip()
                if words.lower() in ("q", "quit", "exit"):
                    break
                try:
                    self._obey(words)
                except InputError as error:
                    self._say(str(error), "yellow")

    def _open(self, split: Split, index: int) -> None:
        self._visit: Visit = self._runner.run(open_visit(self.world, split, index))
        self._show()

    def _obey(self, words: str) -> None:
        """One line of input; raises InputError for a task that does not exist."""
        name, _, rest = words.partition(" ")
        visit, rest = self._visit, rest.strip()
        match name.lower():
            case "":
                self._show()
            case "help" | "?" | "h":
                self.console.print(visible(_HELP, "dim"))
            case "show":
                self._choose_shown(rest)
            case "goals":
                self._list_goals(rest)
            case "task":
                self._open(visit.split, _number(rest, "task"))
            case "split":
                self._open(_split(rest), 0)
            case "next":
                self._open(visit.split, visit.index + 1)
            case "again":
                self._open(visit.split, visit.index)
            case "search" if rest:
                self._act(f"search[{rest}]")
            case _:
                self._obey_action(words)

    def _obey_action(self, words: str) -> None:
        if words.isdecimal() and words.isascii():
            action = self._numbered(words)
            if action is not None:
                self._act(action)
        elif _RAW_ACTION.fullmatch(words):
            self._act(words)
        else:
            self._say(f"{words!r} is neither a number, a command nor an action such as click[buy now]; try help")

    def _numbered(self, words: str) -> str | None:
        actions = self._visit.observation.admissible
        # Longer than any list: no need to make a number of it.
        number = int(words) if len(words) < 7 else 0
        if self._visit.done:
            self._say("the purchase is made; `next`, `again` or `task NUMBER` starts another visit, `q` quits")
            return None
        if not 1 <= number <= len(actions):
            self._say(f"there is no action {words}: choose from 1 to {len(actions)}")
            return None
        if actions[number - 1] != SEARCH_ENTRY:
            return actions[number - 1]
        query = (self.read_line("search for: ") or "").strip()
        return f"search[{query}]" if query else None

    def _act(self, action: str) -> None:
        if self._visit.done:
            self._say("the purchase is made; `next`, `again` or `task NUMBER` starts another visit, `q` quits")
            return
        step = self._runner.run(self._visit.act(action))
        if not step.is_admissible:
            self._say(f"{step.action!r} is not possible here: nothing changed")
            return
        self._show()

    def _show(self) -> None:
        visit, observation = self._visit, self._visit.observation
        title = f"{visit.split} task {visit.index}, step {len(visit.steps) + 1}"
        self.console.rule(title, style="dim")
        self.console.print(visible("Goal: ", "bold") + visible(visit.goal.instruction, "bold cyan"))
        if visit.done:
            self._show_bill()
            return
        if self.shown in ("all", "prompt"):
            self.console.print(Panel(visible(observation.prompts[0]), title="prompt the agent is given", style="dim"))
        if self.shown in ("all", "text"):
            self.console.print(Panel(visible(observation.text), title="the page as text", style="dim"))
            self.console.print(visible(f"state key  {observation.state_key}", "dim"))
        if self.shown in ("all", "page"):
            self.console.print(Panel(self._page(), title=visit.session.view.value, border_style="blue"))
        entries = [visible(f"{number:>3}  {action}") for number, action in enumerate(observation.admissible, start=1)]
        self.console.print(Columns(entries, padding=(0, 2), column_first=True))

    def _page(self) -> Text:
        """The page with the actions' numbers beside what they click."""
        visit, lines = self._visit, Text()
        numbers = {action: number for number, action in enumerate(visit.observation.admissible, start=1)}
        for segment in visit.session.page.segments:
            text = segment.text.strip()
            number = numbers.get(f"click[{segment.text.lower()}]")
            if segment.kind is SegmentKind.TEXT or number is None:
                lines.append_text(visible(f"{text}\n"))
                continue
            is_chosen = segment.kind is SegmentKind.OPTION and segment.text in visit.session.options.values()
            lines.append(f"[{number}] ", "bold green" if is_chosen else "green")
            lines.append_text(visible(f"{text}{'  (chosen)' if is_chosen else ''}\n", "bold"))
        lines.rstrip()
        return lines

    def _show_bill(self) -> None:
        session, last = self._visit.session, self._visit.last
        if session.reward is None or session.product is None or last is None:
            return
        table = Table(title="What the purchase is worth", title_justify="left")
        for heading in ("part", "wish", "met", "weight", "fulfilled"):
            table.add_column(heading)
        for part in explain(session):
            for row, (wish, is_met) in enumerate(part.details):
                met = Text("yes", "green") if is_met else Text("no", "red")
                first = (part.name, part.weight, part.fulfilled) if row == 0 else ("", "", "")
                table.add_row(visible(first[0]), visible(wish), met, first[1], first[2])
        self.console.print(visible(f"Bought: {session.product.asin}  {session.product.title}"))
        self.console.print(visible(f"Written for: {wanted_product(self._visit.goal)}", "dim"))
        self.console.print(table)
        self.console.print(visible(f"Reward: {formula(session.reward)}", "bold"))
        training = f"Training reward of the last step: {last.reward:g} ({'won' if last.won else 'not won'})"
        self.console.print(visible(f"{training} in {len(self._visit.steps)} steps"))
        self._say("`next`, `again` or `task NUMBER` starts another visit, `q` quits", "dim")

    def _choose_shown(self, what: str) -> None:
        if what not in SHOWN:
            self._say(f"show what? One of {', '.join(SHOWN)}")
            return
        self.shown = what
        self._show()

    def _list_goals(self, words: str) -> None:
        goals = find_goals(self.world, self._visit.split, words)
        for hit in goals.hits:
            self.console.print(visible(f"{hit.index:>6}  {hit.instruction}"))
        if not goals.hits:
            self._say(f"no {self._visit.split} goal looked at holds all of these words")
        elif goals.next_index is not None:
            self._say("there are more; give more words to narrow it down", "dim")

    def _say(self, sentence: str, style: str = "yellow") -> None:
        self.console.print(visible(sentence, style))


def _number(words: str, name: str) -> int:
    if not (words.isascii() and words.isdecimal() and len(words) < 10):
        raise InputError(f"{name} {words}: give a number from 0")
    return int(words)


def _split(words: str) -> Split:
    for split in SPLITS:
        if split == words:
            return split
    raise InputError(f"split {words}: choose one of {', '.join(get_args(Split))}")

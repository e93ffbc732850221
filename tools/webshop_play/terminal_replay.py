"""A recorded group in a terminal: who did what, and how each step was valued.

Knows nothing of browsers; needs no catalogue.
"""

from __future__ import annotations

import dataclasses

import rich.console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from learner.episodes import EpisodeLine
from tools.webshop_play.console import ReadLine, visible
from tools.webshop_play.recording import (
    RecordedGroup,
    Recording,
    flags_text,
    outcome_text,
    signed,
    take_apart,
    versions_text,
)

_HELP = """Enter, n     next step; after the last one the next trajectory
b            a step back
s NUMBER     go to a step       m NUMBER   go to a trajectory (member)
g NUMBER     go to a group      groups     list the recorded groups
o            overview of the group
help, q      this list, quit"""


@dataclasses.dataclass
class TerminalReplay:
    """Where the person is in the recording."""

    recording: Recording
    console: rich.console.Console
    read_line: ReadLine
    position: int
    """Of the group in the recording."""
    place: int = 0
    """Of the trajectory in the group."""
    step: int = 0
    """0-based."""

    @property
    def group(self) -> RecordedGroup:
        return self.recording.groups[self.position]

    @property
    def episode(self) -> EpisodeLine:
        return self.group.episodes[self.place]

    def play(self) -> None:
        """Until `q` or the end of the input."""
        self._show_group()
        self._show_step()
        while (line := self.read_line("replay> ")) is not None:
            name, _, rest = line.strip().partition(" ")
            if name.lower() in ("q", "quit", "exit"):
                break
            self._obey(name.lower(), rest.strip())

    def _obey(self, name: str, rest: str) -> None:
        match name:
            case "" | "n":
                self._advance()
            case "b":
                self._retreat()
            case "s":
                self._go_to_step(rest)
            case "m":
                self._go_to_member(rest)
            case "g":
                self._go_to_group(rest)
            case "o":
                self._show_group()
            case "groups":
                self._list_groups()
            case "help" | "?" | "h":
                self.console.print(visible(_HELP, "dim"))
            case _:
                self._say(f"{name!r} is no command; try help")

    def _advance(self) -> None:
        if self.step + 1 < len(self.episode.turns):
            self.step += 1
        elif self.place + 1 < len(self.group.episodes):
            self.place, self.step = self.place + 1, 0
        else:
            self._say("this was the last step of the group")
            return
        self._show_step()

    def _retreat(self) -> None:
        if self.step > 0:
            self.step -= 1
        elif self.place > 0:
            self.place -= 1
            self.step = len(self.episode.turns) - 1
        else:
            self._say("this is the first step of the group")
            return
        self._show_step()

    def _go_to_step(self, words: str) -> None:
        number = _number(words)
        if number is None or not 1 <= number <= len(self.episode.turns):
            self._say(f"s {words}: give a step from 1 to {len(self.episode.turns)}")
            return
        self.step = number - 1
        self._show_step()

    def _go_to_member(self, words: str) -> None:
        members = [episode.member for episode in self.group.episodes]
        number = _number(words)
        if number not in members:
            self._say(f"m {words}: give one of {', '.join(map(str, members))}")
            return
        self.place, self.step = members.index(number), 0
        self._show_step()

    def _go_to_group(self, words: str) -> None:
        numbers = [group.group for group in self.recording.groups]
        number = _number(words)
        if number not in numbers:
            self._say(f"g {words}: not recorded; `groups` lists them")
            return
        self.position, self.place, self.step = numbers.index(number), 0, 0
        self._show_group()
        self._show_step()

    def _list_groups(self) -> None:
        table = Table("group", "update", "task", "won", "mean score", title="Recorded groups", title_justify="left")
        for group in self.recording.groups:
            score = sum(episode.score for episode in group.episodes) / len(group.episodes)
            won = f"{group.num_won} of {len(group.episodes)}"
            table.add_row(str(group.group), str(group.version), str(group.episodes[0].task_index), won, f"{score:.2f}")
        self.console.print(table)

    def _show_group(self) -> None:
        group = self.group
        title = f"Group {group.group}, task {group.episodes[0].task_index}, trained in update {group.version}"
        table = Table(title=title, title_justify="left")
        for heading in ("member", "outcome", "return", "episode adv.", "action (step adv.)"):
            table.add_column(heading)
        for episode in group.episodes:
            first = episode.turns[0]
            actions = Text("\n").join(
                visible(f"{turn.action} ") + _coloured(turn.step_advantage) for turn in episode.turns
            )
            returned = visible(signed(first.discounted_return))
            table.add_row(
                str(episode.member), outcome_text(episode), returned, _coloured(first.episode_advantage), actions
            )
        self.console.print(table)

    def _show_step(self) -> None:
        episode, turn = self.episode, self.episode.turns[self.step]
        place = f"group {episode.group}, member {episode.member}, step {self.step + 1} of {len(episode.turns)}"
        self.console.rule(place, style="dim")
        self.console.print(Panel(visible(turn.prompt), title="page (the prompt the agent was given)", style="dim"))
        response = take_apart(turn)
        if response.thought is None or response.action is None:
            self.console.print(visible("response  ", "bold") + visible(response.raw))
        else:
            self.console.print(visible("thought   ", "bold") + visible(response.thought))
            self.console.print(visible("action    ", "bold") + visible(response.action, "cyan"))
        self.console.print(visible(f"did       {turn.action}   ({flags_text(turn)})"))
        self.console.print(visible(f"state key {turn.state_key}", "dim"))
        self.console.print(
            Text.assemble(
                f"reward {signed(turn.reward)}   return {signed(turn.discounted_return)}   episode advantage ",
                _coloured(turn.episode_advantage),
                "   step advantage ",
                _coloured(turn.step_advantage),
                f"   versions {versions_text(turn)}",
            )
        )
        if self.step + 1 == len(episode.turns):
            self.console.print(visible(f"end: {outcome_text(episode)}", "bold"))

    def _say(self, sentence: str) -> None:
        self.console.print(visible(sentence, "yellow"))


def _coloured(value: float) -> Text:
    text = signed(value)
    return Text(text, "dim" if text == "0.00" else "green" if value > 0 else "red")


def _number(words: str) -> int | None:
    return int(words) if words.isascii() and words.isdecimal() and len(words) < 10 else None

"""Walking through the shop in a terminal, and reading and stepping through recorded groups."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path

import pytest
import rich.console
from hypothesis import given, settings
from hypothesis import strategies as st

from async_agent_rl.env import Split, Task
from async_agent_rl.errors import InputError
from envs.webshop.env import WebShop
from tests.play_samples import make_world, record_episode, record_group, winning_actions, write_lines, write_shop
from tools.play_webshop import main
from tools.webshop_play.recording import read_recording, signed, take_apart
from tools.webshop_play.terminal import TerminalGame
from tools.webshop_play.terminal_replay import TerminalReplay
from tools.webshop_play.visit import find_goals, open_visit


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> WebShop:
    return make_world(write_shop(tmp_path_factory.mktemp("shop")))


def console() -> tuple[rich.console.Console, io.StringIO]:
    written = io.StringIO()
    return rich.console.Console(file=written, width=200, highlight=False), written


def play(world: WebShop, lines: Sequence[str], *, shown: str = "all", split: Split = "train", task: int = 0) -> str:
    """What the terminal shows for these lines of input."""
    screen, written = console()
    waiting = list(lines)
    game = TerminalGame(world, screen, lambda _: waiting.pop(0) if waiting else None, shown)
    game.play(split, task)
    return written.getvalue()


@pytest.mark.parametrize("mode", ["text", "text_rich", "html", "url"])
async def test_a_visit_shows_what_the_environment_tells_the_agent(mode: str, tmp_path: Path) -> None:
    world = make_world(write_shop(tmp_path), mode=mode)
    visit = await open_visit(world, "train", 0)
    env = world.new_env()
    seen = await env.reset(Task(split="train", index=0, seed=0))
    for action in ("click[back to search]", *winning_actions(world)):
        assert visit.observation == seen
        assert visit.session.state_key == seen.state_key
        seen = (await env.step(f"<think>so</think><action>{action}</action>")).observation
        await visit.act(action)
    assert visit.observation == seen
    assert visit.done
    assert visit.session.reward is not None
    assert visit.session.reward.total == 1.0
    assert [step.reward for step in visit.steps] == [0.0, 0.0, 0.0, 0.0, 10.0]


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(st.one_of(st.text(max_size=30), st.sampled_from(["search[a]", "click[a1]", "click[buy now]"]))))
def test_any_text_is_an_action_and_page_and_agent_stay_together(world: WebShop, actions: list[str]) -> None:
    async def walk() -> None:
        visit = await open_visit(world, "train", 0)
        for action in actions:
            await visit.act(action)
            assert visit.session.state_key == visit.observation.state_key

    asyncio.run(walk())


def test_numbers_words_and_raw_actions_buy_a_table(world: WebShop) -> None:
    product, size = winning_actions(world)[1:3]
    shown = play(world, ["1", "tables", product, size, "click[buy now]", "q", "never read"])
    assert "Reward: 1 × (0.333 × 1.000 + 0.333 × 1.000 + 0.333 × 1.000) = 1.0000" in shown
    assert "Training reward of the last step: 10 (won) in 4 steps" in shown


def test_a_page_shows_the_prompt_the_text_and_numbered_actions(world: WebShop) -> None:
    shown = play(world, ["search tables"])
    assert "prompt the agent is given" in shown
    assert "'Back to Search' [SEP] 'Page 1 (Total results: 4)' [SEP] 'Next >' [SEP] 'A0'" in shown
    assert "  1  click[back to search]" in shown
    assert "[3] A0" in shown
    assert 'state key  ["results", "tables", 1, null, [], null]' in shown


def test_a_chosen_option_is_marked(world: WebShop) -> None:
    assert "small  (chosen)" in play(world, ["search tables", "click[a0]", "click[small]"], shown="page")


def test_only_what_was_asked_for_is_shown(world: WebShop) -> None:
    shown = play(world, ["show text", "show nonsense"], shown="page")
    assert shown.count("the page as text") == 1
    assert "prompt the agent is given" not in shown
    assert "show what? One of all, page, text, prompt" in shown


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("0", "there is no action 0: choose from 1 to 1"),
        ("99999999999999999999", "there is no action 99999999999999999999"),
        ("²", "is neither a number"),
        ("buy it", "is neither a number"),
        ("search", "is neither a number"),
        ("click[nothing]", "'click[nothing]' is not possible here"),
        ("search [/bold]", "'search[[/bold]]' is not possible here"),
        ("task 99", "task 99 of split train does not exist: WebShop has 4 train goals here"),
        ("task x", "task x: give a number from 0"),
        ("split nowhere", "choose one of train, validation, test"),
        ("goals zebra", "no train goal looked at holds all of these words"),
        ("help", "a raw action, such as click[back to search]"),
    ],
)
def test_odd_input_is_answered_and_the_visit_goes_on(world: WebShop, line: str, answer: str) -> None:
    shown = play(world, [line, "search tables"])
    assert answer in shown
    assert "Page 1 (Total results: 4)" in shown


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.text(max_size=20), max_size=8))
def test_no_input_breaks_the_terminal(world: WebShop, lines: list[str]) -> None:
    assert "Goal: Find me tables" in play(world, lines, shown="page")


def test_after_the_purchase_only_another_visit_is_possible(world: WebShop) -> None:
    shown = play(world, [*winning_actions(world), "1", "search more", "next"], shown="page")
    assert shown.count("the purchase is made;") == 2
    assert "train task 1, step 1" in shown


def test_goals_are_found_by_all_their_words_in_order(world: WebShop) -> None:
    goals = [world.goal("train", index).instruction for index in range(4)]
    expected = [index for index, text in enumerate(goals) if "small" in text]
    assert [hit.index for hit in find_goals(world, "train", "TABLES small").hits] == expected
    first = find_goals(world, "train", most=3)
    assert ([hit.index for hit in first.hits], first.next_index) == ([0, 1, 2], 3)
    assert [hit.index for hit in find_goals(world, "train", start=3).hits] == [3]


def test_signs_a_terminal_would_obey_are_shown_not_sent(tmp_path: Path) -> None:
    world = make_world(write_shop(tmp_path, name="Oak \x1b[31m[bold]Table"))
    shown = play(world, ["search table"], shown="page")
    assert "Oak ␛[31m[bold]Table" in shown
    assert "\x1b" not in shown


async def test_a_run_folder_is_read_with_its_older_files_first(world: WebShop, tmp_path: Path) -> None:
    for name, group in (("episodes.jsonl", 3), ("episodes.1.jsonl", 2), ("episodes.2.jsonl", 1)):
        write_lines(tmp_path / name, [await record_episode(world, 0, ["search[a]"], group=group)])
    (tmp_path / "episodes.old.jsonl").write_text("not one of ours")
    recording = read_recording(str(tmp_path))
    assert [group.group for group in recording.groups] == [1, 2, 3]
    assert (recording.position_of(None), recording.position_of(2)) == (2, 1)
    with pytest.raises(InputError, match=r"--group 9: .* its last groups are 1, 2, 3"):
        recording.position_of(9)


async def test_a_line_still_being_written_is_left_out(world: WebShop, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "episodes.jsonl", await record_group(world))
    with path.open("ab") as file:
        file.write(b'{"version":1,"gro')
    assert [len(group.episodes) for group in read_recording(str(path)).groups] == [2]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file"),
        (b"", "no episode is recorded there yet"),
        (b'{"version":1}\n', "line 1: no recorded episode: .*group"),
        (b"\nnot json\n", "line 2: no recorded episode"),
        (b'"\xff"\n', "line 1: no recorded episode"),
        (b"\x1f\x8b\x08\n", "line 1: no recorded episode"),
    ],
)
def test_what_is_no_recording_is_named(content: bytes | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_recording(str(path))


def test_a_folder_without_a_recording_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", str(tmp_path)]) == 2
    assert "there is no episodes.jsonl in this folder" in capsys.readouterr().err


async def test_a_replay_steps_through_all_trajectories(world: WebShop, tmp_path: Path) -> None:
    recording = read_recording(str(write_lines(tmp_path / "episodes.jsonl", await record_group(world))))
    screen, written = console()
    waiting = ["n", "b", "b", "s 4", "n", "n", "m 0", "s 9", "g 8", "m x", "o", "groups", "help", "what", "q", "never"]
    TerminalReplay(recording, screen, lambda _: waiting.pop(0) if waiting else None, position=0).play()
    shown = written.getvalue()
    places = [line.split(",", 1)[1].strip(" ─") for line in shown.splitlines() if line.startswith("─")]
    assert places == [
        *("member 0, step 1 of 4", "member 0, step 2 of 4", "member 0, step 1 of 4", "member 0, step 4 of 4"),
        *("member 1, step 1 of 1", "member 0, step 1 of 4"),
    ]
    assert "thought   step 0" in shown
    assert "reward 0.00   return +10.00   episode advantage +1.00   step advantage +10.00   versions 0\n" in shown
    assert "reward +10.00   return +10.00   episode advantage +1.00   step advantage 0.00   versions 0 to 3\n" in shown
    assert "episode advantage −2.00   step advantage −20.00" in shown
    for answer in (
        "first step of the group",
        "last step of the group",
        "s 9: give a step from 1 to 4",
        "g 8: not recorded",
    ):
        assert answer in shown
    assert waiting == ["never"]


async def test_an_unreadable_response_is_shown_as_it_was_written(world: WebShop) -> None:
    (turn,) = (await record_episode(world, 0, ["x</action><action>y"])).turns
    assert take_apart(turn).action == "y"
    cut = await record_episode(world, 0, [""])
    assert take_apart(cut.turns[0]).thought == "step 0"


def test_advantages_are_written_with_their_sign() -> None:
    assert [signed(value) for value in (1.5, -0.25, 0.0, -0.0, 0.001, -0.001)] == ["+1.50", "−0.25", *["0.00"] * 4]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "99999", "--web"], "--port 99999: must be from 0 to 65535"),
        (["--port", "80"], "only --web has a port"),
        (["--group", "1"], "only --replay has groups"),
        (["env=envs.memory:Memory"], "only WebShop can be walked through here"),
        (["env.webshop.products=/no/such.json", "env.webshop.attributes=/no/such.json"], "/no/such.json"),
        (["no.such.key=1"], "no.such.key=1"),
        (["--config-name", "nothing"], "nothing"),
    ],
)
def test_bad_arguments_end_with_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1

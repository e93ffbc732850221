"""`python -m tools.play_webshop`: walk through WebShop by hand, or step through a recorded group.

python -m tools.play_webshop                                  in the terminal, the first training goal
python -m tools.play_webshop --split test --task 7 env.webshop.prompt=verl_agent
python -m tools.play_webshop --web                            as pages in a browser, on this machine only
python -m tools.play_webshop --replay runs/20260101-120000-smoke [--web]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from async_agent_rl.config_loading import DEFAULT_CONFIG, load_config
from async_agent_rl.env import SPLITS
from async_agent_rl.errors import EXIT_BAD_INPUT, EXIT_OK, ConfigError, InputError
from envs.webshop.env import WebShop
from tools.webshop_play.console import make_console, read_line
from tools.webshop_play.terminal import SHOWN, TerminalGame

_TARGET = "envs.webshop.env:WebShop"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    try:
        _check(arguments)
        if arguments.replay is not None:
            _replay(arguments)
        elif arguments.web:
            _serve(arguments)
        else:
            _play(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # the ordinary ways out
    return EXIT_OK


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.play_webshop", description="Walk through WebShop by hand, or replay recorded episodes."
    )
    parser.add_argument("--split", choices=SPLITS, default="train", help="whose goals (default: %(default)s)")
    parser.add_argument("--task", type=int, default=0, help="which of them, from 0 (default: %(default)s)")
    parser.add_argument("--show", choices=SHOWN, default="all", help="in the terminal (default: %(default)s)")
    parser.add_argument("--web", action="store_true", help="pages for a browser on this machine")
    parser.add_argument("--port", type=int, default=0, help="of --web; 0 takes a free one (default)")
    parser.add_argument("--replay", metavar="RUN", help="run folder or episodes.jsonl to step through")
    parser.add_argument("--group", type=int, help="of --replay: which recorded group (default: the last)")
    parser.add_argument("--config-name", default=DEFAULT_CONFIG, help="world and prompt (default: %(default)s)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="e.g. env.webshop.products=items.json")
    return parser.parse_intermixed_args(argv)


def _check(arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.port <= 65535:
        raise InputError(f"--port {arguments.port}: must be from 0 to 65535 (0 = a free one)")
    if arguments.port and not arguments.web:
        raise InputError(f"--port {arguments.port}: only --web has a port")
    if arguments.group is not None and arguments.replay is None:
        raise InputError(f"--group {arguments.group}: only --replay has groups")


def _world(config_name: str, overrides: Sequence[str]) -> WebShop:
    env = load_config(config_name, overrides).env
    if env.target != _TARGET:
        raise ConfigError(f"env={env.target}: only WebShop can be walked through here")
    return WebShop(env.world_options())


def _play(arguments: argparse.Namespace) -> None:
    console = make_console()
    world = _world(arguments.config_name, arguments.overrides)
    TerminalGame(world, console, read_line, arguments.show).play(arguments.split, arguments.task)


def _serve(arguments: argparse.Namespace) -> None:
    # Imported here because the terminal needs no server.
    from tools.webshop_play.server import Site, serve

    world = _world(arguments.config_name, arguments.overrides)
    world.goal(arguments.split, arguments.task)  # a task that does not exist ends here, not in the browser
    world.new_env()  # loads the tagger now, so that no purchase waits for it
    asyncio.run(serve(Site(world, None, arguments.split, arguments.task), arguments.port, _announce))


def _replay(arguments: argparse.Namespace) -> None:
    # Imported here because reading episodes loads torch (seconds), which playing does not need.
    from tools.webshop_play.recording import read_recording
    from tools.webshop_play.terminal_replay import TerminalReplay

    recording = read_recording(arguments.replay)
    position = recording.position_of(arguments.group)
    if not arguments.web:
        TerminalReplay(recording, make_console(), read_line, position).play()
        return
    from tools.webshop_play.server import Site, serve

    world = _recorded_world(recording.config, arguments.overrides)
    asyncio.run(serve(Site(world, recording, "train", 0, position), arguments.port, _announce))


def _recorded_world(config: Path | None, overrides: Sequence[str]) -> WebShop | None:
    """The shop the run played in, for showing its pages; None where it cannot be had: the prompts still can."""
    if config is None:
        print("no config.yaml beside the recording: shown are the prompts, without the shop's pages", file=sys.stderr)
        return None
    try:
        world = _world(str(config), overrides)
        world.new_env()
    except InputError as error:
        print(f"shown are the prompts, without the shop's pages: {error}", file=sys.stderr)
        return None
    return world


def _announce(url: str) -> None:
    print(f"WebShop is open at {url}  (Ctrl-C closes it)", flush=True)


if __name__ == "__main__":
    sys.exit(main())

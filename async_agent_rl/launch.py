"""`python -m async_agent_rl.launch`: one run from the command line to the learning curve.

    arguments -> checked config -> plan -> run folder -> evaluation of the start policy
      -> roles (buffer, learner, actors) until the learner is done -> evaluation -> summary

Who waits for whom: the launcher waits only for exits and for the metrics file, both polled, never for a message; so
no role can hang it. It owns every process it starts and leaves none behind.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from async_agent_rl.config import Config
from async_agent_rl.config_loading import DEFAULT_CONFIG, config_names, load_config
from async_agent_rl.console import Console
from async_agent_rl.errors import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_RUN_FAILED,
    AsyncAgentRLError,
    InputError,
)
from async_agent_rl.layout import check_layout


class Interrupt:
    """Ctrl-C or SIGTERM, remembered; the second one ends the process at once."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def install(self) -> None:
        signal.signal(signal.SIGINT, self._note)
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.event.is_set():
            os._exit(EXIT_INTERRUPTED)  # the roles watch their parent and follow within a second
        self.event.set()


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m async_agent_rl.launch",
        description="Train a language-model agent asynchronously with GiGPO + PPO.",
        epilog="Overrides: key=value, for example mode=sync staleness.max=1 train.updates=20 run.seed=3. "
        "All keys with their meaning: docs/configuration.md.",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that differ from the config file")
    parser.add_argument(
        "--config-name",
        default=DEFAULT_CONFIG,
        metavar="NAME",
        help=f"one of {', '.join(config_names())}, or a YAML file (default: {DEFAULT_CONFIG})",
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, start nothing")
    return parser.parse_intermixed_args(list(argv))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 the run failed, 2 bad input, 130 Ctrl-C."""
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    console = Console()
    interrupt = Interrupt()
    try:
        check_layout()
        config = load_config(arguments.config_name, arguments.overrides)
        return run(config, console, interrupt, dry_run=arguments.dry_run)
    except KeyboardInterrupt:
        console.error("interrupted before anything was started")
        return EXIT_INTERRUPTED
    except InputError as error:
        console.error(str(error))
        return EXIT_BAD_INPUT
    except AsyncAgentRLError as error:
        console.error(str(error))
        return EXIT_RUN_FAILED


def run(config: Config, console: Console, interrupt: Interrupt, *, dry_run: bool) -> int:
    """Check, plan and, unless `dry_run`, train."""
    # Imported late: bad arguments should be answered before a second is spent on torch-free but heavy modules.
    from async_agent_rl.preflight import check_run
    from async_agent_rl.training import TrainingRun

    console.config(config)
    plan = check_run(config, dry_run=dry_run)
    console.plan(plan.lines)
    if dry_run:
        console.say("dry run: nothing was started")
        return EXIT_OK
    interrupt.install()
    with TrainingRun(config, plan, console, interrupt.event) as training:
        return training.execute()


def entry_point() -> None:
    """Console command `async-agent-rl`."""
    sys.exit(main())


if __name__ == "__main__":
    entry_point()

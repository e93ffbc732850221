"""One log for all roles: JSON lines, one file a role, rotated so that a run folder stays bounded.

Knows nothing of what is logged. `tools.tail` reads these files.
"""

from __future__ import annotations

import logging
import logging.handlers
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import structlog

FILE_BYTES = 4_000_000
FILE_COUNT = 3


def log_path(run_dir: str | Path, role: str) -> Path:
    return Path(run_dir) / "logs" / f"{role}.jsonl"


def configure(run_dir: str | Path, role: str, level: str) -> None:
    """Send every structlog event of this process to <run_dir>/logs/<role>.jsonl.

    Each line has `t` (seconds since the epoch), `role`, `level`, `event` and the event's own fields.
    """
    path = log_path(run_dir, role)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=FILE_COUNT - 1, delay=True)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("async_agent_rl.run")
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(level.upper())

    def stamp(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        return {"t": round(time.time(), 4), "role": role, **event}

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            stamp,
            structlog.processors.JSONRenderer(default=str),
        ],
        logger_factory=lambda *_args: logger,
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )

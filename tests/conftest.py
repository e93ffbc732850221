"""Shared by all tests: offline, and in CI no skip that nobody agreed to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ALLOWED_SKIPS = ("the real WebShop records are not on this machine", "chromium is not on this machine")
"""Reasons a test may be skipped for in CI. Every other skip fails the run there."""

_unexpected_skips: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason not in ALLOWED_SKIPS:
            _unexpected_skips.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") and _unexpected_skips:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("CI") and _unexpected_skips:
        terminalreporter.section("skips nobody agreed to (see ALLOWED_SKIPS in tests/conftest.py)")
        for line in _unexpected_skips:
            terminalreporter.line(line)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Tests must not depend on the number of cores; only touches torch where a test has loaded it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture
def project_root() -> Path:
    return Path(__file__).resolve().parent.parent

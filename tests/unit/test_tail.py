"""The merged log is complete and in time order, through rotations and half-written lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog

from async_agent_rl import runlog
from tools.tail import Filter, FollowedFile, LogLine, find_run, follow, main, parse_line


def _write(run: Path, role: str, *lines: dict[str, object]) -> Path:
    path = runlog.log_path(run, role)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        for line in lines:
            handle.write(json.dumps({"role": role, "level": "info", **line}) + "\n")
    return path


def test_lines_of_all_roles_come_in_time_order(tmp_path: Path) -> None:
    _write(tmp_path, "buffer", {"t": 1.0, "event": "a"}, {"t": 4.0, "event": "d"})
    _write(tmp_path, "actor-0", {"t": 2.0, "event": "b"}, {"t": 3.0, "event": "c"})
    assert [line.event for line in follow(tmp_path, live=False)] == ["a", "b", "c", "d"]


def test_rotated_files_are_part_of_the_story(tmp_path: Path) -> None:
    path = _write(tmp_path, "buffer", {"t": 1.0, "event": "old"})
    path.rename(path.with_name("buffer.jsonl.1"))
    _write(tmp_path, "buffer", {"t": 2.0, "event": "new"})
    assert [line.event for line in follow(tmp_path, live=False)] == ["old", "new"]


def test_a_file_rotated_while_followed_loses_no_line(tmp_path: Path) -> None:
    path = _write(tmp_path, "buffer", {"t": 1.0, "event": "one"})
    followed = FollowedFile(path)
    assert [line.event for line in followed.new_lines()] == ["one"]
    _write(tmp_path, "buffer", {"t": 2.0, "event": "two"})
    path.rename(path.with_name("buffer.jsonl.1"))
    _write(tmp_path, "buffer", {"t": 3.0, "event": "three"})
    assert [line.event for line in followed.new_lines()] == ["two", "three"]
    followed.close()


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    whole = b'{"t": 1.0, "role": "r", "level": "info", "event": "e"}\n'
    path.write_bytes(whole[:20])
    followed = FollowedFile(path)
    assert list(followed.new_lines()) == []
    with path.open("ab") as handle:
        handle.write(whole[20:])
    assert [line.event for line in followed.new_lines()] == ["e"]
    followed.close()


def test_foreign_lines_are_passed_over() -> None:
    assert parse_line(b"Traceback (most recent call last):") is None
    assert parse_line(b'{"t": 1}') is None


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [
        (Filter(), True),
        (Filter(roles=frozenset({"actor"})), True),
        (Filter(roles=frozenset({"learner"})), False),
        (Filter(level="warning"), True),
        (Filter(level="error"), False),
        (Filter(events=frozenset({"lease"})), True),
        (Filter(events=frozenset({"group"})), False),
        (Filter(groups=frozenset({12})), True),
        (Filter(groups=frozenset({1})), False),
    ],
)
def test_filters(chosen: Filter, shown: bool) -> None:
    assert chosen.accepts(LogLine(1.0, "actor-0", "warning", "lease_failed", {"group": 12})) is shown


def test_what_a_role_logs_is_what_tail_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runlog.configure(tmp_path, "learner", "info")
    structlog.get_logger().info("update_done", version=3, groups=[4, 5])
    structlog.get_logger().debug("hidden")
    assert main([str(tmp_path), "--no-follow", "--group", "5"]) == 0
    out = capsys.readouterr().out
    assert "update_done" in out
    assert "version=3" in out
    assert "hidden" not in out


def test_a_folder_that_is_no_run_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    assert "no run folder" in capsys.readouterr().err


def test_the_newest_run_of_a_folder_is_taken(tmp_path: Path) -> None:
    for name in ("20260101-000000-a", "20260102-000000-a"):
        (tmp_path / name / "logs").mkdir(parents=True)
    assert find_run(str(tmp_path)).name == "20260102-000000-a"

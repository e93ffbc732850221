"""tools.play_webshop as a person starts it: at a pipe, as a server, and in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.play_samples import make_world, record_group, winning_actions, write_lines, write_shop

_START_S = 90
_STOP_S = 15
_LOOK_S = 45.0
_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_DRIVER = shutil.which("chromedriver")
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
needs_chromium = pytest.mark.skipif(
    _CHROMIUM is None or _DRIVER is None, reason="chromium is not on this machine"
)  # the driver comes with it


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tools.play_webshop", *arguments]


def at_a_pipe(root: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=root, input=text, capture_output=True, text=True, timeout=_START_S, check=False,
        env={**os.environ, "COLUMNS": "160"},
    )  # fmt: skip


@contextlib.contextmanager
def server(root: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running server and its address; killed at the end if it still runs."""
    process = subprocess.Popen(command("--web", *arguments), cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=lambda: [lines.put(line) for line in process.stdout or ()], daemon=True)
    reader.start()
    try:
        line = lines.get(timeout=_START_S)
        assert line.startswith("WebShop is open at http://127.0.0.1:"), line
        yield process, line.split()[4].rstrip("/")
    finally:
        process.kill()
        process.wait()
        reader.join(_STOP_S)
        process.stdout.close()


def overrides(files: dict[str, str]) -> list[str]:
    return [f"env.webshop.{key}={value}" for key, value in files.items()]


def test_a_purchase_can_be_made_through_a_pipe(project_root: Path, tmp_path: Path) -> None:
    files = write_shop(tmp_path)
    actions = winning_actions(make_world(files))
    result = at_a_pipe(project_root, "\n".join(["nonsense", "77", *actions, "q"]) + "\n", *overrides(files))
    assert result.returncode == 0, result.stderr
    assert "Training reward of the last step: 10 (won) in 4 steps" in result.stdout
    assert result.stderr == ""


def test_only_the_end_of_the_input_ends_the_game_not_bytes_that_are_no_text(project_root: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        command("--show", "page", *overrides(write_shop(tmp_path))),
        cwd=project_root, input=b"\xff\xfe\nsearch tables", capture_output=True, timeout=_START_S, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"Page 1 (Total results: 4)" in result.stdout


def test_a_task_that_does_not_exist_is_named(project_root: Path, tmp_path: Path) -> None:
    result = at_a_pipe(project_root, "", "--task", "99", *overrides(write_shop(tmp_path)))
    assert result.returncode == 2
    assert result.stderr == "error: task 99 of split train does not exist: WebShop has 4 train goals here\n"


def test_ctrl_c_closes_the_server_cleanly(project_root: Path, tmp_path: Path) -> None:
    with server(project_root, *overrides(write_shop(tmp_path))) as (process, url):
        with urllib.request.urlopen(url, timeout=_LOOK_S) as page:
            assert b"Choose a goal" in page.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(_STOP_S) == 0
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(url, timeout=_LOOK_S)


def test_a_port_in_use_is_named(project_root: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = at_a_pipe(project_root, "", "--web", "--port", port, *overrides(write_shop(tmp_path)))
    assert result.returncode == 2
    assert f"--port {port}: cannot be opened on 127.0.0.1" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Path]:
    """A shop, and a run folder with a group played in it."""
    folder = tmp_path_factory.mktemp("run")
    files = write_shop(folder)
    write_lines(folder / "episodes.jsonl", asyncio.run(record_group(make_world(files))))
    (folder / "config.yaml").write_text("env: {webshop: {prompt: verl_agent}}\n")
    return files, folder


@pytest.fixture(scope="module")
def site(recorded: tuple[dict[str, str], Path]) -> Iterator[str]:
    """A shop with a recording, shared by the tests that only look at it; its address without a path."""
    files, folder = recorded
    with server(Path(__file__).parents[2], "--replay", str(folder), *overrides(files)) as (_, url):
        yield url.partition("/replay")[0]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Any]:
    """A headless browser with an empty profile."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.binary_location = str(_CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})  # type: ignore[no-untyped-call]
    browser = webdriver.Chrome(options=options, service=Service(_DRIVER))
    browser.set_page_load_timeout(_LOOK_S)
    yield browser
    browser.quit()


def until(driver: Any, condition: Callable[[Any], Any]) -> Any:
    from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    ignored = (NoSuchElementException, StaleElementReferenceException)
    return WebDriverWait(driver, _LOOK_S, poll_frequency=0.05, ignored_exceptions=ignored).until(condition)


def find(driver: Any, selector: str) -> Any:
    """The element, as soon as it is there."""
    return until(driver, lambda page: page.find_element("css selector", selector))


def press(driver: Any, action: str) -> None:
    def click(page: Any) -> bool:
        page.find_element("css selector", f'button[name=action][value="{action}"]').click()
        return True

    until(driver, click)  # a button of a page that is just being left is stale, and looked for again


@needs_chromium
def test_a_person_does_a_goal_and_sees_what_the_agent_sees(
    recorded: tuple[dict[str, str], Path], driver: Any, site: str
) -> None:
    from selenium.webdriver.common.keys import Keys

    _, product, size, buy = winning_actions(make_world(recorded[0]))
    driver.get(site)
    find(driver, "button[name=task][value='0']").click()
    find(driver, "#goal")
    until(driver, lambda page: page.switch_to.active_element.get_attribute("name") == "query")
    driver.switch_to.active_element.send_keys("tables" + Keys.ENTER)
    press(driver, product)
    press(driver, size)
    find(driver, f'button[value="{size}"][aria-pressed=true]')
    assert "'small' [SEP] 'large'" in find(driver, "[data-what=text]").text
    assert size.removeprefix("click[").removesuffix("]") in find(driver, "[data-what=state-key]").text
    assert "expert at buying things in WebShop" in find(driver, "[data-what=prompt]").text
    assert "click[buy now]" in find(driver, "[data-what=admissible]").text
    press(driver, "click[features]")
    until(driver, lambda page: page.find_element("css selector", "article h1").text == "Features")
    press(driver, "click[< prev]")
    press(driver, buy)
    assert find(driver, "#score").text == "1"
    assert "price" in find(driver, "#bill").text
    check_page(driver, site)


@needs_chromium
def test_a_goal_can_be_done_with_the_keyboard_alone(
    recorded: tuple[dict[str, str], Path], driver: Any, site: str
) -> None:
    from selenium.webdriver.common.keys import Keys

    def tab_to(value: str) -> None:
        for _ in range(40):
            driver.switch_to.active_element.send_keys(Keys.TAB)
            if driver.switch_to.active_element.get_attribute("value") == value:
                driver.switch_to.active_element.send_keys(Keys.ENTER)
                return
        raise AssertionError(f"the tab key does not reach {value}")

    driver.get(site)
    tab_to("0")
    find(driver, "#goal")
    until(driver, lambda page: page.switch_to.active_element.get_attribute("name") == "query")
    driver.switch_to.active_element.send_keys("tables" + Keys.ENTER)
    for action, landmark in zip(
        winning_actions(make_world(recorded[0]))[1:], ("fieldset", "[aria-pressed=true]", "#score"), strict=True
    ):
        find(driver, f'button[value="{action}"]')
        tab_to(action)
        find(driver, landmark)
    assert find(driver, "#score").text == "1"


@needs_chromium
def test_a_recorded_group_is_stepped_through_with_the_arrow_keys(driver: Any, site: str) -> None:
    from selenium.webdriver.common.keys import Keys

    driver.get(f"{site}/replay/0")
    assert "won, score 1.00" in find(driver, "table").text
    find(driver, "a.step").click()

    def step(key: str, place: str) -> None:
        # The page's script runs before it is complete.
        until(driver, lambda page: page.execute_script("return document.readyState") == "complete")
        find(driver, "body").send_keys(key)
        until(driver, lambda page: page.current_url.endswith(f"/replay/0/{place}"))

    for place in ("0/2", "0/3", "0/4", "1/1"):
        step(Keys.ARROW_RIGHT, place)
    until(driver, lambda page: "−20.00" in page.find_element("css selector", ".values .minus-3").text)
    step(Keys.ARROW_LEFT, "0/4")
    until(
        driver,
        lambda page: page.find_element("css selector", "button.highlight").get_attribute("value") == "click[buy now]",
    )
    assert "expert at buying things in WebShop" in find(driver, "[data-what=prompt]").text
    check_page(driver, site)
    find(driver, "form[action='/visits'] button").click()
    until(driver, lambda page: "/replay" not in page.current_url)  # the page left behind has the same button
    press(driver, "click[buy now]")
    assert find(driver, "#score").text == "1"


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_narrow_window_in_both_schemes(scheme: str, driver: Any, site: str) -> None:
    metrics = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    for path in ("/", "/replay", "/replay/0", "/replay/0/0/3"):
        driver.get(site + path)
        check_page(driver, site)
        assert (luminance(driver, "backgroundColor") < luminance(driver, "color")) == (scheme == "dark")


def luminance(driver: Any, colour: str) -> float:
    """Of the body, 0 to 255."""
    script = f"return getComputedStyle(document.body).{colour}.match(/[0-9.]+/g).slice(0, 3).map(Number)"
    red, green, blue = driver.execute_script(script)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def check_page(driver: Any, site: str) -> None:
    """Nothing comes from elsewhere, nothing is wider than the window, and the console is silent."""
    loaded = driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in loaded if not name.startswith((f"{site}/", "data:"))] == []
    wider = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert driver.execute_script(wider) <= 0
    assert driver.get_log("browser") == []

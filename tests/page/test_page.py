"""The live page in a real browser, over a real server in a process of its own, whose engine is scripted."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from selenium.webdriver.common.keys import Keys
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from browser import Tab, chromium

pytestmark = pytest.mark.browser

EVIL = '<img src=x onerror="window.hacked=1">'
SERVER = Path(__file__).parents[1] / "page_server.py"
KEYS = """
[[keys]]
tenant = "alice"
key = "alice-key"

[[keys]]
tenant = "boss"
key = "boss-key"
admin = true
"""


class Running:
    """A server process."""

    def __init__(self, folder: Path, **asked: Any) -> None:
        self.folder = folder
        with (folder / "log").open("w") as log:
            command = [sys.executable, str(SERVER), json.dumps(asked)]
            self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            self.close()
            raise AssertionError((folder / "log").read_text())
        self.model = asked.get("name", "scripted")

    def ask(self, question: str, tokens: int, **headers: str) -> None:
        """In the background; a server that is stopped may leave it unanswered."""

        def post() -> None:
            messages = [{"role": "user", "content": question}]
            asked = {"max_tokens": tokens, "messages": messages, "ghostkv": {"residency": "segment"}}
            body = {"model": self.model, **asked}
            try:
                httpx2.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
            except httpx2.HTTPError:
                return

        threading.Thread(target=post, daemon=True).start()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:

        def started(**asked: Any) -> Running:
            running = Running(tmp_path_factory.mktemp("server"), **asked)
            stack.callback(running.close)
            return running

        yield started


@pytest.fixture(scope="module")
def server(start: Callable[..., Running]) -> Running:
    return start(name=f"model {EVIL}")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Tab]:
    """A browser that knows no key and shows no other server's page."""
    with chromium(tmp_path / "profile") as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab, server: Running) -> Iterator[Tab]:
    browser.driver.get(server.url)
    browser.find(".chart-memory canvas")
    yield browser
    assert browser.driver.execute_script("return window.hacked") is None
    severe = [entry for entry in logged(browser) if entry["level"] == "SEVERE"]
    assert severe == []
    for window in browser.driver.window_handles[1:]:
        browser.driver.switch_to.window(window)
        browser.driver.close()
    browser.driver.switch_to.window(browser.driver.window_handles[0])


def logged(tab: Tab) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = tab.driver.get_log("browser")  # type: ignore[no-untyped-call]
    return entries


def rises_and_falls(points: list[tuple[float, float]]) -> int:
    heights = [height for _, height in points]
    return sum(1 for one, next_one in pairwise(heights) if one > 0 and next_one == 0)


def send(tab: Tab, text: str, tokens: int) -> None:
    field = tab.find(".controls .q-field:nth-of-type(2) input")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(str(tokens), Keys.TAB)
    tab.find(".chat textarea").send_keys(text, Keys.ENTER)


def titled(tab: Tab, title: str) -> bool:
    return title in tab.texts(".panel .h2")


def last_foot(tab: Tab) -> str:
    return (tab.texts(".chat .foot") or [""])[-1]


def test_the_saw_tooth_moves_and_the_table_follows(tab: Tab, server: Running) -> None:
    server.ask(f"Tell of {EVIL}", 900)
    server.ask("Tell of another", 900)
    tab.until(lambda: any(rises_and_falls(line) >= 2 for line in tab.series("residency").values()), "two teeth")
    memory = tab.series("memory")
    assert set(memory) == {"live: referenced blocks", "filled by answers (derived)", "cached, unreferenced"}
    live = tab.until(lambda: [v for _, v in tab.series("memory")["live: referenced blocks"] if v > 0], "live KV")
    assert max(live) <= 64 * 16 / 2**20  # the budget of 64 blocks, a byte for each token
    tab.until(lambda: any(value > 0 for _, value in tab.series("load")["generated"]), "tokens per second")
    rows = tab.until(lambda: tab.texts(".answers tbody tr"), "rows")
    assert any(EVIL in row for row in rows)
    tab.until(lambda: all("done" in row for row in tab.texts(".answers tbody tr")), "both are done")
    assert all("4 flushed" in row or "5 flushed" in row for row in tab.texts(".answers tbody tr"))
    assert tab.texts('[data-tile="answers"] .value') == ["0"]


def test_a_chosen_answer_shows_segments_ledger_and_payload(tab: Tab, server: Running) -> None:
    for question in ("Who is first?", f"Who is {EVIL}?"):
        server.ask(f"{question} The valve {EVIL} is at 77 bar. The code is ZX-4{len(question)}.", 500)
    tab.until(lambda: sum("Who is" in row for row in tab.texts(".answers tbody tr")) == 2, "their rows")
    tab.until(lambda: all("done" in row for row in tab.texts(".answers tbody tr")), "done")
    titles = set()
    for row in (2, 1):
        tab.click(f".answers tbody tr:nth-child({row})")
        number = tab.texts(f".answers tbody tr:nth-child({row}) b")[0]
        tab.until(partial(titled, tab, f"Segments of answer {number}"), "its segments")
        titles.add(number)
        closed = tab.until(lambda: tab.texts(".segments tbody tr"), "segments")
        assert any("flush" in segment for segment in closed)
        assert sum("end" in segment for segment in closed) == 1
        facts = tab.until(lambda: "\n".join(tab.texts(".facts tbody tr")), "facts")
        assert "412 kelvin" in facts
        assert "ZX-4" in facts
        assert '"sentences"' in tab.texts(".payload")[0]
        assert "digest" in "".join(tab.texts(".panel .note"))
    assert len(titles) == 2


def test_the_chat_streams_and_says_what_came_of_it(tab: Tab) -> None:
    send(tab, f"Hello {EVIL}", 420)
    first = tab.until(lambda: len("".join(tab.texts(".said.model .text"))), "the first text")
    tab.until(lambda: len("".join(tab.texts(".said.model .text"))) > first + 40, "more text")
    assert "writing" in last_foot(tab)
    tab.until(lambda: "cut at its most tokens" in last_foot(tab), "the end")
    assert last_foot(tab).startswith("exact") and "420 tokens" in last_foot(tab)
    assert "1 segment" in last_foot(tab)  # nobody waits for memory
    assert tab.texts(".said.user") == [f"Hello {EVIL}"]
    assert "".join(tab.texts(".said.model .text")).startswith("The reactor of Ganymede Base held 412 kelvin.")
    assert any(f"Hello {EVIL}"[:20] in row for row in tab.texts(".answers tbody tr"))
    send(tab, "And then?", 30)
    tab.until(lambda: len(tab.texts(".said.model .foot")) == 2 and "30 tokens" in last_foot(tab), "the second answer")
    tab.until(lambda: "idle" in (tab.texts(".sessions tbody tr") or [""])[0], "its session")
    tab.click(".sessions tbody tr:nth-child(1)")
    tab.until(lambda: len(tab.texts(".segments tbody tr")) == 2, "the segments of both answers")
    assert any(title.startswith("Segments of session page-") for title in tab.texts(".panel .h2"))
    tab.click(".chat button:first-of-type")  # new
    tab.until(lambda: tab.texts(".said") == [], "an empty conversation")
    tab.until(lambda: tab.texts(".sessions tbody tr") in ([], ["No sessions"]), "its session is forgotten")


def test_stop_ends_the_answer_in_the_engine_too(tab: Tab) -> None:
    send(tab, "Go on and on", 4000)
    tab.until(lambda: "writing" in last_foot(tab), "text")
    tab.click('[aria-label="stop"]')
    tab.until(lambda: "stopped" in last_foot(tab), "stopped")
    tab.until(lambda: tab.texts('[data-tile="answers"] .value') == ["0"], "nothing is open")
    tab.until(lambda: "stopped" in tab.texts(".answers tbody tr")[0], "and the table says so")
    tab.find('[aria-label="send"]')


def test_a_refusal_is_shown_and_the_box_goes_on(tab: Tab) -> None:
    send(tab, "Too much", 999_999)
    tab.until(lambda: "max_session_tokens" in last_foot(tab), "the reason")
    send(tab, "Less", 10)
    tab.until(lambda: "10 tokens" in last_foot(tab), "an answer")


def test_a_closed_tab_ends_its_answer_and_tabs_share_no_conversation(tab: Tab, server: Running) -> None:
    driver = tab.driver
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    driver.get(server.url)
    send(tab, "Only in this tab", 100_000)
    tab.until(lambda: "writing" in last_foot(tab), "text")
    driver.close()
    driver.switch_to.window(first)
    assert tab.texts(".said") == []
    tab.until(lambda: httpx2.get(f"{server.url}/v1/sessions").json()["data"] == [], "its session has ended")
    tab.until(lambda: "stopped" in tab.texts(".answers tbody tr")[0], "and its answer")
    assert tab.texts('[data-tile="answers"] .value') == ["0"]


def test_nothing_is_sent_to_a_hidden_page(tab: Tab, server: Running) -> None:
    option = "return getElement(document.querySelector('.chart-memory').id.slice(1)).chart.getOption().xAxis[0].max"

    def moved() -> bool:
        before = tab.driver.execute_script(option)
        time.sleep(2.5)
        return bool(tab.driver.execute_script(option) != before)

    assert moved()
    tab.driver.execute_script("emitEvent('seen', false)")
    tab.until(lambda: not moved(), "at rest")
    tab.driver.execute_script("emitEvent('seen', true)")
    tab.until(moved, "moving again")


def test_every_file_comes_from_this_server(tab: Tab, server: Running) -> None:
    names = tab.driver.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
    assert names
    assert [name for name in names if not name.startswith(server.url + "/page/")] == []
    assert sorted(path.name for path in server.folder.iterdir()) == ["log"]  # no storage is written


def test_the_api_keeps_its_own_errors(server: Running) -> None:
    missing = httpx2.get(f"{server.url}/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    wrong = httpx2.get(f"{server.url}/v1/chat/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


def test_only_an_admin_sees_it(start: Callable[..., Running], fresh: Tab, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    server = start(keys=str(keys))
    html = {"accept": "text/html"}
    asked = httpx2.get(server.url, headers=html)
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic")
    for path in ("/", "/page/", "/page/_nicegui_ws/socket.io/?EIO=4&transport=polling"):
        assert httpx2.get(server.url + path).status_code == 401
        basic = base64.b64encode(b"x:alice-key").decode()
        refused = httpx2.get(server.url + path, headers={"authorization": f"Basic {basic}"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    socket = server.url.replace("http", "ws") + "/page/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    for headers in ({}, {"authorization": "Bearer alice-key"}):
        with pytest.raises(InvalidStatus), connect(socket, additional_headers=headers):
            pass
    with connect(socket, additional_headers={"authorization": "Bearer boss-key"}) as opened:
        assert str(opened.recv()).startswith("0{")
    server.ask("Of alice", 300, authorization="Bearer alice-key")
    # A key in an address is not used for the files of a page, which would each ask for it in a dialog: the browser
    # learns it where there are no files.
    fresh.driver.get(server.url.replace("http://", "http://any:boss-key@") + "/page/nothing")
    fresh.driver.get(server.url)
    fresh.until(lambda: any("Of alice" in row for row in fresh.texts(".answers tbody tr")), "the row of alice")
    send(fresh, "Of the boss", 20)
    fresh.until(lambda: "20 tokens" in last_foot(fresh), "an answer")


def test_a_signal_ends_a_server_that_somebody_looks_at(start: Callable[..., Running], fresh: Tab) -> None:
    server = start()
    fresh.driver.get(server.url)
    fresh.find(".chart-memory canvas")
    send(fresh, "Go on", 100_000)
    fresh.until(lambda: "writing" in last_foot(fresh), "text")
    assert server.end() == 0
    assert "Traceback" not in (server.folder / "log").read_text()

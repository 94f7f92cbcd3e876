"""Chromium, and what tests ask of a page in it. The browser is the system's: packages chromium and chromium-driver."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.remote.webelement import WebElement

PATIENCE_S = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1560,1300",
)
_SERIES = "return getElement(document.querySelector(arguments[0]).id.slice(1)).chart.getOption().series"


class Tab:
    """One browser with one tab."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def find(self, selector: str) -> WebElement:
        found: WebElement = self.until(lambda: self.driver.find_element("css selector", selector), selector)
        return found

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """All at once, since what is redrawn in between would be gone."""
        script = "return [...document.querySelectorAll(arguments[0])].map(each => each.innerText)"
        return list(self.driver.execute_script(script, selector))

    def click(self, selector: str) -> None:
        self.driver.execute_script("arguments[0].click()", self.find(selector))

    def series(self, chart: str) -> dict[str, list[tuple[float, float]]]:
        """What a chart shows: (milliseconds, value) by the name of the line."""
        try:
            found = self.driver.execute_script(_SERIES, f".chart-{chart}")
        except Exception:  # noqa: BLE001 - not there yet
            return {}
        return {line["name"]: [(at, value) for at, value in line["data"]] for line in found}

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Ask again and again until it is true, or fail."""
        end, problem = time.monotonic() + PATIENCE_S, ""
        while time.monotonic() < end:
            try:
                if found := condition():
                    return found
            except Exception as error:  # noqa: BLE001 - elements come and go
                problem = repr(error)[:300]
            time.sleep(0.1)
        raise AssertionError(f"{what}: not within {PATIENCE_S:g} s. {problem} Page: {self.texts('body')[:1]}")


@contextmanager
def chromium(profile: Path) -> Iterator[Tab]:
    """Raises AssertionError without a browser: a page that was not looked at is not tested."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert browser and driver, "apt-get install chromium chromium-driver, or deselect with -m 'not browser'"
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Driver(driver))
    try:
        yield Tab(started)
    finally:
        started.quit()

"""Takes docs/page.png: the live page over the real model, with some load. Needs chromium and chromium-driver.

python benchmarks/screenshot.py [--out docs/page.png] [--dark]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import openai
from http_client import ServerProcess
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys

ASKED = (
    ("Write a long story about a lighthouse keeper who finds a map in a bottle.", 900),
    ("Log of the ship Aurora: captain Mira Voss, engine at 412 kelvin, code ZX-81-44. Go on with the log.", 900),
    ("Describe the geology of Iceland in detail, with names and figures.", 900),
    ("Explain step by step how a steam engine works.", 500),
)
CHAT = "Write a long story about a robot called Iris-7 who learns to paint."
FLAGS = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --window-size=1600,1790"
FLUSHES = 14
PATIENCE_S = 240.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/page.png"))
    parser.add_argument("--dark", action="store_true")
    asked = parser.parse_args()
    with ServerProcess("smollm2", ("--kv-budget", "36MiB", "--log-level", "error")) as server:
        take(f"http://127.0.0.1:{server.port}/v1", asked.out, dark=asked.dark)


def take(base: str, out: Path, *, dark: bool) -> None:
    for index, (question, tokens) in enumerate(ASKED):
        threading.Timer(4.0 * index, ask, (base, question, tokens)).start()
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            driver.get(base.removesuffix("/v1"))
            time.sleep(5)
            if dark:
                buttons = driver.find_elements("css selector", "header button")
                next(each for each in buttons if each.text == "dark").click()
            driver.find_element("css selector", ".chat textarea").send_keys(CHAT, Keys.ENTER)
            wait_for_flushes(driver)
            rows = driver.find_elements("css selector", ".answers tbody tr")
            next(row for row in rows if "Aurora" in row.text).click()  # it states facts
            driver.execute_script("document.documentElement.style.overflow = 'hidden'")  # no scroll bar
            time.sleep(3)
            driver.save_screenshot(str(out))
        finally:
            driver.quit()
    print(f"wrote {out}")


def wait_for_flushes(driver: webdriver.Chrome) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if int(driver.find_element("css selector", '[data-tile="boundaries"] .value').text) >= FLUSHES:
            return
        time.sleep(0.5)


def ask(base: str, question: str, tokens: int) -> None:
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=600)
    try:
        client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": question}],
            max_tokens=tokens,
            temperature=0.7,
            seed=7,
            extra_body={"min_tokens": tokens},
        )
    except openai.APIError:
        return  # the server ends when the picture is taken


if __name__ == "__main__":
    main()

"""What tests of HTML pages in a real browser share."""

from __future__ import annotations

import contextlib
import os
import shutil

import numpy as np
import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    assert program, "no Chromium: install one, or name it in CHROMIUM"
    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=program, args=FLAGS)
        yield running
        running.close()


@contextlib.contextmanager
def watched(browser, path):
    """Yield a function that opens the page; fail afterwards if the console had messages or a request was made."""
    messages, requests = [], []

    def open_page(**options):
        page = browser.new_page(**options)
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    assert messages == []
    assert [url for url in requests if not url.startswith(("data:", path.as_uri()))] == []


def shown(page, selector):
    """Return the attribute data-value of every match as a number."""
    return [float(cell.get_attribute("data-value")) for cell in page.locator(selector).all()]


def brightness(colour: str) -> float:
    """Return the mean of the channels of `rgb(r, g, b)`."""
    return float(np.mean([int(part) for part in colour.strip("rgb()").split(",")]))

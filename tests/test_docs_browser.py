"""The documentation site in a real browser, opened from disk; run by `make test-report`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser_pages import browser  # noqa: F401 (a fixture)

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[1]
OUTSIDE_ITS_BOX = """() => [...document.querySelectorAll('.md-content code')].filter(code => {
  const scrolls = element => ['auto', 'scroll'].includes(getComputedStyle(element).overflowX);
  for (let box = code; box; box = box.parentElement) if (scrolls(box)) return false;
  return code.getBoundingClientRect().right > innerWidth + 1;
}).map(code => code.textContent)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=600)
    return folder


def test_pages_fit_a_phone_and_load_nothing(browser, site):  # noqa: F811
    page, requests = browser.new_page(viewport={"width": 360, "height": 740}, has_touch=True), []
    page.on("request", lambda request: requests.append(request.url))
    for file in sorted(site.rglob("*.html")):
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, file
        assert page.evaluate(OUTSIDE_ITS_BOX) == [], file
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_search_works_from_disk(browser, site):  # noqa: F811
    page, errors = browser.new_page(viewport={"width": 1200, "height": 800}), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((site / "howto" / "pictures.html").as_uri())
    page.click("input.md-search__input")
    page.keyboard.type("equivocate", delay=20)
    page.locator(".md-search-result__link").first.wait_for(timeout=20_000)
    links = [link.get_attribute("href") for link in page.locator(".md-search-result__link").all()]
    assert any("glossary.html" in link for link in links) and errors == []

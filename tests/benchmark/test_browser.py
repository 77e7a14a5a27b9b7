"""The leaderboard in a real browser, run by `make test-report` (needs Chromium and the extra `browser`)."""

from __future__ import annotations

import pytest
from benchmark_results import make_results, paired_results
from browser_pages import brightness, browser, shown, watched  # noqa: F401 (browser is a fixture)

from jaxbyz.benchmark.leaderboard import load_leaderboard

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("benchmark"))


@pytest.fixture(scope="module")
def page_file(results, tmp_path_factory):
    from jaxbyz.cli import main

    out = tmp_path_factory.mktemp("page") / "leaderboard.html"
    assert main(["benchmark", "page", *map(str, results), "--out", str(out)]) == 0
    return out


@pytest.fixture
def opened(browser, page_file):  # noqa: F811
    with watched(browser, page_file) as open_page:
        yield open_page


def names(page):
    return [row.get_attribute("data-entry") for row in page.locator("#board tbody tr").all()]


def test_the_numbers_are_those_of_the_files(opened, results):
    page = opened()
    board = load_leaderboard(str(results[0]), results[1])
    for entry in board["entries"]:
        row = page.locator(f"#board tr[data-entry='{entry['name']}'] td")
        assert float(row.nth(1).get_attribute("data-value")) == pytest.approx(entry["overall"]["value"])
        cells = page.locator(f"#heatmap tr[data-entry='{entry['name']}'] td.value")
        for cell in cells.all():
            expected = entry["settings"][0]["cells"][cell.get_attribute("data-attack")]["score"]["value"]
            assert float(cell.get_attribute("data-value")) == pytest.approx(expected)
            assert cell.inner_text() == f"{expected:.2f}".replace("-", "−")
    assert shown(page, "#improvement td.value") == pytest.approx([0.5, 0.5])
    assert board["suite"]["hash"] in page.locator("#summary").inner_text()


def test_sorting_and_filters(opened):
    page = opened()
    assert names(page) == ["robust", "central"]
    score = page.locator("#board th").nth(1)
    score.click()
    assert names(page) == ["central", "robust"] and score.get_attribute("aria-sort") == "ascending"
    page.locator("#board th").nth(1).click()
    page.select_option("#attack", "avg-zero")  # central is better under this attack
    assert names(page) == ["central", "robust"]
    assert page.locator("#board tbody tr").first.locator("td").nth(1).inner_text() == "1.50 (1.50 to 1.50)"
    page.select_option("#attack", "all")
    page.select_option("#federation", "k9")  # without a server only
    assert names(page) == ["robust"]


def test_curves_appear_on_a_click(opened):
    page = opened()
    lines = page.locator("#curves path.line")
    assert lines.count() == 2  # the best and the worst entry
    page.locator("#heatmap tr[data-entry='robust'] td[data-attack='none']").click()
    assert lines.count() == 3 and page.locator("#legend button").nth(2).inner_text() == "robust, none (easy, k5)"
    svg = page.locator("#curves svg")
    svg.focus()
    page.keyboard.press("ArrowRight")
    assert shown(page, "#curves .tooltip [data-value]") == pytest.approx([20.0, -100.0, 30.0])
    page.locator("#legend button").first.click()
    assert lines.count() == 2
    assert page.locator("#profiles path.line").count() == 2
    page.locator("#profile-legend button").first.click()
    assert page.locator("#profiles path.line").count() == 1
    page.locator("#board tbody tr").first.click()
    assert page.locator("#entries details[open]").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_in_light_and_dark(opened, scheme):
    page = opened(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360  # no horizontal scrolling
    background = "getComputedStyle(document.body).backgroundColor"
    assert (brightness(page.evaluate(background)) > 200) == (scheme == "light")
    page.locator("#theme").click()
    assert (brightness(page.evaluate(background)) > 200) == (scheme == "dark")


def test_a_page_of_paired_scores(browser, tmp_path):  # noqa: F811
    """It says what 0 and 1 are, how much of the gain survives which attack, and one sentence per entry."""
    from jaxbyz.cli import main

    results, out = paired_results(tmp_path), tmp_path / "board.html"
    assert main(["benchmark", "page", *map(str, results), "--out", str(out)]) == 0
    board = load_leaderboard(str(results[0]), results[1])
    with watched(browser, out) as open_page:
        page = open_page()
        scale = page.locator("#scale tbody tr").first.locator("td").all_inner_texts()
        assert scale[:4] == ["easy, k5", "10.0", "30.0", "40.0"]
        for entry in board["entries"]:
            row = page.locator(f"#survives tr[data-entry='{entry['name']}'] td.value")
            expected = [entry["settings"][0]["cells"][name]["score"]["value"] for name in ("none", *board["attacks"])]
            assert [float(cell.get_attribute("data-value")) for cell in row.all()] == pytest.approx(expected)
        sentences = page.locator("#findings li").all_inner_texts()
        assert sentences[0].startswith("robust keeps 50 % of the gain of federating under its worst attacks (avg-zero)")
        assert sentences[1].startswith("central is worse than working alone under its worst attacks (avg-zero)")

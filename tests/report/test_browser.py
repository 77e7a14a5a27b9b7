"""The report in a real browser, run by `make test-report` (needs Chromium and the extra `browser`)."""

from __future__ import annotations

import pytest
from browser_pages import brightness, browser, shown, watched  # noqa: F401 (browser is a fixture)
from report_folders import make_folders

import jaxbyz as jb
from jaxbyz.report.statistics import final_returns

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return make_folders(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def report(folders, tmp_path_factory):
    from jaxbyz.cli import main

    out = tmp_path_factory.mktemp("report") / "report.html"
    assert main(["report", *map(str, folders), "--out", str(out), "--width", "4", "--animations", "2"]) == 0
    return out


@pytest.fixture
def opened(browser, report):  # noqa: F811
    """Return a function that opens the report; fail afterwards if the console had messages or a request was made."""
    with watched(browser, report) as open_page:
        yield open_page


def test_tables_show_the_numbers_of_the_files(opened, folders):
    page = opened()
    for index, folder in enumerate(folders):
        run = jb.load_run(folder)
        final = final_returns(run.metrics)
        row = page.locator(f"#results tr[data-run='{index}'] td")
        assert row.nth(1).inner_text() == f"{final.mean():.1f}" and row.nth(3).inner_text() == f"{final.min():.1f}"
        assert float(row.nth(1).get_attribute("data-value")) == pytest.approx(final.mean())
    means = [final_returns(jb.load_run(folder).metrics).mean() for folder in folders]
    assert shown(page, "#heatmap td.value[data-value]") == pytest.approx(means)


def test_toggles_hide_and_show_curves(opened):
    page = opened()
    lines = page.locator("#curves path.line")
    assert lines.count() == 3
    button = page.locator("#legend button").nth(1)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert [line.get_attribute("data-run") for line in lines.all()] == ["0", "2"]
    button.click()
    assert lines.count() == 3 and button.get_attribute("aria-pressed") == "true"
    page.locator("#all").click()
    assert lines.count() == 0 and page.locator("#curves").inner_text() == "nothing to draw"
    page.locator("#all").click()
    assert lines.count() == 3
    page.select_option("#statistic", "seeds")
    assert lines.count() == 9  # three runs of three seeds
    page.select_option("#metric", "ess")
    assert lines.count() == 3 and page.locator("#curves svg").get_attribute("aria-label").startswith(
        "effective sample size"
    )


def test_hovering_shows_values(opened, folders):
    from jaxbyz.report.statistics import smoothed

    page = opened()
    svg = page.locator("#curves svg")
    box = svg.bounding_box()
    svg.hover(position={"x": box["width"] - 30, "y": 80})
    x, _ = smoothed(jb.load_run(folders[0]).metrics, 4)
    assert float(page.locator("#curves .tooltip-x").get_attribute("data-x")) == x[-1]
    ends = [smoothed(jb.load_run(folder).metrics, 4)[1].mean(axis=0)[-1] for folder in folders]
    assert shown(page, "#curves .tooltip [data-value]") == pytest.approx(ends, rel=1e-5)
    svg.focus()
    page.keyboard.press("ArrowLeft")
    assert float(page.locator("#curves .tooltip-x").get_attribute("data-x")) == x[-2]
    assert shown(page, "#curves .tooltip [data-value]")[0] == pytest.approx(
        smoothed(jb.load_run(folders[0]).metrics, 4)[1].mean(axis=0)[-2], rel=1e-5
    )


def test_animations_and_commands(opened, folders):
    page = opened()
    pictures = page.locator("#animations img")
    assert pictures.count() == 3  # two episodes, and the one agreement in which proposals differ
    assert all(picture.evaluate("image => image.complete && image.naturalWidth > 50") for picture in pictures.all())
    reasons = page.locator("#missing-animations li").all_inner_texts()
    assert len(reasons) == 1 and "all agents propose the same parameters" in reasons[0]
    assert "1 more run" in page.locator("#not-animated").inner_text()
    page.locator("#repeat summary").nth(2).click()
    assert "--aggregator krum" in page.locator("#repeat pre").nth(2).inner_text()
    version = jb.load_run(folders[2]).environment["versions"]["optax"]
    assert page.locator("#repeat details").nth(2).get_by_text(version, exact=True).is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_in_light_and_dark(opened, scheme):
    page = opened(viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360  # no horizontal scrolling
    background = "getComputedStyle(document.body).backgroundColor"
    first = brightness(page.evaluate(background))
    assert (first > 200) == (scheme == "light")
    page.locator("#theme").click()
    assert (brightness(page.evaluate(background)) > 200) == (scheme == "dark")
    page.locator("#repeat summary").first.click()
    code = page.locator("#repeat pre").first
    assert code.evaluate("box => box.scrollWidth <= box.clientWidth && box.getBoundingClientRect().right <= 360")
    size = page.locator("#curves text").first.evaluate("text => text.getBoundingClientRect().height")
    assert size >= 10  # legible
    page.locator("#curves svg").tap(position={"x": 200, "y": 100})
    assert page.locator("#curves .tooltip").is_visible()
    table = page.locator(".scroll").first
    assert "overflows" in table.get_attribute("class") and table.evaluate("box => box.scrollWidth > box.clientWidth")


def test_the_page_begins_with_its_findings(opened, folders):
    from jaxbyz.report.findings import findings
    from jaxbyz.report.runs import load_runs

    page = opened(viewport={"width": 1200, "height": 900})
    assert page.locator("main section h2").first.inner_text() == "Findings"
    assert page.locator("#findings li").all_inner_texts() == findings(load_runs(folders))
    assert "Written 20" in page.locator("#summary").inner_text()
    assert "overflows" not in (page.locator(".scroll").first.get_attribute("class"))
    stroke = [page.locator(f"#curves path.line[data-run='{i}']").get_attribute("stroke") for i in range(3)]
    assert stroke[0] == stroke[1] != stroke[2]  # one colour per method
    captions = page.locator("#trust figcaption").all_inner_texts()
    assert len({text.split("brightest:")[1].split(" or more")[0] for text in captions}) == 1

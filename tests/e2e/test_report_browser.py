"""The report in a real browser: charts are drawn, the table sorts and filters, nothing is loaded, nothing complains."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.graphs import layered_graph
from tests.support.results import adapted, planned, small_graph

from dayzero.stages.report import report

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (Debian: chromium-driver)"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield driver
    driver.quit()


def _open(browser: Any, path: Path, *, width: int = 1280, scheme: str = "light") -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600})
    _prefer(browser, scheme)
    browser.get(path.as_uri())
    _until(browser, "return [...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))")


def _prefer(browser: Any, scheme: str) -> None:
    """Light or dark, and no smooth scrolling, which would move what is to be clicked."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
        {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]})


def _until(browser: Any, script: str, seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not browser.execute_script(script):
        assert time.monotonic() < limit, f"never became true: {script}"
        time.sleep(0.05)


def _screenshot(browser: Any, path: Path) -> bytes:
    image = base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})["data"])
    path.write_bytes(image)
    return image


def _column(browser: Any, number: int) -> list[str]:
    return browser.execute_script(
        "const rows = [...document.querySelectorAll('#operator-table tbody tr')];"
        "return rows.map((row) => row.cells[arguments[0]].textContent)", number)


def _filter(browser: Any, text: str) -> None:
    browser.execute_script(
        "const box = document.getElementById('operator-filter'); box.value = arguments[0];"
        "box.dispatchEvent(new Event('input'))", text)


def _level(browser: Any, name: str) -> None:
    browser.execute_script("const level = document.getElementById('operator-level'); level.value = arguments[0];"
                           "level.dispatchEvent(new Event('input'))", name)


def _tree(browser: Any) -> list[str]:
    return browser.execute_script("return [...document.querySelectorAll('#tree-table tbody tr th')]"
                                  ".map((head) => head.firstChild.textContent)")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "9-report.html"
    path.write_text(report(adapted()), encoding="utf-8")
    return path


def test_charts_are_drawn_and_nothing_complains(browser: Any, page: Path, tmp_path: Path) -> None:
    _open(browser, page)
    drawn = browser.execute_script("return [...document.querySelectorAll('.plot')].map((plot) => "
                                   "[plot.id, plot.querySelectorAll('.trace').length])")
    assert {name for name, _ in drawn} == {
        "chart-pareto", "chart-pareto-ttft", "chart-memory", "chart-stages", "chart-decode", "chart-prefill",
        "chart-layers"}
    assert all(traces > 0 for _, traces in drawn), drawn
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert len(_screenshot(browser, tmp_path / "report.png")) > 50_000


def test_table_sorts_by_the_number_and_back(browser: Any, page: Path) -> None:
    _open(browser, page)
    button = browser.find_element("css selector", "#operator-table button[data-column='6']")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    assert _column(browser, 6)[0] == "3.62 GFLOP"  # lm_head, prefill: 2 * 64 * 49152 * 576
    head = button.find_element("xpath", "..")
    assert head.get_attribute("aria-sort") == "descending"
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert _column(browser, 6)[-1] == "3.62 GFLOP"
    module = browser.find_element("css selector", "#operator-table button[data-column='2']")
    module.click()
    assert _column(browser, 2) == sorted(_column(browser, 2))


def test_table_filters_by_words_and_phase(browser: Any, page: Path) -> None:
    _open(browser, page)
    assert len(_column(browser, 0)) == 22
    _filter(browser, "LINEAR mlp")
    assert len(_column(browser, 0)) == 6
    assert all("mlp" in module for module in _column(browser, 2))
    browser.execute_script("const phase = document.getElementById('operator-phase'); phase.value = 'decode';"
                           "phase.dispatchEvent(new Event('input'))")
    assert set(_column(browser, 9)) == {"decode"}
    assert browser.find_element("id", "operator-count").text == "3 of 3 rows"
    _level(browser, "single")
    assert browser.find_element("id", "operator-count").text == "90 of 90 rows"
    _filter(browser, "no such operator")
    assert _column(browser, 0) == []


def test_the_tree_opens_sorts_and_is_searched(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "tree.html"
    path.write_text(report(msgspec.structs.replace(adapted(), graph=layered_graph())), encoding="utf-8")
    _open(browser, path)
    assert _tree(browser) == ["model", "m", "layers", "head"]
    browser.execute_script("document.querySelectorAll('#tree-table .branch')[2].click()")
    assert _tree(browser) == ["model", "m", "layers", "2 × 0 to 2", "1", "head"]
    browser.execute_script(  # bytes of prefill
        "document.querySelector(\"#tree-table button[data-column='2']\").click()")
    assert _tree(browser) == ["model", "m", "layers", "1", "2 × 0 to 2", "head"]
    browser.execute_script("document.getElementById('tree-open').click()")
    assert len(_tree(browser)) == 9
    browser.execute_script("document.getElementById('tree-close').click()")
    assert _tree(browser) == ["model", "m", "head"]
    browser.execute_script("const box = document.getElementById('tree-filter'); box.value = 'odd';"
                           "box.dispatchEvent(new Event('input'))")
    assert _tree(browser) == ["model", "m", "layers", "1", "[red]odd"]
    assert {"chart-modules-prefill", "chart-modules-decode"} <= set(browser.execute_script(
        "return [...document.querySelectorAll('.plot')].filter((plot) => plot.querySelector('.treemaplayer .slice'))"
        ".map((plot) => plot.id)"))
    assert browser.get_log("browser") == []


def test_copy_button_says_that_it_copied(browser: Any, page: Path) -> None:
    _open(browser, page)
    button = browser.find_element("css selector", "[data-copy]")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    _until(browser, "return document.querySelector('[data-copy]').textContent === 'Copied'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_hangs_over(browser: Any, page: Path, tmp_path: Path, scheme: str) -> None:
    _open(browser, page, width=390, scheme=scheme)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert browser.get_log("browser") == []
    assert len(_screenshot(browser, tmp_path / f"phone-{scheme}.png")) > 20_000


def test_charts_follow_light_and_dark(browser: Any, page: Path) -> None:
    colour = "return document.querySelector('.plot text').style.fill"
    _open(browser, page, scheme="light")
    light = browser.execute_script(colour)
    _prefer(browser, "dark")
    _until(browser, f"{colour} !== {light!r}")


def test_a_page_without_run_or_trace_works_as_well(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "planned.html"
    path.write_text(report(planned()), encoding="utf-8")
    _open(browser, path)
    assert browser.get_log("browser") == []


def test_thousands_of_operators_stay_fast(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    results = msgspec.structs.replace(adapted(), graph=small_graph(layers=250))  # 5,002 rows
    path.write_text(report(results), encoding="utf-8")
    _open(browser, path)
    seconds = browser.execute_script("""
        const started = performance.now();
        const level = document.getElementById('operator-level');
        level.value = 'single';
        level.dispatchEvent(new Event('input'));
        document.querySelector("#operator-table button[data-column='7']").click();
        document.getElementById('operator-filter').value = 'mlp';
        document.getElementById('operator-filter').dispatchEvent(new Event('input'));
        return (performance.now() - started) / 1000;""")
    assert browser.find_element("id", "operator-count").text == "100 of 2000 rows"
    assert seconds < 2, "three redraws"


def test_only_its_own_scripts_run(browser: Any, tmp_path: Path) -> None:
    """If escaping failed, the content security policy would still stop a foreign script."""
    path = tmp_path / "foreign.html"
    text = report(planned()).replace("</main>", "<script>window.foreign = 1</script></main>")
    path.write_text(text, encoding="utf-8")
    _open(browser, path)
    assert browser.execute_script("return window.foreign") is None
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))

"""explorer.html in a real browser that opens it from disk, as a reader does."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from poc import studies
from poc.records import journal, timing
from poc.report import explorer, rows
from tests.builders import record_of
from tests.launch import DEADLINE_SECONDS, HOME

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SWITCHES = (
    *("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking", "disable-sync"),
    *("disable-component-update", "disable-quic", "disable-dev-shm-usage", "window-size=1280,1400"),
)
HARM = "</script><script>harmed=1</script><img src=x onerror=harmed=1>"
RECORDS = [
    record_of(run_id="harmful000", infrastructure=HARM, epoch_seconds=[9.0, 8.0], accuracies=[0.25, 0.5]),
    record_of(run_id="twice00000", started="2026-11-21T10:00:00+00:00", epoch_seconds=[40.0]),
    record_of(run_id="twice00000", started="2026-11-22T10:00:00+00:00"),
    record_of(run_id="skipped000", run={"model": "alexnet"}, outcome="skipped", windows=[], evaluations=[], wall=None),
]
TABLE = rows.collect(RECORDS, studies.load())
pytestmark = pytest.mark.slow
POINTS = '#chart path[aria-roledescription="point"]'


def wait(browser: Any, script: str, expected: Any = True) -> None:
    """Until this piece of JavaScript is so; fails after minutes."""
    waiting = WebDriverWait(browser, DEADLINE_SECONDS, 0.05)
    waiting.until(lambda _: browser.execute_script(f"return {script}") == expected, script)


def opened(browser: Any, path: Path, fragment: str = "") -> Any:
    browser.get("about:blank")  # else another fragment of the same file would not load it again
    browser.get(path.as_uri() + fragment)
    wait(browser, "Boolean(document.body.dataset.ready)")
    return browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver: sudo apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (*SWITCHES, f"user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.get("about:blank")
    driver.get_log("performance")  # of the page that a new browser shows
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """A browser that has nothing to complain of, and asks for nothing but files, when the test is over."""
    yield chromium
    assert chromium.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [url for url in asked if not re.match("(file|blob|data|about):", url)] == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(explorer.page(TABLE, RECORDS), encoding="utf-8")
    return path


def choose(browser: Any, column: str, value: str) -> None:
    box = browser.find_element(By.ID, f"filter-{column}")
    if not box.get_attribute("open"):
        box.find_element(By.TAG_NAME, "summary").click()
    box.find_element(By.CSS_SELECTOR, f"input[value={json.dumps(value)}]").click()


def cells(browser: Any, title: str) -> list[str]:
    """What the table shows of the column with this title."""
    texts = "return [...document.querySelectorAll(arguments[0])].map(element => element.textContent)"
    column = browser.execute_script(texts, "#rows thead th").index(title) + 1
    return browser.execute_script(texts, f"#rows td:nth-child({column})")


def test_filters_narrow_the_table_and_the_chart(browser: Any, made: Path) -> None:
    opened(browser, made)
    for column, values in {"model": ["resnet50", "vgg16"], "origin": ["published"]}.items():
        for value in values:
            choose(browser, column, value)
    kept = [row for row in TABLE if row.model in ("resnet50", "vgg16") and row.origin == "published"]
    wait(browser, f"document.getElementById('count').textContent.startsWith('{len(kept)} of {len(TABLE)} rows')")
    points = sum(None not in (row.global_batch, row.samples_per_second) for row in kept)
    wait(browser, f"document.querySelectorAll('{POINTS}').length", points)
    assert set(cells(browser, "model")) == {"resnet50", "vgg16"}
    assert 0 < points < len(TABLE)


def test_a_column_is_sorted_with_empty_cells_last(browser: Any, made: Path) -> None:
    opened(browser, made)
    held = [row.samples_per_second for row in TABLE]
    figures = [figure for figure in held if figure is not None]
    assert len(figures) < len(held)
    head = next(one for one in browser.find_elements(By.CSS_SELECTOR, "#rows th") if one.text == "samples/s")
    for direction, end in {"ascending": min, "descending": max}.items():
        head.click()  # which returns before the table is sorted
        wait(browser, f"document.querySelector('#rows thead th[aria-sort={direction}]')?.textContent", "samples/s")
        assert float(cells(browser, "samples/s")[0].replace(",", "")) == pytest.approx(end(figures), rel=1e-3)


def test_the_reader_picks_axes_and_columns(browser: Any, made: Path) -> None:
    opened(browser, made)
    for axis, column in {"x": "devices", "y": "accuracy", "colour": "model"}.items():
        Select(browser.find_element(By.ID, axis)).select_by_value(column)
    known = [row for row in TABLE if None not in (row.devices, row.accuracy)]
    wait(browser, f"document.querySelectorAll('{POINTS}').length", sum(row.devices > 0 for row in known))
    drawn = browser.find_element(By.CSS_SELECTOR, "#chart svg.marks").text.split("\n")
    assert {"devices", "accuracy", "model", "measured", "published"} <= set(drawn)
    browser.find_element(By.CLASS_NAME, "buttons-colvis").click()
    wait(browser, "document.querySelectorAll('.buttons-columnVisibility').length > 60")
    browser.find_element(By.XPATH, "//button[.='learning rate']").click()
    assert "0.05" in cells(browser, "learning rate")


def test_a_run_opens_by_its_id_with_all_its_takes(browser: Any, made: Path) -> None:
    opened(browser, made, "#run=twice00000")
    wait(browser, "document.querySelectorAll('#takes svg.marks').length", 6)
    takes = browser.find_elements(By.CSS_SELECTOR, "#takes article")
    assert "repeat 2" in takes[0].text
    assert "repeat 1" in takes[1].text
    throughput = takes[0].find_element(By.CLASS_NAME, "plot")
    windows = throughput.find_elements(By.CSS_SELECTOR, "path[aria-roledescription=point]")
    warm = throughput.find_elements(By.CSS_SELECTOR, "path[aria-roledescription=point][aria-label*=warm-up]")
    assert (len(warm), len(windows)) == (timing.warmup(RECORDS[2].windows), 6) == (1, 6)
    split = timing.split(RECORDS[2].wall, RECORDS[2].parts, RECORDS[2].windows)
    for words in ("Validation accuracy", f"train {split['train']:.1f} s (", f"warmup {split['warmup']:.1f} s ("):
        assert words in takes[0].text
    choose(browser, "outcome", "skipped")
    wait(browser, f"document.querySelectorAll('{POINTS}').length", 0)
    browser.execute_script("location.hash = '#run=nowhere'")
    wait(browser, "document.getElementById('takes').textContent", "No run nowhere in this file.")
    browser.find_element(By.ID, "close").click()
    wait(browser, "document.getElementById('run').offsetWidth", 0)


def test_a_point_opens_its_run_and_a_name_does_no_harm(browser: Any, made: Path) -> None:
    opened(browser, made)
    choose(browser, "machine", HARM)
    wait(browser, f"document.querySelectorAll('{POINTS}').length", 1)
    browser.find_element(By.TAG_NAME, "h1").click()  # closes the list of choices
    ActionChains(browser).move_to_element(browser.find_element(By.CSS_SELECTOR, POINTS)).pause(0.2).click().perform()
    wait(browser, "location.hash", "#run=harmful000")
    wait(browser, "document.querySelector('#rows tr.selected')?.textContent.includes('harmful000')")
    wait(browser, "document.querySelectorAll('#takes svg.marks').length", 3)
    for place in ("#filters", "#chart svg.marks", "#rows", "#takes", "#vg-tooltip-element"):
        shown = browser.find_element(By.CSS_SELECTOR, place).get_attribute("textContent")
        assert "</script><script>" in shown, place
    assert browser.execute_script("return [typeof harmed, document.images.length]") == ["undefined", 0]
    assert "harmed" not in made.read_text()


def test_two_thousand_rows_fit_and_open_at_once(browser: Any, tmp_path: Path) -> None:
    records = rows.ordered(journal.read(journal.paths(HOME / "reference")))
    table = rows.collect(records, studies.load())
    many = (table * (2000 // len(table) + 1))[:2000]
    path = tmp_path / "explorer.html"
    path.write_text(explorer.page(many, records), encoding="utf-8")
    opened(browser, path)
    took = browser.execute_script("return Number(document.body.dataset.ready)")
    print(f"2,000 rows: {path.stat().st_size / 1e6:.2f} MB, open after {took / 1000:.2f} s")
    assert "2000 of 2000 rows" in browser.find_element(By.ID, "count").text
    assert path.stat().st_size <= 2e6
    assert path.read_text() == explorer.page(many, records[::-1])


def test_the_scripts_of_others_are_taken_out_of_the_cache(tmp_path: Path) -> None:
    make, cache = explorer._libraries.__wrapped__, tmp_path / "cache"
    made = make(cache)
    (kept,) = cache.iterdir()
    assert kept.read_text() == made
    kept.write_text("kept")
    assert make(cache) == "kept"
    assert make(kept) == made  # no folder: it is only slower


def test_a_long_run_has_few_points_and_no_rows_are_no_failure() -> None:
    course = explorer._course(record_of(epoch_seconds=[4.0] * 5000))
    assert len(course["windows"]) <= explorer.MOST_WINDOWS + 1
    assert {window["rate"] for window in course["windows"]} == {320.0}
    assert "<title>" in explorer.page([], [])

"""explorer.html in a real browser that opens it from disk, as a reader does."""

import csv
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from poc import published
from poc.published.prices import load
from poc.report import explorer, table
from tests.builders import record_of
from tests.launch import DEADLINE_SECONDS

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SWITCHES = (
    *("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking", "disable-sync"),
    *("disable-component-update", "disable-quic", "disable-dev-shm-usage", "window-size=1280,1400"),
)
HARM = "</script><script>harmed=1</script><img src=x onerror=harmed=1>\"'&$about"
RECORDS = [
    record_of(infrastructure=HARM, reason=HARM, run={"recipe": HARM}, epoch_seconds=[9.0, 8.0], accuracies=[0.25, 0.5]),
    record_of(started="2026-11-21T12:00:00+00:00", epoch_seconds=[40.0] * 3, accuracies=[0.3, 0.4, 0.45]),
    record_of(outcome="diverged", reason=HARM, run={"learning_rate": 9.0}, commit=HARM),
    record_of(outcome="skipped", reason=HARM, run={"model": "alexnet"}, windows=[], evaluations=[], wall=None),
]
TABLE = table.build(RECORDS, published.load(), load({}))
DRAWN = TABLE[TABLE.outcome.isin(["completed", ""])]
pytestmark = pytest.mark.slow
POINTS = '#points path[aria-roledescription="point"]'
CURVES = '#curves path[aria-roledescription="line mark"]'


def wait(browser: Any, script: str, expected: Any = True) -> None:
    """Wait until this piece of JavaScript has the value."""
    waiting = WebDriverWait(browser, DEADLINE_SECONDS, 0.05)
    waiting.until(lambda _: browser.execute_script(f"return {script}") == expected, script)


def count(selector: str) -> str:
    return f"document.querySelectorAll({json.dumps(selector)}).length"


def filtered_rows(browser: Any) -> int:
    return int(re.findall(r"of ([\d,]+) entries", browser.find_element(By.CLASS_NAME, "dt-info").text)[0])


def cells(browser: Any, name: str) -> list[str]:
    """Return what the table shows of a column."""
    texts = "return [...document.querySelectorAll(arguments[0])].map(element => element.textContent)"
    column = browser.execute_script(texts, "#rows thead th .dt-column-title").index(name) + 1
    return list(browser.execute_script(texts, f"#rows tbody td:nth-child({column})"))


def search(browser: Any, text: str) -> None:
    box = browser.find_element(By.CSS_SELECTOR, ".dt-search input")
    box.send_keys(Keys.CONTROL + "a")
    box.send_keys(Keys.BACKSPACE + text)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver: sudo apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (*SWITCHES, f"user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(f"--{switch}")
    options.add_experimental_option("prefs", {"download.default_directory": str(tmp_path_factory.mktemp("downloads"))})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.get("about:blank")
    driver.get_log("performance")  # of the page that a new browser shows
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(explorer.page(TABLE, None), encoding="utf-8")
    return path


@pytest.fixture
def browser(chromium: Any, made: Path) -> Iterator[Any]:
    """Open the page in a browser; at the end it must have logged no error and requested nothing but files."""
    chromium.get("about:blank")
    chromium.get(made.as_uri())
    wait(chromium, count("#rows tbody tr"), 25)
    wait(chromium, f"{count(POINTS)} > 0 && {count(CURVES)} > 0")
    yield chromium
    assert chromium.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert urls
    assert [url for url in urls if not re.match("(file|blob|data|about):", url)] == []


def test_all_rows_are_there_and_completed_ones_are_drawn(browser: Any) -> None:
    assert filtered_rows(browser) == len(TABLE)
    assert (
        browser.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        <= 0
    )
    known = DRAWN[DRAWN.global_batch.notna() & DRAWN.samples_per_second.notna()]
    wait(browser, count(POINTS), len(known))
    wait(browser, count(CURVES), int((DRAWN.accuracy_by_epoch != "").sum()))
    assert 0 < len(known) < len(DRAWN) < len(TABLE)
    titles = browser.find_elements(By.CSS_SELECTOR, "#rows thead th .dt-column-title")
    assert [title.text for title in titles] == list(explorer.FIRST)


def test_filters_and_the_search_narrow_the_table_and_the_charts_and_numbers_are_sorted(browser: Any) -> None:
    search(browser, "vgg16")
    vgg16 = TABLE[TABLE.model == "vgg16"]
    wait(browser, count(POINTS), int((vgg16.global_batch.notna() & vgg16.samples_per_second.notna()).sum()))
    search(browser, "")
    wait(browser, f"{count(POINTS)} > {len(vgg16)}")
    head = browser.find_element(By.XPATH, "//table[@id='rows']//th//span[.='samples_per_second']")
    for direction in ("ascending", "descending"):
        head.click()  # which returns before the table is sorted
        wait(browser, f"{count(f'#rows thead th[aria-sort={direction}]')} > 0")
    assert float(cells(browser, "samples_per_second")[0]) == pytest.approx(TABLE.samples_per_second.max(), rel=1e-5)
    head = browser.find_element(By.XPATH, "//table[@id='rows']//th[.//span[.='origin']]")
    head.find_element(By.CLASS_NAME, "dtcc-button").click()
    browser.find_element(By.XPATH, "//div[contains(@class, 'dtcc-dropdown')]//button[.='measured']").click()
    wait(browser, count(POINTS), 2)
    wait(browser, count(CURVES), 2)
    assert filtered_rows(browser) == len(RECORDS)
    search(browser, "alexnet")
    wait(browser, count(POINTS), 0)
    assert cells(browser, "model") == ["alexnet"]


def test_the_reader_picks_axes_colours_and_columns(browser: Any) -> None:
    for name, column in {"x": "devices", "y": "accuracy", "colour": "model"}.items():
        Select(browser.find_element(By.CSS_SELECTOR, f"#points select[name={name}]")).select_by_value(column)
    known = DRAWN[(DRAWN.devices > 0) & (DRAWN.accuracy > 0)]  # both axes are logarithmic
    wait(browser, count(POINTS), len(known))
    browser.find_element(By.CSS_SELECTOR, "#points input[name=log_x]").click()
    known = DRAWN[DRAWN.devices.notna() & (DRAWN.accuracy > 0)]
    wait(browser, count(POINTS), len(known))
    drawn = browser.find_element(By.CSS_SELECTOR, "#points svg.marks").text.split("\n")
    assert {"devices", "accuracy", "model", "measured", "published"} <= set(drawn)
    Select(browser.find_element(By.CSS_SELECTOR, "#curves select[name=x]")).select_by_value("seconds")
    wait(browser, "document.querySelector('#curves svg.marks').textContent.includes('seconds')")
    browser.find_element(By.CLASS_NAME, "buttons-colvis").click()
    wait(browser, f"{count('.buttons-columnVisibility')} > 60")
    browser.find_element(By.XPATH, "//button[contains(@class, 'buttons-columnVisibility')][.='lr']").click()
    assert "0.05" in cells(browser, "lr")


def test_the_csv_has_all_that_the_filters_leave(browser: Any, tmp_path: Path) -> None:
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    search(browser, "2026-11-21T12")
    wait(browser, count(POINTS), 1)
    browser.find_element(By.CLASS_NAME, "buttons-csv").click()
    WebDriverWait(browser, DEADLINE_SECONDS, 0.05).until(lambda _: list(tmp_path.glob("*.csv")))
    (line,) = csv.DictReader(next(tmp_path.glob("*.csv")).read_text(encoding="utf-8-sig").splitlines())
    assert (line["run_id"], line["machine"]) == (RECORDS[1].run.id, "test machine")
    assert float(line["samples_per_second"]) == pytest.approx(32.0)


def test_no_text_breaks_out_of_the_page(browser: Any, made: Path) -> None:
    assert (TABLE.machine == HARM).sum() == 1
    search(browser, "harmed")
    wait(browser, count("#rows tbody tr"), 3)
    assert HARM in cells(browser, "machine")
    head = browser.find_element(By.XPATH, "//table[@id='rows']//th[.//span[.='machine']]")
    head.find_element(By.CLASS_NAME, "dtcc-button").click()
    wait(browser, "document.querySelector('.dtcc-dropdown').textContent.includes('harmed')")
    browser.find_element(By.CLASS_NAME, "buttons-colvis").click()
    for name in ("reason", "recipe", "commit"):
        browser.find_element(By.XPATH, f"//button[contains(@class, 'buttons-columnVisibility')][.='{name}']").click()
        assert HARM in cells(browser, name)
    wait(browser, "document.querySelector('#points svg.marks').textContent.includes('</script>')")
    assert browser.execute_script("return [typeof harmed, document.images.length]") == ["undefined", 0]
    assert "<script>harmed" not in made.read_text(encoding="utf-8")


def test_a_telephone_shows_all_of_it(browser: Any) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        wait(browser, "document.querySelector('#points svg.marks').getBoundingClientRect().width <= 390")
        assert browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [390, 390]
        browser.find_element(By.CLASS_NAME, "buttons-colvis").click()
        wait(browser, f"{count('.buttons-columnVisibility')} > 60")
        box = browser.execute_script(
            "return document.querySelector('.dt-button-collection').getBoundingClientRect().toJSON()"
        )
        assert (box["left"] >= 0, box["right"] <= 390, box["bottom"] <= 844) == (True, True, True)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_same_rows_give_the_same_bytes(made: Path, tmp_path: Path) -> None:
    text = made.read_text(encoding="utf-8")
    assert explorer.page(table.build(RECORDS[::-1], published.load(), load({})), tmp_path / "cache") == text
    (kept,) = (tmp_path / "cache").iterdir()
    explorer._vega.cache_clear()
    assert explorer.page(TABLE, tmp_path / "cache") == text
    assert explorer.page(TABLE, kept) == text  # no folder: it is only slower

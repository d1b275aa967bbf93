"""The report in a headless Chromium: on a phone and on a desk, by keyboard, in light and dark.

``tox -e replay`` has the browser's driver (puppeteer-core), in the folder that WABAC_DIR names; without that variable the
tests are skipped. With it, a missing browser is a failure. It is looked for on the PATH, or named in CHROMIUM_BIN.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from chromium import browser
from made_reports import empty_report, full_report, share

from scrapy_dedupe.reports.charts import TITLES
from scrapy_dedupe.reports.figures import DuplicateGroup, Example, Trap
from scrapy_dedupe.reports.page import page

DRIVER = Path(__file__).parent / "driver.mjs"
SCREENS = ["390-light", "390-dark", "1200-light", "1200-dark"]

pytestmark = pytest.mark.skipif("WABAC_DIR" not in os.environ, reason="no driver is there; use tox -e replay")


def opened(html: str, folder: Path) -> dict[str, Any]:
    """What a reader finds who opens the page from its file, by screen."""
    file = folder / "report.html"
    file.write_text(html, encoding="utf-8")
    done = subprocess.run(
        ["node", str(DRIVER), str(file)],
        capture_output=True,
        check=False,
        text=True,
        timeout=240,
        env={**os.environ, "CHROMIUM_BIN": browser()},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert list(found) == SCREENS
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return opened(page(full_report()), tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize("screen", SCREENS)
def test_nothing_is_loaded_and_nothing_fails(found: dict[str, Any], screen: str) -> None:
    assert found[screen]["requests"] == []
    assert found[screen]["errors"] == []


@pytest.mark.parametrize("screen", SCREENS)
def test_nothing_is_wider_than_the_screen(found: dict[str, Any], screen: str) -> None:
    assert found[screen]["wider"] == []


@pytest.mark.parametrize("screen", SCREENS)
def test_nothing_is_wider_than_a_sheet_of_paper(found: dict[str, Any], screen: str) -> None:
    assert found[screen]["printed"] == []


@pytest.mark.parametrize("screen", SCREENS)
def test_the_tab_key_reaches_links_tables_and_charts_and_shows_where_it_is(
    found: dict[str, Any], screen: str
) -> None:
    stops = found[screen]["stops"]
    assert stops[0] == {"tag": "a", "name": "To the report", "outlined": True}
    assert [stop for stop in stops if not stop["outlined"]] == []
    tags = [stop["tag"] for stop in stops]
    assert {"a", "summary", "button", "div"} <= set(tags)
    assert sum(tag in {"path", "text"} for tag in tags) == len(TITLES)


@pytest.mark.parametrize("screen", SCREENS)
def test_arrow_keys_go_from_mark_to_mark_and_each_says_what_it_shows(
    found: dict[str, Any], screen: str
) -> None:
    tip = found[screen]["tip"]
    assert tip["shown"] == tip["name"]
    assert "UTC: " in tip["shown"]


@pytest.mark.parametrize("screen", SCREENS)
def test_what_is_folded_opens_by_keyboard_and_tables_are_sorted(found: dict[str, Any], screen: str) -> None:
    count, whole = found[screen]["opened"]
    assert count == whole > len(TITLES)
    assert found[screen]["sorted"] is True


@pytest.mark.parametrize("screen", SCREENS)
def test_charts_and_tables_have_names_for_a_screen_reader(found: dict[str, Any], screen: str) -> None:
    names = found[screen]["names"]
    assert [one["name"] for one in names if one["role"] == "figure"] == list(TITLES.values())
    tables = [one["name"] for one in names if one["role"] == "table"]
    assert len(tables) > len(TITLES)
    assert all(tables)
    regions = [one["name"] for one in names if one["role"] in {"region", "navigation"}]
    assert all(regions)
    marks = [one["name"] for one in names if one["role"] == "graphics-symbol"]
    assert marks
    assert all(marks)
    assert not [name for name in marks if "scale" in name]


def test_dark_and_light_differ(found: dict[str, Any]) -> None:
    assert (
        found["390-light"]["colors"]
        == found["1200-light"]["colors"]
        == ["rgb(255, 255, 255)", "rgb(26, 29, 33)"]
    )
    assert (
        found["390-dark"]["colors"]
        == found["1200-dark"]["colors"]
        == ["rgb(20, 23, 26)", "rgb(232, 235, 238)"]
    )


def test_a_page_of_long_and_hostile_texts_stays_within_the_screen(tmp_path: Path) -> None:
    texts = [
        "https://example.org/" + "a" * 1_970,
        'https://example.org/"><script>document.title = "run"</script>',
        "https://example.org/\u05e2\u05de\u05d5\u05d3?\u05e9\u05dd=" + "\u05e2" * 300,
        "w" * 1_500,
    ]
    report = empty_report(
        hosts=[share(text, 10) for text in texts],
        mime_types=[share(text, 10) for text in texts],
        groups=[DuplicateGroup(text, 2, 1, 1, 0.9, [Example(text, "near", 0.9)]) for text in texts],
        traps=[Trap(text, 30, 18, 4, 2, 0.8, [text]) for text in texts],
        notes=texts,
    )
    for seen in opened(page(report), tmp_path).values():
        assert seen["requests"] == []
        assert seen["errors"] == []
        assert seen["wider"] == []
        assert not any(one["name"] == "run" for one in seen["names"])


def test_a_page_without_anything_opens_too(tmp_path: Path) -> None:
    for seen in opened(page(empty_report()), tmp_path).values():
        assert seen["errors"] == []
        assert seen["wider"] == []
        assert seen["tip"] is None

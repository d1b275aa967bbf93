"""The reference pages say what the code says, and every documented thing is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, crawl, crawl_test

import scrapy_dedupe
from scrapy_dedupe import downloadermiddlewares, errors, signals
from scrapy_dedupe.commands.verbs import VERBS
from scrapy_dedupe.live import recordings, responses
from scrapy_dedupe.settings.specs import SPECS, Spec

if TYPE_CHECKING:
    from webserver import WebServer

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
PACKAGE = Path(scrapy_dedupe.__file__).parent


def page(name: str) -> str:
    return (REFERENCE / f"{name}.rst").read_text(encoding="utf-8")


def blocks(text: str, directive: str) -> dict[str, str]:
    """The names that *directive* defines, each with the text up to the next one."""
    parts = re.split(rf"^\.\. {directive}:: (\S+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def plain(text: str) -> str:
    """Without markup and line breaks."""
    text = re.sub(r":[\w:]+:`([^`<]*?)(?:\s+<[^>]*>)?`", r"\1", text)
    return " ".join(text.replace("``", "").split())


def test_every_setting_is_documented_and_no_other() -> None:
    assert list(blocks(page("settings"), "setting")) == sorted(
        (spec.name for spec in SPECS), key=list(blocks(page("settings"), "setting")).index
    )
    assert set(blocks(page("settings"), "setting")) == {spec.name for spec in SPECS}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_setting_is_documented_with_its_default_and_what_is_allowed(spec: Spec) -> None:
    block = blocks(page("settings"), "setting")[spec.name]
    text = plain(block)
    assert f"Allowed: {spec.allowed}" in text
    assert spec.help in text
    stated = re.search(r"^Default: ``(.*?)``(?: (\w+))?$", block, flags=re.MULTILINE)
    if spec.default is None:
        assert stated is None
        assert spec.unit in f"{spec.allowed}; {spec.help}"
    else:
        assert stated
        value = ast.literal_eval(stated[1])
        assert (tuple(value) if isinstance(value, list) else value) == spec.default
        assert (stated[2] or "") == spec.unit


def stats_in_code() -> set[str]:
    """Every stat that the code names in full."""
    sources = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    return set(re.findall(r"""["'](dedupe/[a-z]+/[a-z_]+)["']""", sources))


def test_every_stat_of_the_code_is_documented() -> None:
    documented = set(blocks(page("stats"), "stat"))
    assert len(stats_in_code()) > 20
    assert stats_in_code() - documented <= {"dedupe/content/skipped/internal"}


@crawl_test
async def test_every_stat_of_a_crawl_is_documented(web: WebServer, settings: dict[str, Any]) -> None:
    web.page(
        "/", '<a href="/a">1</a><a href="/b">2</a><a href="/c">3</a><a href="/pdf">4</a>' + "<p>Home" * 300
    )
    web.page("/a", "<p>One text" * 200)
    web.page("/b", "<p>One text" * 200)
    web.page("/c", "")
    web.page("/pdf", b"%PDF-1.4", content_type="application/pdf")
    crawler = await crawl(LinkSpider, {**settings, "ROBOTSTXT_OBEY": True}, urls=web.url())
    stats = {key for key in crawler.stats.get_stats() if key.startswith("dedupe/")}
    assert {"dedupe/content/exact", "dedupe/content/skipped/no_text", "dedupe/warc/response"} <= stats
    documented = set(blocks(page("stats"), "stat"))
    for stat in stats:
        if stat.startswith("dedupe/content/skipped/"):
            assert f"``{stat.rpartition('/')[2]}``" in page("stats")
        else:
            assert stat in documented


def test_every_meta_key_is_documented() -> None:
    keys = {
        downloadermiddlewares.META_KEY,
        responses.SKIP_META_KEY,
        downloadermiddlewares.ACTION_META_KEY,
        recordings.META_KEY,
    }
    assert set(blocks(page("meta"), "reqmeta")) == keys


def test_every_signal_is_documented() -> None:
    documented = set(
        re.findall(r"^\.\. data:: scrapy_dedupe\.signals\.(\w+)$", page("signals"), flags=re.MULTILINE)
    )
    assert documented == {name for name, value in vars(signals).items() if type(value) is object}


def test_every_command_is_documented() -> None:
    assert set(blocks(page("commands"), "command")) == {name for name in VERBS if " " not in name}


def test_every_error_and_exit_code_is_documented() -> None:
    text = page("errors")
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.DedupeError)
    ]
    assert ".. automodule:: scrapy_dedupe.errors\n    :members:" in text
    assert {0, *(cls.exit_code for cls in classes)} <= {
        int(code) for code in re.findall(r"\b([0-4])\b", text)
    }


def test_the_change_log_has_this_version() -> None:
    assert scrapy_dedupe.__version__ in (ROOT / "CHANGES.rst").read_text(encoding="utf-8")

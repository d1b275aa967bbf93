"""Whoever does what a message on the order of components says is rid of the message."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, crawl, crawl_test
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.settings import Settings

from scrapy_dedupe.settings.placement import LISTS, PLACES, misplaced, order_faults

if TYPE_CHECKING:
    from webserver import WebServer

CONTENT = "scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware"
COMPRESSION = "scrapy.downloadermiddlewares.httpcompression.HttpCompressionMiddleware"
REDIRECT = "scrapy.downloadermiddlewares.redirect.RedirectMiddleware"


class OwnCompression(HttpCompressionMiddleware):
    """As a project may have one."""


OWN_COMPRESSION = f"{__name__}.OwnCompression"


def followed(sentence: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of somebody who has done what the sentence says."""
    found = re.findall(r"\b([A-Z_]{6,}) = (\{[^}]*\}|\"[^\"]*\"|True)", sentence)
    assert found, sentence
    changed = dict(settings)
    for name, text in found:
        value = ast.literal_eval(text)
        changed[name] = {**changed.get(name, {}), **value} if isinstance(value, dict) else value
    return changed


def orders(**values: float | None) -> dict[str, Any]:
    names = {"own": CONTENT, "compression": COMPRESSION, "redirect": REDIRECT, "other": OWN_COMPRESSION}
    table = {CONTENT: 543, **{names[name]: order for name, order in values.items()}}
    return {"DOWNLOADER_MIDDLEWARES": table}


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        (orders(compression=100), 1),
        (orders(compression=543), 1),
        (orders(compression=543.5, own=560), 1),
        (orders(compression=100, own=595), 1),
        (orders(compression=600, own=600), 2),
        (orders(own=595), 1),
        (orders(own=700), 2),
        (orders(redirect=500), 1),
        (orders(redirect=500, own=700), 2),
        (orders(redirect=500, compression=100), 2),
        (orders(compression=None, other=100), 1),
        (orders(compression=None, other=100, own=20_000), 2),
        (orders(compression=None), 1),
        ({**orders(), "COMPRESSION_ENABLED": False}, 1),
        ({**orders(compression=None), "COMPRESSION_ENABLED": False}, 1),
    ],
)
def test_an_order_that_is_changed_as_told_is_right(settings: dict[str, Any], number: int) -> None:
    faults = order_faults(Settings(settings))
    assert len(faults) == number
    for fault in faults:
        settings = followed(fault.sentence, settings)
    assert order_faults(Settings(settings)) == []


def test_each_middleware_is_named_as_the_project_has_it() -> None:
    (fault,) = order_faults(Settings(orders(compression=None, other=100)))
    assert fault.sentence.endswith(
        f'Set OwnCompression back to 590: DOWNLOADER_MIDDLEWARES = {{"{OWN_COMPRESSION}": 590}}.'
    )


@pytest.mark.parametrize("path", PLACES)
def test_a_class_that_is_moved_as_told_is_in_its_place(path: str) -> None:
    for wrong in {*LISTS, "DUPEFILTER_CLASS"} - {PLACES[path]}:
        is_list = wrong in LISTS
        (sentence,) = misplaced(Settings({wrong: {path: 1} if is_list else path}))
        moved = followed(sentence, {})
        assert set(moved) == {PLACES[path]}
        assert path in moved[PLACES[path]]
        assert misplaced(Settings(moved)) == []


@crawl_test
async def test_a_crawl_starts_once_its_order_is_as_told(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/", "<p>One page of some words. " * 60)
    settings["DOWNLOADER_MIDDLEWARES"] = {COMPRESSION: 100}
    with pytest.raises(Exception):  # noqa: B017 - Scrapy may put an error of its own in place of ours
        await crawl(LinkSpider, settings, urls=web.url())
    (told,) = [line for line in caplog.messages if "does not start" in line]
    assert (
        f'Set HttpCompressionMiddleware back to 590: DOWNLOADER_MIDDLEWARES = {{"{COMPRESSION}": 590}}.'
        in told
    )
    crawler = await crawl(LinkSpider, followed(told, settings), urls=web.url())
    assert crawler.stats.get_stats()["dedupe/content/unique"] == 1

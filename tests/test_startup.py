"""What a crawl loads, and what it does with the garbage collection of its process."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, collecting, crawl, crawl_test

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from webserver import WebServer

SPIDER = """
import atexit, gc, json, sys
import scrapy

figures = {"frozen": []}

@atexit.register
def write():
    figures["frozen"].append(gc.get_freeze_count())
    print(json.dumps({**figures, "modules": sorted(sys.modules)}))

class Pages(scrapy.Spider):
    name = "pages"

    def parse(self, response):
        figures["frozen"].append(gc.get_freeze_count())
        yield {"url": response.url}
"""

# The packages that the layers need; Scrapy needs their other requirements as well.
PACKAGES = {
    "bitarray",
    "deflate",
    "numpy",
    "pybloom_live",
    "scrapy_dedupe",
    "selectolax",
    "xxhash",
    "zlib_ng",
}
# Modules of this package for other stores, settings, the end of some crawls, and commands.
UNUSED = (
    *("commands", "offline", "passages", "spark", "urls.shared", "urls.folder", "urls.exact", "stores.redis"),
    *("reports.figures", "reports.page", "reports.sums", "reports.charts", "live.archive.replay"),
    *("live.archive.uploads", "live.archive.wacz", "live.observers.metrics", "live.observers.passages"),
    *(
        "live.observers.duplicates_log",
        "warc.wacz",
        "warc.cdxj",
        "warc.storage",
        "warc.url_keys",
        "crawls.importing",
    ),
)


def _run(folder: Path, url: str, **settings: Any) -> dict[str, Any]:
    """What a crawl by `scrapy runspider` reports, in a process that has loaded nothing yet."""
    (folder / "spider.py").write_text(
        f"{SPIDER}    start_urls = [{url!r}]\n    custom_settings = {settings!r}\n"
    )
    words = [
        sys.executable,
        "-m",
        "scrapy",
        "runspider",
        "-L",
        "ERROR",
        "-s",
        "TELNETCONSOLE_ENABLED=0",
        "spider.py",
    ]
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


def test_a_crawl_loads_only_what_its_settings_need_and_freezes_it(web: WebServer, tmp_path: Path) -> None:
    web.page("/", "<p>The reed warbler sings by night as well." * 60)
    plain = _run(tmp_path, web.url())
    ours = _run(tmp_path, web.url(), ADDONS={"scrapy_dedupe.Addon": 500})
    added = set(ours["modules"]) - set(plain["modules"])
    packages = {name.partition(".")[0] for name in added} - sys.stdlib_module_names - {"scrapy"}
    assert {name for name in packages if not name.startswith("_cython")} <= PACKAGES
    own = {name.removeprefix("scrapy_dedupe.") for name in added}
    assert not {name for name in own if name.startswith(UNUSED)}
    during, after = ours["frozen"]
    assert during > 10_000
    assert after == plain["frozen"][0] == plain["frozen"][1] == 0


class FreezeSpider(LinkSpider):
    """Yields the number of frozen objects at each page."""

    def parse(self, response: Any, **kwargs: Any) -> Any:
        yield {"frozen": gc.get_freeze_count()}


@pytest.fixture
def _nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    # As conftest.py does.
    gc.freeze()


@pytest.mark.usefixtures("_nothing_frozen")
@crawl_test
async def test_a_crawl_of_another_program_freezes_nothing(web: WebServer, settings: dict[str, Any]) -> None:
    web.page("/", "<p>Home")
    spider, items = collecting(FreezeSpider)
    await crawl(spider, settings, urls=web.url())
    assert items == [{"frozen": 0}]


@pytest.mark.usefixtures("_nothing_frozen")
@crawl_test
async def test_objects_stay_frozen_until_the_last_crawl_has_stopped(
    web: WebServer, settings: dict[str, Any]
) -> None:
    web.page("/", "<p>Home")
    outer_frozen: list[int] = []
    inner_ids = iter(("inner-1", "inner-2"))

    class Outer(FreezeSpider):
        async def parse(self, response: Any, **kwargs: Any) -> Any:
            outer_frozen.append(gc.get_freeze_count())
            await crawl(FreezeSpider, {**settings, "DEDUPE_CRAWL_ID": next(inner_ids)}, urls=web.url())
            outer_frozen.append(gc.get_freeze_count())
            return
            yield

    settings["DEDUPE_GC_FREEZE"] = True
    for _ in range(2):
        outer_frozen.clear()
        await crawl(Outer, settings, urls=web.url())
        # Objects that are no longer used are freed all the same.
        assert len(outer_frozen) == 2
        assert min(outer_frozen) > 10_000
        assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("_nothing_frozen")
@crawl_test
@pytest.mark.skipif(not gc.get_threshold()[2], reason="Python 3.14.0 to 3.14.4 have no three generations")
@pytest.mark.parametrize(
    ("earlier", "during"),
    [((700, 10, 10), (20_000, 3, 3)), ((50_000, 10, 10), (50_000, 10, 10)), ((0, 10, 10), (0, 10, 10))],
)
async def test_garbage_is_searched_less_often_during_a_crawl(
    web: WebServer, settings: dict[str, Any], earlier: tuple[int, ...], during: tuple[int, ...]
) -> None:
    web.page("/", "<p>Home")
    found: list[tuple[int, ...]] = []

    class ThresholdSpider(FreezeSpider):
        async def parse(self, response: Any, **kwargs: Any) -> Any:
            found.append(gc.get_threshold())
            return
            yield

    before = gc.get_threshold()
    gc.set_threshold(*earlier)
    try:
        await crawl(ThresholdSpider, {**settings, "DEDUPE_GC_FREEZE": True}, urls=web.url())
        assert found == [during]
        assert gc.get_threshold() == earlier
    finally:
        gc.set_threshold(*before)


@pytest.mark.usefixtures("_nothing_frozen")
@crawl_test
async def test_the_tree_of_a_page_is_freed_without_a_search_when_nothing_uses_its_response(
    web: WebServer, settings: dict[str, Any]
) -> None:
    for name in "abcd":
        web.page(f"/{name}", f"<p>Page {name}")
    web.page("/feed", '<feed xmlns="urn:x"><title>News</title></feed>', content_type="text/xml")
    web.page("/end", "<p>End")
    seen: dict[str, weakref.ref[Any]] = {}
    used: dict[str, Any] = {}
    states: dict[str, bool] = {}

    class TreeSpider(LinkSpider):
        custom_settings: Any = {"CONCURRENT_REQUESTS": 1}

        async def parse(self, response: Any, **kwargs: Any) -> Any:
            name = response.url.rpartition("/")[2]
            if name == "feed":
                response.selector.remove_namespaces()
                used["response"] = response
            if name == "c":
                used["selectors"] = response.css("p")
            if name == "d":
                used["selector"] = response.selector
            if name == "end":
                for _ in range(50):
                    await asyncio.sleep(0.1)
                    if seen["a"]() is None and seen["b"]() is None and seen["c"]() is None:
                        break
                states.update({known: found() is None for known, found in seen.items()})
                return
            response.css("p::text").get()
            seen[name] = weakref.ref(response)
            # No items: the log of the test would keep their responses.
            return
            yield

    gc.disable()
    try:
        urls = " ".join(web.url(f"/{name}") for name in ("a", "b", "feed", "c", "d", "end"))
        await crawl(TreeSpider, {**settings, "DEDUPE_GC_FREEZE": True}, urls=urls)
    finally:
        gc.enable()
    assert states == {"a": True, "b": True, "feed": False, "c": True, "d": False}
    assert used["selectors"].xpath("text()").getall() == ["Page c"]
    assert used["selector"].response.selector is used["selector"]
    # A tree that the spider has changed stays as it is.
    assert used["response"].xpath("//title/text()").getall() == ["News"]


# Creates and drops 12 MB in small blocks, as the trees of a page do, and prints the number of page faults. glibc may keep a
# few megabytes by itself, which depends on the blocks that were dropped before.
PAGES = """
import resource, sys
from scrapy_dedupe.live.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def pages(number):
    for _ in range(number):
        blocks = [bytearray(40_000) for _ in range(300)]
        del blocks
pages(2)
before = faults()
pages(20)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these limits")
def test_the_memory_of_a_page_is_kept_for_the_next_page() -> None:
    def faults(word: str) -> int:
        done = subprocess.run([sys.executable, "-c", PAGES, word], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("return") > 10_000
    assert faults("keep") < 1_000

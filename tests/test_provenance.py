"""``response.meta["warc"]`` and the field of items: where the record of a response is."""

from __future__ import annotations

import json
import random
from collections import UserDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import pytest
import scrapy
from archives import records_of
from crawling import LinkSpider, collecting, crawl, crawl_test

from scrapy_dedupe.pipelines import WarcItem
from scrapy_dedupe.warc.reading import read_record

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer


def text(name: str) -> str:
    words = random.Random(name)
    return f"<title>{name}</title><p>" + " ".join(f"{words.getrandbits(40):x}" for _ in range(300))


class TellingSpider(LinkSpider):
    """Yields what ``meta["warc"]`` says."""

    def parse(self, response: Any, **kwargs: Any) -> Any:
        yield {"url": response.url, "warc": json.loads(json.dumps(response.meta.get("warc")))}


@crawl_test
async def test_a_callback_knows_the_record_of_its_response(
    web: WebServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/a", text("a"))
    web.page("/copy", text("a"))
    spider, items = collecting(TellingSpider)
    stored["CONCURRENT_REQUESTS"] = 1
    first = await crawl(spider, stored, urls=f"{web.url('/a')} {web.url('/copy')}")
    told = {item["url"]: item["warc"] for item in items}
    for url, where in told.items():
        record = read_record(tmp_path / "warcs" / where["file"], where["offset"])
        assert (record.id, record.target_uri, record.type, record.date) == (
            where["record_id"],
            url,
            where["type"],
            where["date"],
        )
        assert str(record.payload_digest) == where["digest"]
    original, copy = told[web.url("/a")], told[web.url("/copy")]
    assert original["type"] == "response"
    assert original["refers_to"] is None
    assert copy["type"] == "revisit"
    assert copy["refers_to"]["record_id"] == original["record_id"]
    assert copy["refers_to"]["url"] == web.url("/a")
    assert copy["refers_to"]["date"] == original["date"]
    items.clear()
    await crawl(spider, stored, urls=web.url("/a"))
    crawls = {item["warc"]["refers_to"]["crawl"] for item in items}
    assert len(crawls) == 1
    assert first.stats.get_value("dedupe/warc/response") == 1


@crawl_test
async def test_items_carry_the_record_in_a_field_if_wished(web: WebServer, settings: dict[str, Any]) -> None:
    web.page("/a", text("a"))

    @dataclass
    class Entry:
        url: str
        source: dict[str, Any] | None = None

    class Closed(scrapy.Item):
        url = scrapy.Field()

    class Mixed(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            yield {"url": response.url, "meta": response.meta["warc"]}
            yield Entry(response.url)
            yield Closed(url=response.url)

    spider, items = collecting(Mixed)
    crawler = await crawl(spider, {**settings, "DEDUPE_WARC_ITEM_FIELD": "source"}, urls=web.url("/a"))
    plain, entry, closed = items
    assert plain["source"] == plain["meta"]
    assert isinstance(entry, Entry)
    assert entry.source == plain["meta"]
    assert dict(closed) == {"url": web.url("/a")}
    assert crawler.stats.get_value("dedupe/warc/items_without_field") == 1


@crawl_test
async def test_an_item_that_refuses_the_field_is_passed_on_as_it_is(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/a", text("a"))
    web.page("/b", text("b"))

    @dataclass(frozen=True)
    class Frozen:
        url: str
        source: Any = None

    @attrs.frozen
    class FrozenAttrs:
        url: str
        source: Any = None

    @attrs.define
    class Checked:
        url: str
        source: Any = attrs.field(default=None, validator=attrs.validators.instance_of((str, type(None))))

    @dataclass
    class Fixed:
        url: str

        @property
        def source(self) -> str:
            return "fixed"

    class Named(NamedTuple):
        url: str

    class Strict(UserDict[str, str]):
        def __setitem__(self, key: str, value: str) -> None:
            if not isinstance(value, str):
                raise OSError(f"{key} is no text,\nbut {type(value)}")
            super().__setitem__(key, value)

    types = [Frozen, FrozenAttrs, Checked, Fixed, Named]

    class Refusing(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            for kind in types:
                yield kind(response.url)
            yield Strict(url=response.url)
            yield {"url": response.url}
            if response.url.endswith("/a"):
                yield response.follow("/b")

    spider, items = collecting(Refusing)
    crawler = await crawl(spider, {**settings, "DEDUPE_WARC_ITEM_FIELD": "source"}, urls=web.url("/a"))
    for number, path in enumerate(("/a", "/b")):
        url = web.url(path)
        *refused, plain = items[7 * number : 7 * number + 7]
        assert refused == [*(kind(url) for kind in types), Strict(url=url)]
        assert plain["source"]["type"] == "response"
    stats = crawler.stats.get_stats()
    assert stats["item_scraped_count"] == 14
    assert stats["dedupe/warc/items_without_field"] == 12
    assert "spider_exceptions/count" not in stats
    assert (
        caplog.text.count(
            "Cannot set the field 'source' (DEDUPE_WARC_ITEM_FIELD) of items of type Frozen (FrozenInstance"
        )
        == 1
    )
    assert caplog.text.count("Cannot set the field") == 1


@crawl_test
async def test_a_model_that_refuses_the_field_is_passed_on_as_it_is(
    web: WebServer, settings: dict[str, Any]
) -> None:
    pydantic = pytest.importorskip("pydantic")
    web.page("/a", text("a"))

    class Bare(pydantic.BaseModel):
        url: str

    class Checked(pydantic.BaseModel, validate_assignment=True):
        url: str
        source: str = ""

    class Frozen(pydantic.BaseModel, frozen=True):
        url: str
        source: Any = None

    class Whole(pydantic.BaseModel, validate_assignment=True):
        url: str
        source: Any = None

        @pydantic.model_validator(mode="after")
        def refuse(self) -> Any:
            assert self.source is None
            return self

    types = [Bare, Checked, Frozen, Whole]

    class Refusing(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            yield from (kind(url=response.url) for kind in types)

    spider, items = collecting(Refusing)
    crawler = await crawl(spider, {**settings, "DEDUPE_WARC_ITEM_FIELD": "source"}, urls=web.url("/a"))
    assert items == [kind(url=web.url("/a")) for kind in types]
    assert crawler.stats.get_value("dedupe/warc/items_without_field") == 4


@crawl_test
async def test_no_item_gets_a_field_unless_wished(web: WebServer, settings: dict[str, Any]) -> None:
    web.page("/a", text("a"))
    spider, items = collecting()
    await crawl(spider, settings, urls=web.url("/a"))
    assert items == [{"url": web.url("/a"), "kind": "unique"}]


@crawl_test
async def test_what_is_not_recorded_has_no_record(web: WebServer, settings: dict[str, Any]) -> None:
    web.page("/a", text("a"))
    web.page("/b", text("b"))

    class Copying(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            yield {"url": response.url, "warc": response.meta.get("warc")}
            if response.url.endswith("/a"):
                yield scrapy.Request("data:text/html,<p>nothing", meta=dict(response.meta))

    spider, items = collecting(Copying)
    await crawl(spider, settings, urls=web.url("/a"))
    assert [item["warc"] is not None for item in items] == [True, False]


@crawl_test
async def test_an_archived_item_tells_its_record_to_later_pipelines(
    web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    web.page("/a", text("a"))
    seen: list[Any] = []

    class Later:
        def process_item(self, item: Any, spider: Any = None) -> Any:
            if isinstance(item, WarcItem):
                seen.append(item.response.meta.get("warc"))
            return item

    class Choosing(LinkSpider):
        def parse(self, response: Any, **kwargs: Any) -> Any:
            assert "warc" not in response.meta
            yield WarcItem(response)

    settings |= {"DEDUPE_WARC_SCOPE": "items", "ITEM_PIPELINES": {Later: 950}}
    await crawl(Choosing, settings, urls=web.url("/a"))
    responses = [record.id for record in records_of(tmp_path / "warcs") if record.type == "response"]
    assert [where["record_id"] for where in seen] == responses


@pytest.mark.parametrize("wrong", ["", 7])
@crawl_test
async def test_a_wrong_field_is_refused(wrong: Any, web: WebServer, settings: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="DEDUPE_WARC_ITEM_FIELD"):
        await crawl(LinkSpider, {**settings, "DEDUPE_WARC_ITEM_FIELD": wrong}, urls=web.url("/a"))


@crawl_test
async def test_a_field_for_items_that_come_before_anybody_knows_their_record_is_refused(
    web: WebServer, settings: dict[str, Any]
) -> None:
    settings |= {"DEDUPE_WARC_ITEM_FIELD": "record", "DEDUPE_WARC_SCOPE": "items"}
    with pytest.raises(Exception, match='needs DEDUPE_WARC_SCOPE = "responses"'):
        await crawl(LinkSpider, settings, urls=web.url("/a"))

"""What the crawl index makes of digests, dates, URLs and ids, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.crawls import CrawlIndex, new_crawl_id, open_index
from scrapy_dedupe.errors import SettingError, StoreUnavailable
from scrapy_dedupe.stores.base import Counts, Need, Original, Source
from scrapy_dedupe.stores.crawl_index import checked_crawl_id
from scrapy_dedupe.stores.normal_forms import date_digits, plain_digest, plain_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEX = "ab" * 32
SHA1 = "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[CrawlIndex]:
    with open_index(f"sqlite:///{tmp_path / 'dedupe.sqlite'}") as index:
        yield index


def record(digest: str = HEX) -> Original:
    return Original(digest, "", "2026-08-01T12:00:00.123Z", "https://example.com/a b", 1234)


def test_a_record_is_found_under_any_form_of_its_digest(index: CrawlIndex) -> None:
    index.start("a")
    index.add("a", [record(f"sha256:{HEX.upper()}")], Counts(1))
    expected = Original(HEX, "a", "20260801120000123", "https://example.com/a%20b", 1234)
    assert index.find("a", [HEX, f"sha256:{HEX}", f"sha-256:{HEX.upper()}"]) == [expected] * 3


def test_a_commit_shows_the_records_to_others_and_sums_the_counts(index: CrawlIndex) -> None:
    index.start("a")
    index.add("a", [record()], Counts(1, 0, 0, 1234))
    index.commit("a", {"started": datetime(2026, 8, 1, tzinfo=UTC), "kinds": {"b", "a"}})
    assert index.find("b", [HEX])[0] is not None
    assert index.counts == Counts(1, 0, 0, 1234)
    (info,) = index.crawls()
    assert info.stats == {"started": "2026-08-01T00:00:00+00:00", "kinds": ["a", "b"]}


@pytest.mark.parametrize(
    ("digest", "plain"),
    [
        (f"sha256:{HEX.upper()}", HEX),
        (f"sha1:{SHA1.lower()}", SHA1),
        (SHA1, SHA1),
        ("sha1:DA39A3EE5E6B4B0D3255BFEF95601890AFD80709", "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"),
        ("md5:D41D8CD98F00B204E9800998ECF8427E", "d41d8cd98f00b204e9800998ecf8427e"),
        ("sha1:ABCDEFABCDEFABCDEFABCDEFABCDEF23", "ABCDEFABCDEFABCDEFABCDEFABCDEF23"),
        ("sha256:" + "A" * 52 + "====", "0" * 64),
    ],
)
def test_digests_get_one_form(digest: str, plain: str) -> None:
    assert plain_digest(digest) == plain


@pytest.mark.parametrize(
    "digest", ["", "sha256:", "sha256:xyz", "ab" * 31, "sha256:" + "g" * 64, "1" * 32 + " "]
)
def test_a_digest_of_unknown_form_is_refused(index: CrawlIndex, digest: str) -> None:
    index.start("a")
    with pytest.raises(SettingError, match=r"The digest is .* Allowed"):
        index.find("a", [digest])
    with pytest.raises(SettingError):
        index.add("a", [record(digest)])


@given(st.text(min_size=1))
def test_a_url_never_breaks_an_entry(url: str) -> None:
    plain = plain_url(url)
    assert len(plain.split()) == 1
    assert plain.encode()
    assert plain_url(plain) == plain


def test_usual_urls_stay_as_they_are() -> None:
    for url in ("https://example.com/%20?q=a+b#c", "https://example.com/ü", "ftp://[::1]/%zz"):
        assert plain_url(url) == url
    with pytest.raises(SettingError):
        plain_url("")


@pytest.mark.parametrize(
    "date", ["", "2026", "2026-13-01T00:00:00Z", "2026-08-01T12:00:00.1Z", "20260801120000" + "x"]
)
def test_a_date_of_unknown_form_is_refused(index: CrawlIndex, date: str) -> None:
    index.start("a")
    with pytest.raises(SettingError, match=r"The date is .* Allowed"):
        index.add("a", [replace(record(), date=date)])
    assert index.find("a", [HEX]) == [None]


@pytest.mark.parametrize("date", ["0001-01-01T00:00:00Z", "0999-12-31T23:59:59.999Z", "09991231235959"])
def test_a_date_before_the_year_1000_is_refused(index: CrawlIndex, date: str) -> None:
    index.start("a")
    with pytest.raises(SettingError, match=f"The date is '{date}'.* of the year 1000 or later"):
        index.add("a", [replace(record(), date=date)])
    assert index.find("a", [HEX]) == [None]
    assert date_digits("1000-01-01T00:00:00Z") == "10000101000000"


@given(st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2999, 1, 1)))
def test_dates_keep_their_milliseconds(time: datetime) -> None:
    text = time.isoformat(timespec="milliseconds") + "Z"
    assert date_digits(text) == re.sub(r"\D", "", text)
    assert date_digits(date_digits(text)) == date_digits(text)


@pytest.mark.parametrize("crawl", ["", "a b", "a:counts", "a/b", "ä", "a" * 129, "a\n"])
def test_a_crawl_id_that_is_not_allowed_is_refused(index: CrawlIndex, crawl: str) -> None:
    for use in (index.start, index.commit, index.cancel):
        with pytest.raises(SettingError, match=r"The crawl id is .* Allowed: 1 to 128 letters"):
            use(crawl)
    assert index.crawls() == []


def test_an_unknown_payload_mode_is_refused(index: CrawlIndex) -> None:
    with pytest.raises(SettingError, match="stored or decoded"):
        index.start("a", "encoded")


@given(st.text(max_size=300))
def test_every_spider_name_gives_an_allowed_id(name: str) -> None:
    assert checked_crawl_id(new_crawl_id(name))


def test_new_ids_differ_and_name_the_spider() -> None:
    assert re.fullmatch(r"my-spider-\d{14}-[0-9a-f]{8}", new_crawl_id("my spider"))
    assert new_crawl_id("a") != new_crawl_id("a")
    assert new_crawl_id("日本").startswith("crawl-")


def test_looking_does_not_make_a_store(tmp_path: Path) -> None:
    path = tmp_path / "none.sqlite"
    with pytest.raises(StoreUnavailable, match="does not exist"):
        open_index(f"sqlite:///{path}", create=False)
    assert not path.exists()


def test_an_index_can_be_closed_twice(tmp_path: Path) -> None:
    index = open_index(f"sqlite:///{tmp_path / 'dedupe.sqlite'}")
    index.close()
    index.close()
    with pytest.raises(StoreUnavailable):
        index.crawls()


def test_a_need_that_names_no_container_is_refused(index: CrawlIndex) -> None:
    wrong = [Need("", 0, "a.wacz"), Need("other", -1, "a.wacz")]
    source = Source("old", "old", "/archive/old.wacz", True, HEX, 5)
    index.queue_sources([source])
    claimed = index.claim_source()
    assert claimed is not None
    index.begin_source(claimed, "stored")
    index.start("new")
    for need in wrong:
        with pytest.raises(SettingError, match="names no container of a crawl"):
            index.end_source(claimed, Counts(), [need])
        with pytest.raises(SettingError, match="names no container of a crawl"):
            index.add("new", [], needs=[need])

"""An index as Browsertrix 1.14 writes it: read, crawled against, extended, purged, checked, and readable for it after.

The keys and values are written here by hand, and read back as that program reads them: two HGETs for a payload, a split
at each space, digits and digests as they are.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis
from import_files import WARC_NAME, Quiet, line, revisit, write_wacz
from recorded_crawls import OpenGuard

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.checking import Checker
from scrapy_dedupe.crawls.comparison import Thoroughness
from scrapy_dedupe.crawls.entries import RevisitRules
from scrapy_dedupe.crawls.importing import ImportOptions, ImportResult, import_sources
from scrapy_dedupe.crawls.packing import requirements
from scrapy_dedupe.crawls.purging import purge_crawls
from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.errors import CrawlStateError, StoreRefused
from scrapy_dedupe.stores.base import Counts, ImportNotes, Need, Original
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.crawls import CrawlIndex

DATE = datetime(2026, 8, 1, 12, tzinfo=UTC)


def page(number: int) -> Capture:
    return Capture(
        url=f"https://example.org/{number}",
        method="GET",
        status=200,
        date=DATE,
        request_headers=(),
        request_body=b"",
        response_headers=((b"Content-Type", b"text/html"),),
        body=Random(number).randbytes(5_000),
    )


def digest_of(number: int) -> str:
    return page(number).payload_digest()


PACKED = "ab" * 32
SHA1_HEX = "da39a3ee5e6b4b0d3255bfef95601890afd80701"
SHA1_BASE32 = base64.b32encode(bytes.fromhex(SHA1_HEX)).decode()
SPACED, GONE, WAITING = digest_of(90), digest_of(91), digest_of(92)
# 1 is in both committed crawls; 2 in the second container of the first, of which nothing else is known.
ENTRIES = {
    "bx-1": {
        digest_of(1): "0 20260701000000123 https://example.org/1 5600",
        digest_of(2): "1 20260701000001 https://example.org/2 5700",
        SHA1_HEX: "0 20260701000002001 https://example.org/sha1 4800",
        SPACED: "0 20260701000003000 https://example.org/has space 99",
    },
    "bx-2": {
        digest_of(1): "0 20260702000000123 https://example.org/1?again 5600",
        digest_of(3): "0 20260702000001456 https://example.org/3 5800",
    },
    "bx-3": {digest_of(4): "0 20260703000000001 https://example.org/4 5900"},
}
CONTAINERS: dict[str, list[dict[str, object]]] = {
    "bx-1": [{"filename": "bx-1-0.wacz", "hash": PACKED, "size": 90_000}, {"filename": "bx-1-1.wacz"}],
    "bx-2": [{"filename": "bx-2.wacz", "hash": "cd" * 32, "size": 70_000}],
    "bx-3": [{"filename": "bx-3.wacz"}],
}
COUNTS = {
    "bx-1": Counts(40, 4, 12_000, 90_000),
    "bx-2": Counts(30, 3, 9_000, 70_000),
    "bx-3": Counts(5, 0, 0, 0),
}
NAMES = ("totalUrls", "dupeUrls", "conservedSize", "totalCrawlSize")


def fields(counts: Counts) -> dict[str, int]:
    values = (counts.total_urls, counts.dupe_urls, counts.conserved_size, counts.total_crawl_size)
    return dict(zip(NAMES, values, strict=True))


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """The server, with two committed crawls, one that is not, and what is left of one that is gone."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        client.sadd("allcrawls", "bx-1", "bx-2")
        client.sadd("uncommittedcrawls", "bx-3")
        for crawl, entries in ENTRIES.items():
            client.hset(f"h:{crawl}", mapping=entries)
            client.hset(f"h:{crawl}:counts", mapping=fields(COUNTS[crawl]))
            for container in CONTAINERS[crawl]:
                client.rpush(f"c:{crawl}:wacz", json.dumps(container, separators=(",", ":")))
        for crawl in ("bx-2", "bx-1"):
            client.hset("alldupes", mapping=dict.fromkeys(ENTRIES[crawl], crawl))
        client.hset("alldupes", GONE, "bx-0")
        client.hset(
            "allcounts",
            mapping={
                **fields(COUNTS["bx-1"] + COUNTS["bx-2"]),
                "estimatedRedundantSize": 777,
                "redundantUrls": 2,
                "removedCrawls": 1,
                "removedCrawlSize": 5_000,
                "updateProgress": "0.5",
            },
        )
        client.sadd("src:d", "bx-1-0.wacz", "bx-1-1.wacz", "bx-2.wacz")
        client.hset(f"rev:sha256:{WAITING}:s", mapping={"bx-2": 1_400})
        client.hset(f"rev:sha256:{WAITING}:c", mapping={"bx-2": 2})
        client.set("last_update_ts", "2026-07-03T00:00:00.000Z")
        yield client


@pytest.fixture
def index(client: redis.Redis, redis_url: str) -> Iterator[CrawlIndex]:
    with open_index(redis_url) as index:
        yield index


def run_import(index: CrawlIndex, *words: object, **options: Any) -> ImportResult:
    return import_sources(index, [str(word) for word in words], ImportOptions(**options), Quiet())


def counts_of(index: CrawlIndex, crawl: str) -> Counts:
    return next(info.counts for info in index.crawls() if info.id == crawl)


# As Browsertrix reads


def looked_up(client: redis.Redis, own: str, digest: str) -> tuple[str, int, str, str, int] | None:
    """Its lookup: crawl, container, date, URL and size."""
    crawl = cast("str | None", client.hget("alldupes", digest)) or own
    value = cast("str | None", client.hget(f"h:{crawl}", digest))
    if value is None:
        return None
    place, date, url, size = value.split(" ")
    return crawl, int(place), date, url, int(size)


def assert_readable(client: redis.Redis, *, unreadable: frozenset[str] = frozenset()) -> None:
    """That all there is has the form that it expects, and that the totals are the sums."""
    committed = cast("set[str]", client.smembers("allcrawls"))
    sums = dict.fromkeys(NAMES, 0)
    for crawl in committed | cast("set[str]", client.smembers("uncommittedcrawls")):
        for digest, value in cast("dict[str, str]", client.hgetall(f"h:{crawl}")).items():
            assert ":" not in digest
            if digest not in unreadable:
                place, date, url, size = value.split(" ")
                assert place.isdigit()
                assert date.isdigit()
                assert len(date) in (14, 17)
                assert url
                assert size.isdigit()
        counts = cast("dict[str, str]", client.hgetall(f"h:{crawl}:counts"))
        assert set(counts) <= set(NAMES)
        assert all(number.isdigit() for number in counts.values())
        for container in cast("list[str]", client.lrange(f"c:{crawl}:wacz", 0, -1)):
            known = json.loads(container)
            assert set(known) in ({"filename"}, {"filename", "hash", "size"})
            assert ":" not in known.get("hash", "")
        if crawl in committed:
            sums = {name: sums[name] + int(counts.get(name, 0)) for name in NAMES}
    totals = cast("dict[str, str]", client.hgetall("allcounts"))
    assert {name: int(totals[name]) for name in NAMES} == sums
    assert "" not in totals.values()
    for digest, crawl in cast("dict[str, str]", client.hgetall("alldupes")).items():
        assert crawl in committed | {"bx-0"}
        assert crawl == "bx-0" or client.hexists(f"h:{crawl}", digest)


def everything(client: redis.Redis) -> dict[str, Any]:
    read: dict[str, Any] = {
        "hash": client.hgetall,
        "set": client.smembers,
        "list": lambda key: client.lrange(key, 0, -1),
        "string": client.get,
    }
    keys = cast("list[str]", client.keys())
    return {key: read[cast("str", client.type(key))](key) for key in keys if not key.startswith("dedupe:")}


# What is done with it


def test_it_is_refused_under_the_default_untouched(
    tmp_path: Path, index: CrawlIndex, client: redis.Redis
) -> None:
    before = everything(client)
    with pytest.raises(StoreRefused, match='DEDUPE_PAYLOAD = "decoded"'):
        index.start("ours", "stored")
    stored = write_wacz(tmp_path / "stored.wacz", [line(1)], crawl="theirs", software="scrapy-dedupe 1.0")
    with pytest.raises(StoreRefused, match="use --payload decoded"):
        run_import(index, stored)
    assert everything(client) == {
        **before,
        "last_update_ts": client.get("last_update_ts"),
        "allcounts": client.hgetall("allcounts"),
    }
    assert_readable(client, unreadable=frozenset({SPACED}))
    assert [info.id for info in index.crawls()] == ["bx-1", "bx-2", "bx-3"]


def test_it_is_read(index: CrawlIndex, client: redis.Redis) -> None:
    before = everything(client)
    crawls = {info.id: info for info in index.crawls()}
    assert {crawl: info.state for crawl, info in crawls.items()} == {
        "bx-1": "committed",
        "bx-2": "committed",
        "bx-3": "uncommitted",
    }
    for crawl, info in crawls.items():
        assert (info.payload, info.counts, info.software) == ("decoded", COUNTS[crawl], None)
        assert index.containers(crawl) == CONTAINERS[crawl]
    assert index.counts == COUNTS["bx-1"] + COUNTS["bx-2"]
    assert index.import_notes == ImportNotes(0.5, "2026-07-03T00:00:00.000Z", 1, 5_000)
    asked = [digest_of(number) for number in (1, 2, 3, 4)]
    first, second, third, hidden = index.find("new", [f"sha256:{digest}" for digest in asked])
    assert first == Original(asked[0], "bx-1", "20260701000000123", "https://example.org/1", 5_600)
    assert second == Original(asked[1], "bx-1", "20260701000001", "https://example.org/2", 5_700, 1)
    assert third == Original(asked[2], "bx-2", "20260702000001456", "https://example.org/3", 5_800)
    assert hidden is None
    assert index.find("bx-3", asked[3:]) == [
        Original(asked[3], "bx-3", "20260703000000001", "https://example.org/4", 5_900)
    ]
    assert index.find("new", [SPACED, GONE]) == [None, None]
    assert everything(client) == before


@pytest.mark.parametrize("asked", [f"sha1:{SHA1_BASE32}", f"sha-1:{SHA1_HEX}", SHA1_HEX.upper()])
def test_a_sha1_that_it_has_in_hex_is_found_in_whatever_form_it_is_asked_for(
    index: CrawlIndex, asked: str
) -> None:
    (found,) = index.find("new", [asked])
    assert found is not None
    assert (found.crawl, found.digest, found.size) == ("bx-1", SHA1_BASE32, 4_800)


def crawl_against(
    index: CrawlIndex, folder: Path, numbers: list[int], *, containers_only: bool = False
) -> list[tuple[str, str | None]]:
    """Record a crawl ``ours`` of pages; the kind of each, and the container that it names."""
    index.start("ours", "decoded")
    index.mark_incomplete("ours", True)
    index.add_container("ours", "ours.wacz")
    writer = WarcWriter(
        folder,
        "ours",
        info={"isPartOf": "ours"},
        on_new_file=lambda name: index.add_file("ours", str(folder / name)),
    )
    recorder = Recorder(writer, index, "ours", OpenGuard(), containers_only=containers_only)
    for number in numbers:
        recorder.record(replace(page(number), url=f"https://example.net/{number}"))
    (file,) = recorder.finish()
    return [
        (record.type, record.get("WARC-Refers-To-Container"))
        for record in read_records(file)
        if record.type in ("response", "revisit")
    ]


def test_a_crawl_refers_to_its_records_and_is_found_by_it(
    tmp_path: Path, index: CrawlIndex, client: redis.Redis
) -> None:
    found = crawl_against(index, tmp_path, [1, 2, 3, 4, 5, 90, 91])
    assert found == [
        ("revisit", "file://bx-1-0.wacz"),
        ("revisit", None),  # that container has no hash: it is not packed yet
        ("revisit", "file://bx-2.wacz"),
        ("response", None),
        ("response", None),
        ("response", None),  # the URL of its entry has a space
        ("response", None),  # its crawl is gone
    ]
    assert index.needs("ours") == [Need("bx-1", 0), Need("bx-1", 1), Need("bx-2", 0)]
    assert [(needed.filename, needed.hash, needed.size) for needed in requirements(index, "ours")] == [
        ("bx-1-0.wacz", PACKED, 90_000),
        ("bx-1-1.wacz", None, None),
        ("bx-2.wacz", "cd" * 32, 70_000),
    ]
    index.set_container("ours", "ours.wacz", "ef" * 32, 1_234)
    index.commit("ours")
    crawl, place, date, url, size = looked_up(client, "next", digest_of(5)) or ("", 0, "", "", 0)
    assert (crawl, place, date, url) == ("ours", 0, "20260801120000000", "https://example.net/5")
    assert size > 5_000
    assert looked_up(client, "next", digest_of(1)) == (
        "bx-1",
        0,
        "20260701000000123",
        "https://example.org/1",
        5_600,
    )
    assert client.lrange("c:ours:wacz", 0, -1) == [
        f'{{"filename":"ours.wacz","hash":"{"ef" * 32}","size":1234}}'
    ]
    assert client.sismember("src:d", "ours.wacz")
    ours = counts_of(index, "ours")
    assert (ours.total_urls, ours.dupe_urls) == (7, 3)
    assert index.counts == COUNTS["bx-1"] + COUNTS["bx-2"] + ours
    assert_readable(client, unreadable=frozenset({SPACED}))
    assert client.hget("allcounts", "redundantUrls") == "2"


def test_a_crawl_in_wacz_refers_to_a_wacz_that_its_importer_entered_without_size_and_hash(
    tmp_path: Path, index: CrawlIndex, client: redis.Redis
) -> None:
    client.sadd("allcrawls", "bx-5", "bx-6")
    client.hset("h:bx-5", digest_of(5), "0 20260703000000001 https://example.org/5 5900")
    client.hset("h:bx-6", digest_of(6), "0 20260703000000001 https://example.org/6 5900")
    client.hset("alldupes", mapping={digest_of(5): "bx-5", digest_of(6): "bx-6"})
    client.rpush("c:bx-5:wacz", '{"filename":"bx-5.wacz"}')
    # All records have the first place, whichever container they are in.
    client.rpush("c:bx-6:wacz", '{"filename":"bx-6-0.wacz"}', '{"filename":"bx-6-1.wacz"}')
    found = crawl_against(index, tmp_path, [5, 6], containers_only=True)
    assert found == [("revisit", "file://bx-5.wacz"), ("response", None)]
    assert [needed.filename for needed in requirements(index, "ours")] == ["bx-5.wacz"]


def test_its_crawl_is_committed_and_canceled(index: CrawlIndex, client: redis.Redis) -> None:
    index.commit("bx-3")
    assert looked_up(client, "next", digest_of(4)) == (
        "bx-3",
        0,
        "20260703000000001",
        "https://example.org/4",
        5_900,
    )
    assert client.sismember("src:d", "bx-3.wacz")
    assert_readable(client, unreadable=frozenset({SPACED}))
    client.sadd("uncommittedcrawls", "bx-4")
    client.hset("h:bx-4", digest_of(5), "0 20260703000000001 https://example.org/5 5900")
    index.cancel("bx-4")
    assert not client.exists("canceledcrawls")
    assert client.keys("*bx-4*") == []
    assert {info.id: info.state for info in index.crawls()}["bx-4"] == "canceled"


def purge_as_browsertrix(client: redis.Redis, manifest: set[str]) -> None:
    """Its ``--removing``: of the crawls that the manifest names all but the canceled ones stay."""
    kept = manifest - cast("set[str]", client.smembers("canceledcrawls"))
    client.delete("alldupes", "allcounts", "canceledcrawls")
    for crawl in sorted(cast("set[str]", client.smembers("allcrawls"))):
        if crawl not in kept:
            client.srem("allcrawls", crawl)
            client.delete(f"h:{crawl}", f"h:{crawl}:counts", f"c:{crawl}:wacz")
            continue
        for digest in cast("list[str]", client.hkeys(f"h:{crawl}")):
            client.hsetnx("alldupes", digest, crawl)
        for name, count in cast("dict[str, str]", client.hgetall(f"h:{crawl}:counts")).items():
            client.hincrby("allcounts", name, int(count))


def test_a_crawl_of_it_under_an_id_that_was_canceled_here_outlives_its_next_purge(
    index: CrawlIndex, client: redis.Redis
) -> None:
    index.start("again", "decoded")
    index.cancel("again")
    client.sadd("allcrawls", "again")
    client.hset("h:again", digest_of(7), "0 20260703000000001 https://example.org/7 5900")
    client.hset("alldupes", digest_of(7), "again")
    (info,) = [info for info in index.crawls() if info.id == "again"]
    assert (info.state, info.software, info.marked) == ("committed", None, False)
    purge_as_browsertrix(client, {"bx-1", "bx-2", "again"})
    assert looked_up(client, "next", digest_of(7)) is not None
    assert index.find("next", [digest_of(7)]) != [None]


def test_a_committed_crawl_that_it_marks_for_removal_stays_committed(
    tmp_path: Path, index: CrawlIndex, client: redis.Redis
) -> None:
    crawl_against(index, tmp_path, [1, 3, 5])
    index.set_container("ours", "ours.wacz", "ef" * 32, 1_234)
    index.commit("ours")
    before = Checker(index, RevisitRules(), [tmp_path], None, Thoroughness()).check()
    client.sadd("canceledcrawls", "bx-1", "ours")
    states = {info.id: (info.state, info.marked) for info in index.crawls()}
    assert states == {
        "bx-1": ("committed", True),
        "bx-2": ("committed", False),
        "bx-3": ("uncommitted", False),
        "ours": ("committed", True),
    }
    after = Checker(index, RevisitRules(), [tmp_path], None, Thoroughness()).check()
    assert (after.findings, after.notes) == (before.findings, before.notes)
    with pytest.raises(CrawlStateError, match="ours needs bx-1"):
        purge_crawls(index, ["bx-1"])
    with pytest.raises(CrawlStateError, match="is committed"):
        index.cancel("ours")
    with pytest.raises(CrawlStateError, match="is committed"):
        index.start("ours", "decoded")
    assert states == {info.id: (info.state, info.marked) for info in index.crawls()}
    # What refers to it already still finds it.
    assert index.find("bx-3", [digest_of(2)]) != [None]
    purge_crawls(index, ["bx-1", "ours"], force=True)
    assert not client.exists("canceledcrawls")


def test_no_new_crawl_refers_to_what_it_will_remove_and_later_ones_refer_to_the_new_crawl(
    tmp_path: Path, index: CrawlIndex, client: redis.Redis
) -> None:
    client.sadd("canceledcrawls", "bx-1")
    assert crawl_against(index, tmp_path, [1, 1, 3]) == [
        ("response", None),
        ("revisit", None),
        ("revisit", "file://bx-2.wacz"),
    ]
    assert index.needs("ours") == [Need("bx-2", 0)]
    index.commit("ours")
    for crawl in ("next", "another"):
        (found,) = index.find(crawl, [digest_of(1)], lasting=True)
        assert found is not None
        assert found.crawl == "ours"
    index.rebuild_merged()
    # Of the crawls that stay the first one that was committed is the original, as ever.
    (found,) = index.find("next", [digest_of(1)], lasting=True)
    assert found is not None
    assert found.crawl != "bx-1"
    assert index.find("next", [digest_of(2)], lasting=True) == [None]
    assert_readable(client, unreadable=frozenset({SPACED}))
    purge_as_browsertrix(client, {"bx-1", "bx-2", "ours"})
    assert looked_up(client, "next", digest_of(1)) is not None
    assert index.find("next", [digest_of(1)], lasting=True) != [None]


def test_it_is_extended_by_an_import(tmp_path: Path, index: CrawlIndex, client: redis.Redis) -> None:
    wacz = write_wacz(
        tmp_path / "bx-1-2.wacz",
        [
            line(5, digest=f"sha256:{digest_of(5)}", url="https://example.org/five six"),
            line(6, digest=f"sha256:{digest_of(1)}"),
            revisit(7, 0, digest=f"sha256:{digest_of(3)}"),
        ],
        crawl="bx-1",
        software="Browsertrix-Crawler 1.14.1",
    )
    result = run_import(index, wacz)
    assert (result.imported, result.failed) == (["bx-1-2.wacz"], [])
    added = Counts(3, 1, 5_800 - 600, wacz.stat().st_size)
    assert counts_of(index, "bx-1") == COUNTS["bx-1"] + added
    assert index.counts == COUNTS["bx-1"] + COUNTS["bx-2"] + added
    # Its own importer gives every record the container 0.
    assert looked_up(client, "next", digest_of(5)) == (
        "bx-1",
        2,
        "20260801120000123",
        "https://example.org/five%20six",
        5_000,
    )
    assert cast("str", client.hget("h:bx-1", digest_of(1))) == ENTRIES["bx-1"][digest_of(1)]
    third = json.loads(cast("list[str]", client.lrange("c:bx-1:wacz", 0, -1))[2])
    assert (third["filename"], third["size"], len(third["hash"])) == (
        "bx-1-2.wacz",
        wacz.stat().st_size,
        64,
    )
    assert index.needs("bx-1") == [Need("bx-2", 0)]
    (found,) = index.find("new", [digest_of(5)])
    assert found is not None
    assert (found.file, found.offset) == (f"{wacz}/archive/{WARC_NAME}", 25_000)
    assert client.hget("allcounts", "updateProgress") == "1"
    assert_readable(client, unreadable=frozenset({SPACED}))


def test_what_it_has_finished_is_not_imported_again(
    tmp_path: Path, index: CrawlIndex, client: redis.Redis
) -> None:
    known = write_wacz(
        tmp_path / "bx-1-1.wacz", [line(5)], crawl="bx-1", software="Browsertrix-Crawler 1.14.1"
    )
    before = everything(client)
    result = run_import(index, known)
    assert (result.imported, result.known) == ([], ["bx-1-1.wacz"])
    after = everything(client)
    for key in ("h:bx-1", "h:bx-1:counts", "c:bx-1:wacz", "alldupes", "src:d", "allcrawls"):
        assert after[key] == before[key]


def test_revisits_that_it_left_waiting_are_credited_as_it_would(
    tmp_path: Path, index: CrawlIndex, client: redis.Redis
) -> None:
    wacz = write_wacz(
        tmp_path / "late.wacz",
        [line(1, digest=f"sha256:{WAITING}")],
        crawl="late",
        software="Browsertrix-Crawler 1.14.1",
    )
    assert run_import(index, wacz).failed == []
    assert counts_of(index, "bx-2") == COUNTS["bx-2"] + Counts(conserved_size=2 * 5_000 - 1_400)
    assert client.keys("rev:*") == []
    assert_readable(client, unreadable=frozenset({SPACED}))


def test_a_crawl_of_it_is_purged_by_force_alone(index: CrawlIndex, client: redis.Redis) -> None:
    with pytest.raises(CrawlStateError, match="bx-2"):
        # What crawls of another program need nobody has noted.
        purge_crawls(index, ["bx-1"])
    assert_readable(client, unreadable=frozenset({SPACED}))
    assert purge_crawls(index, ["bx-1"], force=True) == ["bx-1"]
    assert looked_up(client, "next", digest_of(1)) == (
        "bx-2",
        0,
        "20260702000000123",
        "https://example.org/1?again",
        5_600,
    )
    assert client.hgetall("alldupes") == dict.fromkeys(ENTRIES["bx-2"], "bx-2")
    assert client.keys("*bx-1*") == []
    assert client.smembers("src:d") == {"bx-2.wacz"}
    assert index.counts == COUNTS["bx-2"]
    assert looked_up(client, "bx-3", digest_of(4)) is not None
    assert_readable(client)


def test_a_check_of_it_names_what_is_wrong_and_changes_nothing(
    index: CrawlIndex, client: redis.Redis, tmp_path: Path
) -> None:
    before = everything(client)
    checker = Checker(index, RevisitRules(), [tmp_path], None, Thoroughness())
    check = checker.check()
    assert "merged" in {finding.kind for finding in check.findings}
    assert everything(client) == before
    index.rebuild_merged()
    assert "merged" not in {finding.kind for finding in checker.check().findings}
    assert not client.hexists("alldupes", GONE)
    assert looked_up(client, "next", digest_of(3)) is not None
    assert_readable(client, unreadable=frozenset({SPACED}))

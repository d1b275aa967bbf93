"""What was recorded elsewhere gets into the index whole, once, and as the crawler itself would have counted it."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_files import (
    DATE,
    WARC_NAME,
    id_of,
    line,
    record,
    request_record,
    response_record,
    revisit,
    sha1_base32,
    sha256,
    warcinfo,
    write_manifest,
    write_wacz,
)
from recorded_crawls import record_crawl
from sampling import sampled

from scrapy_dedupe.crawls import entry_writer, open_index, source_entry
from scrapy_dedupe.crawls.importing import ImportOptions, ImportResult, ImportStopped, import_sources
from scrapy_dedupe.crawls.sources import crawl_id_of_name, files_beside, find_sources
from scrapy_dedupe.errors import SettingError, StoreRefused, StoreUnavailable, TakenOver, UsageError
from scrapy_dedupe.stores.base import Counts, Need, Waiting
from scrapy_dedupe.stores.crawl_index import checked_crawl_id
from scrapy_dedupe.stores.normal_forms import EMPTY_PAYLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.stores.base import CrawlInfo, Source


class Watcher:
    """Looks on, and ends the import after so many checks."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.checks = 0
        self.shown: list[tuple[float, int]] = []
        self.told: list[str] = []
        self._stop_after = stop_after

    def check(self) -> None:
        self.checks += 1
        if self._stop_after is not None and self.checks > self._stop_after:
            raise ImportStopped("stopped.")

    def show(self, done: float, total: int) -> None:
        self.shown.append((done, total))

    def tell(self, sentence: str) -> None:
        self.told.append(sentence)


@pytest.fixture
def index_url(each_store_url: str) -> str:
    return each_store_url


@pytest.fixture
def index(index_url: str) -> Iterator[CrawlIndex]:
    with open_index(index_url) as index:
        yield index


@pytest.fixture
def small_batches(index: CrawlIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sources are entered in many steps, as large ones are."""
    for module in (source_entry, entry_writer):
        monkeypatch.setattr(module, "_BATCH", 100)
    monkeypatch.setattr(type(index), "added_at_once", 100)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[CrawlIndex]:
    """An index that knows crawls because they were crawled."""
    with open_index(f"sqlite:///{tmp_path / 'own.sqlite'}") as own:
        yield own


def run(index: CrawlIndex, *words: object, watch: Watcher | None = None, **options: Any) -> ImportResult:
    return import_sources(index, [str(word) for word in words], ImportOptions(**options), watch or Watcher())


def info_of(index: CrawlIndex, crawl: str) -> CrawlInfo:
    return next(info for info in index.crawls() if info.id == crawl)


def reason(result: ImportResult) -> str:
    (failed,) = result.failed
    return failed.reason


# As the crawler counts


@pytest.mark.parametrize("order", list(itertools.permutations(("o0", "o1", "o1b"))))
def test_the_order_of_the_sources_makes_no_difference_to_what_a_crawl_needs(
    tmp_path: Path, index: CrawlIndex, order: tuple[str, ...]
) -> None:
    write_wacz(tmp_path / "o0.wacz", [line(1, length="9000"), line(2), line(3)], crawl="k0")
    write_wacz(tmp_path / "o1.wacz", [line(1), line(2)], crawl="k1")
    write_wacz(tmp_path / "o1b.wacz", [revisit(4, 1), revisit(5, 3), revisit(6, 3)], crawl="k1")
    result = run(index, *(tmp_path / f"{name}.wacz" for name in order))
    assert (result.failed, result.waiting) == ([], 0)
    assert info_of(index, "k1").counts.conserved_size == 3 * 4_400
    assert info_of(index, "k1").waiting == 0
    assert index.needs("k1") == [Need("k0", 0, next(index.records("k0")).file)]
    assert index.counts.conserved_size == 3 * 4_400


@pytest.mark.usefixtures("small_batches")
def test_revisits_of_other_crawls_that_wait_when_an_import_is_cut_off_count_once(
    tmp_path: Path, index: CrawlIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wacz(tmp_path / "a.wacz", [line(n) for n in range(250)])
    write_wacz(tmp_path / "b.wacz", [revisit(n, n % 250) for n in range(500)], crawl="b")
    write_wacz(tmp_path / "c.wacz", [line(9_000)], crawl="b")

    def away(*words: object) -> None:
        raise StoreUnavailable("The store is away.")

    with monkeypatch.context() as patch:
        patch.setattr(index, "resolve", away)
        with pytest.raises(StoreUnavailable):
            run(index, tmp_path)
    assert info_of(index, "b").waiting == 250
    for _ in range(2):
        assert run(index).waiting == 0
        assert info_of(index, "b").counts.conserved_size == 500 * 4_400


@pytest.mark.usefixtures("small_batches")
def test_revisits_that_wait_are_not_in_memory_at_once(
    tmp_path: Path, index: CrawlIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    end = index.end_source

    def watched(source: Source, counts: Counts, needs: Any, waiting: Any) -> None:
        assert not isinstance(waiting, (list, tuple))
        seen.extend((list(waiting), list(waiting)))
        end(source, counts, needs, waiting)

    monkeypatch.setattr(index, "end_source", watched)
    run(index, write_wacz(tmp_path / "b.wacz", [revisit(n, n) for n in range(250)]))
    assert seen == [[Waiting(sha256(n), 600) for n in range(250)]] * 2
    assert info_of(index, "b").waiting == 250


def test_a_wacz_without_an_index_is_entered_from_its_warc_files(
    tmp_path: Path, own: CrawlIndex, index: CrawlIndex
) -> None:
    (whole,) = record_crawl(own, tmp_path, "one", [1, 2, 1], in_wacz=True)
    bare = tmp_path / "bare" / "one.wacz"
    bare.parent.mkdir()
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(bare, "w") as target:
        for info in source.infolist():
            if not info.filename.startswith("indexes/"):
                target.writestr(info, source.read(info))
    assert run(index, bare).failed == []
    counts = info_of(own, "one").counts
    assert info_of(index, "one").counts == replace(counts, total_crawl_size=bare.stat().st_size)
    assert {entry.offset for entry in index.records("one")} == {entry.offset for entry in own.records("one")}
    assert all(entry.file.startswith(f"{bare}/archive/") for entry in index.records("one") if entry.file)


def test_a_revisit_by_the_server_conserves_nothing_and_is_a_need_in_either_order(
    tmp_path: Path, index_url: str
) -> None:
    first = write_wacz(tmp_path / "a.wacz", [line(1)])
    later = write_wacz(tmp_path / "b.wacz", [revisit(2, 1, status=None, length="10")])
    with open_index(index_url) as index:
        assert run(index, later).waiting == 1
        assert run(index, first).waiting == 0
        assert info_of(index, "b").counts == Counts(1, 1, 0, later.stat().st_size)
        assert [need.crawl for need in index.needs("b")] == ["a"]


@pytest.mark.parametrize("status", [None, "304"])
def test_a_revisit_by_the_server_conserves_nothing_whatever_its_line_says_of_it(
    tmp_path: Path, index: CrawlIndex, status: str | None
) -> None:
    run(index, write_wacz(tmp_path / "a.wacz", [line(1), revisit(2, 1, status=status), revisit(3, 1)]))
    assert info_of(index, "a").counts.conserved_size == 4_400


def test_a_revisit_of_status_304_conserves_nothing_whatever_its_profile(
    tmp_path: Path, index: CrawlIndex
) -> None:
    body = bytes(range(256)) * 8
    path = tmp_path / "a.warc.gz"
    path.write_bytes(
        response_record(1, body)
        + record(
            "revisit",
            2,
            b"HTTP/1.1 304 Not Modified\r\n\r\n",
            f"WARC-Payload-Digest: sha256:{hashlib.sha256(body).hexdigest()}",
            "Content-Type: application/http; msgtype=response",
            uri="http://example.org/2",
        )
    )
    run(index, path)
    assert info_of(index, "a").counts == Counts(2, 1, 0, path.stat().st_size)


def test_what_serves_as_original_is_a_whole_response_to_get_with_a_payload(
    tmp_path: Path, index: CrawlIndex
) -> None:
    empty = hashlib.sha256(b"").hexdigest()
    lines = [
        line(1),
        line(2, status="206"),
        line(3, status="304"),
        line(4, method="POST"),
        line(5, digest=f"sha256:{empty}"),
        line(6, digest=None),
        line(7, mime="warc/revisit", digest=f"sha256:{empty}", length="1"),
        line(8, status="404"),
        line(9, url="dns:example.com", mime="text/dns", status=None),
        line(10, url="urn:pageinfo:x", mime="application/json"),
    ]
    result = run(index, write_wacz(tmp_path / "a.wacz", lines))
    assert (result.captures, result.originals, result.revisits, result.skipped) == (8, 2, 1, 0)
    found = {entry.digest: entry.status for entry in index.records("a")}
    assert found == {sha256(1): None, sha256(8): 404}
    assert result.waiting == 0
    assert info_of(index, "a").counts.conserved_size == 0


def test_a_page_that_was_found_is_the_original_rather_than_an_error_page_with_its_payload(
    tmp_path: Path, index: CrawlIndex
) -> None:
    run(index, write_wacz(tmp_path / "a.wacz", [line(1, 7, status="404"), line(2, 7)]))
    (entry,) = index.records("a")
    assert (entry.url, entry.status) == ("https://example.com/2", None)


def test_a_digest_is_known_however_it_is_written_and_keeps_its_form(
    tmp_path: Path, index: CrawlIndex
) -> None:
    hex_sha1 = hashlib.sha1(b"2").hexdigest()
    lines = [line(1, digest=f"sha-256:{sha256(1)}"), line(2, digest=f"sha1:{hex_sha1}")]
    run(index, write_wacz(tmp_path / "a.wacz", lines))
    usual, base32 = index.find("new", [sha256(1), f"sha1:{sha1_base32(2)}"])
    assert usual is not None
    assert base32 is not None
    assert (usual.form, base32.form) == ("sha-256 hex", "sha1 hex")


def test_the_place_of_the_container_is_that_of_every_original(tmp_path: Path, index: CrawlIndex) -> None:
    for number, name in enumerate("abc"):
        write_wacz(tmp_path / f"{name}.wacz", [line(number)], crawl="one")
    run(index, tmp_path)
    assert {entry.digest: entry.wacz_index for entry in index.records("one")} == {
        sha256(0): 0,
        sha256(1): 1,
        sha256(2): 2,
    }
    assert [container["filename"] for container in index.containers("one")] == ["a.wacz", "b.wacz", "c.wacz"]
    sizes = sum((tmp_path / f"{name}.wacz").stat().st_size for name in "abc")
    assert info_of(index, "one").counts == Counts(3, 0, 0, sizes)


def test_what_a_wacz_requires_is_noted(tmp_path: Path, index: CrawlIndex) -> None:
    write_wacz(tmp_path / "a.wacz", [line(1)], crawl="one")
    write_wacz(tmp_path / "b.wacz", [line(2)], crawl="one")
    requires: list[dict[str, object]] = [
        {"filename": "b.wacz", "crawlId": "one"},
        {"filename": "x.wacz", "crawlId": "elsewhere"},
        {"filename": "c.wacz", "crawlId": "two"},
    ]
    write_wacz(tmp_path / "c.wacz", [line(3)], crawl="two", requires=requires)
    run(index, tmp_path)
    assert index.needs("two") == [Need("elsewhere", 0, "x.wacz"), Need("one", 1)]


@pytest.mark.parametrize("name", ["md5", "sha1", "sha256", "sha512"])
def test_the_digests_of_nothing_are_known(name: str) -> None:
    digest = hashlib.new(name).hexdigest()
    plain = sha1_base32_of_nothing() if name == "sha1" else digest
    assert plain in EMPTY_PAYLOADS


def sha1_base32_of_nothing() -> str:
    return "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"


# Files of other programs


def test_a_request_may_stand_before_its_response_and_what_was_posted_is_no_original(
    tmp_path: Path, index: CrawlIndex
) -> None:
    bodies = [b"%d" % number * 500 for number in range(4)]
    uris = [f"http://example.org/{number}" for number in range(4)]
    path = tmp_path / "wget.warc.gz"
    path.write_bytes(
        warcinfo(software="Wget/1.21.3")
        + request_record(100, "GET", uri=uris[0])
        + response_record(0, bodies[0], f"WARC-Concurrent-To: {id_of(100)}")
        + request_record(101, "POST", uri=uris[1])
        + response_record(1, bodies[1], f"WARC-Concurrent-To: {id_of(101)}")
        + response_record(2, bodies[2])
        + record("metadata", 300, b"x: y\r\n", uri=uris[2])
        + request_record(102, "POST", f"WARC-Concurrent-To: {id_of(2)}", uri=uris[2])
        + response_record(3, bodies[3])
        + record("response", 200, b"dns", "Content-Type: text/dns", uri="dns:example.org")
    )
    result = run(index, path)
    assert (result.captures, result.originals) == (4, 2)
    assert {entry.url for entry in index.records("wget")} == {uris[0], uris[3]}
    assert info_of(index, "wget").counts == Counts(4, 0, 0, path.stat().st_size)
    assert info_of(index, "wget").files == (str(path),)


def test_what_was_cut_while_it_was_fetched_is_no_original(tmp_path: Path, index: CrawlIndex) -> None:
    path = tmp_path / "cut.warc.gz"
    path.write_bytes(
        response_record(1, b"a" * 500, "WARC-Truncated: disconnect") + response_record(2, b"b" * 500)
    )
    assert run(index, path).originals == 1


def chunked_record(number: int, body: bytes) -> bytes:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"
        b'ETag: "%d"\r\n\r\n' % number
    )
    return record(
        "response",
        number,
        head + body,
        f"WARC-Payload-Digest: sha256:{sha256(number)}",
        "Content-Type: application/http; msgtype=response",
        uri=f"http://example.org/{number}",
    )


@pytest.mark.parametrize("is_long", [False, True])
def test_a_record_whose_chunks_were_cut_is_counted_and_is_no_original(
    tmp_path: Path, index: CrawlIndex, is_long: bool
) -> None:
    size = 3 << 20 if is_long else 500
    chunk = b"%x\r\n" % size + b"a" * size + b"\r\n"
    path = tmp_path / "cut.warc.gz"
    path.write_bytes(
        chunked_record(1, chunk)
        + chunked_record(2, chunk + chunk[: size // 2])
        + chunked_record(3, chunk + b"0\r\n\r\n")
        + chunked_record(4, b"never was in chunks")
    )
    result = run(index, path)
    assert (result.failed, result.captures, result.originals, result.skipped) == ([], 4, 2, 0)
    found = index.find("cut", [sha256(number) for number in range(1, 5)])
    assert [original is not None for original in found] == [False, False, True, True]


def test_records_without_a_digest_are_counted_and_are_no_originals(tmp_path: Path, index: CrawlIndex) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + b"x" * 900
    head = b"filedesc://x.arc 0.0.0.0 20260801120000 text/plain 12\n1 0 Internet\n\n"
    path = tmp_path / "old.arc"
    path.write_bytes(
        head + b"http://example.org/ 127.0.0.1 20260801120000 text/plain %d\n" % len(answer) + answer + b"\n"
    )
    result = run(index, path)
    assert (result.failed, result.captures, result.originals, result.skipped) == ([], 1, 0, 0)
    assert info_of(index, "old").counts == Counts(1, 0, 0, path.stat().st_size)


def test_a_damaged_warc_file_leaves_nothing_behind(tmp_path: Path, index: CrawlIndex) -> None:
    whole = warcinfo(isPartOf="one") + b"".join(response_record(n, b"%d" % n * 900) for n in range(1, 20))
    path = tmp_path / "one.warc.gz"
    path.write_bytes(whole[:-30])
    assert "ends" in reason(run(index, path))
    assert index.crawls() == []
    assert index.queue_length() == (0, 0)
    path.write_bytes(whole)
    assert run(index, path).originals == 19
    assert info_of(index, "one").state == "committed"


def test_records_that_share_a_gzip_member_are_named_and_passed_over(
    tmp_path: Path, index: CrawlIndex
) -> None:
    import gzip

    path = tmp_path / "shared.warc.gz"
    both = b"".join(gzip.decompress(response_record(n, b"%d" % n * 500)) for n in (1, 2))
    path.write_bytes(gzip.compress(both) + response_record(3, b"3" * 500))
    result = run(index, path)
    assert (result.captures, result.originals, result.skipped) == (1, 1, 2)
    assert all("shares a gzip member" in fault for fault in result.faults)


def test_a_bare_cdxj_names_warc_files_beside_it(tmp_path: Path, index: CrawlIndex) -> None:
    path = tmp_path / "all.cdxj"
    path.write_bytes(
        line(1) + line(2, filename="sub/x.warc.gz") + line(3, filename="../y.warc.gz") + revisit(4, 1)
    )
    result = run(index, path, crawl="one")
    assert {entry.file for entry in index.records("one")} == {
        f"{tmp_path}/{WARC_NAME}",
        f"{tmp_path}/sub/x.warc.gz",
    }
    assert (result.skipped, "'../y.warc.gz' is not below" in result.faults[0]) == (1, True)
    assert info_of(index, "one").counts == Counts(3, 1, 4_400, 15_600)
    assert index.containers("one") == []


@pytest.mark.parametrize(
    ("place", "file"),
    [
        ("https://host/folder/all.cdxj?sig=a/b", "https://host/folder/x.warc.gz"),
        ("https://host/folder/all.cdxj#a/b", "https://host/folder/x.warc.gz"),
        ("/folder/what?/all.cdxj", "/folder/what?/x.warc.gz"),
    ],
)
def test_files_beside_a_cdxj_are_in_its_folder(place: str, file: str) -> None:
    assert files_beside(place)("x.warc.gz") == file


@pytest.mark.usefixtures("small_batches")
def test_records_are_entered_in_bounded_batches_whatever_they_are(
    tmp_path: Path, index: CrawlIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    add_imported = index.add_imported

    def counted(source: Source, originals: Any, urls: Any = (), files: Any = ()) -> None:
        sizes.append(len(originals) + len(urls))
        add_imported(source, originals, urls, files)

    monkeypatch.setattr(index, "add_imported", counted)
    path = tmp_path / "revisits.warc.gz"
    path.write_bytes(
        b"".join(
            record(
                "revisit",
                number,
                b'HTTP/1.1 200 OK\r\nETag: "%d"\r\n\r\n' % number,
                f"WARC-Payload-Digest: sha256:{sha256(1)}",
                "Content-Type: application/http; msgtype=response",
                uri=f"http://example.org/{number}",
            )
            for number in range(250)
        )
    )
    assert run(index, path).revisits == 250
    assert max(sizes) <= 100
    assert sum(sizes) == 250


# Bad input


def test_a_wacz_whose_warc_file_is_shorter_than_its_index_says_is_refused(
    tmp_path: Path, index: CrawlIndex
) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1), line(2), revisit(3, 1)], short=1)
    (failed,) = run(index, path).failed
    assert f"{WARC_NAME} has 15599 bytes, but" in failed.reason
    assert "https://example.com/3 that ends at byte 15600. The file was cut" in failed.reason
    assert (index.crawls(), index.find("x", [sha256(1)])) == ([], [None])


def test_a_bad_line_is_named_and_passed_over_and_the_others_are_imported(
    tmp_path: Path, index: CrawlIndex
) -> None:
    lines = [
        line(1),
        line(2, url=None),
        b"com,example)/3 20260801120000 {not json\n",
        line(4, digest="sha256:xyz"),
        line(5, filename=None),
        line(6, filename="other.warc.gz"),
        line(7),
        line(8, url="https://example.com/a b"),
        line(9).replace(DATE.encode(), b"09991231235959"),
    ]
    result = run(index, write_wacz(tmp_path / "a.wacz", lines))
    assert (result.imported, result.skipped, result.captures) == (["a.wacz"], 6, 3)
    assert f"{tmp_path / 'a.wacz'}: line 2: has no URL" in result.faults
    for words in ("line 3", "sha256:xyz", "needs a filename", "no file 'other.warc.gz'", "the year 1000"):
        assert any(words in fault for fault in result.faults)
    assert {entry.url for entry in index.records("a")} == {
        "https://example.com/1",
        "https://example.com/7",
        "https://example.com/a%20b",
    }


def test_a_broken_source_is_named_and_leaves_the_index_as_it_was(tmp_path: Path, index: CrawlIndex) -> None:
    write_wacz(tmp_path / "a.wacz", [line(1)])
    write_wacz(tmp_path / "b.wacz", map(line, range(5_000)), gzipped=True, cut=40, crawl="broken")
    (tmp_path / "c.wacz").write_bytes(b"PK\x03\x04 and no more")
    write_wacz(tmp_path / "d.wacz", [line(2)])
    result = run(index, tmp_path)
    assert result.imported == ["a.wacz", "d.wacz"]
    assert {Path(failed.source).name for failed in result.failed} == {"b.wacz", "c.wacz"}
    assert all(failed.source in failed.reason for failed in result.failed)
    assert {info.id for info in index.crawls()} == {"a", "d"}
    assert index.find("new", [sha256(3)]) == [None]
    assert index.queue_length() == (0, 0)
    assert index.unfinished_sources() == []


def test_size_and_hash_are_those_that_the_manifest_says(tmp_path: Path, index: CrawlIndex) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    entry: dict[str, object] = {"path": "a.wacz", "size": path.stat().st_size}
    manifest = tmp_path / "all.json"
    write_manifest(manifest, entry | {"size": 17})
    assert "the manifest says 17: another or incomplete file. Copy the file again" in reason(
        run(index, manifest)
    )
    write_manifest(manifest, entry | {"hash": "sha256:" + "0" * 64})
    assert "it is another file, or damaged" in reason(run(index, manifest, verify=True))
    assert index.crawls() == []
    assert run(index, manifest).imported == ["a.wacz"]
    assert index.containers("a") == [{"filename": "a.wacz", "hash": "0" * 64, "size": entry["size"]}]


@pytest.mark.parametrize("word", ["none.wacz", "*.wacz", "empty"])
def test_a_word_without_a_file_is_wrong_use_and_nothing_is_done(
    tmp_path: Path, index: CrawlIndex, word: str
) -> None:
    (tmp_path / "empty").mkdir()
    path = write_wacz(tmp_path / "a.warc.wacz.keep", [line(1)])
    with pytest.raises(UsageError, match="Name a WACZ"):
        run(index, path, tmp_path / word)
    assert index.queue_length() == (0, 0)


def test_a_name_that_is_no_text_fails_that_source_alone(tmp_path: Path, index: CrawlIndex) -> None:
    write_wacz(tmp_path / "ok.wacz", [line(1)])
    for name in ("\udcff.wacz", "\udcff.warc.gz", "\udcff.json"):
        try:
            (tmp_path / name).write_bytes((tmp_path / "ok.wacz").read_bytes())
        except (OSError, UnicodeError):
            pytest.skip("This file system takes UTF-8 alone.")
    result = run(index, tmp_path, tmp_path / "\udcff.warc.gz", tmp_path / "\udcff.json")
    assert result.imported == ["ok.wacz"]
    assert [failed.source for failed in result.failed] == [
        f"{tmp_path}/\\udcff.{suffix}" for suffix in ("wacz", "warc.gz", "json")
    ]
    assert all("is not UTF-8" in failed.reason and failed.reason.isascii() for failed in result.failed)


def test_a_link_to_a_name_that_is_no_text_fails(tmp_path: Path, index: CrawlIndex) -> None:
    try:
        (tmp_path / "\udcff.warc.gz").write_bytes(response_record(1, b"x" * 500))
    except (OSError, UnicodeError):
        pytest.skip("This file system takes UTF-8 alone.")
    (tmp_path / "a.warc.gz").symlink_to("\udcff.warc.gz")
    assert "is not UTF-8" in reason(run(index, tmp_path / "a.warc.gz"))


def test_a_file_of_another_kind_is_refused(tmp_path: Path, index: CrawlIndex) -> None:
    (tmp_path / "notes.txt").write_text("no archive")
    assert "is not a WACZ, WARC, ARC or CDXJ file" in reason(run(index, tmp_path / "notes.txt"))


@pytest.mark.parametrize("target", ["pipe", "/dev/zero"])
@pytest.mark.parametrize("name", ["a.wacz", "a.warc.gz", "a.cdxj", "a.json"])
def test_a_source_that_never_ends_fails_before_it_is_read(
    tmp_path: Path, index: CrawlIndex, target: str, name: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / name).symlink_to(target)
    assert "is a pipe or a device, not a regular file" in reason(run(index, tmp_path / name))
    manifest = write_manifest(tmp_path / "all.json", {"path": "x/a.wacz"})
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "x" / "a.wacz")
    assert "is a pipe or a device, not a regular file" in reason(run(index, manifest))
    assert index.queue_length() == (0, 0)


def test_a_source_that_becomes_a_pipe_in_the_queue_fails(tmp_path: Path, index: CrawlIndex) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    index.queue_sources(find_sources([str(path)]).sources)
    path.unlink()
    os.mkfifo(path)
    assert "is a pipe or a device, not a regular file" in reason(run(index))


@pytest.mark.parametrize("name", ["a.wacz", "gone.wacz", "a.cdxj", "a.warc", "bare.wacz"])
def test_a_source_without_a_record_fails_and_its_mended_self_is_imported(
    tmp_path: Path, index: CrawlIndex, name: str
) -> None:
    path = tmp_path / name
    if name == "bare.wacz":
        with zipfile.ZipFile(path, "w") as wacz:
            wacz.writestr(f"archive/{WARC_NAME}", warcinfo(software="x"))
    elif name == "gone.wacz":
        write_wacz(path, [line(1, filename="gone.warc.gz"), revisit(2, 1, filename="gone.warc.gz")])
    elif name.endswith(".wacz"):
        write_wacz(path, [line(1, url=None), b"no line\n"])
    else:
        path.write_bytes(b"" if name.endswith("cdxj") else warcinfo(software="x"))
    result = run(index, path, new_payload="decoded", crawl="one")
    assert "holds no record that can be added; nothing was imported." in reason(result)
    assert ("The first fault: line 1: has no URL" in reason(result)) == (name == "a.wacz")
    assert (result.imported, index.crawls(), index.counts) == ([], [], Counts())
    assert index.queue_length() == (0, 0)
    assert index.unfinished_sources() == []
    if name.endswith(".wacz"):
        write_wacz(path, [line(1)])
    else:
        path.write_bytes(line(1) if name.endswith("cdxj") else response_record(1, b"1" * 500))
    assert len(run(index, path, payload="stored", crawl="one").imported) == 1


def test_a_source_without_a_record_leaves_its_crawl_as_it_was(tmp_path: Path, index: CrawlIndex) -> None:
    run(index, write_wacz(tmp_path / "a.wacz", [line(1)], crawl="one"))
    before = info_of(index, "one"), index.containers("one"), index.counts
    assert "no record" in reason(run(index, write_wacz(tmp_path / "b.wacz", [], crawl="one")))
    assert (info_of(index, "one"), index.containers("one"), index.counts) == before


def test_a_source_of_revisits_alone_is_imported(tmp_path: Path, index: CrawlIndex) -> None:
    assert run(index, write_wacz(tmp_path / "a.wacz", [revisit(1, 1)])).imported == ["a.wacz"]


def test_a_cdxj_whose_warc_files_are_not_there_is_told(tmp_path: Path, index: CrawlIndex) -> None:
    path = tmp_path / "a.cdxj"
    path.write_bytes(line(1) + revisit(2, 1, filename="sub/x.warc.gz"))
    (told,) = run(index, path).absent
    assert f"{tmp_path}/{WARC_NAME}, {tmp_path}/sub/x.warc.gz. Put them there." in told


def test_a_cdxj_whose_warc_files_are_there_is_imported_without_a_word(
    tmp_path: Path, index: CrawlIndex
) -> None:
    path = tmp_path / "a.cdxj"
    path.write_bytes(line(1))
    (tmp_path / WARC_NAME).write_bytes(b"some")
    assert run(index, path).absent == []


# What is known already


def test_what_is_known_is_not_imported_again(tmp_path: Path, index: CrawlIndex) -> None:
    wacz = write_wacz(tmp_path / "a.wacz", [line(1), revisit(2, 1)])
    warc = tmp_path / "b.warc.gz"
    warc.write_bytes(response_record(1, b"1" * 500))
    cdxj = tmp_path / "c.cdxj"
    cdxj.write_bytes(line(3))
    run(index, wacz, warc, cdxj)
    counts = index.counts
    again = run(index, wacz, warc, cdxj, tmp_path / "*.wacz")
    assert (again.imported, again.known, again.failed) == ([], ["a.wacz", str(warc), str(cdxj)], [])
    assert index.counts == counts


def test_the_name_of_another_crawl_or_file_is_an_error_for_that_source(
    tmp_path: Path, index: CrawlIndex
) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    run(index, path)
    assert "into the crawl other, but in the index a.wacz belongs to the crawl a" in reason(
        run(index, path, crawl="other")
    )
    write_wacz(path, [line(1), line(2)])
    assert "It is another file" in reason(run(index, path))
    assert info_of(index, "a").counts.total_urls == 1


def test_a_file_of_the_same_name_and_size_is_told_by_its_hash_where_that_is_compared(
    tmp_path: Path, index: CrawlIndex
) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    run(index, path)
    size = path.stat().st_size
    assert run(index, path, verify=True).known == ["a.wacz"]
    write_wacz(path, [line(1, 7)])
    assert path.stat().st_size == size
    assert run(index, path).known == ["a.wacz"]
    result = run(index, path, verify=True)
    assert (result.known, "has the hash" in reason(result)) == ([], True)


def test_what_is_verified_and_cannot_be_read_any_more_is_not_known(tmp_path: Path, index: CrawlIndex) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    run(index, path)
    path.unlink()
    manifest = write_manifest(tmp_path / "all.json", {"path": "a.wacz", "crawlId": "a"})
    assert run(index, manifest).known == ["a.wacz"]
    assert "cannot be compared" in reason(run(index, manifest, verify=True))


def test_the_same_file_under_another_name_is_known(tmp_path: Path, index: CrawlIndex) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)], crawl="one")
    manifest = write_manifest(tmp_path / "all.json", {"name": "pretty.wacz", "path": "a.wacz"})
    assert run(index, manifest).imported == ["pretty.wacz"]
    counts = index.counts
    result = run(index, path)
    assert (result.imported, result.known, result.failed) == ([], ["a.wacz"], [])
    assert index.counts == counts
    assert [container["filename"] for container in index.containers("one")] == ["pretty.wacz"]
    assert index.queue_length() == (0, 0)
    assert index.unfinished_sources() == []


def test_both_names_of_a_file_in_one_import_are_one_source(tmp_path: Path, index: CrawlIndex) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)], crawl="one")
    manifest = write_manifest(tmp_path / "all.json", {"name": "pretty.wacz", "path": "a.wacz"})
    result = run(index, manifest, path)
    assert (result.imported, result.known) == (["pretty.wacz"], ["a.wacz"])
    assert index.counts.total_urls == 1


def test_the_same_file_by_a_url_under_another_name_is_known(tmp_path: Path, index: CrawlIndex) -> None:
    fsspec = pytest.importorskip("fsspec")
    path = write_wacz(tmp_path / "a.wacz", [line(1)], crawl="one")
    run(index, path)
    with fsspec.open("memory://imports/copy.wacz", "wb") as stream:
        stream.write(path.read_bytes())
    assert run(index, "memory://imports/copy.wacz").known == ["copy.wacz"]
    assert index.counts.total_urls == 1


def test_a_file_is_one_source_through_whatever_links_it_is_named(tmp_path: Path, index: CrawlIndex) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to("real")
    (real / "x.warc.gz").write_bytes(response_record(1, b"x" * 500))
    (real / "y.warc.gz").symlink_to("x.warc.gz")
    manifest = write_manifest(real / "all.json", {"path": "x.warc.gz"})
    words = (link / "all.json", link / "x.warc.gz", real / "x.warc.gz", link / "y.warc.gz")
    assert run(index, *words, crawl="one").imported == [str(real / "x.warc.gz")]
    assert index.counts.total_urls == 1
    assert manifest.exists()


def test_a_link_to_a_container_has_its_own_name(tmp_path: Path, index: CrawlIndex) -> None:
    write_wacz(tmp_path / "0123abcd", [line(1)])
    (tmp_path / "a.wacz").symlink_to("0123abcd")
    assert run(index, tmp_path / "a.wacz").imported == ["a.wacz"]
    assert [info.id for info in index.crawls()] == ["a"]


@pytest.mark.parametrize("name", ["all.cdxj", "all.warc.gz"])
def test_what_was_imported_under_another_crawl_is_an_error_that_names_it(
    tmp_path: Path, index: CrawlIndex, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(line(1) if name.endswith("cdxj") else response_record(1, b"1" * 500))
    run(index, path, crawl="x")
    result = run(index, path, crawl="y")
    assert (result.known, "belongs to the crawl x. Import it into that crawl" in reason(result)) == ([], True)
    assert run(index, path, crawl="x").known == [str(path)]


def test_two_crawls_may_have_containers_of_one_name(tmp_path: Path, index: CrawlIndex) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)], crawl="two")
    for crawl in ("one", "two"):
        index.start(crawl)
        index.set_container(
            crawl, "a.wacz", hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
        )
        index.commit(crawl)
    result = run(index, path)
    assert (result.known, result.failed) == (["a.wacz"], [])


def test_two_files_of_one_name_are_not_one_source(tmp_path: Path, index: CrawlIndex) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        write_wacz(tmp_path / name / "x.wacz", [line(ord(name))])
    result = run(index, tmp_path / "*" / "x.wacz")
    assert result.imported == ["x.wacz"]
    assert "has the same name 'x.wacz'" in reason(result)


def test_what_was_crawled_here_is_not_imported_into(tmp_path: Path, own: CrawlIndex) -> None:
    (path,) = record_crawl(own, tmp_path, "one", [1, 2], in_wacz=True)
    assert run(own, path).known == ["one.wacz"]
    write_wacz(tmp_path / "more.wacz", [line(5)], crawl="one")
    assert "was crawled here" in reason(run(own, tmp_path / "more.wacz"))
    assert info_of(own, "one").counts.total_urls == 2


# Crawl ids


def test_the_crawl_is_that_of_the_manifest_then_of_the_caller_then_of_the_file(
    tmp_path: Path, index: CrawlIndex
) -> None:
    for name in "abc":
        write_wacz(tmp_path / f"{name}.wacz", [line(ord(name))], crawl="own")
    write_manifest(tmp_path / "all.json", {"path": "a.wacz", "crawlId": "listed"}, {"path": "b.wacz"})
    found = find_sources([str(tmp_path / "all.json"), str(tmp_path / "c.wacz")], crawl="given")
    assert [source.crawl for source in found.sources] == ["listed", "given", "given"]
    found = find_sources([str(tmp_path / "all.json"), str(tmp_path / "c.wacz")])
    assert [source.crawl for source in found.sources] == ["listed", "own", "own"]


@pytest.mark.parametrize(("part", "crawl"), [("part-1", "part-1"), ("not an id", "file"), (None, "file")])
def test_a_warc_file_may_say_what_it_is_part_of(tmp_path: Path, part: str | None, crawl: str) -> None:
    path = tmp_path / "file.warc.gz"
    path.write_bytes(warcinfo(**({"isPartOf": part} if part else {"software": "x"})))
    (source,) = find_sources([str(path)]).sources
    assert (source.crawl, source.name, source.is_container) == (crawl, str(path), False)


@given(st.text(max_size=200))
def test_every_file_name_gives_a_crawl_id(name: str) -> None:
    assert checked_crawl_id(crawl_id_of_name(name))


def test_an_id_that_is_not_allowed_fails_that_source_alone(tmp_path: Path, index: CrawlIndex) -> None:
    for name in "ab":
        write_wacz(tmp_path / f"{name}.wacz", [line(ord(name))])
    write_manifest(tmp_path / "all.json", {"path": "a.wacz", "crawlId": "a b"}, {"path": "b.wacz"})
    result = run(index, tmp_path / "all.json")
    assert (result.imported, "'a b'" in reason(result)) == (["b.wacz"], True)


# Payload mode


def test_the_software_tells_the_mode_and_a_mixture_is_refused(tmp_path: Path, index: CrawlIndex) -> None:
    write_wacz(tmp_path / "a.wacz", [line(1)], software="Browsertrix-Crawler 1.14.1")
    write_wacz(tmp_path / "b.wacz", [line(2)], software="Heritrix/3.4")
    write_wacz(tmp_path / "c.wacz", [line(3)], software=None)
    result = run(index, tmp_path)
    assert result.imported == ["a.wacz", "c.wacz"]
    assert "decoded" in reason(result)
    assert {info.payload for info in index.crawls()} == {"decoded"}
    assert index.find("new", [sha256(2)]) == [None]
    with pytest.raises(StoreRefused, match="decoded"):
        run(index, tmp_path / "b.wacz")
    assert run(index, tmp_path / "b.wacz", payload="decoded").imported == ["b.wacz"]


def test_the_warc_files_tell_the_mode_of_a_container_of_another_program(
    tmp_path: Path, index: CrawlIndex
) -> None:
    path = tmp_path / "packed.wacz"
    with zipfile.ZipFile(path, "w") as wacz:
        records = warcinfo(software="Browsertrix-Crawler 1.14.1") + response_record(1, b"body")
        wacz.writestr("archive/rec.warc.gz", records)
        wacz.writestr("datapackage.json", json.dumps({"software": "py-wacz 0.6.0"}))
    assert run(index, path).imported == ["packed.wacz"]
    assert info_of(index, "packed").payload == "decoded"


def test_a_new_index_gets_the_mode_of_the_settings_where_nothing_says_another(
    tmp_path: Path, index: CrawlIndex
) -> None:
    write_wacz(tmp_path / "c.wacz", [line(3)], software=None)
    run(index, tmp_path / "c.wacz", new_payload="decoded")
    assert info_of(index, "c").payload == "decoded"


# Queue, stop and resume


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("apart", sampled([1, 3], [3]))
def test_an_import_that_is_stopped_at_any_moment_is_continued_and_counts_once(
    tmp_path: Path, index: CrawlIndex, apart: int
) -> None:
    write_wacz(tmp_path / "a.wacz", [*map(line, range(250)), revisit(9_000, 9_999)])
    write_wacz(tmp_path / "b.wacz", [line(9_999), *(revisit(n, n - 500) for n in range(500, 650))])
    write_wacz(tmp_path / "c.wacz", [line(7_000)])
    counting = Watcher()
    with open_index(f"sqlite:///{tmp_path / 'plain.sqlite'}") as plain:
        run(plain, tmp_path, watch=counting)
        expected = {info.id: info.counts for info in plain.crawls()}
    assert counting.checks > 12
    with pytest.raises(ImportStopped):
        run(index, tmp_path, watch=Watcher(6))
    stops = 1
    for after in range(3, counting.checks, apart):
        try:
            result = run(index, watch=Watcher(after), lease_s=5.0)
        except ImportStopped:
            stops += 1
        else:
            break
    assert stops > 3
    assert result.claimed == 0
    assert {info.id: info.counts for info in index.crawls()} == expected
    assert index.queue_length() == (0, 0)
    assert expected["a"].conserved_size == 4_400


KILLED = """
import os, signal, sys
from scrapy_dedupe.crawls import entry_writer, open_index, source_entry
from scrapy_dedupe.crawls.importing import ImportOptions, import_sources

class Watch:
    checks = 0
    def check(self):
        Watch.checks += 1
        if Watch.checks > int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
    def show(self, done, total):
        pass
    def tell(self, sentence):
        pass

entry_writer._BATCH = source_entry._BATCH = 100
with open_index(sys.argv[1]) as index:
    type(index).added_at_once = 100
    import_sources(index, [sys.argv[2]], ImportOptions(lease_s=0.5), Watch())
"""


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("checks", [4, 7, 10])
def test_a_killed_import_is_continued_and_counts_once(
    tmp_path: Path, index: CrawlIndex, index_url: str, checks: int
) -> None:
    write_wacz(tmp_path / "a.wacz", [*map(line, range(250)), *(revisit(n, n - 500) for n in range(500, 650))])
    words = [sys.executable, "-c", KILLED, index_url, str(tmp_path / "a.wacz"), str(checks)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert index.find("new", [sha256(1)]) == [None]
    assert sum(index.queue_length()) == 1
    watch = Watcher()
    assert run(index, watch=watch, lease_s=0.5).imported == ["a.wacz"]
    assert info_of(index, "a").counts == Counts(400, 150, 150 * 4_400, (tmp_path / "a.wacz").stat().st_size)
    assert index.unfinished_sources() == []


@pytest.mark.usefixtures("small_batches")
def test_a_source_that_is_gone_when_an_import_is_continued_is_told_and_forgotten(
    tmp_path: Path, index: CrawlIndex
) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(n, offset="0") for n in range(250)])
    with pytest.raises(ImportStopped):
        run(index, path, watch=Watcher(7))
    assert index.unfinished_sources() != []
    path.unlink()
    assert "cannot be read: No such file or directory" in reason(run(index, lease_s=1.0))
    assert index.crawls() == []
    assert index.unfinished_sources() == []
    assert index.queue_length() == (0, 0)


@pytest.mark.usefixtures("small_batches")
def test_two_imports_share_the_queue(tmp_path: Path, index: CrawlIndex, index_url: str) -> None:
    for number in range(8):
        write_wacz(tmp_path / f"{number}.wacz", map(line, range(number * 250, number * 250 + 250)))
    results: list[ImportResult] = []

    def work() -> None:
        with open_index(index_url, timeout_s=240) as mine:
            results.append(run(mine, tmp_path, lease_s=240.0))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.failed for result in results] == [[], []]
    names = [name for result in results for name in result.imported]
    assert sorted(names) == [f"{number}.wacz" for number in range(8)]
    assert index.counts.total_urls == 8 * 250


def test_the_lease_is_renewed_within_a_member_of_a_wacz(tmp_path: Path, index: CrawlIndex) -> None:
    path = tmp_path / "a.wacz"
    with zipfile.ZipFile(path, "w") as wacz:
        # Records of one payload, of which hardly anything is entered.
        wacz.writestr(
            f"archive/{WARC_NAME}",
            b"".join(response_record(n, b"same" * 99, status="404 No") for n in range(300)),
        )
    watch = Watcher()
    assert run(index, path, watch=watch).captures == 300
    assert watch.checks > 300


@pytest.mark.parametrize(("crawl", "known"), [("two", []), ("one", ["a.wacz"])])
def test_a_source_that_another_process_imported_meanwhile_is_told(
    tmp_path: Path,
    index: CrawlIndex,
    index_url: str,
    monkeypatch: pytest.MonkeyPatch,
    crawl: str,
    known: list[str],
) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    claim = index.claim_source

    def late(lease_s: float) -> Source | None:
        patch.undo()
        with open_index(index_url) as other:
            # As if it had been in the queue before.
            source = other.claim_source(0.001)
            assert source is not None
            other.release_source(source)
            assert run(other, path, crawl="one").imported == ["a.wacz"]
        return claim(lease_s)

    with monkeypatch.context() as patch:
        patch.setattr(index, "claim_source", late)
        result = run(index, path, crawl=crawl)
    assert (result.imported, result.known) == ([], known)
    if not known:
        assert "a.wacz belongs to the crawl one. Import it into that crawl" in reason(result)


def test_a_source_that_another_process_could_not_import_is_not_imported(
    tmp_path: Path, index: CrawlIndex, index_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    claim = index.claim_source

    def late(lease_s: float) -> Source | None:
        patch.undo()
        with open_index(index_url) as other:
            source = other.claim_source(20.0)
            assert source is not None
            other.release_source(source)
        return claim(lease_s)

    with monkeypatch.context() as patch:
        patch.setattr(index, "claim_source", late)
        result = run(index, path)
    assert (result.imported, "another process has failed to import it" in reason(result)) == ([], True)


@pytest.mark.parametrize("method", ["begin_source", "add_imported", "end_source"])
def test_an_index_that_is_emptied_while_it_is_imported_into_loses_what_was_queued(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    import redis

    for name in "ab":
        write_wacz(tmp_path / f"{name}.wacz", [line(ord(name)), revisit(1, ord(name))])
    with open_index(redis_url) as index, redis.Redis.from_url(redis_url) as client:
        work = getattr(index, method)

        def emptied(*words: Any) -> Any:
            patch.undo()
            client.flushdb()
            return work(*words)

        with monkeypatch.context() as patch:
            patch.setattr(index, method, emptied)
            result = run(index, tmp_path)
        told = {Path(failed.source).name: failed.reason for failed in result.failed}
        assert "a.wacz" in told or method == "begin_source"
        assert "emptied in the meantime. Import it again." in told["b.wacz"]
        assert "was not begun" not in told.get("a.wacz", "")
        assert run(index, tmp_path).failed == []
        assert index.counts.conserved_size == 2 * 4_400


@pytest.mark.parametrize("method", ["begin_source", "end_source"])
def test_a_source_that_another_process_took_over_is_left_to_it(
    tmp_path: Path, index: CrawlIndex, index_url: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1), revisit(2, 1)])
    watch = Watcher()
    done = getattr(index, method)
    with open_index(index_url) as other:

        def slow(*words: Any) -> Any:
            # This process was silent for longer than its lease.
            time.sleep(0.3)
            assert run(other, lease_s=20.0).imported == ["a.wacz"]
            return done(*words)

        with monkeypatch.context() as patch:
            patch.setattr(index, method, slow)
            result = run(index, path, lease_s=0.2, watch=watch)
    assert result.failed == []
    assert info_of(index, "a").counts == Counts(2, 1, 4_400, path.stat().st_size)
    assert index.queue_length() == (0, 0)


def test_a_source_that_was_taken_over_is_neither_dropped_nor_given_back(
    tmp_path: Path, index: CrawlIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    watch = Watcher()

    def taken(*words: object) -> None:
        # The other process has it from now on.
        patch.setattr(index, "claim_source", lambda lease_s: None)
        raise TakenOver("It has been taken over.")

    with monkeypatch.context() as patch:
        patch.setattr(index, "add_imported", taken)
        for method in ("drop_source", "release_source"):
            patch.setattr(index, method, lambda *words: pytest.fail("It is another's."))
        result = run(index, path, lease_s=0.2, watch=watch, crawl="once")
    assert (result.imported, result.failed, result.claimed) == ([], [], 1)
    assert f"{path} was taken over by another process and is left to it." in watch.told


def test_a_store_that_goes_away_keeps_what_is_not_done_in_the_queue(
    tmp_path: Path, index: CrawlIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write_wacz(tmp_path / f"{name}.wacz", [line(ord(name))])

    def away(*args: object) -> None:
        raise StoreUnavailable("The store is away.")

    with monkeypatch.context() as patch:
        patch.setattr(index, "end_source", away)
        with pytest.raises(StoreUnavailable, match=r"away\. The remaining sources stay in the queue"):
            run(index, tmp_path, lease_s=0.5)
    assert sorted(run(index, lease_s=0.5).imported) == ["a.wacz", "b.wacz"]


def test_a_source_that_waits_in_the_queue_for_another_crawl_is_told(
    tmp_path: Path, index: CrawlIndex
) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    with pytest.raises(ImportStopped):
        run(index, path, crawl="first", watch=Watcher(1))
    result = run(index, path, crawl="second", lease_s=1.0)
    assert result.imported == ["a.wacz"]
    assert "for the crawl first, not for second" in reason(result)
    assert [info.id for info in index.crawls()] == ["first"]


def test_a_line_may_name_its_file_with_folders_if_that_is_one_file(tmp_path: Path, index: CrawlIndex) -> None:
    path = write_wacz(
        tmp_path / "a.wacz",
        [
            line(1, filename=f"archive/{WARC_NAME}"),
            line(2, filename="b/x.warc.gz"),
            line(3, filename="x.warc.gz"),
        ],
    )
    with zipfile.ZipFile(path, "a") as wacz:
        for folder in "bc":
            wacz.writestr(f"archive/{folder}/x.warc.gz", bytes(20_000))
    result = run(index, path)
    assert {str(entry.file).rpartition("/archive/")[2] for entry in index.records("a")} == {
        WARC_NAME,
        "b/x.warc.gz",
    }
    assert (result.skipped, "several files 'x.warc.gz'" in result.faults[0]) == (1, True)


@pytest.mark.usefixtures("small_batches")
def test_progress_never_goes_back_and_ends_at_the_end(tmp_path: Path, index: CrawlIndex) -> None:
    for number in range(3):
        write_wacz(tmp_path / f"{number}.wacz", map(line, range(number * 250, number * 250 + 250)))
    watch = Watcher()
    run(index, tmp_path, watch=watch)
    done = [share for share, _ in watch.shown]
    assert done == sorted(done)
    assert watch.shown[-1] == (3, 3)
    assert len(done) > 6


# Removal


def three_crawls(folder: Path) -> list[dict[str, object]]:
    resources: list[dict[str, object]] = []
    for number, name in enumerate("abc"):
        write_wacz(folder / f"{name}.wacz", [line(number)])
        resources.append({"path": f"{name}.wacz", "crawlId": name})
    return resources


def test_crawls_that_a_manifest_does_not_name_are_noted_and_purged_on_demand(
    tmp_path: Path, index: CrawlIndex
) -> None:
    resources = three_crawls(tmp_path)
    manifest = tmp_path / "all.json"
    assert run(index, write_manifest(manifest, *resources)).missing == []
    write_manifest(manifest, resources[0])
    result = run(index, manifest)
    assert (result.missing, result.removed) == (["b", "c"], [])
    notes = index.import_notes
    sizes = sum((tmp_path / f"{name}.wacz").stat().st_size for name in "bc")
    assert (notes.removed_crawls, notes.removed_size) == (2, sizes)
    assert run(index, manifest, remove=True).removed == ["b", "c"]
    assert [info.id for info in index.crawls()] == ["a"]
    assert index.import_notes.removed_crawls == 0


@pytest.mark.parametrize("fault", [{"path": "../../x.wacz"}, {"name": "x"}, {"path": "not-there.wacz"}])
def test_nothing_is_removed_by_a_manifest_with_a_fault(
    tmp_path: Path, index: CrawlIndex, fault: dict[str, object]
) -> None:
    resources = three_crawls(tmp_path)
    manifest = tmp_path / "all.json"
    run(index, write_manifest(manifest, *resources))
    result = run(index, write_manifest(manifest, resources[0], fault), remove=True)
    assert (result.removed, len(result.failed)) == ([], 1)
    assert any(
        words in (result.not_removed or "") for words in ("a manifest has a fault", "without a crawl id")
    )
    assert len(index.crawls()) == 3


def test_a_crawl_whose_source_fails_is_not_missing(tmp_path: Path, index: CrawlIndex) -> None:
    resources = three_crawls(tmp_path)
    manifest = tmp_path / "all.json"
    run(index, write_manifest(manifest, *resources))
    resources[1] |= {"size": 1}
    assert run(index, write_manifest(manifest, *resources[:2]), remove=True).removed == ["c"]


def test_nothing_is_removed_without_a_manifest(tmp_path: Path, index: CrawlIndex) -> None:
    three_crawls(tmp_path)
    run(index, tmp_path)
    result = run(index, tmp_path / "a.wacz", remove=True)
    assert (result.missing, result.removed) == ([], [])
    assert "only a manifest defines which crawls should exist" in (result.not_removed or "")


def test_a_crawl_that_a_kept_one_needs_is_not_removed_unless_it_is_forced(
    tmp_path: Path, index: CrawlIndex
) -> None:
    write_wacz(tmp_path / "a.wacz", [line(1)])
    write_wacz(tmp_path / "b.wacz", [revisit(2, 1)])
    run(index, tmp_path)
    manifest = write_manifest(tmp_path / "all.json", {"path": "b.wacz"})
    result = run(index, manifest, remove=True)
    assert (result.missing, result.removed) == (["a"], [])
    assert "Nothing was purged, because remaining crawls need" in (result.not_removed or "")
    assert index.import_notes.removed_crawls == 1
    assert run(index, manifest, remove=True, force=True).removed == ["a"]


def test_a_crawl_whose_container_a_manifest_names_is_not_missing_whatever_its_id(
    tmp_path: Path, index: CrawlIndex
) -> None:
    three_crawls(tmp_path)
    run(index, tmp_path / "a.wacz", crawl="x")
    run(index, tmp_path / "c.wacz")
    manifest = write_manifest(tmp_path / "all.json", {"path": "a.wacz"}, {"path": "b.wacz"})
    result = run(index, manifest, remove=True)
    assert (result.imported, result.removed) == (["b.wacz"], ["c"])
    assert "belongs to the crawl x" in reason(result)


def test_a_crawl_whose_warc_file_a_manifest_names_is_not_missing_whatever_its_id(
    tmp_path: Path, index: CrawlIndex
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.warc.gz").write_bytes(response_record(ord(name), b"x" * 500))
    run(index, tmp_path / "a.warc.gz", crawl="x")
    run(index, tmp_path / "b.warc.gz")
    result = run(index, write_manifest(tmp_path / "all.json", {"path": "a.warc.gz"}), remove=True)
    # It names a file of x, and no crawl of its own id is there.
    assert (result.missing, result.removed, len(result.failed)) == ([], [], 1)
    assert "names none of the 2 committed crawls" in (result.not_removed or "")
    manifest = write_manifest(
        tmp_path / "all.json", {"path": "a.warc.gz"}, {"path": "c.wacz", "crawlId": "c"}
    )
    write_wacz(tmp_path / "c.wacz", [line(3)])
    assert run(index, manifest, remove=True).removed == ["b"]


def test_an_id_that_is_not_allowed_takes_no_crawl_for_missing(tmp_path: Path, index: CrawlIndex) -> None:
    resources = three_crawls(tmp_path)
    run(index, tmp_path)
    resources[1]["crawlId"] = "a\0b"
    result = run(index, write_manifest(tmp_path / "all.json", *resources[:2]), remove=True)
    assert (len(result.failed), result.missing, result.removed) == (1, ["c"], ["c"])
    # Of a file that no crawl has nobody knows whose it is.
    resources[1]["path"] = "renamed.wacz"
    result = run(index, write_manifest(tmp_path / "all.json", *resources[:2]), remove=True)
    assert (len(result.failed), result.missing, result.removed) == (1, [], [])
    assert "no crawl of the index has it" in (result.not_removed or "")


def test_a_source_that_fails_makes_the_list_doubtful_for_its_own_crawl_alone(
    tmp_path: Path, index: CrawlIndex
) -> None:
    three_crawls(tmp_path)
    run(index, tmp_path)
    (tmp_path / "a.wacz").unlink()
    # A container that cannot be read any more names its crawl all the same.
    manifest = write_manifest(tmp_path / "all.json", {"path": "a.wacz"}, {"path": "b.wacz"})
    result = run(index, manifest, remove=True)
    assert (len(result.failed), result.removed) == (1, ["c"])


# Places elsewhere


def test_a_manifest_and_containers_at_urls_are_imported(tmp_path: Path, index: CrawlIndex) -> None:
    fsspec = pytest.importorskip("fsspec")
    path = write_wacz(tmp_path / "a.wacz", [*map(line, range(1_500)), revisit(2_000, 1)], gzipped=True)
    manifest = write_manifest(tmp_path / "all.json", {"path": "sub/a.wacz", "crawlId": "one"})
    for source, target in ((path, "sub/a.wacz"), (manifest, "all.json")):
        with fsspec.open(f"memory://imports/{target}", "wb") as stream:
            stream.write(source.read_bytes())
    assert run(index, "memory://imports/all.json").failed == []
    (found,) = index.find("new", [sha256(1)])
    assert found is not None
    assert found.file == f"memory://imports/sub/a.wacz/archive/{WARC_NAME}"
    assert (found.date, found.offset) == (DATE, 5_000)
    assert info_of(index, "one").counts == Counts(1_501, 1, 4_400, path.stat().st_size)


def test_an_index_that_cannot_be_had_fails_its_source_alone(tmp_path: Path, index: CrawlIndex) -> None:
    write_wacz(tmp_path / "a.wacz", [line(1)])
    pytest.importorskip("fsspec")
    result = run(index, "memory://nowhere/x.wacz", tmp_path / "a.wacz")
    assert result.imported == ["a.wacz"]
    assert "memory://nowhere/x.wacz" in reason(result)


def test_the_caller_s_own_id_is_checked(tmp_path: Path, index: CrawlIndex) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    result = run(index, path, crawl="a b")
    assert "'a b'" in reason(result)
    with pytest.raises(SettingError):
        checked_crawl_id("a b")

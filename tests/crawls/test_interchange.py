"""Crawls and imports of each other: what an index holds does not depend on the way in which it got there."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import recorded_crawls
from archives import cdxj_of
from import_files import Quiet, write_manifest
from recorded_crawls import OpenGuard, record_crawl

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.importing import ImportOptions, ImportResult, import_sources
from scrapy_dedupe.crawls.packing import requirements
from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.stores.base import Counts, Need, Original
    from scrapy_dedupe.warc.capture import Capture

# The second crawl refers to the first, the third to both, and each to itself.
PAGES = {"one": [1, 2, 3, 2], "two": [4, 1, 2, 5, 4], "three": [6, 5, 3, 6, 1]}


plain_page = recorded_crawls.page


def page(number: int) -> Capture:
    """A page that does not shrink when it is compressed, so that a revisit of it conserves something."""
    return replace(plain_page(number), body=random.Random(number).randbytes(4_000 + 100 * number))


@pytest.fixture(autouse=True)
def _large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_crawls, "page", page)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[CrawlIndex]:
    """The index against which the crawls were made."""
    with open_index(f"sqlite:///{tmp_path / 'own.sqlite'}") as own:
        yield own


@pytest.fixture
def containers(tmp_path: Path, own: CrawlIndex) -> dict[str, Path]:
    """The WACZ of each crawl."""
    return {
        crawl: record_crawl(own, tmp_path, crawl, pages, in_wacz=True)[0] for crawl, pages in PAGES.items()
    }


def run(index: CrawlIndex, *words: object, **options: Any) -> ImportResult:
    return import_sources(index, [str(word) for word in words], ImportOptions(**options), Quiet())


def counts_of(index: CrawlIndex) -> dict[str, Counts]:
    return {info.id: info.counts for info in index.crawls()}


def originals_of(index: CrawlIndex, date_digits: int = 17) -> dict[str, dict[str, tuple[object, ...]]]:
    """What is known of the originals of each crawl; the record id alone no CDXJ has."""

    def told(original: Original) -> tuple[object, ...]:
        date = original.date[:date_digits]
        return (date, original.url, original.size, original.file, original.offset, original.wacz_index)

    return {
        info.id: {original.digest: told(original) for original in index.records(info.id)}
        for info in index.crawls()
    }


def needs_of(index: CrawlIndex) -> dict[str, set[tuple[str, int]]]:
    return {
        info.id: {(need.crawl, need.wacz_index) for need in index.needs(info.id)} for info in index.crawls()
    }


def assert_alike(index: CrawlIndex, own: CrawlIndex) -> None:
    """That an index which was imported holds what the crawls entered themselves."""
    assert counts_of(index) == counts_of(own)
    assert index.counts == own.counts
    assert originals_of(index) == originals_of(own)
    assert needs_of(index) == needs_of(own)
    for info in own.crawls():
        assert index.containers(info.id) == own.containers(info.id)
        assert set(own.needs(info.id)) <= set(index.needs(info.id))
    assert index.merged_faults() == 0
    for info in index.crawls():
        assert (info.state, info.imported, info.payload, info.waiting) == ("committed", True, "stored", 0)
    assert index.import_notes.progress == 1.0
    assert index.import_notes.finished is not None


@pytest.mark.parametrize("order", [("one", "two", "three"), ("three", "two", "one"), ("two", "three", "one")])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_order_in_which_wacz_files_come_makes_no_difference(
    own: CrawlIndex, index: CrawlIndex, containers: dict[str, Path], order: tuple[str, ...], at_once: bool
) -> None:
    assert own.counts.conserved_size > 10_000
    if at_once:
        assert run(index, *(containers[crawl] for crawl in order)).failed == []
    else:
        for crawl in order:
            assert run(index, containers[crawl]).failed == []
    assert_alike(index, own)


def test_a_manifest_in_reverse_order_with_a_wrong_path_in_the_middle_gives_the_very_same_sums(
    tmp_path: Path, own: CrawlIndex, index: CrawlIndex, containers: dict[str, Path]
) -> None:
    resources = [
        {"name": path.name, "path": path.name, "crawlId": crawl} for crawl, path in containers.items()
    ]
    resources.insert(1, {"name": "gone.wacz", "path": "not-there/gone.wacz", "crawlId": "gone"})
    manifest = tmp_path / "all.json"
    manifest.write_text(json.dumps({"resources": resources[::-1]}))
    result = run(index, manifest)
    assert ["gone.wacz" in failed.source for failed in result.failed] == [True]
    assert set(result.imported) == {path.name for path in containers.values()}
    payloads = {original.digest for crawl in PAGES for original in own.records(crawl)}
    assert len(payloads) == len({number for pages in PAGES.values() for number in pages})
    assert None not in index.find("other", sorted(payloads))
    assert_alike(index, own)


def test_what_was_imported_before_is_not_counted_again(
    own: CrawlIndex, index: CrawlIndex, containers: dict[str, Path]
) -> None:
    run(index, *containers.values())
    again = run(index, *reversed(containers.values()))
    assert (again.imported, set(again.known)) == ([], {path.name for path in containers.values()})
    assert_alike(index, own)


@pytest.mark.parametrize("order", [("one", "two", "three"), ("three", "two", "one")])
def test_warc_files_give_what_their_crawls_entered(
    tmp_path: Path, own: CrawlIndex, index: CrawlIndex, order: tuple[str, ...]
) -> None:
    files = {crawl: record_crawl(own, tmp_path, crawl, pages) for crawl, pages in PAGES.items()}
    assert run(index, *(file for crawl in order for file in files[crawl])).failed == []
    assert_alike(index, own)
    for crawl in PAGES:
        assert {original.record_id for original in index.records(crawl)} == {
            original.record_id for original in own.records(crawl)
        }
        assert index.needs(crawl) == own.needs(crawl)


def write_cdxj(file: Path) -> Path:
    """The index that another program makes of a WARC file, beside it."""
    index = file.with_name(f"{file.name.partition('.')[0]}.cdxj")
    index.write_text(cdxj_of(file))
    return index


@pytest.mark.parametrize("order", [("one", "two", "three"), ("three", "two", "one")])
def test_a_cdxj_gives_what_the_crawls_entered_but_for_the_sizes_of_their_files(
    tmp_path: Path, own: CrawlIndex, index: CrawlIndex, order: tuple[str, ...]
) -> None:
    files = {crawl: record_crawl(own, tmp_path, crawl, pages)[0] for crawl, pages in PAGES.items()}
    for crawl in order:
        assert run(index, write_cdxj(files[crawl]), crawl=crawl).failed == []
    for crawl, counts in counts_of(own).items():
        found = counts_of(index)[crawl]
        # What is in no line, such as warcinfo, it does not know.
        assert 0 < found.total_crawl_size <= counts.total_crawl_size
        assert (found.total_urls, found.dupe_urls, found.conserved_size) == (
            counts.total_urls,
            counts.dupe_urls,
            counts.conserved_size,
        )
    # Its dates have no milliseconds.
    assert originals_of(index) == originals_of(own, 14)
    assert needs_of(index) == needs_of(own)


def test_two_crawls_of_their_own_are_imported_into_each_others_index(
    tmp_path: Path, index: CrawlIndex
) -> None:
    with open_index(f"sqlite:///{tmp_path / 'other.sqlite'}") as other:
        (mine,) = record_crawl(index, tmp_path, "mine", [1, 2, 3, 3], in_wacz=True)
        (theirs,) = record_crawl(other, tmp_path, "theirs", [2, 3, 4, 4], in_wacz=True)
        before = {"mine": index.crawls()[0].counts, "theirs": other.crawls()[0].counts}
        assert run(index, theirs).failed == []
        assert run(other, mine).failed == []
        assert counts_of(index) == counts_of(other) == before
        assert index.counts == other.counts == before["mine"] + before["theirs"]
        assert originals_of(index) == originals_of(other)
        assert needs_of(index) == needs_of(other) == {"mine": set(), "theirs": set()}
        for crawl in ("mine", "theirs"):
            assert index.containers(crawl) == other.containers(crawl)
        payloads = [page(number).payload_digest() for number in range(1, 5)]
        assert None not in index.find("new", payloads)
        assert None not in other.find("new", payloads)


def revisits_of(
    index: CrawlIndex, folder: Path, numbers: list[int]
) -> tuple[list[tuple[object, ...]], Counts, list[Need], list[str]]:
    """What a crawl of pages makes of them: for each its kind and the record that it refers to; its counts and needs."""
    index.start("later")
    writer = WarcWriter(
        folder,
        "later",
        info={"isPartOf": "later"},
        on_new_file=lambda name: index.add_file("later", str(folder / name)),
    )
    recorder = Recorder(writer, index, "later", OpenGuard(), containers_only=True)
    kinds = [recorder.record(page(number)).kind for number in numbers]
    (file,) = recorder.finish()
    found: list[tuple[object, ...]] = []
    for record in read_records(file):
        if record.type in ("response", "revisit"):
            names = ("WARC-Refers-To-Target-URI", "WARC-Refers-To-Date", "WARC-Refers-To-Container")
            found.append((record.type, record.target_uri, *(record.get(name) for name in names)))
    assert [kind for kind, *_ in found] == kinds
    (counts,) = (info.counts for info in index.crawls() if info.id == "later")
    required = sorted(needed.filename for needed in requirements(index, "later"))
    return found, counts, index.needs("later"), required


def test_a_later_crawl_makes_the_same_revisits_against_an_imported_index(
    tmp_path: Path, own: CrawlIndex, index: CrawlIndex, containers: dict[str, Path]
) -> None:
    run(index, *reversed(containers.values()))
    numbers = [7, 1, 4, 6, 7, 2]
    theirs, their_counts, their_needs, their_files = revisits_of(own, tmp_path / "first", numbers)
    mine, counts, needs, files = revisits_of(index, tmp_path / "second", numbers)
    assert [kind for kind, *_ in mine] == ["response", "revisit", "revisit", "revisit", "revisit", "revisit"]
    # The one record that both wrote themselves they wrote at different times.
    assert [row for row in mine if row[1] != page(7).url] == [row for row in theirs if row[1] != page(7).url]
    assert {row[-1] for row in mine} == {None, "file://one.wacz", "file://two.wacz", "file://three.wacz"}
    assert (counts.total_urls, counts.dupe_urls) == (their_counts.total_urls, their_counts.dupe_urls)
    assert {(need.crawl, need.wacz_index, need.file) for need in needs} == {
        (need.crawl, need.wacz_index, need.file) for need in their_needs
    }
    assert files == their_files == ["one.wacz", "three.wacz", "two.wacz"]


def test_an_imported_index_reads_the_records_that_its_originals_name(
    index: CrawlIndex, containers: dict[str, Path]
) -> None:
    from scrapy_dedupe.crawls.crawl_files import readable

    run(index, *containers.values())
    for crawl in PAGES:
        originals = list(index.records(crawl))
        assert originals
        for original in originals:
            assert original.file is not None
            file = readable(original.file)
            assert file is not None
            (record,) = (record for record in read_records(file) if record.offset == original.offset)
            assert (record.type, record.target_uri, record.length) == (
                "response",
                original.url,
                original.size,
            )


def test_a_wacz_that_was_moved_is_known_by_its_name(
    tmp_path: Path, own: CrawlIndex, index: CrawlIndex, containers: dict[str, Path]
) -> None:
    run(index, containers["one"])
    elsewhere = tmp_path / "elsewhere" / "one.wacz"
    elsewhere.parent.mkdir()
    shutil.copy(containers["one"], elsewhere)
    result = run(index, elsewhere)
    assert (result.imported, result.known) == ([], ["one.wacz"])
    assert counts_of(index)["one"] == counts_of(own)["one"]


def test_a_container_that_its_manifest_calls_otherwise_is_referred_to_by_its_file_name(
    tmp_path: Path, index: CrawlIndex, containers: dict[str, Path]
) -> None:
    manifest = write_manifest(
        tmp_path / "all.json", {"name": "c1", "path": str(containers["one"].relative_to(tmp_path))}
    )
    assert run(index, manifest).failed == []
    assert [container["filename"] for info in index.crawls() for container in index.containers(info.id)] == [
        "c1"
    ]
    mine, _, _, files = revisits_of(index, tmp_path / "second", PAGES["one"][:1])
    assert [(row[0], row[-1]) for row in mine] == [("revisit", "file://one.wacz")]
    assert files == ["one.wacz"]


def test_nobody_is_told_to_pack_a_crawl_that_was_imported(
    tmp_path: Path, index: CrawlIndex, caplog: pytest.LogCaptureFixture
) -> None:
    with open_index(f"sqlite:///{tmp_path / 'other.sqlite'}") as other:
        (file,) = record_crawl(other, tmp_path, "loose", [1])
    assert run(index, file).failed == []
    mine, *_ = revisits_of(index, tmp_path / "second", [1])
    assert [row[0] for row in mine] == ["response"]
    assert "has no WACZ through which its records could be replayed" in caplog.text
    assert "warc pack" not in caplog.text

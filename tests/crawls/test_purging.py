"""Crawls are purged if nothing that is kept needs them: with real files, on both stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis
from recorded_crawls import page, record_crawl

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.dependencies import Dependencies
from scrapy_dedupe.crawls.entries import RevisitRules
from scrapy_dedupe.crawls.purging import end_unfinished, missing_crawls, purge_crawls
from scrapy_dedupe.crawls.rebuilding import rebuild
from scrapy_dedupe.errors import CrawlStateError
from scrapy_dedupe.stores.base import Counts, ImportNotes, Need
from scrapy_dedupe.stores.sqlite_index_base import SqliteIndexBase
from scrapy_dedupe.warc.manifests import ListedFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.crawls import CrawlIndex


def ids(index: CrawlIndex) -> list[str]:
    return sorted(info.id for info in index.crawls())


def finds(index: CrawlIndex, number: int) -> str | None:
    """The crawl that has the original of a page."""
    (found,) = index.find("asking", [page(number).payload_digest()])
    return None if found is None else found.crawl


def test_a_purged_crawl_is_forgotten_and_its_files_stay(index: CrawlIndex, tmp_path: Path) -> None:
    (file,) = record_crawl(index, tmp_path, "one", [1])
    record_crawl(index, tmp_path, "two", [2])
    assert finds(index, 1) == "one"
    assert purge_crawls(index, ["one", "one"]) == ["one"]
    assert ids(index) == ["two"]
    assert (finds(index, 1), finds(index, 2)) == (None, "two")
    assert index.counts.total_urls == 1
    assert file.exists()


def test_a_crawl_that_a_kept_one_needs_is_refused_with_the_list(index: CrawlIndex, tmp_path: Path) -> None:
    (file,) = record_crawl(index, tmp_path, "one", [1, 2])
    record_crawl(index, tmp_path, "two", [2])
    record_crawl(index, tmp_path, "three", [1], commit=False)
    with pytest.raises(CrawlStateError) as refusal:
        purge_crawls(index, ["one"])
    lines = str(refusal.value).splitlines()
    assert f"  two needs one ({file.name})" in lines
    assert f"  three needs one ({file.name})" in lines
    assert "--force" in lines[-1]
    assert ids(index) == ["one", "three", "two"]
    assert finds(index, 1) == "one"


def test_a_forced_purge_leaves_what_others_need_as_missing(index: CrawlIndex, tmp_path: Path) -> None:
    record_crawl(index, tmp_path, "one", [1, 2])
    record_crawl(index, tmp_path, "two", [2])
    assert purge_crawls(index, ["one"], force=True) == ["one"]
    assert ids(index) == ["two"]
    (needed,) = Dependencies(index).needs("two")
    assert (needed.crawl, needed.state, needed.is_missing) == ("one", None, True)


def test_crawls_that_need_each_other_go_together(index: CrawlIndex, tmp_path: Path) -> None:
    record_crawl(index, tmp_path, "one", [1, 2])
    record_crawl(index, tmp_path, "two", [2, 3])
    record_crawl(index, tmp_path, "kept", [7])
    with pytest.raises(CrawlStateError, match="two needs one"):
        purge_crawls(index, ["one"])
    assert purge_crawls(index, ["two", "one"]) == ["two", "one"]
    assert ids(index) == ["kept"]


def test_the_one_that_needs_can_go_first(index: CrawlIndex, tmp_path: Path) -> None:
    record_crawl(index, tmp_path, "one", [1])
    record_crawl(index, tmp_path, "two", [1])
    assert purge_crawls(index, ["two"]) == ["two"]
    assert purge_crawls(index, ["one"]) == ["one"]
    assert ids(index) == []


def test_nothing_is_purged_while_a_crawl_runs(index: CrawlIndex, tmp_path: Path) -> None:
    record_crawl(index, tmp_path, "one", [1])
    index.start("running")
    index.mark_incomplete("running", True)
    with pytest.raises(CrawlStateError, match="running is running, or did not end well, and may need one"):
        purge_crawls(index, ["one"])
    assert finds(index, 1) == "one"
    assert purge_crawls(index, ["one"], force=True) == ["one"]


def test_a_canceled_crawl_can_go_while_another_runs(index: CrawlIndex, tmp_path: Path) -> None:
    record_crawl(index, tmp_path, "gone", [1], commit=False)
    index.cancel("gone")
    index.start("running")
    index.mark_incomplete("running", True)
    assert purge_crawls(index, ["gone"]) == ["gone"]
    assert ids(index) == ["running"]


@pytest.mark.parametrize(
    ("counts", "state", "is_refused"),
    [
        ({"dupeUrls": "3"}, "allcrawls", True),
        ({"dupeUrls": "0"}, "allcrawls", False),
        ({}, "uncommittedcrawls", True),
    ],
)
def test_a_crawl_of_another_program_with_revisits_may_need_anything(
    redis_url: str, tmp_path: Path, counts: dict[str, str], state: str, is_refused: bool
) -> None:
    with open_index(redis_url) as index:
        index.start("one", "decoded")
        index.commit("one")
        with redis.Redis.from_url(redis_url) as client:
            client.sadd(state, "bx")
            client.hset("h:bx:counts", mapping={"totalUrls": "5", **counts})
        if is_refused:
            with pytest.raises(CrawlStateError, match=r"bx was made by another program.*, and may need one"):
                purge_crawls(index, ["one"])
        else:
            assert purge_crawls(index, ["one"]) == ["one"]


def test_a_long_list_is_cut(index: CrawlIndex) -> None:
    index.start("one")
    index.commit("one")
    for number in range(30):
        index.start(f"other-{number}")
        index.add(f"other-{number}", [], needs=[Need("one", 0, None)])
    with pytest.raises(CrawlStateError) as refusal:
        purge_crawls(index, ["one"])
    lines = str(refusal.value).splitlines()
    assert sum(" needs one" in line for line in lines) == 20
    assert "  and 10 more" in lines


def test_unknown_and_uncommitted_crawls_are_refused_and_nothing_is_done(index: CrawlIndex) -> None:
    index.start("one")
    index.commit("one")
    index.start("two")
    with pytest.raises(CrawlStateError, match="has no crawl nobody"):
        purge_crawls(index, ["one", "nobody"])
    with pytest.raises(CrawlStateError, match=r"The crawl two is not committed.*cancel two"):
        purge_crawls(index, ["one", "two"], force=True)
    assert ids(index) == ["one", "two"]


@pytest.fixture
def cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CrawlIndex]:
    """An index whose purge of "one" was cut off after it had taken effect; that of Redis has no such moment."""
    with open_index(f"sqlite:///{tmp_path / 'index.sqlite'}") as index:
        for number, crawl in enumerate(("one", "two", "three")):
            record_crawl(index, tmp_path, crawl, [number])

        def interrupted(*arguments: object, **options: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(SqliteIndexBase, "_clear", interrupted)
            with pytest.raises(KeyboardInterrupt):
                purge_crawls(index, ["one"])
        assert index.unfinished_purge() == ["one"]
        yield index


def test_a_purge_that_was_cut_off_is_ended_first(cut_off: CrawlIndex) -> None:
    assert purge_crawls(cut_off, ["one", "two"]) == ["one", "two"]
    assert cut_off.unfinished_purge() == []
    assert ids(cut_off) == ["three"]


def test_a_purge_that_was_cut_off_can_be_ended_alone(cut_off: CrawlIndex) -> None:
    assert end_unfinished(cut_off) == ["one"]
    assert end_unfinished(cut_off) == []
    assert ids(cut_off) == ["three", "two"]


def test_a_new_crawl_with_the_id_of_a_purged_one_is_not_purged_with_it(
    cut_off: CrawlIndex, tmp_path: Path
) -> None:
    record_crawl(cut_off, tmp_path / "anew", "one", [7])
    assert purge_crawls(cut_off, ["two"]) == ["two"]
    assert ids(cut_off) == ["one", "three"]
    assert finds(cut_off, 7) == "one"


def test_a_purge_takes_back_what_the_last_import_said_of_missing_crawls(
    index: CrawlIndex, tmp_path: Path
) -> None:
    record_crawl(index, tmp_path, "one", [1])
    index.note_imports(ImportNotes(1.0, "2026-08-01T12:00:00Z", 1, 500))
    purge_crawls(index, ["one"])
    notes = index.import_notes
    assert (notes.removed_crawls, notes.removed_size) == (0, 0)
    assert (notes.progress, notes.finished) == (1.0, "2026-08-01T12:00:00Z")


def entry(name: str, **more: str) -> ListedFile:
    """An entry of a manifest."""
    return ListedFile(name, f"/elsewhere/{name}", **more)  # type: ignore[arg-type]


@pytest.fixture
def packed(index: CrawlIndex) -> CrawlIndex:
    for crawl, digest in (("one", "ab"), ("two", "cd"), ("three", "ef")):
        index.start(crawl)
        index.set_container(crawl, f"{crawl}.wacz", digest * 32, 5)
        index.add(crawl, [], Counts(1))
        index.commit(crawl)
    index.start("running")
    return index


def test_crawls_that_a_manifest_does_not_name_are_missing(packed: CrawlIndex) -> None:
    assert missing_crawls(packed, [entry("x.wacz", crawl="two")]) == ["one", "three"]
    assert missing_crawls(packed, [entry("a/two.wacz"), entry("one.wacz", crawl="one")]) == ["three"]
    assert missing_crawls(packed, [entry("renamed.wacz", hash="cd" * 32)]) == ["one", "three"]


def test_a_manifest_may_give_a_crawl_another_id_than_it_was_imported_under(packed: CrawlIndex) -> None:
    listed = [entry("two.wacz", hash="cd" * 32, crawl="as-it-was-called-elsewhere")]
    assert missing_crawls(packed, listed) == ["one", "three"]


def test_another_file_of_the_same_name_does_not_name_a_crawl(packed: CrawlIndex) -> None:
    listed = [entry("one.wacz", hash="00" * 32, crawl="new"), entry("two.wacz", crawl="two")]
    assert missing_crawls(packed, listed) == ["one", "three"]


def test_an_entry_that_could_be_any_crawl_makes_none_missing(packed: CrawlIndex) -> None:
    with pytest.raises(CrawlStateError, match=r"names unknown.wacz without a crawl id"):
        missing_crawls(packed, [entry("unknown.wacz"), entry("two.wacz", crawl="two")])


def test_a_manifest_that_names_no_crawl_of_the_index_makes_none_missing(packed: CrawlIndex) -> None:
    with pytest.raises(CrawlStateError, match="names none of the 3 committed crawls"):
        missing_crawls(packed, [entry("x.wacz", crawl="elsewhere")])
    with pytest.raises(CrawlStateError, match="names none of the 3 committed crawls"):
        missing_crawls(packed, [])


def test_what_a_file_needs_that_is_not_there_now_is_kept_when_a_crawl_is_read_anew(
    index: CrawlIndex, tmp_path: Path
) -> None:
    record_crawl(index, tmp_path, "one", [1])
    (first,) = record_crawl(index, tmp_path, "two", [1], commit=False)
    record_crawl(index, tmp_path, "two", [2], commit=False)
    needs = index.needs("two")
    first.rename(tmp_path / "away")

    rebuild(index, "two", tmp_path / "two", RevisitRules())

    assert needs
    assert index.needs("two") == needs
    index.commit("two")
    with pytest.raises(CrawlStateError, match="two needs one"):
        purge_crawls(index, ["one"])

"""Damage of every kind, done by hand to an index or to its files, is found and mended."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sqlite3
import zipfile
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from import_files import WARC_NAME, Quiet, line, record, response_record, warcinfo
from recorded_crawls import OpenGuard

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.checking import Checker
from scrapy_dedupe.crawls.comparison import Thoroughness
from scrapy_dedupe.crawls.entries import RevisitRules
from scrapy_dedupe.crawls.importing import ImportOptions, import_sources
from scrapy_dedupe.crawls.packing import drop_warc_files, pack_crawl
from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.crawls.repairing import repair
from scrapy_dedupe.crawls.sorted_entries import SortedEntries, digits_of
from scrapy_dedupe.errors import CrawlStateError, StoreUnavailable
from scrapy_dedupe.stores.base import Counts, Original, Waiting
from scrapy_dedupe.stores.index_values import packed_digest
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.files import WarcWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.crawls.checking import Check
    from scrapy_dedupe.crawls.repairing import Repair

START = datetime(2026, 8, 1, 12, tzinfo=UTC)


class Hand(Protocol):
    """What somebody does to a store past the index."""

    def set_offset(self, crawl: str, digest: str, offset: int) -> None: ...
    def set_total(self, crawl: str, total: int) -> None: ...
    def drop_entry(self, crawl: str, digest: str) -> None: ...
    def drop_needs(self, crawl: str) -> None: ...
    def break_entry(self, crawl: str, digest: str) -> None: ...
    def drop_place(self, crawl: str, digest: str) -> None: ...
    def empty(self) -> None: ...


class SqliteHand:
    def __init__(self, url: str) -> None:
        self._path = url.removeprefix("sqlite:///")

    def _do(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            assert connection.execute(statement, values).rowcount != 0

    def set_offset(self, crawl: str, digest: str, offset: int) -> None:
        where = "id >> 32 = (SELECT number FROM crawl WHERE crawl.id = ?) AND digest = ?"
        self._do(f'UPDATE original SET "offset" = ? WHERE {where}', offset, crawl, packed_digest(digest))

    def set_total(self, crawl: str, total: int) -> None:
        self._do("UPDATE crawl SET total_urls = ? WHERE id = ?", total, crawl)

    def drop_entry(self, crawl: str, digest: str) -> None:
        where = "id >> 32 = (SELECT number FROM crawl WHERE crawl.id = ?) AND digest = ?"
        self._do(f"DELETE FROM original WHERE {where}", crawl, packed_digest(digest))

    def break_entry(self, crawl: str, digest: str) -> None:
        where = "id >> 32 = (SELECT number FROM crawl WHERE crawl.id = ?) AND digest = ?"
        self._do(f"UPDATE original SET size = 1e20 WHERE {where}", crawl, packed_digest(digest))

    def drop_place(self, crawl: str, digest: str) -> None:
        where = "id >> 32 = (SELECT number FROM crawl WHERE crawl.id = ?) AND digest = ?"
        self._do(
            f'UPDATE original SET file = NULL, "offset" = NULL WHERE {where}', crawl, packed_digest(digest)
        )

    def drop_needs(self, crawl: str) -> None:
        self._do("DELETE FROM crawl_need WHERE crawl = (SELECT number FROM crawl WHERE id = ?)", crawl)

    def empty(self) -> None:
        for path in Path(self._path).parent.glob(f"{Path(self._path).name}*"):
            path.unlink()


class RedisHand:
    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)

    def set_offset(self, crawl: str, digest: str, offset: int) -> None:
        key, name = f"dedupe:where:{crawl}", packed_digest(digest)[:16]
        value = self.client.hget(key, name)
        assert isinstance(value, bytes)
        self.client.hset(key, name, value[:3] + offset.to_bytes(5, "big") + value[8:])

    def set_total(self, crawl: str, total: int) -> None:
        self.client.hset(f"h:{crawl}:counts", "totalUrls", total)

    def drop_entry(self, crawl: str, digest: str) -> None:
        assert self.client.hdel(f"h:{crawl}", digest) == 1

    def break_entry(self, crawl: str, digest: str) -> None:
        self.client.hset(f"h:{crawl}", digest, "0 20260801120000 https://a 99999999999999999999")

    def drop_place(self, crawl: str, digest: str) -> None:
        assert self.client.hdel(f"dedupe:where:{crawl}", packed_digest(digest)[:16]) == 1

    def drop_needs(self, crawl: str) -> None:
        assert self.client.delete(f"dedupe:needs:{crawl}") == 1

    def empty(self) -> None:
        self.client.flushdb()


@dataclass
class Archive:
    """Two committed crawls: ``one`` with five pages and a copy, ``two`` with three copies of those and a page."""

    url: str
    folder: Path
    hand: Hand
    index: CrawlIndex
    files: dict[str, list[Path]] = field(default_factory=dict)

    def crawl(
        self,
        crawl: str,
        numbers: list[int],
        *,
        commit: bool = True,
        file_size: int = 10**9,
        is_gzip: bool = True,
    ) -> None:
        self.index.start(crawl)
        writer = WarcWriter(
            self.folder,
            crawl,
            info={"isPartOf": crawl},
            file_size=file_size,
            gzip=is_gzip,
            on_new_file=lambda name: self.index.add_file(crawl, str(self.folder / name)),
        )
        recorder = Recorder(writer, self.index, crawl, OpenGuard())
        for number in numbers:
            recorder.record(capture(number))
        self.files[crawl] = recorder.finish()
        if commit:
            self.index.commit(crawl)

    def checker(self, *, payloads: bool = False, sample: int | None = None) -> Checker:
        thoroughness = Thoroughness(payloads, sample, 7)
        return Checker(self.index, RevisitRules(), [self.folder], None, thoroughness)

    def check(self, *crawls: str, payloads: bool = False) -> Check:
        return self.checker(payloads=payloads).check(crawls)

    def kinds(self, *crawls: str, payloads: bool = False) -> list[str]:
        return sorted({finding.kind for finding in self.check(*crawls, payloads=payloads).findings})

    def repair(self, *crawls: str, forget_missing: bool = False) -> list[Repair]:
        checker = self.checker()
        return repair(checker, checker.check(crawls), forget_missing=forget_missing)

    def state(self) -> dict[str, tuple[object, ...]]:
        """All that the index says of its crawls, apart from times."""
        return {
            info.id: (
                info.state,
                info.counts,
                info.files,
                sorted(self.index.records(info.id), key=lambda original: original.digest),
                self.index.needs(info.id),
                info.waiting,
            )
            for info in self.index.crawls()
        }

    def found(self, number: int) -> Original | None:
        (original,) = self.index.find("other", [capture(number).payload_digest()])
        return original


def capture(number: int) -> Capture:
    return Capture(
        url=f"http://example.org/{number}",
        method="GET",
        status=200,
        date=START + timedelta(seconds=number),
        request_headers=(),
        request_body=b"",
        response_headers=((b"Content-Type", b"text/html"),),
        body=b"%d " % number * 2_000,
    )


@pytest.fixture(params=["sqlite", "redis"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    if request.param == "redis":
        url = str(request.getfixturevalue("redis_url"))
        hand: Hand = RedisHand(url)
    else:
        url = f"sqlite:///{tmp_path / 'store' / 'index.sqlite'}"
        hand = SqliteHand(url)
    (tmp_path / "store").mkdir()
    with open_index(url) as index:
        archive = Archive(url, tmp_path / "warcs", hand, index)
        archive.crawl("one", [1, 2, 3, 4, 5, 1], file_size=1)
        archive.crawl("two", [2, 3, 4, 6])
        yield archive
    if isinstance(hand, RedisHand):
        hand.client.close()


def digest(number: int) -> str:
    return capture(number).payload_digest()


def test_a_sound_archive_has_no_findings_and_is_left_as_it_is(archive: Archive) -> None:
    before = archive.state()
    check = archive.check(payloads=True)
    assert (check.findings, check.notes, check.passed_over) == ([], [], [])
    assert [crawl.id for crawl in check.crawls] == ["one", "two"]
    assert check.files == len(archive.files["one"]) + 1 == 7
    # The warcinfo of each file is none.
    assert check.records == 10
    assert archive.repair() == []
    assert archive.state() == before


def test_an_entry_that_names_another_place_is_found_and_made_anew(archive: Archive) -> None:
    before = archive.state()
    archive.hand.set_offset("one", digest(3), 17)
    (finding,) = archive.check().findings
    assert (finding.kind, finding.crawl, finding.offset) == ("entry", "one", 17)
    assert "http://example.org/3" in finding.sentence
    assert [done.crawl for done in archive.repair()] == ["one"]
    assert archive.kinds() == []
    assert archive.state() == before


def test_a_sample_of_all_entries_finds_what_is_wrong_with_one(archive: Archive) -> None:
    archive.hand.set_offset("one", digest(3), 17)
    assert [finding.kind for finding in archive.checker(sample=100).check().findings] == ["entry"]
    assert archive.checker(sample=2).check(["two"]).records == 1
    drawn = [archive.checker(sample=2).check(["one"]).findings for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_two_files_that_were_swapped_are_found_and_entered_as_they_are(archive: Archive) -> None:
    archive.crawl("three", [7, 8, 9], file_size=1, is_gzip=False)
    first, second = archive.files["three"][:2]
    data = first.read_bytes(), second.read_bytes()
    first.write_bytes(data[1])
    second.write_bytes(data[0])
    findings = archive.check().findings
    assert [(finding.kind, finding.file) for finding in findings] == [
        ("entry", str(first)),
        ("entry", str(second)),
    ]
    assert all("has another payload digest, URI and date." in finding.sentence for finding in findings)
    archive.repair()
    assert archive.kinds() == []
    found = archive.found(7)
    assert found is not None
    assert found.file == str(second)


def test_the_entries_of_a_file_that_is_gone_go_when_that_is_asked_for(archive: Archive) -> None:
    original = archive.found(2)
    assert original is not None
    assert original.file is not None
    Path(original.file).unlink()
    findings = archive.check().findings
    assert {finding.kind for finding in findings} == {"file", "missing"}
    assert any("1 entry of the crawl one names it" in finding.sentence for finding in findings)
    assert any("1 entry without a record was removed" in done.sentence for done in archive.repair("one"))
    assert archive.found(2) is None
    assert archive.found(3) is not None
    # The revisit of the other crawl has lost its original for good.
    left = archive.check().findings
    assert "revisit" in {finding.kind for finding in left}
    assert any("http://example.org/2" in finding.sentence for finding in left)
    (one, _) = archive.index.crawls()
    assert one.counts.total_urls == 5
    assert original.file not in one.files


def test_a_crawl_without_any_file_keeps_its_entries_unless_it_is_told_to_forget_them(
    archive: Archive,
) -> None:
    before = archive.state()
    for path in archive.files["one"]:
        path.unlink()
    (done,) = archive.repair("one")
    assert not done.is_done
    assert "none of its files exists" in done.sentence
    assert archive.state() == before
    assert archive.repair("one", forget_missing=True)[0].is_done
    assert list(archive.index.records("one")) == []
    assert archive.found(1) is None


def test_files_that_were_moved_are_found_by_name(archive: Archive, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    archive.folder.rename(elsewhere)
    archive.folder = elsewhere
    assert archive.kinds() == ["file", "missing"]
    archive.repair()
    assert archive.kinds() == []
    found = archive.found(1)
    assert found is not None
    assert str(found.file).startswith(str(elsewhere))


def test_what_a_cut_file_has_lost_is_forgotten(archive: Archive) -> None:
    (path,) = archive.files["two"]
    path.write_bytes(path.read_bytes()[:-900])
    kinds = archive.kinds()
    assert "damage" in kinds
    assert "counts" in kinds
    archive.repair()
    # The damage itself is not mended.
    assert archive.kinds() == ["damage"]


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_is_survived_and_undone_when_the_file_comes_back(archive: Archive, seed: int) -> None:
    before = archive.state()
    chance = random.Random(seed)
    path = chance.choice([path for paths in archive.files.values() for path in paths])
    data = path.read_bytes()
    at = chance.randrange(len(data))
    changed = [
        data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :],
        data[:at],
        data[:at] + bytes(chance.randrange(1, 20)) + data[at:],
    ][seed % 3]
    path.write_bytes(changed)
    archive.check(payloads=True)
    archive.repair()
    assert set(archive.kinds()) <= {"damage", "file", "missing", "revisit"}
    path.write_bytes(data)
    archive.repair()
    assert archive.kinds() == []
    assert archive.state() == before


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"Content-Type: text/html", "gives."),
        (b"Content-Encoding:  gzip", "gives; its gzip data is damaged or incomplete."),
    ],
)
def test_a_payload_that_was_changed_is_found_by_hashing_it(archive: Archive, head: bytes, why: str) -> None:
    original = archive.found(3)
    assert original is not None
    path = Path(str(original.file))
    data = path.read_bytes()
    start = original.offset or 0
    record = gzip.decompress(data[start : start + original.size]).replace(b"3 3 3 ", b"3 3 4 ", 1)
    record = record.replace(b"Content-Type: text/html", head)
    path.write_bytes(data[:start] + gzip.compress(record) + data[start + original.size :])
    (finding,) = (found for found in archive.check(payloads=True).findings if found.kind == "damage")
    assert (finding.file, finding.offset) == (str(path), start)
    assert finding.sentence.endswith(why)
    assert "damage" not in archive.kinds()


def test_counts_that_were_changed_are_counted_anew(archive: Archive) -> None:
    before = archive.state()
    archive.hand.set_total("two", 99)
    assert "counts" in archive.kinds()
    archive.repair()
    assert archive.state() == before
    assert archive.index.counts.total_urls == 10
    assert archive.kinds() == []


def test_an_original_that_was_taken_out_of_its_crawl_comes_back(archive: Archive) -> None:
    before = archive.state()
    archive.hand.drop_entry("one", digest(2))
    lacking = [finding for finding in archive.check().findings if finding.kind == "record"]
    assert [finding.crawl for finding in lacking] == ["one"]
    assert "http://example.org/2" in lacking[0].sentence
    # The revisit in the other crawl refers to a record that is there all the same.
    assert "revisit" not in archive.kinds()
    assert "revisit" not in archive.kinds("two")
    archive.repair()
    assert archive.kinds() == []
    assert archive.state() == before


def test_needs_that_were_lost_come_back(archive: Archive) -> None:
    before = archive.state()
    archive.hand.drop_needs("two")
    assert archive.kinds() == ["needs"]
    archive.repair()
    assert archive.state() == before


def test_a_payload_that_the_merged_index_lost_comes_back(archive: Archive) -> None:
    if not isinstance(archive.hand, RedisHand):
        pytest.skip("SQLite searches the crawls themselves")
    assert archive.hand.client.hdel("alldupes", digest(1)) == 1
    assert archive.found(1) is None
    assert archive.kinds() == ["merged"]
    archive.repair()
    assert archive.found(1) is not None
    assert archive.kinds() == []


def test_revisits_of_a_crawl_that_was_removed_are_named(archive: Archive) -> None:
    for path in archive.files["one"]:
        path.unlink()
    archive.index.purge(["one"])
    findings = archive.check().findings
    unmet = [finding for finding in findings if finding.kind == "revisit"]
    assert len(unmet) == 3
    assert all(finding.file == str(archive.files["two"][0]) and finding.offset for finding in unmet)
    assert "missing" in {finding.kind for finding in findings}
    needs = archive.index.needs("two")
    archive.hand.set_total("two", 99)
    archive.repair()
    assert archive.kinds() == ["missing", "revisit"]
    assert archive.index.needs("two") == needs


def test_an_emptied_index_is_filled_from_the_files(archive: Archive) -> None:
    before = archive.state()
    archive.index.close()
    archive.hand.empty()
    with open_index(archive.url) as index:
        archive.index = index
        assert archive.kinds() == ["lost"]
        assert [done.crawl for done in archive.repair()] == ["one", "two"]
        assert archive.kinds() == []
        for crawl in ("one", "two"):
            index.commit(crawl)
        assert archive.kinds() == []
        assert archive.state() == before


def test_a_crawl_that_was_purged_is_no_finding_but_can_be_entered_again(archive: Archive) -> None:
    before = archive.state()["two"]
    archive.index.purge(["two"])
    check = archive.check()
    assert check.findings == []
    assert any("does not know the crawl two" in note for note in check.notes)
    assert archive.kinds("two") == ["lost"]
    archive.repair("two")
    archive.index.commit("two")
    assert archive.state()["two"] == before


def test_a_crawl_that_nobody_knows_is_refused(archive: Archive) -> None:
    with pytest.raises(CrawlStateError, match="The crawl three is unknown"):
        archive.check("three")


def test_an_uncommitted_crawl_that_was_killed_is_entered_whole(archive: Archive) -> None:
    archive.crawl("three", [7, 8, 1], commit=False)
    whole = archive.state()
    archive.index.reset("three")
    archive.index.mark_incomplete("three", True)
    assert archive.kinds() == ["incomplete"]
    archive.repair()
    assert archive.kinds() == []
    assert archive.state() == whole


def test_a_crawl_that_runs_is_passed_over(archive: Archive) -> None:
    archive.index.start("three")
    writer = WarcWriter(archive.folder, "three", info={"isPartOf": "three"})
    recorder = Recorder(writer, archive.index, "three", OpenGuard())
    recorder.record(capture(9))
    check = archive.check()
    assert (check.findings, check.passed_over) == ([], ["three"])
    recorder.finish()
    assert archive.check().passed_over == []


def test_a_repair_that_was_cut_off_is_told_and_undone(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = archive.state()
    archive.hand.set_offset("one", digest(3), 17)

    def interrupted(*args: object) -> None:
        raise StoreUnavailable("The store is away.")

    with monkeypatch.context() as patch:
        patch.setattr(archive.index, "set_counts", interrupted)
        with pytest.raises(StoreUnavailable):
            archive.repair()
    assert archive.kinds() == ["entry", "unfinished"]
    archive.repair()
    assert archive.kinds() == []
    assert archive.state() == before


def test_a_repair_that_was_cut_off_before_its_last_step_is_ended(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = archive.state()
    archive.hand.set_offset("one", digest(3), 17)

    def interrupted(*args: object) -> None:
        raise StoreUnavailable("The store is away.")

    with monkeypatch.context() as patch:
        patch.setattr(archive.index, "replace", interrupted)
        with pytest.raises(StoreUnavailable):
            archive.repair()
    repairs = archive.repair("two")
    assert any("repair of the crawl one was completed" in done.sentence for done in repairs)
    assert archive.kinds() == []
    assert archive.state() == before


def test_a_repair_under_other_settings_keeps_what_is_right(archive: Archive) -> None:
    before = archive.state()
    archive.hand.set_offset("one", digest(3), 17)
    strict = RevisitRules(min_size=10**6)
    checker = Checker(archive.index, strict, [archive.folder], None, Thoroughness())
    repair(checker, checker.check())
    kept = {original.digest for original in archive.index.records("one")}
    assert kept == {digest(number) for number in (1, 2, 4, 5)}
    archive.repair()
    assert archive.state() == before


def test_a_file_elsewhere_that_does_not_answer_is_named_and_nothing_is_forgotten(archive: Archive) -> None:
    pytest.importorskip("fsspec")
    (path,) = archive.files["two"]
    archive.index.rename_file("two", str(path), f"memory://nowhere/{path.name}")
    before = archive.state()
    assert archive.kinds() == ["file"]
    (done,) = archive.repair()
    assert not done.is_done
    assert "does not answer" in done.sentence
    assert archive.state() == before


STRAY = Original("cd" * 32, "three", "20260801120000", "http://example.org/x", 500)


def test_an_entry_that_no_file_of_its_crawl_has_is_found_and_goes(archive: Archive) -> None:
    archive.crawl("three", [7, 8], commit=False)
    archive.index.add("three", [STRAY], Counts(40, 0, 0, 0))
    archive.index.commit("three")
    findings = archive.check().findings
    assert [(finding.kind, finding.crawl) for finding in findings] == [
        ("entry", "three"),
        ("counts", "three"),
    ]
    assert "http://example.org/x" in findings[0].sentence
    assert [(done.crawl, done.is_done) for done in archive.repair()] == [("three", True)]
    assert archive.kinds() == []
    assert {entry.digest for entry in archive.index.records("three")} == {digest(7), digest(8)}
    assert archive.index.counts.total_urls == 6 + 4 + 2


def test_counts_are_compared_although_an_entry_says_nothing_of_its_place(archive: Archive) -> None:
    before = archive.state()
    archive.hand.drop_place("one", digest(3))
    # Its record is in a file, so nothing is wrong but what is counted.
    assert archive.check().findings == []
    assert archive.check().notes == []
    archive.hand.set_total("one", 99)
    assert archive.kinds() == ["counts", "merged"] if isinstance(archive.hand, RedisHand) else ["counts"]
    archive.repair()
    assert archive.kinds() == []
    assert archive.state() == before


def test_a_crawl_made_here_of_which_only_entries_are_left_is_found_and_kept(archive: Archive) -> None:
    archive.index.start("three")
    archive.index.add("three", [STRAY], Counts(1, 0, 0, 900))
    archive.index.commit("three")
    before = archive.state()
    assert archive.kinds("three") == ["counts", "entry"]
    (done,) = archive.repair("three")
    assert not done.is_done
    assert archive.state() == before


def test_records_of_another_program_whose_place_nobody_knows_are_noted_and_kept(archive: Archive) -> None:
    archive.index.start("three")
    archive.index.add("three", [STRAY], Counts(1, 0, 0, 900))
    archive.index.commit("three")
    if not isinstance(archive.hand, RedisHand):
        pytest.skip("no other program writes to SQLite")
    assert archive.hand.client.hdel("dedupe:crawl:three", "software") == 1
    check = archive.check("three")
    assert check.findings == []
    assert any("where the records of 1 entry of the crawl three is" in note for note in check.notes)


def test_a_container_that_is_another_file_is_found(archive: Archive, tmp_path: Path) -> None:
    packed = tmp_path / "wacz" / "one.wacz"
    packed.parent.mkdir()
    packed.write_bytes(b"PK" + bytes(98))
    archive.index.set_container("one", "one.wacz", "ab" * 32, 100)
    thoroughness = Thoroughness(has_payloads=True)
    checker = Checker(archive.index, RevisitRules(), [archive.folder], packed.parent, thoroughness)
    (finding,) = (found for found in checker.check(["one"]).findings if found.kind == "container")
    assert "SHA-256" in finding.sentence
    packed.write_bytes(b"PK")
    kinds = [found.kind for found in archive_with(archive, packed.parent).check(["one"]).findings]
    assert kinds == ["container"]


def archive_with(archive: Archive, wacz_folder: Path) -> Checker:
    return Checker(archive.index, RevisitRules(), [archive.folder], wacz_folder, Thoroughness())


def test_crawls_that_are_in_their_wacz_alone_are_checked_and_repaired(
    archive: Archive, tmp_path: Path
) -> None:
    before = archive.state()
    folder = tmp_path / "wacz"
    for crawl in ("one", "two"):
        done = pack_crawl(
            archive.index, crawl, archive.folder, folder, lambda record: None, software="a test"
        )
        assert done is not None
        drop_warc_files(archive.index, done)
    checker = archive_with(archive, folder)
    assert checker.check().findings == []
    packed = archive.state()
    assert packed != before
    archive.hand.set_offset("one", digest(3), 17)
    check = checker.check()
    assert [finding.kind for finding in check.findings] == ["entry"]
    repair(checker, check)
    assert checker.check().findings == []
    assert archive.state() == packed
    # The WACZ files are moved, and found again.
    folder.rename(tmp_path / "elsewhere")
    archive.folder = tmp_path / "elsewhere"
    checker = archive_with(archive, archive.folder)
    check = checker.check()
    assert {finding.kind for finding in check.findings} == {"file"}
    repair(checker, check)
    assert checker.check().findings == []


def test_imported_wacz_files_are_checked_and_repaired(archive: Archive, tmp_path: Path) -> None:
    folder = tmp_path / "wacz"
    for crawl in ("one", "two"):
        pack_crawl(
            archive.index, crawl, archive.folder, folder, lambda record: None, software="scrapy-dedupe"
        )
    archive.index.purge(["one", "two"])
    archive.folder.rename(tmp_path / "away")
    words = [str(folder / "two.wacz"), str(folder / "one.wacz")]
    imported = import_sources(archive.index, words, ImportOptions(), Quiet())
    assert len(imported.imported) == 2
    checker = archive_with(archive, folder)
    check = checker.check()
    assert (check.findings, check.notes) == ([], [])
    assert check.records == 10
    before = archive.state()
    archive.hand.set_total("two", 99)
    archive.hand.set_total("one", 1)
    assert "counts" in {finding.kind for finding in checker.check().findings}
    repair(checker, checker.check())
    assert checker.check().findings == []
    after = archive.state()
    assert {crawl: state[:2] for crawl, state in after.items()} == {
        crawl: state[:2] for crawl, state in before.items()
    }
    for crawl, state in before.items():
        assert without_ids(after[crawl][3]) == without_ids(state[3])
        assert after[crawl][4:] == state[4:]


def without_ids(originals: object) -> list[Original]:
    """The lines of a CDXJ do not give record ids; the records do."""
    assert isinstance(originals, list)
    return [replace(original, record_id=None) for original in originals]


def imported(archive: Archive, *sources: Path) -> None:
    """Sources that were imported into an index that is empty otherwise."""
    for crawl in ("one", "two"):
        archive.index.purge([crawl])
    for path in archive.files["one"] + archive.files["two"]:
        path.unlink()
    done = import_sources(archive.index, list(map(str, sources)), ImportOptions(), Quiet())
    assert len(done.imported) == len(sources)
    assert archive.kinds() == []


def wacz_of(
    path: Path, responses: list[bytes], lines: list[bytes] | None = None, crawl: str = "theirs"
) -> Path:
    """A WACZ of another program; without *lines* it has no index."""
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as wacz:
        wacz.writestr(f"archive/{WARC_NAME}", b"".join([warcinfo(software="Zeno"), *responses]))
        if lines is not None:
            wacz.writestr("indexes/index.cdxj", b"".join(lines))
        wacz.writestr("datapackage.json", json.dumps({"crawlId": crawl, "software": "Zeno"}))
    return path


def dated(number: int, date: str) -> bytes:
    plain = gzip.decompress(response_record(number, b"%d" % number * 3_000))
    return gzip.compress(plain.replace(b"2026-08-01T12:00:00.123Z", date.encode()))


def test_imported_records_with_dates_of_any_precision_are_kept(archive: Archive, tmp_path: Path) -> None:
    dates = ["2026-08-01T12:00:00Z", "2026-08-01T12:00Z", "2026-08"]
    dates += [f"2026-08-01T12:00:00.{'123456789'[:places]}Z" for places in range(1, 10)]
    responses = [dated(number, date) for number, date in enumerate(dates)]
    imported(archive, wacz_of(tmp_path / "wacz" / "a.wacz", responses))
    before = archive.state()
    assert len(list(archive.index.records("theirs"))) == len(dates)
    archive.hand.set_total("theirs", 99)
    archive.repair()
    assert archive.kinds() == []
    assert archive.state() == before


def without_digests(statuses: dict[int, str]) -> tuple[list[bytes], list[bytes]]:
    """Records without a payload digest, and the lines of a CDXJ that gives it."""
    responses, lines, offset = [], [], len(warcinfo(software="Zeno"))
    for number, status in statuses.items():
        body = b"%d" % number * 3_000
        head, end, block = gzip.decompress(response_record(number, body, status=status)).partition(
            b"\r\n\r\n"
        )
        fields = [field for field in head.split(b"\r\n") if not field.startswith(b"WARC-Payload-Digest")]
        responses.append(gzip.compress(b"\r\n".join(fields) + end + block))
        place = {"offset": str(offset), "length": str(len(responses[-1])), "status": status[:3]}
        digest = f"sha-1:{hashlib.sha1(body).hexdigest()}"
        lines.append(line(number, url=f"http://example.org/{number}", digest=digest, **place))
        offset += len(responses[-1])
    return responses, lines


def test_records_without_a_digest_keep_the_one_that_their_index_gave(
    archive: Archive, tmp_path: Path
) -> None:
    responses, lines = without_digests({1: "200 OK", 2: "404 Not Found", 3: "200 OK"})
    path = wacz_of(tmp_path / "wacz" / "a.wacz", responses, lines)
    imported(archive, path)
    entries = {original.url: original for original in archive.index.records("theirs")}
    assert {original.form for original in entries.values()} == {"sha-1 hex"}
    archive.hand.set_total("theirs", 99)
    archive.repair()
    assert archive.kinds() == []
    kept = list(archive.index.records("theirs"))
    assert {original.url: replace(original, record_id=None) for original in kept} == entries
    # Where another record has come to stand, nobody knows the digest of its payload.
    wacz_of(path, [*reversed(responses[:2]), responses[2]], lines)
    archive.repair()
    assert [original.url for original in archive.index.records("theirs")] == ["http://example.org/3"]


def test_entries_of_files_that_were_only_moved_are_not_made_anew(archive: Archive, tmp_path: Path) -> None:
    responses, lines = without_digests({1: "200 OK", 2: "404 Not Found"})
    path = wacz_of(tmp_path / "wacz" / "a.wacz", responses, lines)
    imported(archive, path)
    before = list(archive.index.records("theirs"))
    archive.folder = path.parent.rename(tmp_path / "elsewhere")
    assert archive.kinds() == ["file"]
    (done,) = archive.repair()
    assert done.sentence == "The index now has the current locations of the files of the crawl theirs."
    assert archive.kinds() == []
    place = f"{archive.folder}/a.wacz/archive/{WARC_NAME}"
    after = sorted(archive.index.records("theirs"), key=lambda original: original.url)
    assert after == [replace(entry, file=place) for entry in sorted(before, key=lambda entry: entry.url)]


@pytest.mark.parametrize("is_in_index", [True, False])
def test_a_file_of_the_same_name_that_is_another_is_not_taken_for_one_that_is_gone(
    archive: Archive, tmp_path: Path, is_in_index: bool
) -> None:
    one, other = tmp_path / "away" / "data.warc.gz", archive.folder / "data.warc.gz"
    one.parent.mkdir()
    one.write_bytes(warcinfo(software="Zeno", isPartOf="a") + response_record(1, b"1" * 3_000))
    other.write_bytes(warcinfo(software="Zeno", isPartOf="b") + response_record(2, b"2" * 3_000))
    imported(archive, one, *[other][: int(is_in_index)])
    before = archive.state()
    one.unlink()
    assert archive.kinds() == ["file"]
    (done,) = archive.repair()
    assert (done.crawl, done.is_done) == ("a", False)
    assert archive.state() == before


def test_a_file_of_another_crawl_is_not_taken_for_one_of_a_crawl_that_was_made_here(archive: Archive) -> None:
    (path,) = archive.files["two"]
    before = archive.state()
    path.write_bytes(archive.files["one"][0].read_bytes())
    moved = path.rename(archive.folder / "elsewhere.warc.gz")
    (archive.folder / "sub").mkdir()
    moved.rename(archive.folder / "sub" / path.name)
    checker = Checker(
        archive.index, RevisitRules(), [archive.folder, archive.folder / "sub"], None, Thoroughness()
    )
    check = checker.check(["two"])
    assert [finding.kind for finding in check.findings] == ["file"]
    assert "is gone" in check.findings[0].sentence
    repair(checker, check)
    assert archive.state() == before


def test_a_wacz_without_originals_is_told_by_its_hash(archive: Archive, tmp_path: Path) -> None:
    path = wacz_of(
        tmp_path / "wacz" / "a.wacz", [response_record(1, b"1" * 3_000, status="304 Not Modified")]
    )
    imported(archive, path)
    archive.folder = path.parent.rename(tmp_path / "elsewhere")
    assert [finding.file for finding in archive.check().findings] == [f"{path}/archive/{WARC_NAME}"]
    moved = archive.folder / "a.wacz"
    whole = moved.read_bytes()
    wacz_of(moved, [response_record(2, b"2" * 3_000, status="304 Not Modified")])
    assert any("is gone" in finding.sentence for finding in archive.check().findings)
    moved.write_bytes(whole)
    archive.repair()
    assert archive.kinds() == []


@pytest.mark.parametrize(
    ("profile", "status", "fields", "kinds"),
    [
        ("server-not-modified", "304 Not Modified", [], []),
        (
            "server-not-modified",
            "304 Not Modified",
            ["WARC-Refers-To-Target-URI: http://example.org/9"],
            ["revisit"],
        ),
        ("identical-payload-digest", "200 OK", [], ["revisit"]),
    ],
)
def test_a_revisit_of_a_304_that_refers_to_nothing_is_no_finding(
    archive: Archive, tmp_path: Path, profile: str, status: str, fields: list[str], kinds: list[str]
) -> None:
    path = tmp_path / "theirs.warc.gz"
    revisit = record(
        "revisit",
        2,
        f"HTTP/1.1 {status}\r\n\r\n".encode(),
        f"WARC-Profile: http://netpreserve.org/warc/1.1/revisit/{profile}",
        "Content-Type: application/http; msgtype=response",
        *fields,
        uri="http://example.org/1",
    )
    path.write_bytes(warcinfo(software="Heritrix/3.4") + response_record(1, b"r" * 3_000))
    imported(archive, path)
    other = tmp_path / "more.warc.gz"
    other.write_bytes(warcinfo(software="Heritrix/3.4") + revisit)
    import_sources(archive.index, [str(other)], ImportOptions(), Quiet())
    assert archive.kinds() == kinds


def test_an_uncommitted_crawl_keeps_what_it_entered_under_settings_of_its_own(archive: Archive) -> None:
    archive.crawl("three", [7, 8, 1], commit=False)
    whole = archive.state()
    archive.index.mark_incomplete("three", True)
    strict = RevisitRules(min_size=10**6)
    checker = Checker(archive.index, strict, [archive.folder], None, Thoroughness())
    repair(checker, checker.check())
    assert archive.state() == whole


def test_a_number_that_no_store_holds_is_counted_and_made_anew(archive: Archive) -> None:
    before = archive.state()
    archive.hand.break_entry("one", digest(3))
    (unreadable,) = (found for found in archive.check().findings if found.kind == "unreadable")
    assert unreadable.sentence == "1 value of the crawl one cannot be read."
    archive.repair()
    assert archive.kinds() == []
    assert archive.state() == before


@pytest.mark.parametrize(
    "change",
    ["digest = hex(digest)", "digest = x'00ff'", "\"offset\" = 'here'", "url = 7.5, size = 'large'"],
)
def test_rows_that_hold_something_else_are_counted_and_made_anew(archive: Archive, change: str) -> None:
    if not isinstance(archive.hand, SqliteHand):
        pytest.skip("Redis has no types of columns")
    before = archive.state()
    archive.hand._do(f"UPDATE original SET {change} WHERE digest = ?", packed_digest(digest(3)))
    (unreadable,) = (found for found in archive.check().findings if found.kind == "unreadable")
    assert (unreadable.crawl, unreadable.sentence) == ("one", "1 value of the crawl one cannot be read.")
    archive.repair()
    assert archive.kinds() == []
    assert archive.state() == before


def test_a_crawl_whose_state_is_none_is_told_of(archive: Archive) -> None:
    if not isinstance(archive.hand, SqliteHand):
        pytest.skip("in Redis a crawl is a member of a set")
    archive.hand._do("UPDATE crawl SET state = 'rubbish' WHERE id = 'two'")
    assert [info.id for info in archive.index.crawls()] == ["one"]
    (unreadable,) = (found for found in archive.check().findings if found.kind == "unreadable")
    assert unreadable.sentence == "1 value of the list of crawls cannot be read."


def test_an_imported_crawl_of_which_nothing_is_left_is_found_though_its_file_is_back(
    archive: Archive, tmp_path: Path
) -> None:
    path = tmp_path / "loose.warc.gz"
    data = b"".join([warcinfo(software="Zeno"), response_record(1, b"1" * 3_000)])
    path.write_bytes(data)
    imported(archive, path)
    path.unlink()
    repairs = archive.repair(forget_missing=True)
    (crawl,) = (info.id for info in archive.index.crawls())
    assert repairs[0].sentence.endswith(
        f"When these files are available again, purge the crawl {crawl} and import it again."
    )
    path.write_bytes(data)
    assert archive.kinds() == ["empty"]
    archive.index.purge([crawl])
    done = import_sources(archive.index, [str(path)], ImportOptions(), Quiet())
    assert len(done.imported) == 1
    assert archive.kinds() == []


def test_revisits_that_wait_are_told_of(archive: Archive) -> None:
    archive.index.start("three")
    archive.index.add("three", [], Counts(1, 1), waiting=[Waiting("cd" * 32, 500)])
    archive.index.commit("three")
    notes = archive.check("three").notes
    assert any("Revisits of the crawl three wait for 1 payload" in note for note in notes)


def test_one_line_says_that_the_index_does_not_have_a_crawl_whose_files_are_there(archive: Archive) -> None:
    archive.index.purge(["one"])
    needs = {need.file for need in archive.index.needs("two")}
    (finding,) = (found for found in archive.check().findings if found.kind == "missing")
    assert len(needs) == 3
    assert finding.sentence == (
        "Revisits of the crawl two refer to records of one, which the index does not have. Of its files 3 of 3 exist."
    )


def test_records_in_files_that_the_index_has_lost_back_revisits(archive: Archive) -> None:
    archive.index.close()
    archive.hand.empty()
    with open_index(archive.url) as index:
        archive.index = index
        archive.repair("two")
        index.commit("two")
        findings = archive.check("two").findings
        assert [finding.kind for finding in findings] == ["waiting"] * 3
        assert {finding.file for finding in findings} == {str(path) for path in archive.files["one"][1:4]}
        assert findings[0].sentence == (
            f"1 revisit of the crawl two refers to a record in {findings[0].file} that the index does not have."
            " `check one --repair` adds the crawl one; then commit it."
        )
        archive.files["one"][1].unlink()
        assert archive.kinds("two") == ["revisit", "waiting"]


def test_what_is_imported_into_a_crawl_when_its_repair_begins_is_kept(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "wacz"
    imported(archive, wacz_of(folder / "a.wacz", [response_record(1, b"1" * 3_000)]))
    archive.hand.set_total("theirs", 99)
    checker = archive.checker()
    found = checker.check(["theirs"])
    late = wacz_of(folder / "b.wacz", [response_record(2, b"2" * 3_000)])
    read = archive.index.records

    def extended(crawl: str) -> Iterator[Original]:
        monkeypatch.undo()
        import_sources(archive.index, [str(late)], ImportOptions(), Quiet())
        return read(crawl)

    monkeypatch.setattr(archive.index, "records", extended)
    (refusal,) = (done for done in repair(checker, found) if not done.is_done)
    assert "was extended while it was repaired" in refusal.sentence
    assert len(list(archive.index.records("theirs"))) == 2


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_repair_of_a_crawl_that_was_added_to_meanwhile_leaves_nothing(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, is_cut_off: bool
) -> None:
    archive.hand.set_offset("one", digest(3), 17)
    before = archive.state()

    def refused(*args: object) -> None:
        raise CrawlStateError("The crawl one was extended while it was repaired. Repair it again.")

    def interrupted(*args: object) -> None:
        raise StoreUnavailable("The store is away.")

    if is_cut_off:
        with monkeypatch.context() as patch:
            patch.setattr(archive.index, "replace", interrupted)
            with pytest.raises(StoreUnavailable):
                archive.repair()
    with monkeypatch.context() as patch:
        patch.setattr(archive.index, "replace", refused)
        repairs = archive.repair(*(["two"] if is_cut_off else []))
    (refusal,) = (done for done in repairs if not done.is_done)
    assert refusal.sentence.endswith("Repair it again.")
    assert archive.state() == before
    archive.repair()
    assert archive.kinds() == []


@given(st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)), st.integers(0, 6))
def test_dates_are_read_as_the_index_keeps_them(date: datetime, places: int) -> None:
    text = date.isoformat(timespec="microseconds")
    text = f"{text[:19]}{text[19 : 20 + places] if places else ''}Z"
    assert digits_of(text) == date_digits(text)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", None]), st.integers(0, 2**39), st.binary(min_size=32, max_size=32)
        ),
        max_size=30,
    )
)
def test_a_ledger_gives_the_entries_of_each_file_in_order(rows: list[tuple[str | None, int, bytes]]) -> None:
    with closing(SortedEntries()) as ledger:
        ledger.take(
            Original(raw.hex(), "one", "20260801120000", "http://example.org/", 1, file=file, offset=offset)
            for file, offset, raw in rows
        )
        for name in ("a", "b"):
            expected = sorted(offset for file, offset, _ in rows if file == name)
            assert [entry.offset for entry in ledger.of_file(name)] == expected
            assert ledger.counts_by_file().get(name, 0) == len(expected)
        assert ledger.count_unplaced() == sum(file is None for file, _, _ in rows)
        assert len(ledger.sample(5, 1)) == min(5, sum(file is not None for file, _, _ in rows))
        assert set(ledger.find([raw.hex() for _, _, raw in rows])) == {raw.hex() for _, _, raw in rows}

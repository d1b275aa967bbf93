"""The records of a file at places in it, and the keys by which records of two files belong together."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from offline.archive_pairs import Archive, archive, deduplicated
from offline.old_facts import old_records

from scrapy_dedupe.verification.evidence import algorithms_of
from scrapy_dedupe.verification.old_files import OldFile
from scrapy_dedupe.verification.side_by_side import KeysAhead, key_of
from scrapy_dedupe.warc.bodies import payload_digests
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.windows import WindowedFile

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.warc.reading import StoredRecord


def stored(of: Archive, folder: Path, name: str) -> list[StoredRecord]:
    return list(read_records(of.write(folder) / name))


@pytest.mark.parametrize("name", ["a.warc.gz", "b.warc"])
def test_every_order_of_places_gives_the_records_there(tmp_path: Path, name: str) -> None:
    known = stored(archive(), tmp_path / "in", name)
    with WindowedFile(known[0].path) as window:
        file = OldFile(window)
        for index in (0, 1, 2, 3, 1, 1, 3, 0, 1):
            found = file.record_at(known[index].offset)
            assert found is not None
            assert (found[0].id, found[0].offset, found[0].length) == (
                known[index].id,
                known[index].offset,
                known[index].length,
            )


@pytest.mark.parametrize("name", ["a.warc.gz", "b.warc"])
@pytest.mark.parametrize("needs_body", [True, False])
def test_facts_give_the_same_records(tmp_path: Path, name: str, needs_body: bool) -> None:
    known = stored(archive(), tmp_path / "in", name)
    facts = list(old_records(known[0].path))
    with WindowedFile(known[0].path) as window:
        file = OldFile(window, facts)
        for record in known:
            found = file.record_at(record.offset, needs_body=needs_body)
            assert found is not None
            assert (found[0].headers, found[0].http) == (record.headers, record.http)
            if needs_body:
                assert found[0].block() == record.block()
            wanted = payload_digests(record, algorithms_of(record))
            assert tuple(found[1]) == wanted


@pytest.mark.parametrize("name", ["a.warc.gz", "b.warc"])
def test_where_no_record_begins_there_is_none_and_the_next_is_found_all_the_same(
    tmp_path: Path, name: str
) -> None:
    first, second, *_ = stored(archive(), tmp_path / "in", name)
    with WindowedFile(first.path) as window:
        file = OldFile(window)
        assert file.record_at(first.offset + 5) is None
        assert file.record_at(second.offset) is not None
        assert file.record_at(first.path.stat().st_size) is None  # type: ignore[attr-defined]
        assert (found := file.record_at(first.offset)) is not None
    assert found[0].id == first.id


def test_records_in_one_member_are_none(tmp_path: Path) -> None:
    together = archive()
    records = together.files["a.warc.gz"]
    records["first"].raw = gzip.compress(b"".join(record.plain() for record in records.values()))
    for label in ("first request", "alone", "cut"):
        del records[label]
    path = together.write(tmp_path / "in") / "a.warc.gz"
    with WindowedFile(path) as window:
        file = OldFile(window)
        assert file.record_at(0) is None


def test_a_response_and_the_revisit_that_was_made_of_it_belong_together(tmp_path: Path) -> None:
    before = stored(archive(), tmp_path / "before", "b.warc")
    after = stored(deduplicated(), tmp_path / "after", "b.warc")
    with WindowedFile(after[0].path) as window:
        keys = list(KeysAhead(window).from_(0))
    for number, record in enumerate(before):
        assert [key_of(record).is_of(key) for key in keys] == [place == number for place in range(len(keys))]

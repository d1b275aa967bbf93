"""The records of a file at places in it, and what tells that records of two files belong together."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from offline.archive_pairs import Archive, archive, deduplicated

from scrapy_dedupe.offline.record_keys import KeysAhead, RecordsInOrder, key_of
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.warc.reading import StoredRecord


def stored(of: Archive, folder: Path, name: str) -> list[StoredRecord]:
    return list(read_records(of.write(folder) / name))


@pytest.mark.parametrize("name", ["a.warc.gz", "b.warc"])
def test_every_order_of_places_gives_the_records_there(tmp_path: Path, name: str) -> None:
    known = stored(archive(), tmp_path / "in", name)
    records = RecordsInOrder(known[0].path)
    for index in (0, 1, 2, 3, 1, 1, 3, 0, 1):
        found = records.at(known[index].offset)
        assert found is not None
        assert (found[0].id, found[0].offset, found[0].length) == (
            known[index].id,
            known[index].offset,
            known[index].length,
        )


@pytest.mark.parametrize("name", ["a.warc.gz", "b.warc"])
def test_where_no_record_begins_there_is_none_and_the_next_is_found_all_the_same(
    tmp_path: Path, name: str
) -> None:
    first, second, *_ = stored(archive(), tmp_path / "in", name)
    records = RecordsInOrder(first.path)
    assert records.at(first.offset + 5) is None
    assert records.at(second.offset) is not None
    assert records.at(first.path.stat().st_size) is None  # type: ignore[attr-defined]
    assert (found := records.at(first.offset)) is not None
    assert found[0].id == first.id


def test_records_in_one_member_are_none(tmp_path: Path) -> None:
    together = archive()
    records = together.files["a.warc.gz"]
    records["first"].raw = gzip.compress(b"".join(record.plain() for record in records.values()))
    for label in ("first request", "alone", "cut"):
        del records[label]
    path = together.write(tmp_path / "in") / "a.warc.gz"
    assert RecordsInOrder(path).at(0) is None


def test_a_response_and_the_revisit_that_was_made_of_it_belong_together(tmp_path: Path) -> None:
    before = stored(archive(), tmp_path / "before", "b.warc")
    after = stored(deduplicated(), tmp_path / "after", "b.warc")
    keys = list(KeysAhead(after[0].path).at(0))
    for number, record in enumerate(before):
        assert [key_of(record).is_of(key) for key in keys] == [place == number for place in range(len(keys))]

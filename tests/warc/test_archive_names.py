from __future__ import annotations

import pytest

from scrapy_dedupe.warc.archive_names import (
    ArchiveName,
    archive_name,
    is_archive_name,
    is_warc_name,
    with_warc_suffix,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.warc", ArchiveName("warc", "", False)),
        ("in/a b\n.warc.gz", ArchiveName("warc", "gz", False)),
        ("A.ARC.GZ", ArchiveName("arc", "gz", False)),
        ("a.warc.gz.open", ArchiveName("warc", "gz", True)),
        ("a.warc.open", ArchiveName("warc", "", True)),
        ("a.arc.zst", ArchiveName("arc", "zst", False)),
        ("a.warc.gz.part", None),
        ("a.warc.gz.open.damaged", None),
        ("a.wacz", None),
        ("a.arch", None),
        (".warc.gz", None),
        ("warc", None),
    ],
)
def test_a_name_gives_format_compression_and_whether_it_is_open(
    name: str, expected: ArchiveName | None
) -> None:
    assert archive_name(name) == expected


def test_readable_archives_and_finished_warc_files() -> None:
    names = ["a.warc", "a.warc.gz", "a.arc.gz", "a.warc.zst", "a.warc.open", "a.txt"]
    assert [*filter(is_archive_name, names)] == ["a.warc", "a.warc.gz", "a.arc.gz"]
    assert [*filter(is_warc_name, names)] == ["a.warc", "a.warc.gz"]
    assert is_archive_name("a.warc.open", may_be_open=True)
    assert not is_archive_name("a.warc.gz", formats=("arc",))


def test_the_suffix_of_a_converted_file() -> None:
    assert [*map(with_warc_suffix, ["a.arc", "a.ARC.gz", "a.arc.b", "a.warc"])] == [
        "a.warc",
        "a.warc.gz",
        "a.arc.b",
        "a.warc",
    ]

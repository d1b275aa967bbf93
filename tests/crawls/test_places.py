from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import fsspec
import pytest

from scrapy_dedupe.crawls.crawl_files import is_present, member_name, readable, size_of
from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.warc.containers import files_in
from scrapy_dedupe.warc.remote import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsspec import AbstractFileSystem


@pytest.fixture
def memory() -> Iterator[AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def wacz(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("archive/a.warc", b"WARC/1.1\r\nfirst")
        packed.writestr("archive/sub/archive/b.warc", b"WARC/1.1\r\nsecond")
    return path


@pytest.mark.parametrize("name", ["c.wacz", "c.zip", "container"])
def test_a_file_in_a_wacz_is_found_by_its_name_in_the_index(tmp_path, name):
    path = wacz(tmp_path / name)
    for member in files_in(path):
        assert is_present(str(member))
        found = readable(str(member))
        assert found is not None
        assert str(found) == str(member)
        with found.open("rb") as file, member.open("rb") as same:
            assert file.read() == same.read()
    assert readable(member_name(path, "a.warc")) is not None
    assert readable(member_name(path, "other.warc")) is None


def test_a_file_that_is_nowhere_is_not_there(tmp_path):
    for name in (tmp_path / "a.warc", tmp_path / "no.wacz" / "archive" / "a.warc"):
        assert not is_present(str(name))
        assert readable(str(name)) is None


def test_a_file_is_found_while_it_is_written(tmp_path):
    (tmp_path / "a.warc.open").write_bytes(b"12345")
    found = readable(str(tmp_path / "a.warc"))
    assert found == tmp_path / "a.warc.open"
    assert size_of(found) == 5


@pytest.mark.parametrize("query", ["", "?sig=a/b&x=1"])
def test_a_file_in_a_wacz_elsewhere_is_found_when_it_is_opened(tmp_path, memory, query):
    url = f"memory://archive/c.wacz{query}"
    memory.pipe(f"/archive/c.wacz{query}", wacz(tmp_path / "c.wacz").read_bytes())
    for member in files_in(RemoteFile(url)):
        assert is_present(str(member))
        found = readable(str(member))
        assert found is not None
        assert (str(found), found.name, found.suffixes) == (str(member), member.name, [".warc"])
        with found.open("rb") as file, member.open("rb") as same:
            assert file.read() == same.read()
    missing = readable(f"{url}/archive/other.warc")
    assert missing is not None
    with pytest.raises(ArchiveError, match=r"has no archive/other\.warc"):
        missing.open("rb")


def test_a_wacz_elsewhere_that_is_gone_or_broken_is_told_when_a_file_in_it_is_opened(memory):
    gone = readable("memory://x/gone.wacz/archive/a.warc")
    assert gone is not None
    with pytest.raises(ArchiveError, match=r"gone\.wacz cannot be read: it does not exist"):
        gone.open("rb")
    memory.pipe("/x/broken.wacz", b"PK\x03\x04")
    broken = readable("memory://x/broken.wacz/archive/a.warc")
    assert broken is not None
    with pytest.raises(DamagedInput, match="is not a whole WACZ"):
        broken.open("rb")


def test_a_folder_archive_elsewhere_is_no_wacz(memory):
    memory.pipe("/archive/a.warc", b"WARC/1.1")
    found = readable("memory://archive/a.warc")
    assert isinstance(found, RemoteFile)
    assert size_of(found) == 8

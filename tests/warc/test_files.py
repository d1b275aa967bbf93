from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import zlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.errors import ArchiveError, SettingError
from scrapy_dedupe.files.locks import lock
from scrapy_dedupe.warc import files, records
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import Location, WarcWriter, file_prefix
from scrapy_dedupe.warc.reading import read_record, read_records

if TYPE_CHECKING:
    from pathlib import Path

INFO = {"software": "tests", "format": "WARC File Format 1.1", "isPartOf": "crawl-1"}


def exchange(number: int = 0, body: bytes = b"body", **ids: str) -> list[records.Record]:
    captured = Capture(f"http://example.org/{number}", "GET", 200, datetime.now(UTC), (), b"", (), body)
    response = records.response(captured, digest=captured.payload_digest("sha256"), **ids)
    return [response, records.request(captured, concurrent_to=response.id, **ids)]


def writer(folder: Path, **options: object) -> WarcWriter:
    return WarcWriter(folder, "pre", info=INFO, **options)  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("gzip", [True, False])
def test_every_record_is_read_back_from_where_it_was_reported(tmp_path, gzip):
    written: list[tuple[records.Record, Location]] = []
    with writer(tmp_path, gzip=gzip) as out:
        for number in range(20):
            exchanged = exchange(number, os.urandom(number * 100))
            written += zip(exchanged, out.write(exchanged), strict=True)
    for record, location in written:
        stored = read_record(tmp_path / location.file, location.offset)
        assert stored.id == record.id
        assert stored.block() == record.block
        assert stored.length == location.length


def test_a_gzip_file_has_one_member_for_each_record(tmp_path):
    with writer(tmp_path) as out:
        exchanged = exchange()
        first, second = out.write(exchanged)
    data = (tmp_path / first.file).read_bytes()
    for record, location in zip(exchanged, (first, second), strict=True):
        member = zlib.decompressobj(31)
        assert member.decompress(data[location.offset :]) == record.to_bytes()
        assert len(data) - location.offset - len(member.unused_data) == location.length
    assert second.offset + second.length == len(data)


@pytest.mark.parametrize("level", [1, 4, 9])
def test_all_members_of_a_file_begin_with_the_same_bytes(tmp_path, level):
    with writer(tmp_path, gzip_level=level) as out:
        places = [place for size in (0, 3_000, 5_000) for place in out.write(exchange(body=bytes(size)))]
    data = (tmp_path / places[0].file).read_bytes()
    assert len({data[place.offset : place.offset + 10] for place in places}) == 1


@pytest.mark.parametrize(("gzip", "suffix"), [(True, r"\.warc\.gz"), (False, r"\.warc")])
def test_a_file_is_open_while_written_and_then_has_its_final_name(tmp_path, gzip, suffix):
    out = writer(tmp_path, gzip=gzip)
    assert names(tmp_path) == []
    (location, _) = out.write(exchange())
    assert names(tmp_path) == [location.file + ".open"]
    assert re.fullmatch(r"pre-\d{17}-00000-[\w.-]+" + suffix, location.file)
    (finished,) = out.close()
    assert names(tmp_path) == [location.file] == [finished.file]
    assert finished.size_bytes == (tmp_path / finished.file).stat().st_size
    assert out.close() == [finished] == out.files


def test_the_first_record_is_a_warcinfo_with_the_final_name(tmp_path):
    with writer(tmp_path) as out:
        expected_id = out.warcinfo_id
        (location, _) = out.write(exchange())
    first = next(read_records(tmp_path / location.file))
    assert (first.type, first.offset, first.id) == ("warcinfo", 0, expected_id)
    assert first.get("WARC-Filename") == location.file
    assert first.info()["ispartof"] == "crawl-1"


def test_files_turn_between_exchanges_and_ids_follow(tmp_path):
    told: list[str] = []
    out = writer(tmp_path, file_size=3000, gzip=False, on_new_file=told.append)
    for number in range(20):
        locations = out.write(exchange(number, warcinfo_id=out.warcinfo_id))
        assert locations[0].file == locations[1].file == told[-1]
    finished = out.close()
    assert len(finished) > 3
    assert [file.file for file in finished] == told
    for file in finished:
        warcinfo, *rest = read_records(tmp_path / file.file)
        assert {record.get("WARC-Warcinfo-ID") for record in rest} == {warcinfo.id}
        assert [record.type for record in rest] == ["response", "request"] * (len(rest) // 2)
    for file in finished[:-1]:
        assert file.size_bytes >= 3000


def test_nothing_is_left_of_a_writer_that_wrote_nothing(tmp_path):
    assert writer(tmp_path / "new").close() == []
    assert names(tmp_path / "new") == []


def test_what_was_reported_is_in_the_file_before_it_is_closed(tmp_path):
    out = writer(tmp_path)
    (location, _) = out.write(exchange())
    assert read_record(tmp_path / (location.file + ".open"), location.offset).payload() == b"body"
    out.close()


def test_the_open_file_is_locked(tmp_path):
    out = writer(tmp_path)
    (location, _) = out.write(exchange())
    with (tmp_path / (location.file + ".open")).open("rb") as other:
        assert not lock(other.fileno())
    out.close()
    with (tmp_path / location.file).open("rb") as other:
        assert lock(other.fileno())


def test_another_file_is_never_overwritten(tmp_path):
    out = writer(tmp_path)
    (location, _) = out.write(exchange())
    (tmp_path / location.file).write_bytes(b"mine")
    with pytest.raises(ArchiveError, match="already exists"):
        out.close()
    assert (tmp_path / location.file).read_bytes() == b"mine"
    assert len(list(read_records(tmp_path / (location.file + ".open")))) == 3


def test_without_hard_links_a_file_still_gets_its_name_and_overwrites_nothing(tmp_path, monkeypatch):
    def no_link(*args: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(files.os, "link", no_link)
    out = writer(tmp_path)
    (location, _) = out.write(exchange())
    out.close()
    assert names(tmp_path) == [location.file]
    out = writer(tmp_path)
    (location, _) = out.write(exchange())
    (tmp_path / location.file).write_bytes(b"mine")
    with pytest.raises(ArchiveError, match="already exists"):
        out.close()
    assert (tmp_path / location.file).read_bytes() == b"mine"


# A full disk


@contextlib.contextmanager
def full_at(size_bytes):
    """Let files grow to so many bytes and no further: the system then refuses, as a full disk does.

    This holds for the file that the output of the tests goes to as well, so it must end with the test's body.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("gzip", [True, False])
def test_an_exchange_that_does_not_fit_leaves_no_byte_and_the_writer_goes_on(tmp_path, gzip):
    out = writer(tmp_path, gzip=gzip)
    kept = out.write(exchange(1))
    path = tmp_path / (kept[0].file + ".open")
    size = path.stat().st_size
    with full_at(size + 1000), pytest.raises(ArchiveError, match=re.escape(str(path)) + ".*File too large"):
        out.write(exchange(2, os.urandom(5000)))
    assert path.stat().st_size == size
    kept += out.write(exchange(3))
    (finished,) = out.close()
    stored = list(read_records(tmp_path / finished.file))
    assert [record.offset for record in stored[1:]] == [location.offset for location in kept]


def test_a_tail_that_could_not_be_cut_is_cut_before_the_next_exchange(tmp_path, monkeypatch):
    out = writer(tmp_path)
    (first, _) = out.write(exchange(1))
    path = tmp_path / (first.file + ".open")
    size = path.stat().st_size

    def refuse(fd: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "ftruncate", refuse)
        with full_at(size + 1000), pytest.raises(ArchiveError):
            out.write(exchange(2, os.urandom(5000)))
        assert path.stat().st_size == size + 1000
        with pytest.raises(ArchiveError, match="Input/output"):
            out.write(exchange(3))
    (second, _) = out.write(exchange(4))
    assert second.offset == size
    out.close()
    assert len(list(read_records(tmp_path / first.file))) == 5


def test_a_disk_that_is_full_from_the_start_leaves_no_file(tmp_path):
    out = writer(tmp_path)
    with full_at(10), pytest.raises(ArchiveError, match="File too large"):
        out.write(exchange())
    assert names(tmp_path) == []
    out.write(exchange())
    assert len(out.close()) == 1


def test_short_writes_are_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(files.os, "write", lambda fd, data: write(fd, bytes(data[:7])))
    with writer(tmp_path) as out:
        (location, _) = out.write(exchange())
    assert len(list(read_records(tmp_path / location.file))) == 3


def test_a_failed_sync_keeps_the_file_open_and_says_so(tmp_path, monkeypatch):
    out = writer(tmp_path)
    (location, _) = out.write(exchange())

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files.os, "fsync", refuse)
    with pytest.raises(ArchiveError, match="can be salvaged"):
        out.close()
    assert names(tmp_path) == [location.file + ".open"]
    assert out.files == []


def test_an_error_in_the_callback_leaves_no_file(tmp_path):
    def fail(name: str) -> None:
        raise RuntimeError("index")

    out = writer(tmp_path, on_new_file=fail)
    with pytest.raises(RuntimeError):
        out.write(exchange())
    assert names(tmp_path) == []


# What cannot be used


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ArchiveError, match="cannot be written to"):
        writer(tmp_path / "file" / "folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_without_permission_is_refused_at_once(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ArchiveError, match="Permission denied"):
        writer(tmp_path)


def test_a_closed_writer_refuses(tmp_path):
    out = writer(tmp_path)
    out.close()
    with pytest.raises(ArchiveError, match="closed"):
        out.write(exchange())


@pytest.mark.parametrize("options", [{"gzip_level": 13}, {"gzip_level": 0}, {"file_size": 0}])
def test_levels_and_sizes_are_checked(tmp_path, options):
    with pytest.raises(SettingError):
        writer(tmp_path, **options)


@pytest.mark.parametrize("text", ["", "...", "-"])
def test_a_prefix_must_leave_something(text):
    with pytest.raises(SettingError):
        file_prefix(text)


def test_a_prefix_cannot_leave_the_folder():
    assert file_prefix("../../etc/x y") == "_.._etc_x_y"


def test_files_are_named_by_a_template(tmp_path):
    with writer(tmp_path, name="{crawl}_{serial}.{prefix}", crawl="a crawl", file_size=1) as out:
        for number in range(3):
            out.write(exchange(number))
    assert names(tmp_path) == [f"a_crawl_0000{number}.pre.warc.gz" for number in range(3)]


@pytest.mark.parametrize(
    "name", ["", "{prefix}", "{serial}/x", ".{serial}", "{serial:03d}", "{other}-{serial}", "{serial"]
)
def test_a_template_that_cannot_name_files_is_refused(tmp_path, name):
    with pytest.raises(SettingError, match="cannot name WARC files"):
        writer(tmp_path, name=name)


def test_names_that_are_too_long_are_refused_at_the_start(tmp_path):
    with pytest.raises(SettingError, match="at most 255"):
        writer(tmp_path, name="{crawl}-{crawl}-{serial}", crawl="x" * 128)
    assert names(tmp_path) == []


def test_names_that_were_used_before_are_not_used_again(tmp_path):
    taken = {f"0000{number}.warc.gz" for number in range(3)}
    with writer(tmp_path, name="{serial}", taken=taken) as out:
        out.write(exchange())
    assert names(tmp_path) == ["00003.warc.gz"]


def test_a_folder_that_may_not_be_looked_at_any_more_is_told_in_one_sentence(tmp_path, monkeypatch):
    out = writer(tmp_path / "warcs")

    def forbidden(path, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("scrapy_dedupe.warc.files.Path.exists", forbidden)
    with pytest.raises(ArchiveError, match="cannot be created: Permission denied"):
        out.write(exchange())

from __future__ import annotations

import gzip as gzip_module
import os
import resource
import signal
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc import records
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter, warc_files
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.salvage import Salvaged, salvage

if TYPE_CHECKING:
    from pathlib import Path


def exchange(number: int, body: bytes = b"body") -> list[records.Record]:
    captured = Capture(f"http://example.org/{number}", "GET", 200, datetime.now(UTC), (), b"", (), body)
    response = records.response(captured, digest=captured.payload_digest("sha256"))
    return [response, records.request(captured, concurrent_to=response.id)]


def finished_file(
    folder: Path, *, gzip: bool, crawl: str = "c1", body: bytes = b"body"
) -> tuple[Path, list[int]]:
    """Write two exchanges; return the file and where each record ends, the warcinfo first."""
    with WarcWriter(folder, "pre", gzip=gzip, info={"isPartOf": crawl}) as out:
        locations = [*out.write(exchange(1, body)), *out.write(exchange(2, body))]
    ends = [locations[0].offset] + [location.offset + location.length for location in locations]
    return folder / locations[0].file, ends


@pytest.mark.parametrize("gzip", [True, False])
def test_wherever_a_file_was_cut_exactly_its_whole_records_are_kept(tmp_path, gzip):
    # A body that is itself an archive must not be taken for records of the crawl.
    inner, _ = finished_file(tmp_path / "inner", gzip=gzip)
    source, ends = finished_file(tmp_path / "source", gzip=gzip, body=inner.read_bytes())
    data = source.read_bytes()
    whole_ids = [record.id for record in read_records(source)]
    near_ends = {end + step for end in (0, *ends) for step in range(-12, 13)}
    for size in sorted({*near_ends, *range(0, len(data), 11)} & set(range(len(data) + 1))):
        path = tmp_path / f"{size}.warc{'.gz' if gzip else ''}.open"
        path.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        result = salvage(path)
        final = path.with_name(path.name.removesuffix(".open"))
        assert not path.exists()
        if not whole:
            assert result == Salvaged(final.name, 0, size, is_removed=True)
            assert not final.exists()
        else:
            assert result == Salvaged(final.name, whole - 1, size - ends[whole - 1])
            assert [record.id for record in read_records(final)] == whole_ids[:whole]
            assert final.read_bytes() == data[: ends[whole - 1]]
            final.unlink()


def test_the_file_of_a_running_crawl_is_left_alone(tmp_path):
    out = WarcWriter(tmp_path, "pre", info={"isPartOf": "c1"})
    (location, _) = out.write(exchange(1))
    path = tmp_path / (location.file + ".open")
    before = path.read_bytes()
    assert salvage(path) is None
    assert path.read_bytes() == before
    out.close()


def test_another_file_is_never_overwritten(tmp_path):
    source, _ = finished_file(tmp_path, gzip=True)
    path = source.with_name(source.name + ".open")
    path.write_bytes(source.read_bytes()[:-5])
    with pytest.raises(ArchiveError, match="already exists"):
        salvage(path)
    assert len(list(read_records(source))) == 5


def test_a_kill_between_the_two_names_is_mended(tmp_path):
    source, _ = finished_file(tmp_path, gzip=True)
    path = source.with_name(source.name + ".open")
    os.link(source, path)
    assert salvage(path) == Salvaged(source.name, 4, 0)
    assert not path.exists()
    assert len(list(read_records(source))) == 5


@pytest.mark.parametrize("gzip", [True, False])
def test_damage_with_whole_records_after_it_is_refused_and_nothing_is_cut(tmp_path, gzip):
    source, ends = finished_file(tmp_path, gzip=gzip)
    data = bytearray(source.read_bytes())
    data[ends[0] : ends[0] + 40] = b"\xff" * 40
    path = source.with_name("damaged-" + source.name + ".open")
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match=f"offset {ends[0]}.*whole records follow"):
        salvage(path)
    assert path.read_bytes() == data


def test_pages_of_zeros_at_the_end_are_cut(tmp_path):
    source, ends = finished_file(tmp_path, gzip=True)
    path = source.with_name("zeros-" + source.name + ".open")
    path.write_bytes(source.read_bytes()[: ends[2]] + bytes(5000))
    assert salvage(path) == Salvaged("zeros-" + source.name, 2, 5000)
    assert len((tmp_path / ("zeros-" + source.name)).read_bytes()) == ends[2]


def test_a_file_whose_warcinfo_was_cut_is_removed(tmp_path):
    source, ends = finished_file(tmp_path, gzip=True)
    for size in (0, 1, 15, ends[0] - 1):
        path = source.with_name(source.name.replace("pre-", f"cut{size}-") + ".open")
        path.write_bytes(source.read_bytes()[:size])
        assert salvage(path) == Salvaged(path.name[:-5], 0, size, is_removed=True)
        assert not path.exists()


@pytest.mark.parametrize("data", [b"something else", b"\x1f\x8b\x08\xff", b"WARC/1.1\r\nWARC-Type: response"])
def test_a_file_of_somebody_else_without_whole_records_is_not_removed(tmp_path, data):
    path = tmp_path / "pre-20260101000000000-00000-h.warc.gz.open"
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match="no whole record"):
        salvage(path)
    assert path.read_bytes() == data


def test_only_open_files_are_salvaged(tmp_path):
    source, _ = finished_file(tmp_path, gzip=True)
    with pytest.raises(ArchiveError, match="only unfinished files"):
        salvage(source)
    assert salvage(source.with_name("gone.warc.gz.open")) is None


# Damage in the middle


def ids(path: Path) -> list[str | None]:
    return [record.id for record in read_records(path, on_damage=lambda damage: None)]


def several(
    folder: Path, *, gzip: bool, name: str = "pre", bodies: tuple[bytes, ...] = (b"body",) * 4
) -> Path:
    """A finished file of as many exchanges as *bodies*, whose records name its warcinfo as those of a crawl do."""
    with WarcWriter(folder, name, gzip=gzip, info={"isPartOf": "c1"}) as out:
        for number, body in enumerate(bodies):
            captured = Capture(
                f"http://example.org/{number}", "GET", 200, datetime.now(UTC), (), b"", (), body
            )
            response = records.response(
                captured, digest=captured.payload_digest("sha256"), warcinfo_id=out.warcinfo_id
            )
            request = records.request(captured, concurrent_to=response.id, warcinfo_id=out.warcinfo_id)
            (location, _) = out.write([response, request])
    return folder / location.file


def opened(path: Path, data: bytes | bytearray) -> Path:
    """The file with *data* and without its final name."""
    path_open = path.with_name(f"{path.name}.open")
    path_open.write_bytes(data)
    path.unlink()
    return path_open


@pytest.mark.parametrize("gzip", [True, False])
@pytest.mark.parametrize("damaged", [(1,), (2,), (1, 2), (1, 4, 7), (3, 8)])
def test_whole_records_are_copied_around_damage(tmp_path: Path, gzip: bool, damaged: tuple[int, ...]) -> None:
    path = several(tmp_path, gzip=gzip)
    stored = list(read_records(path))
    data = bytearray(path.read_bytes())
    for number in damaged:
        begin = stored[number].offset
        data[begin : begin + 40] = b"\xff" * 40
    path_open = opened(path, data)
    foreseen = salvage(path_open, dry_run=True, skip_damaged=True)
    assert path_open.read_bytes() == data
    result = salvage(path_open, skip_damaged=True)
    assert result == foreseen
    assert result is not None
    kept = [record for number, record in enumerate(stored) if number not in damaged]
    is_last_damaged = len(stored) - 1 in damaged
    assert ids(path) == [record.id for record in kept]
    assert result.records == len(kept) - 1
    lengths = [stored[number].length for number in damaged]
    assert result.cut_bytes == (lengths.pop() if is_last_damaged else 0)
    assert result.skipped_bytes == sum(lengths)
    assert result.kept_as == f"{path.name}.damaged"
    assert (tmp_path / f"{path.name}.damaged").read_bytes() == data, "nobody has changed it"
    assert {file.name for file in tmp_path.iterdir()} == {path.name, f"{path.name}.damaged"}
    assert warc_files(tmp_path, unfinished=True) == [path]


@pytest.mark.parametrize("gzip", [True, False])
def test_a_damaged_warcinfo_is_written_again_under_its_id(tmp_path: Path, gzip: bool) -> None:
    path = several(tmp_path, gzip=gzip)
    stored = list(read_records(path))
    data = bytearray(path.read_bytes())
    data[0:40] = b"\xff" * 40
    result = salvage(opened(path, data), skip_damaged=True, info={"isPartOf": "c1"})
    assert result is not None
    assert (result.records, result.skipped_bytes) == (8, stored[0].length)
    assert ids(path) == [record.id for record in stored]
    assert next(read_records(path)).info() == {"ispartof": "c1"}


@pytest.mark.parametrize("skip", [False, True])
def test_a_length_that_leads_over_whole_records_is_damage_and_no_broken_end(
    tmp_path: Path, skip: bool
) -> None:
    path = several(tmp_path, gzip=False)
    stored = list(read_records(path))
    data = path.read_bytes()
    begin = stored[1].offset
    (length,) = [value for name, value in stored[1].headers if name == "Content-Length"]
    field = f"Content-Length: {length}\r\n".encode()
    at = data.index(field, begin)
    data = data[:at] + f"Content-Length: 9{length}\r\n".encode() + data[at + len(field) :]
    path_open = opened(path, data)
    if not skip:
        with pytest.raises(ArchiveError, match=f"offset {begin}.*--skip-damaged"):
            salvage(path_open)
        assert path_open.read_bytes() == data
        return
    result = salvage(path_open, skip_damaged=True)
    assert result is not None
    assert (result.records, result.skipped_bytes) == (7, stored[1].length + 1)
    assert ids(path) == [record.id for number, record in enumerate(stored) if number != 1]


def test_a_warcinfo_whose_length_is_wrong_does_not_take_all_with_it(tmp_path: Path) -> None:
    path = several(tmp_path, gzip=False)
    stored = list(read_records(path))
    data = path.read_bytes().replace(b"Content-Length: ", b"Content-Length: 99999", 1)
    path_open = opened(path, data)
    with pytest.raises(ArchiveError, match=r"offset 0.*whole records follow"):
        salvage(path_open)
    assert path_open.read_bytes() == data
    assert salvage(path_open, skip_damaged=True) is not None
    assert ids(path) == [record.id for record in stored]


@pytest.mark.parametrize("gzip", [True, False])
@pytest.mark.parametrize("length", ["4", "700", "99999999"])
def test_what_only_looks_like_a_record_in_a_damaged_body_is_not_taken_for_one(
    tmp_path: Path, gzip: bool, length: str
) -> None:
    head = f"WARC/1.1\r\nWARC-Type: metadata\r\nContent-Length: {length}\r\n\r\n".encode()
    body = b"text\r\n" + head + b"not whole" * 30
    path = several(tmp_path, gzip=gzip, bodies=(b"a", body, b"b" * 2_000, b"c"))
    stored = list(read_records(path))
    data = bytearray(path.read_bytes())
    begin = stored[3].offset
    data[begin : begin + 30] = b"\xff" * 30
    result = salvage(opened(path, data), skip_damaged=True)
    assert result is not None
    assert (result.records, result.skipped_bytes) == (7, stored[3].length)
    assert ids(path) == [record.id for number, record in enumerate(stored) if number != 3]


def test_line_ends_that_are_missing_in_the_middle_are_no_broken_end(tmp_path: Path) -> None:
    path = several(tmp_path, gzip=False)
    stored = list(read_records(path))
    data = path.read_bytes()
    end = stored[2].offset
    path_open = opened(path, data[: end - 4] + b"\r\n" + data[end:])
    assert salvage(path_open) == Salvaged(path.name, 8, 0)
    assert ids(path) == [record.id for record in stored]


def test_a_file_that_is_one_gzip_member_is_refused(tmp_path: Path) -> None:
    path = several(tmp_path, gzip=False)
    data = gzip_module.compress(path.read_bytes())
    path_open = path.with_name(f"{path.name}.gz.open")
    path_open.write_bytes(data)
    for options in ({}, {"skip_damaged": True}):
        with pytest.raises(ArchiveError, match="share a gzip member"):
            salvage(path_open, **options)
        assert path_open.read_bytes() == data


def damaged_file(folder: Path) -> tuple[Path, Path, bytes]:
    """A finished file's path, the damaged one, and what that holds."""
    path = several(folder, gzip=True)
    data = bytearray(path.read_bytes())
    begin = list(read_records(path))[2].offset
    data[begin + 20 : begin + 30] = b"\xff" * 10
    return path, opened(path, data), bytes(data)


@pytest.mark.parametrize("step", range(1, 9))
def test_a_copy_that_was_killed_is_done_by_the_next_call(tmp_path: Path, step: int) -> None:
    path, path_open, data = damaged_file(tmp_path / "warcs")
    whole = ids(path_open)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path_open), str(step)], check=False)
    assert killed.returncode in (-signal.SIGKILL, 0)
    kept = path.with_name(f"{path.name}.damaged")
    assert (path_open if path_open.exists() else kept).read_bytes() == data
    if path_open.exists():
        assert salvage(path_open, skip_damaged=True) is not None
    assert ids(path) == whole
    assert kept.read_bytes() == data
    assert {file.name for file in path.parent.iterdir()} == {path.name, kept.name}


KILLED = """
import os, signal, sys
from scrapy_dedupe.warc.salvage import salvage

steps = 0

def count(event, args):
    global steps
    is_written = event == "open" and str(args[0]).endswith(".part") and args[2] & os.O_CREAT
    if event in ("os.remove", "os.link", "os.rename") or is_written:
        steps += 1
        if steps == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
salvage(sys.argv[1], skip_damaged=True)
"""


def test_a_full_disk_leaves_the_damaged_file_as_it_is(tmp_path: Path) -> None:
    path, path_open, data = damaged_file(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(ArchiveError, match="cannot be salvaged"):
            salvage(path_open, skip_damaged=True)
    finally:
        signal.signal(signal.SIGXFSZ, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert path_open.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path_open]
    assert not path.exists()


@pytest.mark.parametrize("suffix", ["", ".damaged"])
def test_no_other_file_is_overwritten_by_a_copy(tmp_path: Path, suffix: str) -> None:
    path, path_open, data = damaged_file(tmp_path)
    other = path.with_name(path.name + suffix)
    other.write_bytes(b"mine")
    with pytest.raises(ArchiveError, match="already exists"):
        salvage(path_open, skip_damaged=True)
    assert (path_open.read_bytes(), other.read_bytes()) == (data, b"mine")
    assert {file.name for file in tmp_path.iterdir()} == {path_open.name, other.name}


def test_with_skip_damaged_a_broken_end_is_cut_as_ever(tmp_path: Path) -> None:
    path = several(tmp_path, gzip=True)
    stored = list(read_records(path))
    path_open = opened(path, path.read_bytes()[:-5])
    assert salvage(path_open, skip_damaged=True) == Salvaged(path.name, 7, stored[-1].length - 5)
    assert list(tmp_path.iterdir()) == [path]

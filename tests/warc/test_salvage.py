from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc import records
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter
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
        if whole < 2:
            assert result == Salvaged(final.name, 0, size)
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
    with pytest.raises(ArchiveError, match="is there already"):
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
        assert salvage(path) == Salvaged(path.name[:-5], 0, size)
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

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import zipfile
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import ArchiveError, DamagedInput, DedupeError
from scrapy_dedupe.warc import records, wacz, zip_members
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.cdxj_reading import CdxCapture, read_cdxj
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.remote import RemoteFile
from scrapy_dedupe.warc.wacz import Requirement, pack
from scrapy_dedupe.warc.wacz_reading import StoredWacz, WaczAbout

if TYPE_CHECKING:
    from pathlib import Path

HEX = "0123456789abcdef" * 4
WARC = (
    b"WARC/1.1\r\nWARC-Type: metadata\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Date: 2026-11-28T00:00:00Z\r\n"
    b"Content-Length: 1\r\n\r\nx\r\n\r\n"
)
LINES = b'a 20261128000000 {"url": "http://a/"}\nb 20261128000000 {"url": "http://b/"}\n'


def zipped(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as packed:
        for name, data in {"archive/a.warc": WARC, **members}.items():
            packed.writestr(name, data)
    return path


def lines(path: Path) -> list[bytes]:
    return list(StoredWacz(path).index_lines())


def our_own(folder: Path, count: int = 3) -> wacz.PackedWacz:
    with WarcWriter(folder, "t", info={"software": "tests"}) as writer:
        for number in range(count):
            captured = Capture(
                url=f"https://example.org/{number}",
                method="GET",
                status=200,
                date=datetime(2026, 11, 28, tzinfo=UTC),
                request_headers=(),
                request_body=b"",
                response_headers=((b"Content-Type", b"text/html"),),
                body=b"<p>%d" % number * 30,
            )
            principal = records.response(captured, digest=captured.payload_digest())
            writer.write([principal, records.request(captured, concurrent_to=principal.id)])
    return pack(
        [folder / file.file for file in writer.files],
        folder / "c.wacz",
        page_of=lambda _: None,
        requires=[Requirement("other.wacz", "other", HEX, 7), Requirement("later.wacz", "later")],
        crawl="c",
        software="scrapy-dedupe 1",
    )


@pytest.mark.parametrize("plain_lines", [wacz.PLAIN_LINES, 1])
def test_our_own_wacz_says_what_it_holds_and_each_line_comes_once(tmp_path, monkeypatch, plain_lines):
    monkeypatch.setattr(wacz, "PLAIN_LINES", plain_lines)
    packed = our_own(tmp_path)
    stored = StoredWacz(packed.path)
    assert (stored.name, stored.size_bytes, stored.sha256()) == ("c.wacz", packed.size_bytes, packed.sha256)
    assert stored.about == WaczAbout(
        "c",
        "scrapy-dedupe 1",
        None,
        (Requirement("other.wacz", "other", HEX, 7), Requirement("later.wacz", "later")),
    )
    assert stored.has_index
    captures = list(read_cdxj(stored.index_lines()))
    assert len(captures) == packed.captures == 3
    (file,) = stored.files
    assert str(file) == f"{packed.path}/archive/{file.name}"
    for capture in captures:
        assert isinstance(capture, CdxCapture)
        assert capture.filename == file.name
        assert capture.offset is not None
        assert read_record(file, capture.offset).target_uri == capture.url


def test_a_wacz_elsewhere_reads_like_one_here(tmp_path):
    packed = our_own(tmp_path)
    memory = fsspec.filesystem("memory")
    memory.pipe("/reading/c.wacz", packed.path.read_bytes())
    here, there = StoredWacz(packed.path), StoredWacz(RemoteFile("memory://reading/c.wacz"))
    assert (there.name, there.size_bytes, there.sha256()) == ("c.wacz", packed.size_bytes, packed.sha256)
    assert there.about == here.about
    assert list(there.index_lines()) == list(here.index_lines())
    (file,) = there.files
    assert str(file) == f"memory://reading/c.wacz/archive/{file.name}"
    assert [record.id for record in read_records(file)] == [
        record.id for record in read_records(here.files[0])
    ]
    memory.rm("/reading", recursive=True)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"indexes/index.cdx": LINES}, LINES),
        ({"indexes/index.cdxj": LINES}, LINES),
        ({"indexes/index.CDX.GZ": gzip.compress(LINES)}, LINES),
        ({"indexes/index.cdx.gz": gzip.compress(LINES[:50]) + gzip.compress(LINES[50:])}, LINES),
        ({"indexes/index.cdx": LINES, "indexes/index.cdx.gz": gzip.compress(b"other")}, LINES),
        ({"indexes/index.cdx": LINES, "indexes/index.cdxj": b"other"}, LINES),
        ({"indexes/b.cdx": b"of b", "indexes/a.cdx": b"of a"}, b"of a\nof b"),
        ({"indexes/index.cdx.gz": gzip.compress(LINES), "indexes/index.idx": b"!meta"}, LINES),
        ({"index.cdx": b"x", "indexes/.cdx": b"y", "indexes/notes.txt": b"z"}, None),
        ({}, None),
        ({"indexes/index.cdx": b""}, b""),
    ],
)
def test_the_index_is_read_in_whatever_form_it_has(tmp_path, members, expected, compression):
    stored = StoredWacz(zipped(tmp_path / "a.wacz", members, compression))
    assert stored.has_index == (expected is not None)
    assert list(stored.index_lines()) == (expected or b"").splitlines()


def test_what_a_wacz_says_of_its_payloads_is_read(tmp_path):
    about = json.dumps({"dedupePayload": "decoded", "software": 7, "crawlId": ""}).encode()
    assert StoredWacz(zipped(tmp_path / "a.wacz", {"datapackage.json": about})).about == WaczAbout(
        payload="decoded"
    )
    assert StoredWacz(zipped(tmp_path / "b.wacz", {})).about == WaczAbout()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (b"{", "it is not valid JSON"),
        (b"[" * 100_000, "it is JSON that is not supported (nested too deeply)"),
        (b"\xff", "it is not valid JSON"),
        (b"1" * 5_000, "it is JSON that is not supported (a number has too many digits)"),
        (b"[]", "not a JSON object"),
        (b'{"dedupePayload": "other"}', "its dedupePayload is 'other'"),
        (b'{"dedupePayload": ["stored"]}', "its dedupePayload is"),
        (b'{"relation": []}', "no list of requirements"),
        (b'{"relation": {"requires": {}}}', "no list of requirements"),
        (b'{"relation": {"requires": [1]}}', "a value that is not an object"),
        (b'{"relation": {"requires": [{"filename": "a.wacz"}]}}', "without filename or crawlId"),
    ],
)
def test_a_datapackage_that_is_broken_is_told(tmp_path, text, wrong):
    stored = StoredWacz(zipped(tmp_path / "a.wacz", {"datapackage.json": text}))
    with pytest.raises(DamagedInput, match=r"a\.wacz/datapackage\.json is broken: ") as caught:
        _ = stored.about
    assert wrong in str(caught.value)


def test_a_datapackage_that_is_too_long_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("scrapy_dedupe.warc.manifests.MAX_JSON_BYTES", 10)
    stored = StoredWacz(zipped(tmp_path / "a.wacz", {"datapackage.json": b" " * 11}))
    with pytest.raises(DamagedInput, match="longer than 10 bytes"):
        _ = stored.about


# Damage


def test_a_wacz_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ArchiveError, match=r"a\.wacz cannot be read: No such file"):
        StoredWacz(tmp_path / "a.wacz")
    with pytest.raises(ArchiveError, match="it does not exist"):
        StoredWacz(RemoteFile("memory://no/such/a.wacz"))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"x" * 1000, bytes(100_000)])
def test_what_is_no_zip_file_is_told(tmp_path, data):
    (tmp_path / "a.wacz").write_bytes(data)
    with pytest.raises(DamagedInput, match=r"a\.wacz is not a whole WACZ: .*\. Copy the file again"):
        StoredWacz(tmp_path / "a.wacz")


def test_a_wacz_without_warc_files_is_told(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.wacz", "w") as packed:
        packed.writestr("indexes/index.cdx", LINES)
    with pytest.raises(DamagedInput, match="no WARC files"):
        _ = StoredWacz(tmp_path / "a.wacz").files


def test_an_index_that_is_cut_inside_of_its_member_is_damaged(tmp_path):
    data = gzip.compress(LINES * 1000)
    path = zipped(tmp_path / "a.wacz", {"indexes/index.cdx.gz": data[: len(data) // 2]})
    with pytest.raises(DamagedInput, match=r"a\.wacz/indexes/index\.cdx\.gz is truncated"):
        lines(path)


def test_an_index_with_a_wrong_checksum_in_its_gzip_is_damaged(tmp_path):
    data = bytearray(gzip.compress(LINES))
    data[-6] ^= 1
    path = zipped(tmp_path / "a.wacz", {"indexes/index.cdx.gz": bytes(data)})
    with pytest.raises(DamagedInput, match=r"a\.wacz/indexes/index\.cdx\.gz does not unpack"):
        lines(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_index_whose_bytes_changed_is_damaged(tmp_path, compression):
    path = zipped(tmp_path / "a.wacz", {"indexes/index.cdx": LINES}, compression)
    data = bytearray(path.read_bytes())
    at = data.index(b"indexes/index.cdx") + len(b"indexes/index.cdx")
    data[at + 20] ^= 0x11
    path.write_bytes(data)
    with pytest.raises(DamagedInput, match=r"a\.wacz/indexes/index\.cdx does not unpack"):
        lines(path)


# Not the bytes themselves: names of tests, which are made of them, would take a gigabyte for the whole run.
@pytest.mark.parametrize(("byte", "size"), [(b"\0", 60 << 20), (b"\n", 30 << 20)])
def test_an_index_that_swells_is_refused_before_it_is_unpacked(tmp_path, byte, size):
    path = zipped(tmp_path / "a.wacz", {"indexes/index.cdx": byte * size}, zipfile.ZIP_DEFLATED)
    with pytest.raises(DamagedInput, match=r"a\.wacz/indexes/index\.cdx would unpack"):
        lines(path)


def test_an_index_that_swells_in_two_stages_is_refused(tmp_path):
    inner = gzip.compress(bytes(60 << 20))
    path = zipped(tmp_path / "a.wacz", {"indexes/index.cdx.gz": inner}, zipfile.ZIP_DEFLATED)
    with pytest.raises(DamagedInput, match=r"a\.wacz/indexes/index\.cdx\.gz unpacks to more than"):
        lines(path)


def entry_at(data: bytes, name: bytes) -> int:
    """Where the entry of a member begins in the directory."""
    at = data.index(b"PK\x01\x02")
    while data[at + 46 : at + 46 + len(name)] != name:
        at = data.index(b"PK\x01\x02", at + 4)
    return at


def patched(path: Path, name: bytes, field: int, value: int) -> Path:
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, entry_at(bytes(data), name) + field, value)
    path.write_bytes(data)
    return path


PACKED_SIZE, SIZE, OFFSET = 20, 24, 42


@pytest.mark.parametrize(
    ("field", "value"),
    [(PACKED_SIZE, 1), (PACKED_SIZE, 10_000), (SIZE, 1), (SIZE, 500), (OFFSET, 3), (OFFSET, 2**31)],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_directory_that_lies_of_an_index_is_found_out(tmp_path, field, value, compression):
    path = zipped(tmp_path / "a.wacz", {"indexes/index.cdx": LINES * 5}, compression)
    with pytest.raises(DamagedInput, match=r"a\.wacz"):
        lines(patched(path, b"indexes/index.cdx", field, value))


@pytest.mark.parametrize(("field", "value"), [(PACKED_SIZE, 1), (SIZE, 500), (OFFSET, 3), (OFFSET, 2**31)])
def test_a_directory_that_lies_of_a_warc_file_is_found_out(tmp_path, field, value):
    path = zipped(tmp_path / "a.wacz", {"z": b"z" * 1000})
    with pytest.raises(DamagedInput, match=r"a\.wacz is not a whole WACZ: .*\. Copy the file again"):
        _ = StoredWacz(patched(path, b"archive/a.warc", field, value)).files


def test_two_names_for_the_same_bytes_are_found_out(tmp_path):
    path = zipped(tmp_path / "a.wacz", {"archive/b.warc": WARC})
    with pytest.raises(DamagedInput, match="overlaps what follows it"):
        StoredWacz(patched(path, b"archive/b.warc", OFFSET, 0))


def test_a_directory_that_is_too_long_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(zip_members, "_MAX_DIRECTORY_BYTES", 70_000)
    path = zipped(tmp_path / "a.wacz", {f"pages/{number}": b"" for number in range(2000)})
    with pytest.raises(DamagedInput, match="its directory is longer than 70000 bytes"):
        StoredWacz(path)


def test_a_directory_entry_is_no_file(tmp_path):
    path = zipped(tmp_path / "a.wacz", {"archive/": b"", "indexes/": b"", "indexes/x.cdx/": b""})
    stored = StoredWacz(path)
    assert [file.name for file in stored.files] == ["a.warc"]
    assert not stored.has_index


def test_a_wacz_with_a_preface_is_read(tmp_path):
    path = zipped(tmp_path / "a.wacz", {"indexes/index.cdx": LINES})
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    stored = StoredWacz(path)
    assert list(stored.index_lines()) == LINES.splitlines()
    assert stored.files[0].open("rb").read() == WARC


GOOD = io.BytesIO()
with zipfile.ZipFile(GOOD, "w") as _packed:
    _packed.writestr("archive/a.warc", WARC)
    _packed.writestr("datapackage.json", b'{"crawlId": "c"}')
    _packed.writestr("indexes/index.cdx.gz", gzip.compress(LINES))
    _packed.writestr("indexes/b.cdx", LINES, zipfile.ZIP_DEFLATED)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(300))
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD.getvalue()) - 1), st.integers(0, 255)), max_size=4),
    st.integers(0, 2 * len(GOOD.getvalue())),
)
def test_a_damaged_wacz_is_read_or_told_of_and_never_breaks_the_reader(tmp_path, changes, length):
    data = bytearray(GOOD.getvalue())
    for at, byte in changes:
        data[at] = byte
    path = tmp_path / "a.wacz"
    path.write_bytes(data[:length])
    try:
        stored = StoredWacz(path)
        _ = stored.about
        found = list(stored.index_lines())
        for file in stored.files:
            with file.open("rb") as stream:
                stream.read()
    except DedupeError as error:
        assert "a.wacz" in str(error)  # noqa: PT017 - that it is raised is not what is claimed
    else:
        assert set(found) <= {*LINES.splitlines()}


def test_the_hash_is_that_of_the_file(tmp_path):
    path = zipped(tmp_path / "a.wacz", {})
    assert StoredWacz(path).sha256() == hashlib.sha256(path.read_bytes()).hexdigest()

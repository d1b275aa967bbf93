"""``arc_conversion``: every capture of an ARC file is in the WARC file, with its bytes, and nothing is invented."""

from __future__ import annotations

import gzip
import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.offline.arc_conversion import (
    Conversion,
    ConversionOptions,
    Converted,
    convert_arc,
    convert_files,
    warc_name,
)
from scrapy_dedupe.offline.file_rewriting import RecordFile
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.warc.reading import StoredRecord, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable

FIELDS_1 = b"URL IP-address Archive-date Content-type Archive-length\n"
FIELDS_2 = (
    b"URL IP-address Archive-date Content-type Result-code Checksum Location Offset Filename Archive-length\n"
)
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>a lake</p>"


def version_block(version: int = 1, date: bytes = b"20040505062238") -> bytes:
    block = b"%d 0 A Crawler\n" % version + (FIELDS_1 if version == 1 else FIELDS_2)
    return b"filedesc://a.arc 127.0.0.1 %b text/plain %d\n%b\n" % (date, len(block), block)


def capture(
    url: bytes = b"http://example.org/",
    block: bytes = PAGE,
    *,
    ip: bytes = b"192.0.2.7",
    date: bytes = b"20040505062239",
    kind: bytes = b"text/html",
    version: int = 1,
) -> bytes:
    more = b"" if version == 1 else b"200 abc - 0 a.arc "
    return b"%b %b %b %b %b%d\n%b\n" % (url, ip, date, kind, more, len(block), block)


def write(path: Path, *records: bytes, one_member: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".gz":
        path.write_bytes(b"".join(records))
    elif one_member:
        path.write_bytes(gzip.compress(b"".join(records)))
    else:
        path.write_bytes(b"".join(map(gzip.compress, records)))
    return path


def convert(source: Path, output: Path, *, keep_going: bool = False, **options: Any) -> Conversion | None:
    return convert_arc(
        source,
        output,
        options=ConversionOptions(**options),
        faults=Faults(keep_going=keep_going),
        watch=NoProgress(),
    )


def converted(tmp_path: Path, *records: bytes, name: str = "a.arc", **options: Any) -> list[StoredRecord]:
    source = write(tmp_path / name, *records)
    convert(source, tmp_path / "a.warc", **options)
    return list(read_records(tmp_path / "a.warc"))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["a.arc", "a.arc.gz"])
def test_a_capture_becomes_a_response_with_its_bytes(name: str, version: int, tmp_path: Path) -> None:
    info, metadata, response = converted(
        tmp_path, version_block(version), capture(version=version), name=name
    )
    assert [record.type for record in (info, metadata, response)] == ["warcinfo", "metadata", "response"]
    assert (response.target_uri, response.date) == ("http://example.org/", "2004-05-05T06:22:39Z")
    assert response.block() == PAGE
    assert response.get("WARC-IP-Address") == "192.0.2.7"
    assert response.get("WARC-Payload-Digest") == "sha256:" + hashlib.sha256(b"<p>a lake</p>").hexdigest()
    assert response.get("WARC-Block-Digest") == "sha256:" + hashlib.sha256(PAGE).hexdigest()
    assert response.get("Content-Type") == "application/http; msgtype=response"
    assert info.date == "2004-05-05T06:22:38Z"
    assert info.get("WARC-Filename") == "a.warc"
    assert name in info.info()["description"]


def test_the_version_block_is_kept_with_the_line_before_it(tmp_path: Path) -> None:
    info, metadata, _ = converted(tmp_path, version_block(), capture())
    assert metadata.block() == version_block()[:-1]
    assert metadata.refers_to == info.id


def test_what_is_not_http_becomes_a_resource_with_its_media_type(tmp_path: Path) -> None:
    dns = b"20040505062239\nexample.org. 600 IN A 192.0.2.7\n"
    old = b"<html>HTTP/0.9 has no head</html>"
    _, _, *records = converted(
        tmp_path,
        version_block(),
        capture(b"dns:example.org", dns, kind=b"text/dns", ip=b"0.0.0.0"),
        capture(b"http://example.org/old", old),
        capture(b"http://example.org/none", b"", kind=b"no-type"),
    )
    assert [record.type for record in records] == ["resource"] * 3
    assert [record.block() for record in records] == [dns, old, b""]
    assert [record.get("Content-Type") for record in records] == [
        "text/dns",
        "text/html",
        "application/octet-stream",
    ]
    assert records[0].get("WARC-IP-Address") is None
    assert [record.get("WARC-Payload-Digest") is None for record in records] == [False, False, True]


def test_a_uri_with_bytes_that_no_uri_has_is_percent_encoded(tmp_path: Path) -> None:
    _, _, space, latin = converted(
        tmp_path, version_block(), capture(b"http://example.org/a b"), capture(b"http://example.org/\xe9#x")
    )
    assert space.target_uri == "http://example.org/a%20b"
    assert latin.target_uri == "http://example.org/%E9#x"


def test_a_media_type_with_a_blank_does_not_shift_the_fields_before_it(tmp_path: Path) -> None:
    kind = b"text/html; charset=utf-8"
    _, _, *records = converted(
        tmp_path,
        version_block(),
        capture(kind=kind),
        capture(b"http://example.org/a \xe9", kind=kind),
        capture(b"dns:x y", b"x", kind=b"text/dns; x"),
    )
    assert [record.target_uri for record in records] == [
        "http://example.org/",
        "http://example.org/a%20%E9",
        "dns:x%20y",
    ]
    assert {record.date for record in records} == {"2004-05-05T06:22:39Z"}
    assert {record.get("WARC-IP-Address") for record in records} == {"192.0.2.7"}
    assert records[2].get("Content-Type") == "text/dns; x"


def test_the_digest_is_of_the_payload_without_chunks(tmp_path: Path) -> None:
    block = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    record = converted(tmp_path, version_block(), capture(block=block), algorithm="sha1")[-1]
    assert record.block() == block
    assert record.get("WARC-Payload-Digest") == "sha1:VGMT4NSHA2AWVOR6EVYXQUGCNSONBWE5"


def test_the_same_file_becomes_the_same_bytes(tmp_path: Path) -> None:
    source = write(tmp_path / "a.arc.gz", version_block(), capture(), capture())
    convert(source, tmp_path / "x" / "a.warc.gz")
    convert(source, tmp_path / "y" / "a.warc.gz")
    assert (tmp_path / "x" / "a.warc.gz").read_bytes() == (tmp_path / "y" / "a.warc.gz").read_bytes()
    ids = [record.id for record in read_records(tmp_path / "x" / "a.warc.gz")]
    assert len(set(ids)) == 4


def test_one_member_for_the_whole_file_is_taken_apart(tmp_path: Path) -> None:
    source = write(tmp_path / "a.arc.gz", version_block(), capture(), capture(), one_member=True)
    convert(source, tmp_path / "a.warc.gz")
    records = list(read_records(tmp_path / "a.warc.gz"))
    assert len({record.id for record in records}) == 4
    assert all(record.length for record in records)


def test_a_file_without_a_version_block_is_converted(tmp_path: Path) -> None:
    info, response = converted(tmp_path, capture(), name="a.arc")
    assert (info.type, info.date, response.type) == ("warcinfo", response.date, "response")


def test_damage_is_a_fault_and_what_is_good_is_converted(tmp_path: Path) -> None:
    source = write(tmp_path / "a.arc.gz", version_block(), capture(), capture(b"http://example.org/2"))
    data = bytearray(source.read_bytes())
    data[len(gzip.compress(version_block())) + 40] ^= 0xFF
    source.write_bytes(data)
    with pytest.raises(DamagedInput, match=r"a\.arc\.gz, offset \d+: the gzip member"):
        convert(source, tmp_path / "a.warc.gz")
    assert not (tmp_path / "a.warc.gz").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.arc.gz"]
    result = convert(source, tmp_path / "a.warc.gz", keep_going=True)
    assert result is not None
    assert (result.responses, result.metadata) == (1, 1)


@pytest.mark.parametrize("date", [b"20040231000000", b"00000000000000"])
def test_a_date_that_is_none_is_a_fault(date: bytes, tmp_path: Path) -> None:
    source = write(tmp_path / "a.arc", version_block(), capture(date=date), capture())
    with pytest.raises(DamagedInput, match=f"the date '{date.decode()}' is invalid"):
        convert(source, tmp_path / "a.warc")
    result = convert(source, tmp_path / "a.warc", keep_going=True)
    assert result is not None
    assert result.responses == 1


@pytest.mark.parametrize("content", [b"", b"rubbish\n", b"WARC/1.0\r\nContent-Length: 0\r\n\r\n\r\n\r\n"])
def test_what_is_no_arc_file_is_a_fault_and_gives_no_output(content: bytes, tmp_path: Path) -> None:
    source = write(tmp_path / "a.arc", content)
    with pytest.raises(DamagedInput):
        convert(source, tmp_path / "a.warc")
    assert convert(source, tmp_path / "a.warc", keep_going=True) is None
    assert not (tmp_path / "a.warc").exists()


def test_an_output_that_is_right_counts_and_another_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.arc", version_block(), capture())
    convert(source, tmp_path / "a.warc")
    made = (tmp_path / "a.warc").stat().st_ino
    again = convert(source, tmp_path / "a.warc")
    assert again is not None
    assert (again.was_there, again.responses) == (True, 1)
    assert (tmp_path / "a.warc").stat().st_ino == made
    write(tmp_path / "a.arc", version_block(), capture(block=PAGE.replace(b"lake", b"pond")))
    with pytest.raises(ArchiveError, match="--force"):
        convert(source, tmp_path / "a.warc")
    assert convert(source, tmp_path / "a.warc", force=True) is not None


def test_an_output_that_differs_gets_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "a.arc", version_block(), capture())
    monkeypatch.setattr(RecordFile, "write", _lying(RecordFile.write))
    with pytest.raises(DamagedInput, match="differs from"):
        convert(source, tmp_path / "a.warc")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.arc"]


def _lying(write: Any) -> Any:
    def lie(file: RecordFile, head: bytes, block: Iterable[bytes], length: int) -> None:
        write(file, head, [b"".join(block).replace(b"lake", b"pond")], length)

    return lie


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"http://example.org/", b"http://example.org/a b", b"dns:x", b"ftp://x/y"]),
            st.sampled_from([b"", PAGE[:-13]]),
            st.binary(max_size=200),
            st.integers(0, 59),
        ),
        max_size=8,
    ),
    st.sampled_from(["a.arc", "a.arc.gz"]),
    st.integers(1, 2),
)
def test_any_arc_file_keeps_its_captures(
    drawn: list[tuple[bytes, bytes, bytes, int]], name: str, version: int
) -> None:
    captures = [
        capture(url, head + body, date=b"200405050622%02d" % second, version=version)
        for url, head, body, second in drawn
    ]
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder, name), version_block(version), *captures)
        result = convert(source, Path(folder, "a.warc.gz"))
        _, _, *records = read_records(Path(folder, "a.warc.gz"))
    assert result is not None
    assert (result.responses + result.resources, result.metadata) == (len(drawn), 1)
    assert [record.date for record in records] == [f"2004-05-05T06:22:{second:02d}Z" for *_, second in drawn]


def convert_all(*words: Path, folder: Path, recursive: bool = False, **options: Any) -> Converted:
    jobs, keep_going = options.pop("jobs", 1), options.pop("keep_going", False)
    return convert_files(
        [str(word) for word in words],
        folder,
        options=ConversionOptions(**options),
        recursive=recursive,
        jobs=jobs,
        keep_going=keep_going,
        watch=NoProgress(),
    )


def test_a_tree_of_files_keeps_its_form(tmp_path: Path) -> None:
    for name in ("x/a.arc.gz", "x/y/b.arc", "z/a.arc.gz"):
        write(tmp_path / "in" / name, version_block(), capture())
    write(tmp_path / "in" / "z" / "c.warc", b"WARC/1.0\r\nContent-Length: 0\r\n\r\n\r\n\r\n")
    result = convert_all(tmp_path / "in", folder=tmp_path / "out", recursive=True, jobs=2)
    assert (result.files, result.responses, result.fault_count) == (3, 3, 0)
    found = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*"))
    assert found == ["x/a.warc.gz", "x/y/b.warc", "z/a.warc.gz"]


def test_two_files_that_would_become_one_are_refused(tmp_path: Path) -> None:
    for name in ("a.arc", "a.arc.gz"):
        write(tmp_path / "in" / name, version_block(), capture())
    with pytest.raises(ArchiveError, match="both become"):
        convert_all(tmp_path / "in", folder=tmp_path / "out", gzip=True)


def test_a_folder_without_arc_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in" / "c.warc", b"WARC/1.0\r\nContent-Length: 0\r\n\r\n\r\n\r\n")
    with pytest.raises(UsageError, match="ARC"):
        convert_all(tmp_path / "in", folder=tmp_path / "out")


def test_faults_of_all_files_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.arc", version_block(), capture())
    write(tmp_path / "in" / "b.arc", b"rubbish\n")
    result = convert_all(tmp_path / "in", folder=tmp_path / "out", keep_going=True)
    assert (result.files, result.fault_count) == (1, 1)


def test_a_file_at_fault_leaves_nothing_of_those_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.arc", version_block(), capture()[:-8])
    write(tmp_path / "in" / "b.arc", version_block(), capture(block=PAGE + bytes(60 << 20)))
    with pytest.raises(DamagedInput, match=r"a\.arc"):
        convert_all(tmp_path / "in", folder=tmp_path / "out", jobs=2)
    assert not [*(tmp_path / "out").rglob(".*")]


def test_names_of_warc_files() -> None:
    assert warc_name("a.b.arc.gz", gzip=False) == "a.b.warc"
    assert warc_name("a", gzip=True) == "a.warc.gz"

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import zipfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.warc.containers import files_in, find_files
from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.zip_members import DeflatedMember, StoredMember

if TYPE_CHECKING:
    from pathlib import Path

HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


def warc(body: bytes) -> bytes:
    block = HTTP + body
    return (
        b"WARC/1.1\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:1>\r\n"
        b"WARC-Target-URI: http://example.org/\r\nWARC-Date: 2026-11-28T00:00:00Z\r\n"
        b"Content-Type: application/http; msgtype=response\r\nContent-Length: %d\r\n\r\n%b\r\n\r\n"
    ) % (len(block), block)


def wacz(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as packed:
        for name, data in members.items():
            packed.writestr(name, data)
    return path


def payloads(path: Path) -> list[list[bytes]]:
    return [[record.payload() for record in read_records(file)] for file in files_in(path)]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_warc_files_of_a_wacz_are_read_as_if_they_lay_beside_it(tmp_path, compression):
    plain = warc(b"one") + warc(b"two")
    packed = gzip.compress(warc(b"three")) + gzip.compress(warc(b"four"))
    members = {
        "pages/pages.jsonl": b"{}",
        "archive/b.warc.gz": packed,
        "archive/sub/a.warc": plain,
        "archive/notes.txt": b"no archive",
        "other.warc": warc(b"not in archive/"),
    }
    path = wacz(tmp_path / "a.wacz", members, compression)
    assert payloads(path) == [[b"three", b"four"], [b"one", b"two"]]
    first, second = files_in(path)
    assert (first.name, first.suffixes) == ("b.warc.gz", [".warc", ".gz"])
    assert str(second) == f"{path}/archive/sub/a.warc"
    _, last = read_records(first)
    again = read_record(first, last.offset)
    assert (again.payload(), again.file, last.offset) == (
        b"four",
        "b.warc.gz",
        len(gzip.compress(warc(b"three"))),
    )


@given(st.binary(max_size=400), st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=8))
def test_a_stored_member_reads_like_the_file_that_was_packed(tmp_path_factory, data, reads):
    folder = tmp_path_factory.mktemp("slice")
    path = wacz(folder / "a.wacz", {"before": b"x" * 100, "archive/a.warc": data, "after": b"y" * 100})
    (member,) = files_in(path)
    assert isinstance(member, StoredMember)
    with member.open("rb") as file:
        assert file.read() == data
        twin = io.BytesIO(data)
        for position, length in reads:
            assert file.seek(position) == twin.seek(position)
            assert file.read(length) == twin.read(length)
            assert file.tell() == twin.tell()
        assert file.seek(0, os.SEEK_END) == len(data)
        assert file.peek(1) == b""


def test_the_copy_of_a_deflated_member_goes_with_the_member(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (member,) = files_in(wacz(tmp_path / "a.wacz", {"archive/a.warc": warc(b"x")}, zipfile.ZIP_DEFLATED))
    assert isinstance(member, DeflatedMember)
    assert not list((tmp_path / "tmp").iterdir()), "nothing is copied before it is wanted"
    for _ in range(2):
        with member.open("rb") as file:
            assert file.read() == warc(b"x")
        assert len(list((tmp_path / "tmp").iterdir())) == 1
    del member
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("archive/../../a.warc", "points outside the archive"),
        ("..", "points outside the archive"),
        ("archive\\..\\a.warc", "points outside the archive"),
        ("/archive/a.warc", "is absolute"),
        ("C:/archive/a.warc", "is absolute"),
    ],
)
def test_a_wacz_with_a_name_that_leads_elsewhere_is_refused(tmp_path, name, wrong):
    path = wacz(tmp_path / "a.wacz", {"archive/good.warc": warc(b"x"), name: b""})
    with pytest.raises(DamagedInput, match=wrong) as caught:
        files_in(path)
    assert str(path) in str(caught.value)
    assert repr(name) in str(caught.value)


def test_dots_within_a_name_are_no_way_upwards(tmp_path):
    assert payloads(wacz(tmp_path / "a.wacz", {"archive/a..b.warc": warc(b"x")})) == [[b"x"]]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_wacz_with_a_name_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.wacz", "w") as packed:
        packed.writestr("archive/a.warc", warc(b"x"))
        packed.writestr("archive/a.warc", warc(b"y"))
    with pytest.raises(DamagedInput, match="occurs twice"):
        files_in(tmp_path / "a.wacz")


def test_a_wacz_with_a_link_is_refused(tmp_path):
    link = zipfile.ZipInfo("archive/a.warc")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.wacz", "w") as packed:
        packed.writestr(link, "/etc/passwd")
    with pytest.raises(DamagedInput, match="is a link"):
        files_in(tmp_path / "a.wacz")


def test_a_member_that_swells_is_refused(tmp_path):
    path = wacz(tmp_path / "a.wacz", {"archive/a.warc": bytes(20 << 20)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(DamagedInput, match="would unpack"):
        files_in(path)


def test_a_member_that_is_compressed_in_another_way_is_refused(tmp_path):
    path = wacz(tmp_path / "a.wacz", {"archive/a.warc": warc(b"x")}, zipfile.ZIP_BZIP2)
    with pytest.raises(DamagedInput, match="compressed with method 12"):
        files_in(path)


def test_an_encrypted_member_is_refused(tmp_path):
    data = bytearray(wacz(tmp_path / "a.wacz", {"archive/a.warc": warc(b"x")}).read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.wacz").write_bytes(data)
    with pytest.raises(DamagedInput, match="is encrypted"):
        files_in(tmp_path / "a.wacz")


def test_a_deflated_member_that_does_not_unpack_is_damaged(tmp_path):
    path = wacz(tmp_path / "a.wacz", {"archive/a.warc": warc(bytes(range(256)))}, zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    data[100] ^= 0xFF
    path.write_bytes(data)
    (member,) = files_in(path)
    with pytest.raises(
        DamagedInput, match=r"a\.wacz/archive/a\.warc does not unpack: .*\. Copy the file again"
    ):
        list(read_records(member))


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_wacz_that_was_cut_is_refused(tmp_path, cut):
    path = wacz(tmp_path / "a.wacz", {"archive/a.warc": warc(b"x" * 1000)})
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DamagedInput, match="is not a whole WACZ"):
        files_in(path)


def test_a_zip_file_without_warc_files_is_no_wacz(tmp_path):
    with pytest.raises(DamagedInput, match="no WARC files"):
        files_in(wacz(tmp_path / "a.zip", {"readme": b""}))


# Multi-WACZ JSON


def manifest(path: Path, *resources: object) -> Path:
    path.write_text(json.dumps({"profile": "multi-wacz-package", "resources": list(resources)}))
    return path


def test_a_manifest_stands_for_the_containers_below_its_folder(tmp_path):
    (tmp_path / "sub").mkdir()
    wacz(tmp_path / "sub" / "a.wacz", {"archive/a.warc": warc(b"a")})
    wacz(tmp_path / "b.wacz", {"archive/b.warc": warc(b"b")})
    inner = manifest(tmp_path / "sub" / "inner.json", {"name": "a.wacz", "path": "a.wacz"})
    outer = manifest(
        tmp_path / "outer.json",
        {"path": f"sub/{inner.name}"},
        {"name": "b.wacz", "hash": "sha256:" + "0" * 64},
    )
    assert payloads(outer) == [[b"a"], [b"b"]]


def test_containers_in_two_folders_may_have_one_name(tmp_path):
    for folder in ("1", "2"):
        (tmp_path / folder).mkdir()
        wacz(tmp_path / folder / "a.wacz", {"archive/a.warc": warc(folder.encode())})
    entries = [{"path": f"{folder}/a.wacz", "name": "any/name"} for folder in ("1", "2", "1")]
    assert payloads(manifest(tmp_path / "m.json", *entries)) == [[b"1"], [b"2"]]


@pytest.mark.parametrize(
    "name", ["../a.wacz", "/a.wacz", "https://example.org/a.wacz", "sub/../../a.wacz", "link/a.wacz"]
)
def test_a_container_outside_of_the_folder_is_told(tmp_path, name):
    wacz(tmp_path / "a.wacz", {"archive/a.warc": warc(b"a")})
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(DamagedInput, match="not below its own folder") as caught:
        files_in(manifest(folder / "m.json", {"path": name}))
    assert repr(name) in str(caught.value)


def test_a_container_that_is_missing_or_another_is_told(tmp_path):
    path = manifest(tmp_path / "m.json", {"path": "a.wacz", "size": 5})
    with pytest.raises(DamagedInput, match=r"'a\.wacz', which does not exist"):
        files_in(path)
    wacz(tmp_path / "a.wacz", {"archive/a.warc": warc(b"a")})
    with pytest.raises(DamagedInput, match=r"m\.json says 5"):
        files_in(path)


def test_a_manifest_that_names_itself_ends(tmp_path):
    with pytest.raises(DamagedInput, match="names itself"):
        files_in(manifest(tmp_path / "m.json", {"path": "m.json"}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"resources": 1}', '{"resources": null}', "[" * 100_000])
def test_what_is_no_manifest_is_told(tmp_path, text):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(DamagedInput, match="is not a multi-WACZ JSON"):
        files_in(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("resource", "wrong"),
    [
        (1, "names 1 as its resource 1, which is not an object"),
        ({}, "names no path in its resource 1"),
        ({"path": "a.wacz", "hash": "sha256:00"}, "with the hash 'sha256:00', which is not a SHA-256"),
    ],
)
def test_an_entry_that_says_nothing_is_told(tmp_path, resource, wrong):
    with pytest.raises(DamagedInput, match=wrong):
        files_in(manifest(tmp_path / "m.json", resource))


def test_an_empty_manifest_is_told(tmp_path):
    with pytest.raises(DamagedInput, match="names no WACZ file"):
        files_in(manifest(tmp_path / "m.json"))


# Names and patterns


def test_patterns_are_sorted_and_each_file_comes_once(tmp_path, monkeypatch):
    for name in ("b.warc", "a.warc", "odd[1].warc"):
        (tmp_path / name).write_bytes(warc(name.encode()))
    wacz(tmp_path / "c.wacz", {"archive/c.warc": warc(b"c")})
    manifest(tmp_path / "m.json", {"path": "c.wacz"})
    monkeypatch.chdir(tmp_path)
    names = [file.name for file in find_files(["c.wacz", "m.json", "[ab].warc", "./b.warc", "odd[1].warc"])]
    assert names == ["c.warc", "a.warc", "b.warc", "odd[1].warc"]


def test_a_name_without_a_file_is_told(tmp_path):
    for name in ("a.warc", "*.warc"):
        with pytest.raises(UsageError, match="matches no file"):
            find_files([tmp_path / name])
    with pytest.raises(UsageError, match="is a folder"):
        find_files([tmp_path])


def test_a_file_that_cannot_be_opened_is_told(tmp_path):
    with pytest.raises(ArchiveError, match=r"gone\.warc cannot be read: No such file"):
        files_in(tmp_path / "gone.warc")


def test_what_is_no_archive_is_told(tmp_path):
    (tmp_path / "page.html").write_text("<p>Hello.")
    (tmp_path / "a.warc.zst").write_bytes(b"\x28\xb5\x2f\xfd....")
    with pytest.raises(DamagedInput, match="not a WARC, ARC or WACZ file"):
        find_files([tmp_path / "page.html"])
    with pytest.raises(DamagedInput, match="Zstandard"):
        find_files([tmp_path / "a.warc.zst"])


def test_an_archive_is_known_by_its_bytes_or_by_its_name(tmp_path):
    (tmp_path / "odd").write_bytes(warc(b"x"))
    (tmp_path / "odd2").write_bytes(gzip.compress(warc(b"y")))
    (tmp_path / "damaged.warc").write_bytes(b"\0" + warc(b"z"))
    names = [
        file.name for file in find_files([tmp_path / "odd", tmp_path / "odd2", tmp_path / "damaged.warc"])
    ]
    assert names == ["odd", "odd2", "damaged.warc"]


@pytest.mark.parametrize("name", ["a.warc.gz", "a.wacz", "a.json"])
def test_a_pipe_or_a_device_is_refused_before_it_is_read(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    for target in ("pipe", "/dev/zero"):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(ArchiveError, match="is a pipe or a device, not a regular file"):
            find_files([tmp_path / name])
        (tmp_path / name).unlink()

from __future__ import annotations

import contextlib
import gzip
import os
import pickle
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listed_archives import ListedFile, in_ranges, warc_record
from webserver import WebServer

from scrapy_dedupe.errors import ArchiveError, DamagedInput, SettingError, UsageError
from scrapy_dedupe.offline.manifest import ManifestLine
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.warc import remote_ranges as ranges

DIGEST = "md5:" + "00" * 16
DATE = "2020-01-01T00:00:00Z"


@pytest.fixture(params=["record", "records"])
def ways(request, monkeypatch):
    """Records are read one by one, or from a file that is opened once."""
    if request.param == "record":
        return
    record, is_inside = Places.record, False

    def from_open_file(places, line):
        nonlocal is_inside
        if is_inside:
            return record(places, line)
        is_inside = True
        try:
            with places.records(line.file) as record_of:
                return record_of(line)
        finally:
            is_inside = False

    monkeypatch.setattr(Places, "record", from_open_file)


@pytest.fixture
def listed(tmp_path, ways):
    (tmp_path / "crawl").mkdir()
    file = ListedFile(tmp_path / "crawl" / "a.warc.gz", "a.warc.gz")
    file.add(b"first", "http://example.org/1")
    file.add(b"second", "http://example.org/2", "2020-01-02T00:00:00.5Z")
    file.add(b"third", "http://example.org/a b")
    return file


def payloads(places, file):
    return [places.record(line).payload() for line in file.lines]


PAYLOADS = [b"first", b"second", b"third"]


def test_names_are_below_the_working_folder_without_roots(listed, tmp_path):
    with contextlib.chdir(tmp_path / "crawl"):
        assert payloads(Places(), listed) == PAYLOADS


@pytest.mark.parametrize("kind", ["root", "absolute", "file URL", "map", "map file", "JSON map", "bare"])
def test_a_name_is_found_in_every_way(listed, tmp_path, kind):
    absolute = str(listed.path)
    name = {"absolute": absolute, "file URL": listed.path.as_uri()}.get(kind, "a.warc.gz")
    roots: tuple[str, ...] = ()
    paths = None
    if kind == "root":
        roots = (str(tmp_path), str(tmp_path / "crawl"))
    elif kind == "bare":
        roots = (str(tmp_path),)
    elif kind == "map":
        paths = {name: absolute}
    elif kind == "map file":
        paths = tmp_path / "map"
        paths.write_text("# where they are\n\na.warc.gz crawl/a.warc.gz\n")
    elif kind == "JSON map":
        paths = tmp_path / "map.json"
        paths.write_text('{"a.warc.gz": "crawl/a.warc.gz"}')
    places = Places(roots, paths)
    assert [places.record(line._replace(file=name)).payload() for line in listed.lines] == PAYLOADS
    # Another process finds the same.
    assert (
        pickle.loads(pickle.dumps(places)).record(listed.lines[0]._replace(file=name)).payload() == b"first"
    )


def test_the_path_map_goes_before_all_else(listed, tmp_path):
    other = ListedFile(tmp_path / "other.warc.gz", "a.warc.gz")
    other.add(b"other")
    places = Places([str(tmp_path / "crawl")], {"a.warc.gz": str(other.path)})
    assert places.record(other.lines[0]).payload() == b"other"


def test_spaces_and_percent_signs_in_a_path_map_are_escaped(listed, tmp_path):
    (tmp_path / "new crawl").mkdir()
    listed.path.replace(tmp_path / "new crawl" / "5%.warc.gz")
    path_map = tmp_path / "map"
    path_map.write_text("my%20old.warc.gz new%20crawl/5%25.warc.gz\n")
    line = listed.lines[0]._replace(file="my old.warc.gz")
    assert Places((), path_map).record(line).payload() == b"first"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a b c\n", "map, line 1: expected a name and a place"),
        ("a\n", "map, line 1: expected a name and a place"),
        ("x y\na b\na c\n", "map, line 3: a has two places"),
        ('{"a": 1}', "the place of a is not a string"),
        ('{"a": ', "is not a path map"),
    ],
)
def test_a_path_map_that_is_wrong_is_refused_with_its_line(tmp_path, text, reason):
    (tmp_path / "map").write_text(text)
    with pytest.raises(UsageError, match=reason):
        Places((), tmp_path / "map")


def test_a_path_map_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ArchiveError, match="cannot be read"):
        Places((), tmp_path / "none")


def test_two_files_of_one_bare_name_are_ambiguous(listed, tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "a.warc.gz").write_bytes(b"another")
    with pytest.raises(ArchiveError, match=r"a\.warc\.gz is the name of 2 files below the roots .* --paths"):
        Places([str(tmp_path)]).file("a.warc.gz")


def test_roots_inside_of_one_another_and_links_make_no_second_file(listed, tmp_path):
    (tmp_path / "crawl" / "deep").mkdir()
    listed.path.replace(tmp_path / "crawl" / "deep" / "a.warc.gz")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "a.warc.gz").symlink_to(tmp_path / "crawl" / "deep" / "a.warc.gz")
    places = Places([str(tmp_path), str(tmp_path / "crawl")])
    assert payloads(places, listed) == PAYLOADS


def test_a_bare_name_is_no_name_with_folders(listed, tmp_path):
    with pytest.raises(ArchiveError, match=r"x/a\.warc\.gz is not below .*--root.*--paths"):
        Places([str(tmp_path)]).file("x/a.warc.gz")


@pytest.mark.parametrize(
    ("places", "name", "reason"),
    [
        (Places(), "none.warc.gz", "is not in the working folder. Name its folder with --root"),
        (Places(), "/none/none.warc.gz", "does not exist. Give its location with --paths"),
        (Places((), {"a": "/none/a"}), "a", "/none/a does not exist; the path map names it for a"),
    ],
)
def test_a_file_that_is_not_there_is_told_with_the_remedy(places, name, reason):
    with pytest.raises(ArchiveError, match=reason):
        places.file(name)


def test_members_of_a_wacz_are_found_by_their_names(listed, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.wacz", "w") as packed:
        packed.write(listed.path, "archive/a.warc.gz")
    line = listed.lines[1]._replace(file="a.wacz/archive/a.warc.gz")
    places = Places([str(tmp_path)])
    assert places.record(line).payload() == b"second"
    with pytest.raises(ArchiveError, match="is not below"):
        places.file("a.wacz/archive/b.warc.gz")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"uri": "http://example.org/2"},
            "URI is http://example.org/1, but http://example.org/2",
        ),
        ({"date": "2020-01-01T00:00:00.001Z"}, "date is 2020-01-01T00:00:00Z, but"),
        ({"length": 77}, "bytes, but 77 in the manifest"),
    ],
)
def test_a_manifest_of_another_file_is_told(listed, tmp_path, changes, reason):
    line = listed.lines[0]._replace(**changes)
    with pytest.raises(
        DamagedInput, match="a.warc.gz, offset 0: the manifest does not match the file.*" + reason
    ):
        Places([str(tmp_path / "crawl")]).record(line)


def test_the_same_date_may_be_written_in_another_way(listed, tmp_path):
    line = listed.lines[1]._replace(date="2020-01-02T00:00:00.500Z")
    assert Places([str(tmp_path / "crawl")]).record(line).payload() == b"second"


def test_a_uri_that_a_c_tool_cut_at_its_space_is_taken_and_no_other_beginning(listed, tmp_path):
    places = Places([str(tmp_path / "crawl")])
    assert places.record(listed.lines[2]._replace(uri="http://example.org/a")).payload() == b"third"
    for uri in ("http://example.org/", "http://example.org/a ", "http://example.org/a%20b"):
        with pytest.raises(DamagedInput, match="does not match"):
            places.record(listed.lines[2]._replace(uri=uri))


@pytest.mark.parametrize("offset", [1, 100_000])
def test_no_record_at_the_offset_is_told_with_the_place(listed, tmp_path, offset):
    with pytest.raises(DamagedInput, match=f"a.warc.gz, offset {offset}"):
        Places([str(tmp_path / "crawl")]).record(listed.lines[0]._replace(offset=offset))


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.usefixtures("ways")
def test_a_manifest_of_another_file_of_that_name_is_told_where_no_record_begins(tmp_path, is_packed):
    name = "00000.warc.gz" if is_packed else "00000.warc"
    for host, payload in (("one", b"a" * 500), ("two", b"b")):
        (tmp_path / host).mkdir()
        ListedFile(tmp_path / host / name, name, is_packed).add(payload, f"http://{host}/")
    listed = ListedFile(tmp_path / "one" / name, name, is_packed)
    line = listed.add(b"second", "http://one/2")
    other = ListedFile(tmp_path / "two" / name, name, is_packed)
    for number in range(20):
        other.add(bytes(range(number, 99)), f"http://two/{number}")
    assert Places([str(tmp_path / "one")]).record(line).payload() == b"second"
    with pytest.raises(
        DamagedInput,
        match=rf"two/{name}, offset {line.offset}: the manifest does not match the file: no record begins at this offset",
    ):
        Places([str(tmp_path / "two")]).record(line)


def test_a_member_that_is_damaged_is_not_called_another_file(listed, tmp_path):
    data = bytearray(listed.path.read_bytes())
    data[listed.lines[1].offset + listed.lines[1].length - 6] ^= 1
    listed.path.write_bytes(data)
    with pytest.raises(DamagedInput, match=rf"offset {listed.lines[1].offset}: the gzip member is damaged"):
        Places([str(tmp_path / "crawl")]).record(listed.lines[1])


def test_a_file_that_was_cut_is_told_with_the_place(listed, tmp_path):
    listed.path.write_bytes(listed.path.read_bytes()[:-9])
    places = Places([str(tmp_path / "crawl")])
    assert places.record(listed.lines[1]).payload() == b"second"
    with pytest.raises(DamagedInput, match=f"a.warc.gz, offset {listed.lines[2].offset}: the file ends"):
        places.record(listed.lines[2])


@pytest.mark.usefixtures("ways")
def test_records_that_share_a_member_do_not_match(tmp_path):
    data = warc_record(b"a", "http://a/") + warc_record(b"b", "http://b/")
    (tmp_path / "a.warc.gz").write_bytes(packed := gzip.compress(data))
    line = ManifestLine("a.warc.gz", 0, len(packed), "http://a/", DATE, DIGEST)
    with pytest.raises(DamagedInput, match="one gzip member holds several records"):
        Places([str(tmp_path)]).record(line)


@pytest.mark.usefixtures("ways")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.warc")
    with pytest.raises(ArchiveError, match="is a pipe"):
        Places([str(tmp_path)]).record(ManifestLine("a.warc", 0, 10, "http://a/", DATE, DIGEST))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.usefixtures("ways")
def test_records_of_arc_files_are_found_without_the_beginning_of_the_file(tmp_path, version):
    names = b"URL IP-address Archive-date Content-type Archive-length"
    more = b""
    if version == 2:
        names = (
            b"URL IP-address Archive-date Content-type Result-code Checksum Location Offset Filename"
            b" Archive-length"
        )
        more = b" 200 - - 0 a.arc"
    block = b"%d 0 none\n%b\n" % (version, names)
    first = b"filedesc://a.arc 0.0.0.0 20200101000000 text/plain%b %d\n%b\n" % (more, len(block), block)
    body = b"HTTP/1.1 200 OK\r\n\r\nhello"
    record = b"http://a/ 192.0.2.1 20200101000000 text/html%b %d\n%b\n" % (more, len(body), body)
    (tmp_path / "a.arc").write_bytes(first + record)
    line = ManifestLine("a.arc", len(first), len(record), "http://a/", DATE, DIGEST)
    found = Places([str(tmp_path)]).record(line)
    assert (found.payload(), found.target_uri, found.date) == (b"hello", "http://a/", DATE)
    with pytest.raises(DamagedInput, match="does not match"):
        Places([str(tmp_path)]).record(line._replace(uri="http://b/"))


def test_names_of_one_file_have_one_identity(listed, tmp_path):
    (tmp_path / "link.warc.gz").symlink_to(listed.path)
    places = Places([str(tmp_path), str(tmp_path / "crawl")])
    names = ["a.warc.gz", "./a.warc.gz", "crawl/a.warc.gz", "link.warc.gz", str(listed.path)]
    assert len({places.identity(name) for name in names}) == 1
    assert places.identity("none") == "none"


# Over the network


@pytest.fixture
def web():
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    with WebServer() as server:
        yield server


def test_of_a_remote_file_only_the_record_is_fetched_in_one_request(listed, web):
    asked: list[str] = []
    web.pages["/a.warc.gz"] = in_ranges(listed.path.read_bytes(), asked)
    for place in (Places([web.url("/")]), Places((), {"a.warc.gz": web.url("/a.warc.gz")})):
        asked.clear()
        assert payloads(place, listed) == PAYLOADS
        assert asked == [f"bytes={line.offset}-{line.offset + line.length - 1}" for line in listed.lines]


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_of_a_wacz_elsewhere_only_the_directory_and_the_record_are_fetched(listed, web, tmp_path, packing):
    with zipfile.ZipFile(tmp_path / "a.wacz", "w", packing) as packed:
        packed.writestr("archive/z.warc", os.urandom(9_000_000))
        packed.write(listed.path, "archive/a.warc.gz")
    asked: list[str] = []
    web.pages["/a.wacz"] = in_ranges((tmp_path / "a.wacz").read_bytes(), asked)
    places = Places([web.url("/")])
    lines = [line._replace(file="a.wacz/archive/a.warc.gz") for line in listed.lines]
    assert [places.record(line).payload() for line in lines] == PAYLOADS
    if packing == zipfile.ZIP_STORED:
        parts = [wanted.removeprefix("bytes=").split("-") for wanted in asked[-3:]]
        assert [int(last) + 1 - int(first) for first, last in parts] == [line.length for line in lines]
    with pytest.raises(
        DamagedInput, match=r"a\.wacz/archive/a\.warc\.gz, offset 0: the manifest does not match"
    ):
        places.record(lines[0]._replace(uri="http://other/"))


def test_names_are_quoted_below_a_url(listed, web):
    web.pages["/x/my%20crawl/a.warc.gz"] = in_ranges(listed.path.read_bytes())
    line = listed.lines[0]._replace(file="my crawl/a.warc.gz")
    assert Places([web.url("/x")]).record(line).payload() == b"first"


def test_the_first_of_several_urls_that_has_the_file_is_taken(listed, web, tmp_path):
    web.pages["/new/a.warc.gz"] = in_ranges(listed.path.read_bytes())
    roots = [str(tmp_path / "none"), web.url("/old"), web.url("/new")]
    assert payloads(Places(roots), listed) == PAYLOADS


def test_a_server_without_ranges_is_told_in_a_sentence(listed, web):
    web.page("/a.warc.gz", listed.path.read_bytes())
    for line in listed.lines:
        with pytest.raises(ArchiveError, match=r"its server does not support HTTP ranges. Download it"):
            Places([web.url("/")]).record(line)


def test_a_remote_file_that_is_not_there_is_told(listed, web):
    with pytest.raises(ArchiveError, match=r"/a\.warc\.gz cannot be read: it does not exist"):
        Places([web.url("/")]).record(listed.lines[0])


@pytest.mark.parametrize("kept", [0, 1, 2, -9])
def test_a_remote_file_that_is_too_short_is_told_with_the_place(listed, web, kept):
    data = listed.path.read_bytes()
    last = listed.lines[2]
    web.pages["/a.warc.gz"] = in_ranges(data[: kept if kept < 0 else last.offset + kept])
    with pytest.raises(DamagedInput, match=rf"/a\.warc\.gz, offset {last.offset}"):
        Places([web.url("/")]).record(last)


def test_an_answer_that_is_cut_is_told(listed, web):
    def cut(request):
        request.send_response(206)
        request.send_header("Content-Range", f"bytes 0-{listed.lines[0].length - 1}/*")
        request.send_header("Content-Length", str(listed.lines[0].length))
        request.end_headers()
        request.wfile.write(listed.path.read_bytes()[:20])
        request.close_connection = True
        raise ConnectionAbortedError

    web.pages["/a.warc.gz"] = cut
    with pytest.raises(ArchiveError, match=r"/a\.warc\.gz cannot be read: .*Check the network"):
        Places([web.url("/")]).record(listed.lines[0])


@pytest.mark.parametrize("status", [403, 500])
def test_a_server_that_refuses_is_told_with_what_it_says(listed, web, status):
    web.page("/a.warc.gz", b"", status=status)
    with pytest.raises(ArchiveError, match=rf"/a\.warc\.gz cannot be read: {status}"):
        Places([web.url("/")]).record(listed.lines[0])


def test_an_answer_with_another_range_is_not_taken(listed, web):
    data = listed.path.read_bytes()
    web.page(
        "/a.warc.gz", data, status=206, headers=[("Content-Range", f"bytes 0-{len(data) - 1}/{len(data)}")]
    )
    with pytest.raises(ArchiveError, match="does not support HTTP ranges"):
        Places([web.url("/")]).record(listed.lines[1])
    with pytest.raises(DamagedInput, match="the server sent more bytes than requested"):
        Places([web.url("/")]).record(listed.lines[0])


def test_an_answer_that_does_not_say_which_part_it_is_is_not_taken(listed, web):
    line = listed.lines[1]
    web.page("/a.warc.gz", listed.path.read_bytes()[: line.length], status=206)
    with pytest.raises(ArchiveError, match="does not support HTTP ranges"):
        Places([web.url("/")]).record(line)


def test_a_password_in_a_url_is_not_shown(listed, web):
    url = web.url("/").replace("http://", "http://me:secret@")
    web.pages["/a.warc.gz"] = in_ranges(listed.path.read_bytes())
    places = Places([url])
    assert places.record(listed.lines[0]).payload() == b"first"
    for line in (listed.lines[0]._replace(uri="http://other/"), listed.lines[0]._replace(file="none")):
        with pytest.raises((DamagedInput, ArchiveError)) as caught:
            places.record(line)
        assert "secret" not in str(caught.value)


def test_other_protocols_are_read_in_pieces(listed, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setattr(ranges, "HELD_BYTES", 100)
    with fsspec.open("memory://crawl/a.warc.gz", "wb") as file:
        file.write(listed.path.read_bytes())
    places = Places(["memory://crawl"])
    assert payloads(places, listed) == PAYLOADS
    with pytest.raises(ArchiveError, match="does not exist"):
        places.record(listed.lines[0]._replace(file="none"))
    with pytest.raises(SettingError, match="fsspec has no protocol nonsense"):
        places.record(listed.lines[0]._replace(file="nonsense://a"))


@pytest.mark.usefixtures("ways")
def test_a_long_range_is_in_a_temporary_file_that_a_kill_does_not_leave(tmp_path, web, monkeypatch):
    folder = tmp_path / "temporary"
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    body = os.urandom(ranges.HELD_BYTES + 1_000)
    listed = ListedFile(tmp_path / "a.warc", "a.warc", is_packed=False)
    listed.add(b"before")
    listed.add(body)
    web.pages["/a.warc"] = in_ranges(listed.path.read_bytes())
    places = Places([web.url("/")])
    assert places.record(listed.lines[0]).payload() == b"before"
    with pytest.raises(FileNotFoundError, match="temporary"):
        places.record(listed.lines[1])
    folder.mkdir()
    record = places.record(listed.lines[1])
    assert record.payload() == body
    assert not list(folder.iterdir())


@given(st.binary(min_size=1, max_size=300), st.integers(0, 300), st.lists(st.integers(1, 80), max_size=8))
def test_a_range_reads_as_the_file_does_from_its_offset_on(data, offset, sizes):
    fsspec = pytest.importorskip("fsspec")
    from scrapy_dedupe.warc.remote import RemoteFile

    offset = min(offset, len(data))
    with fsspec.open("memory://range", "wb") as file:
        file.write(data)
    part = ranges.FileRange(RemoteFile("memory://range"), offset, len(data) - offset)
    with part.open("rb") as stream:
        assert data[offset:].startswith(stream.peek(64)[:64])
        assert stream.seek(offset) == offset
        read = b""
        for size in sizes:
            read += stream.read(size)
            assert stream.tell() == offset + len(read)
        assert read + stream.read() == data[offset:]
        assert stream.seek(0, os.SEEK_END) == len(data)
        assert stream.read() == b""


def test_paths_keep_their_type(listed, tmp_path):
    assert isinstance(Places([str(tmp_path / "crawl")]).file("a.warc.gz"), Path)


def test_the_places_of_one_file_are_few_bytes_for_another_process(listed, tmp_path):
    mapped_names = {f"{number}.warc.gz": "x" * 100 for number in range(1_000)}
    mapped = Places([str(tmp_path)], mapped_names)
    mapped_too = Places((), {"a.warc.gz": str(listed.path), **mapped_names})
    for places in (mapped, mapped_too):
        sent = pickle.dumps(places.only("a.warc.gz"))
        assert len(sent) < 1_000
        assert pickle.loads(sent).record(listed.lines[0]).payload() == b"first"
    assert Places([str(tmp_path)]).only("a.warc.gz").record(listed.lines[0]).payload() == b"first"

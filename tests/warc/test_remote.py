from __future__ import annotations

import gzip
import http.server
import threading
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.errors import ArchiveError, SettingError, UsageError
from scrapy_dedupe.warc.cdxj_reading import cdxj_lines
from scrapy_dedupe.warc.containers import files_in
from scrapy_dedupe.warc.manifests import read_manifest
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.remote import RemoteFile, place_file, shown
from scrapy_dedupe.warc.wacz_reading import StoredWacz

if TYPE_CHECKING:
    from collections.abc import Iterator

LINES = b'a 20261128000000 {"url": "http://a/"}\n' * 3
WARC = (
    b"WARC/1.1\r\nWARC-Type: metadata\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Date: 2026-11-28T00:00:00Z\r\n"
    b"Content-Length: 1\r\n\r\nx\r\n\r\n"
)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves the server's `files`, in parts if it `has_ranges`, cut in the middle if it `cuts`."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        server = self.server
        assert isinstance(server, _Server)
        data = server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        start, end, status = 0, len(data), 200
        wanted = self.headers.get("Range")
        if wanted and server.has_ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end, status = int(first), min(end, int(last) + 1 if last else end), 206
        self.send_response(status)
        if server.has_ranges:
            self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if with_body:
            half = (end - start) // 2 if server.cuts else end - start
            self.wfile.write(data[start : start + half])
            self.close_connection = self.close_connection or server.cuts

    def log_message(self, *_: object) -> None:
        """Nothing is said."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, files: dict[str, bytes], has_ranges: bool, cuts: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.has_ranges = has_ranges
        self.cuts = cuts


@contextmanager
def served(files: dict[str, bytes], *, has_ranges: bool = True, cuts: bool = False) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    server = _Server(files, has_ranges, cuts)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def wacz(tmp_path: Path) -> bytes:
    with zipfile.ZipFile(tmp_path / "a.wacz", "w") as packed:
        packed.writestr("archive/a.warc", WARC)
        packed.writestr("archive/b.warc", WARC, zipfile.ZIP_DEFLATED)
        packed.writestr("indexes/index.cdx.gz", gzip.compress(LINES))
    return (tmp_path / "a.wacz").read_bytes()


def test_a_wacz_on_a_server_is_read_in_parts(wacz):
    with served({"/x/a.wacz?sig=1": wacz}) as root:
        stored = StoredWacz(RemoteFile(f"{root}/x/a.wacz?sig=1"))
        assert (stored.name, stored.size_bytes) == ("a.wacz", len(wacz))
        assert list(stored.index_lines()) == LINES.splitlines()
        assert [str(file) for file in stored.files] == [
            f"{root}/x/a.wacz?sig=1/archive/a.warc",
            f"{root}/x/a.wacz?sig=1/archive/b.warc",
        ]
        assert [len(list(read_records(file))) for file in stored.files] == [1, 1]
        assert [str(file) for file in files_in(RemoteFile(f"{root}/x/a.wacz?sig=1"))] == [
            str(file) for file in stored.files
        ]


def test_what_is_read_in_order_needs_no_parts(wacz):
    files = {
        "/m.json": b'{"resources": [{"path": "a.wacz"}]}',
        "/a.cdxj": gzip.compress(LINES),
        "/a.wacz": wacz,
    }
    with served(files, has_ranges=False) as root:
        assert list(cdxj_lines(RemoteFile(f"{root}/a.cdxj"))) == LINES.splitlines()
        (listed,) = read_manifest(f"{root}/m.json", on_fault=pytest.fail)
        assert listed.place == f"{root}/a.wacz"


def test_a_server_without_parts_is_told(wacz):
    large = wacz + bytes(20 << 20)  # more than a driver asks for at once
    with served({"/a.wacz": large}, has_ranges=False) as root:
        with pytest.raises(ArchiveError, match=r"does not support HTTP ranges\. Download it") as caught:
            StoredWacz(RemoteFile(f"{root}/a.wacz"))
        assert f"{root}/a.wacz" in str(caught.value)


def test_a_transfer_that_is_cut_is_told():
    data = b"".join(b'k 20261128000000 {"url": "http://a/%d"}\n' % number for number in range(10_000))
    with (
        served({"/a.cdxj": data}, has_ranges=False, cuts=True) as root,
        pytest.raises(ArchiveError, match=r"a\.cdxj"),
    ):
        list(cdxj_lines(RemoteFile(f"{root}/a.cdxj")))


def test_what_is_not_there_is_told(wacz):
    with served({}) as root:
        for opened in (
            RemoteFile(f"{root}/a.wacz").open,
            lambda _: RemoteFile(f"{root}/a.wacz").open_stream(),
        ):
            with pytest.raises(ArchiveError, match="it does not exist"):
                opened("rb")
    with pytest.raises(ArchiveError, match="the server does not answer"):
        RemoteFile(f"{root}/a.wacz").open("rb")


def test_a_password_is_not_shown():
    pytest.importorskip("aiohttp")
    with served({}) as root, pytest.raises(ArchiveError) as caught:
        RemoteFile(root.replace("://", "://me:secret@") + "/a").open("rb")
    assert "secret" not in str(caught.value)
    assert shown("s3://key:p/ath@x") == "s3://key:p/ath@x", "no password, but a path"


def test_a_place_is_a_path_or_a_url():
    assert place_file("a/b.warc") == Path("a/b.warc")
    assert place_file("file:///a/b%20c%23.warc") == Path("/a/b c#.warc")
    assert place_file("FILE://localhost/a") == Path("/a")
    remote = place_file("s3://bucket/a/b%20c.warc.gz?versionId=3")
    assert isinstance(remote, RemoteFile)
    assert (remote.name, remote.suffixes) == ("b c.warc.gz", [".warc", ".gz"])
    assert str(remote) == "s3://bucket/a/b%20c.warc.gz?versionId=3"
    with pytest.raises(UsageError, match="names a file of the machine elsewhere"):
        place_file("file://elsewhere/a")


def test_a_protocol_that_nobody_knows_is_told():
    with pytest.raises(SettingError, match="fsspec has no protocol nonsense"):
        RemoteFile("nonsense://x/a.warc").open("rb")

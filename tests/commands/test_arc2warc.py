"""``arc2warc``: what it says and writes, and with which exit code."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from archives import cdxj_of, check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIELDS = b"1 0 A Crawler\nURL IP-address Archive-date Content-type Archive-length\n"
PAGE = b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n<p>a lake</p>"


def arc(*captures: tuple[bytes, bytes, bytes]) -> list[bytes]:
    records = [b"filedesc://a.arc 127.0.0.1 20040505062238 text/plain %d\n%b\n" % (len(FIELDS), FIELDS)]
    for url, kind, block in captures:
        records.append(b"%b 192.0.2.7 20040505062239 %b %d\n%b\n" % (url, kind, len(block), block))
    return records


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "a.arc.gz"
    path.parent.mkdir()
    records = arc(
        (b"http://example.org/", b"text/html", PAGE),
        (b"http://example.org/a b", b"text/html", PAGE),
        (b"dns:example.org", b"text/dns", b"example.org. 600 IN A 192.0.2.7\n"),
    )
    path.write_bytes(b"".join(map(gzip.compress, records)))
    return path


def test_a_file_is_converted_and_others_read_it(
    call: Callable[..., Any], source: Path, tmp_path: Path
) -> None:
    done = call("arc2warc", str(source), "-o", str(tmp_path / "out"))
    assert (done.code, done.err) == (0, "")
    assert "1 ARC file converted: 2 responses, 1 resource, 1 version block" in done.out
    check(tmp_path / "out")
    lines = cdxj_of(tmp_path / "out" / "a.warc.gz").splitlines()
    urls = [json.loads(line.split(" ", 2)[2])["url"] for line in lines]
    assert "http://example.org/" in urls
    assert "http://example.org/a%20b" in urls
    assert "dns:example.org" in urls


def test_sha1_and_no_gzip(call: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    done = call("arc2warc", str(source), "-o", str(tmp_path / "out"), "--hash", "sha1", "--no-gzip")
    assert done.code == 0
    assert b"WARC-Payload-Digest: sha1:" in (tmp_path / "out" / "a.warc").read_bytes()
    check(tmp_path / "out")


def test_a_second_run_finds_the_work_done(call: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    words = ("arc2warc", "--json", "-r", str(source.parent), "-o", str(tmp_path / "out"))
    assert call(*words).json["files_found"] == 0
    again = call(*words)
    assert (again.code, again.json["files"], again.json["files_found"]) == (0, 1, 1)


def test_another_file_in_the_way_is_code_3(call: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.warc.gz").write_bytes(b"precious")
    done = call("arc2warc", str(source), "-o", str(tmp_path / "out"))
    assert done.code == 3
    assert "--force" in done.err
    assert (tmp_path / "out" / "a.warc.gz").read_bytes() == b"precious"
    assert call("arc2warc", str(source), "-o", str(tmp_path / "out"), "--force").code == 0


def test_damage_is_code_4(call: Callable[..., Any], source: Path, tmp_path: Path) -> None:
    source.write_bytes(source.read_bytes()[:-20])
    done = call("arc2warc", str(source), "-o", str(tmp_path / "out"))
    assert done.code == 4
    assert "offset" in done.err
    assert not [*(tmp_path / "out").rglob("*.*")]
    done = call("arc2warc", str(source), "-o", str(tmp_path / "out"), "--keep-going")
    assert done.code == 4
    assert "1 place could not be converted" in done.err
    assert "2 responses" in done.out


@pytest.mark.parametrize(
    "words", [["--jobs", "-1"], ["--gzip", "--no-gzip"], ["nowhere.arc"], ["--hash", "md5"]]
)
def test_wrong_words_are_code_2(call: Callable[..., Any], source: Path, words: list[str]) -> None:
    done = call("arc2warc", str(source), "-o", "out", *words)
    assert done.code == 2
    assert "Traceback" not in done.err

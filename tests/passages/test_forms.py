from __future__ import annotations

import gzip

import pytest

from scrapy_dedupe.passages.text_reading import form_of, is_binary


@pytest.mark.parametrize(
    ("name", "start", "form"),
    [
        ("a.txt", b"<html> is what it speaks of", "plain"),
        ("a.md", b"# A", "plain"),
        ("a.txt", b"WARC/1.1 is a format\n", "plain"),
        ("a00167", b"Index: 2 2001 20010101000000 3\n", "plain"),
        ("recorded", b"filedesc://a.arc 0.0.0.0 20010101000000 text/plain 70\n", "archive"),
        ("A.HTML", b"a", "html"),
        ("a.html", b'<?xml version="1.0"?><html xmlns="x">', "html"),
        ("a.xhtml", b"<html/>", "xhtml"),
        ("a.xml", b"<?xml version='1.0'?><feed/>", "xml"),
        ("a.xml", b"<?xml version='1.0'?><html xmlns='x'>", "xhtml"),
        ("page", b"\xef\xbb\xbf\n <!DOCTYPE html><p>", "html"),
        ("page", b"<html>", "html"),
        ("feed", b"<?xml version='1.0'?><feed/>", "xml"),
        ("a.json", b"{}", "plain"),
        ("a.c", b"int main;", "plain"),
        ("README", "café".encode("latin-1"), "plain"),
        ("empty", b"", "plain"),
        ("utf-16", "text".encode("utf-16"), "plain"),
        ("a.png", b"\x89PNG\r\n\x1a\n\x00\x00", "binary"),
        ("a.txt", b"a\x00b", "binary"),
        ("a.html", b"\x01\x02\x03", "binary"),
        ("a.jsonl", b"{}", "lines"),
        ("a.ndjson.gz", gzip.compress(b"{}", mtime=0), "lines"),
        ("a.txt.gz", gzip.compress(b"a", mtime=0), "plain"),
        ("a.html.gz", gzip.compress(b"a", mtime=0), "html"),
        ("a.png.gz", gzip.compress(b"\x00", mtime=0), "binary"),
        ("a.warc.gz", b"what is damaged here", "archive"),
        ("a.arc", b"", "archive"),
        ("a.WACZ", b"PK", "archive"),
        ("a.multi-wacz.json", b"{}", "archive"),
        ("recorded", b"WARC/1.1\r\n", "archive"),
        ("recorded.gz", gzip.compress(b"WARC/1.0\r\n", mtime=0), "archive"),
        ("a.warc.gz.open", b"\x1f\x8b\x08", "open"),
    ],
)
def test_a_name_or_else_the_first_bytes_tell_what_a_file_holds(name: str, start: bytes, form: str) -> None:
    assert form_of(name, start) == form


def test_what_a_terminal_shows_is_a_text() -> None:
    assert not is_binary(b"\x1b[1mN\bNAME\x1b[0m\n\f" * 50)

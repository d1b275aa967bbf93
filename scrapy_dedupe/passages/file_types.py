"""Detecting the form of a file by its name and its first bytes.

A known file name extension decides; otherwise the content is examined. The form of a ``.gz`` file is that of its
decompressed content.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from scrapy_dedupe.warc.containers import WACZ_SUFFIX
from scrapy_dedupe.warc.files import OPEN_SUFFIX
from scrapy_dedupe.warc.sources import GZIP_MAGIC

ARCHIVE: Final = "archive"
LINES: Final = "lines"
PLAIN: Final = "plain"
PAGE: Final = "page"
OPEN: Final = "open"
BINARY: Final = "binary"
"""The forms, besides those of markup: ``html``, ``xhtml`` and ``xml``.

ARCHIVE is a WARC, ARC or WACZ file or a list of WACZ files; LINES is JSON lines; PLAIN is plain text; PAGE is a page of
an archive, whose headers decide its kind; OPEN is an archive that a crawl is writing; BINARY is anything else.
"""

START_BYTES: Final = 65_536
"""How many of the first bytes are examined."""

_ARCHIVE_NAME: Final = re.compile(r".+\.w?arc(\.(gz|zst|bz2|xz|lz4))?", re.IGNORECASE | re.DOTALL)
# Any other JSON file is plain text.
_WACZ_LIST: Final = ".multi-wacz.json"
_PAGES: Final = {
    **dict.fromkeys(("html", "htm", "shtml"), "html"),
    **dict.fromkeys(("xhtml", "xht"), "xhtml"),
    **dict.fromkeys(("xml", "rss", "atom", "svg", "docbook", "dbk"), "xml"),
}
_ARCHIVE_STARTS: Final = (b"WARC/1.", b"WARC/0.", b"filedesc://")
_LINES_NAMES: Final = ("jsonl", "ndjson")
_TEXT_NAMES: Final = ("txt", "text", "md", "markdown", "rst")
_HTML_START: Final = re.compile(rb"\s*<(?:!doctype\s+html|html[\s>])", re.IGNORECASE)
_XML_START: Final = re.compile(rb"\s*<\?xml\s", re.IGNORECASE)
_XHTML_ROOT: Final = re.compile(rb"<html\s", re.IGNORECASE)
_BOMS: Final = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_UTF8_BOM: Final = b"\xef\xbb\xbf"

# Control characters that occur in texts: backspace and escape in terminal output, form feeds between pages.
_USED_CONTROLS: Final = b"\b\t\n\v\f\r\x1b"
_CONTROLS: Final = bytes(sorted({*range(0x20), 0x7F} - set(_USED_CONTROLS)))
_MOST_CONTROLS: Final = 0.02


def form_of(name: str, start: bytes) -> str:
    r"""The form of a file. *start* has its first bytes as stored, compressed or not.

    >>> form_of("a.html", b"<p>a"), form_of("README", b"Read me."), form_of("a.png", b"\x89PNG\r\n\x1a\n\x00\x00")
    ('html', 'plain', 'binary')
    """
    name = name.lower()
    if _ARCHIVE_NAME.fullmatch(name.removesuffix(OPEN_SUFFIX)):
        return OPEN if name.endswith(OPEN_SUFFIX) else ARCHIVE
    if name.endswith((WACZ_SUFFIX, _WACZ_LIST)):
        return ARCHIVE
    if start.startswith(GZIP_MAGIC):
        name, start = name.removesuffix(".gz"), unpacked_start(start)
    ending = name.rpartition(".")[2]
    if ending in _LINES_NAMES:
        return LINES
    if ending not in _TEXT_NAMES and ending not in _PAGES and start.startswith(_ARCHIVE_STARTS):
        return ARCHIVE
    if is_binary(start):
        return BINARY
    if ending in _TEXT_NAMES:
        return PLAIN
    page = _PAGES.get(ending) or _page_of(start)
    return "xhtml" if page == "xml" and _XHTML_ROOT.search(start[:4_096]) else page or PLAIN


def _page_of(start: bytes) -> str | None:
    start = start.removeprefix(_UTF8_BOM)
    if _HTML_START.match(start):
        return "html"
    return "xml" if _XML_START.match(start) else None


def unpacked_start(start: bytes) -> bytes:
    """The first bytes of a gzip file, decompressed; empty if they are damaged."""
    try:
        return zlib.decompressobj(31).decompress(start, START_BYTES)
    except zlib.error:
        return b""


def is_binary(start: bytes) -> bool:
    r"""Whether data that starts with *start* is not text: it has a NUL byte, or many control characters.

    >>> is_binary(b"a\x00b"), is_binary("a\tb".encode("utf-16")), is_binary(b"\x01\x02\x03abc")
    (True, False, True)
    """
    start = start[:START_BYTES]
    controls = len(start) - len(start.translate(None, _CONTROLS))
    return has_nul(start) or (controls > _MOST_CONTROLS * len(start) and not start.startswith(_BOMS))


def is_binary_text(text: str) -> bool:
    r"""Whether a decoded page is not text, despite its Content-Type: it has many control characters.

    >>> is_binary_text("\0\1\2\3abc"), is_binary_text("a\0" + 100 * "b")
    (True, False)
    """
    return is_binary(text[:START_BYTES].replace("\0", "\1").encode(errors="replace"))


def has_nul(data: bytes) -> bool:
    """Whether a byte is NUL. In texts, this occurs only in UTF-16 and UTF-32, which are recognised by their BOM."""
    return b"\0" in data and not data.startswith(_BOMS)

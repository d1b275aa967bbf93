"""Converting raw documents to the texts that are indexed: decode content codings and characters, extract text of markup.

This is the expensive part of reading. It has no side effects and runs in worker processes, on the output of `sources`.
The caller passes in the functions that decode archived pages and compute their canonical texts, since the subpackages
must not import each other.

Encodings: archived pages are decoded as a crawl decodes them. For a file, a byte order mark decides, then, for markup,
the charset that the document declares, then UTF-8; unknown declared charsets are ignored. Invalid bytes become U+FFFD,
and such documents are counted.

Memory: a batch is converted in pieces, since a small compressed body may have a large text.

The form of a file is detected by its name and its first bytes. A known file name extension decides; otherwise the content is examined. The form of a ``.gz`` file is that of its
decompressed content.
"""

from __future__ import annotations

import re
import sys
import zlib
from codecs import BOM_UTF8
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from w3lib.encoding import html_to_unicode, read_bom

from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.warc.archive_names import archive_name
from scrapy_dedupe.warc.codings import (
    DecodedPage,
    Undecodable,
    codings_of,
    declared_encodings,
    decoded_body,
    is_charset,
)
from scrapy_dedupe.warc.containers import WACZ_SUFFIX
from scrapy_dedupe.warc.sources import GZIP_MAGIC

from .preparation import batches_of, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy_dedupe.warc.capture import Headers

    from .preparation import Prepared
    from .values import Parameters

    Text = tuple[str, str | None, str]

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
    if (archive := archive_name(name)) is not None:
        return OPEN if archive.is_open else ARCHIVE
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
    page = _PAGES.get(ending) or _markup_of(start)
    return "xhtml" if page == "xml" and _XHTML_ROOT.search(start[:4_096]) else page or PLAIN


def _markup_of(start: bytes) -> str | None:
    start = start.removeprefix(BOM_UTF8)
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


COUNTED_REASONS: Final[dict[str, str]] = {
    "binary": "binary files",
    "index": "folders of other passage indexes",
    "link": "links to folders that are read already",
    "special": "pipes, sockets and devices",
    "status": "responses with another status than 200",
    "method": "responses to other requests than GET",
    "type": "pages that are not text",
    "revisit": "revisits whose original is in none of these files",
}
"""Reasons for skipping that are expected, with a description. They are only counted."""

REPORTED_REASONS: Final[dict[str, str]] = {
    "open": "archives that a crawl is writing",
    "no-text": "named files that are not text",
    "large": "documents that are too large",
    "hostile": "pages whose markup would take too long",
    "coding": "pages whose content coding cannot be decoded",
    "encoding": "pages whose declared encoding is not a known charset",
}
"""Reasons for skipping that the user must know about, with a description."""

_BATCH_BYTES: Final = 2 << 20
_BATCH_DOCUMENTS: Final = 1_000
# How many characters are prepared together.
_PIECE: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class RawDocument:
    """A document as it was found. *data* is a text, or the bytes as stored.

    *headers* are the HTTP headers of an archived page, None for other documents. *place* says where the document was
    found: the file and the position in it.
    """

    doc_id: str
    host: str | None
    data: bytes | str
    kind: str
    place: str
    headers: Headers | None = None


@dataclass(slots=True)
class Skipped:
    """Counts of skipped documents by reason, and the documents to be reported.

    *replaced* counts documents that were indexed with U+FFFD for invalid bytes; they are reported as well.
    """

    counts: Counter[str] = field(default_factory=Counter)
    reported: Faults = field(default_factory=lambda: Faults(keep_going=True))
    replaced: int = 0

    def add(self, reason: str, place: str = "", sentence: str = "") -> None:
        """Count a skipped document; with a *place* it is also reported."""
        self.counts[reason] += 1
        if place:
            self.reported.add(place, sentence or (COUNTED_REASONS | REPORTED_REASONS)[reason])

    def add_replaced(self, place: str) -> None:
        """Count and report a document that has U+FFFD for invalid bytes."""
        self.replaced += 1
        self.reported.add(place, "it has invalid bytes in its encoding, replaced by U+FFFD")

    def merge(self, other: Skipped) -> None:
        """Add the counts of *other*."""
        self.counts.update(other.counts)
        self.reported.take(other.reported.count, tuple(other.reported.first))
        self.replaced += other.replaced

    @property
    def loud(self) -> int:
        """How many documents were skipped for a reason that the user must know about."""
        return sum(self.counts[reason] for reason in REPORTED_REASONS)


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How documents are read. Can be pickled.

    *canonical* returns the canonical text of a page, given its kind and content; it raises one of *hostile* if that would
    take too long. *decoded_page* decodes an archived page, given its URL, its headers and its body without content
    codings; it returns ``type`` or ``encoding`` for a page that cannot be read.
    """

    canonical: Callable[[str, str], str]
    hostile: tuple[type[Exception], ...]
    max_bytes: int
    decoded_page: Callable[[str, Headers, bytes], DecodedPage | str]


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """The result of a batch: documents prepared for the index, in pieces, and counts of skipped ones.

    *text_bytes* is the size of the texts as UTF-8, *read_bytes* the size of the batch as it was read.
    """

    prepared: tuple[Prepared, ...]
    skipped: Skipped
    text_bytes: int
    read_bytes: int


def batches(documents: Iterable[RawDocument]) -> Iterator[list[RawDocument]]:
    """The documents in batches that are large enough to send to another process."""
    return batches_of(documents, lambda document: len(document.data), _BATCH_BYTES, _BATCH_DOCUMENTS)


def weight_of(batch: Sequence[RawDocument]) -> int:
    """The size of the documents of a batch in memory, in bytes."""
    return sum(sys.getsizeof(document.data) for document in batch)


def prepare_batch(
    batch: Sequence[RawDocument], reading: ReadingOptions, parameters: Parameters
) -> PreparedBatch:
    """Convert a batch to texts, and prepare them for an index with *parameters*."""
    skipped = Skipped()
    pieces = batches_of(texts_of(batch, reading, skipped), lambda text: len(text[2]), _PIECE)
    # A loop variable would keep each piece in memory until the next one is complete.
    prepared = tuple(map(partial(prepare, parameters=parameters), pieces))
    return PreparedBatch(
        prepared,
        skipped,
        sum(int(piece.byte_counts[piece.texts].sum()) for piece in prepared),
        sum(len(document.data) for document in batch),
    )


def texts_of(batch: Iterable[RawDocument], reading: ReadingOptions, skipped: Skipped) -> Iterator[Text]:
    """Yield the documents of a batch as (doc_id, host, text), in their order, and count skipped ones."""
    for document in batch:
        text = _text_of(document, reading, skipped)
        if text is not None:
            yield document.doc_id, document.host, text


def _text_of(document: RawDocument, reading: ReadingOptions, skipped: Skipped) -> str | None:
    data, kind = document.data, document.kind
    if document.headers is not None:
        page = _page_of(document, document.headers, reading, skipped)
        if page is None:
            return None
        data, kind = page.text, page.kind
    elif isinstance(data, bytes):
        data, is_replaced = decoded(data, kind)
        if is_replaced:
            skipped.add_replaced(document.place)
    if kind == PLAIN:
        return data
    try:
        return reading.canonical(kind, data)
    except reading.hostile as error:
        skipped.add("hostile", document.place, str(error))
        return None


def _page_of(
    document: RawDocument, headers: Headers, reading: ReadingOptions, skipped: Skipped
) -> DecodedPage | None:
    assert isinstance(document.data, bytes)
    try:
        body = decoded_body(document.data, codings_of(headers), reading.max_bytes)
    except Undecodable as error:
        skipped.add("coding", document.place, str(error))
        return None
    page = reading.decoded_page(document.doc_id, headers, body)
    if isinstance(page, str):
        skipped.add(
            page,
            document.place if page in REPORTED_REASONS else "",
            "its declared encoding is not a known charset",
        )
        return None
    # The Content-Type may be wrong, so the content is checked too.
    if is_binary_text(page.text):
        skipped.add("type")
        return None
    if _has_replaced(page.text, body, page.encoding):
        skipped.add_replaced(document.place)
    return page


def decoded(data: bytes, kind: str) -> tuple[str, bool]:
    r"""The text of a file, and whether invalid bytes were replaced by U+FFFD.

    >>> decoded(b"caf\xc3\xa9", PLAIN), decoded(b"caf\xe9", PLAIN)
    (('café', False), ('caf\ufffd', True))
    >>> decoded(b"<meta charset=latin1>caf\xe9", "html")
    ('<meta charset=latin1>café', False)
    """
    encoding, mark = read_bom(data)
    if encoding is not None and mark is not None:
        data = data[len(mark) :]
        text = data.decode(encoding, "replace")
    elif kind == PLAIN:
        encoding, text = "utf-8", data.decode("utf-8", "replace")
    else:
        declared = next(filter(is_charset, declared_encodings(None, data)), "utf-8")
        encoding, text = html_to_unicode(f"charset={declared}", data)
    return text, _has_replaced(text, data, encoding)


def _has_replaced(text: str, data: bytes, encoding: str) -> bool:
    return "\ufffd" in text and not _is_sound(data, encoding)


def _is_sound(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except (LookupError, UnicodeError):
        return False
    return True

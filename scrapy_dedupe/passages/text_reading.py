"""From raw documents to texts that an index takes: content codings undone, bytes decoded, markup made text.

This is the expensive half of reading, and it is pure: it runs in worker processes, on what `sources` gives. Functions that
the caller passes in decode the pages of archives and make their canonical texts, because the rooms of this package do not
know each other.

Encodings. The pages of archives are decoded as a crawl decodes them. Of a file, a byte order mark decides; then, for
markup, the charset that the document declares; then UTF-8; a declared name that is no charset is ignored. Bytes that are
wrong in an encoding become U+FFFD, and such documents are counted.

Memory. A batch is prepared in pieces as it is read, since a small body may swell to a large one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from w3lib.encoding import html_to_unicode, read_bom

from scrapy_dedupe.tasks.faults import Fault
from scrapy_dedupe.warc.charsets import DecodedPage, declared_encodings, is_charset
from scrapy_dedupe.warc.codings import Undecodable, codings_of, decoded_body

from .file_types import PLAIN, is_binary_text
from .preparation import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy_dedupe.warc.capture import Headers

    from .preparation import Prepared
    from .values import Parameters

    Text = tuple[str, str | None, str]

QUIET: Final[dict[str, str]] = {
    "binary": "binary files",
    "index": "folders of other passage indexes",
    "link": "links to folders that are read anyway",
    "special": "pipes, sockets and devices",
    "status": "responses with another status than 200",
    "method": "answers to other requests than GET",
    "type": "pages that are no text",
    "revisit": "revisits whose original is in none of these files",
}
"""Why something is passed over that nobody would expect in the index, with words for it."""

LOUD: Final[dict[str, str]] = {
    "open": "archives that a crawl has open",
    "no-text": "files that were named and are no text",
    "large": "documents that are too large",
    "hostile": "pages whose markup would take too long",
    "coding": "pages whose content coding cannot be undone",
    "encoding": "pages whose declared encoding is no charset",
}
"""Why something is passed over that the user has to know of."""

_KEPT: Final = 1_000
_BATCH_BYTES: Final = 2 << 20
_BATCH_DOCUMENTS: Final = 1_000
# Characters of texts that are prepared at once.
_PIECE: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class RawDocument:
    """A document as it was found. *data* is a text, or bytes as they are stored.

    *headers* are those of a page in an archive, None for other documents. *place* tells where it was found: a file, and
    what in it.
    """

    doc_id: str
    host: str | None
    data: bytes | str
    kind: str
    place: str
    headers: Headers | None = None


@dataclass(slots=True)
class Skipped:
    """How many documents were passed over, by reason, and the first thousand of those *to_name* that have to be named.

    *replaced* counts documents that were taken with U+FFFD for what was wrong in their encoding; they are named as well.
    """

    counts: dict[str, int] = field(default_factory=dict)
    named: list[Fault] = field(default_factory=list)
    to_name: int = 0
    replaced: int = 0

    def add(self, reason: str, place: str = "", sentence: str = "") -> None:
        """Count one; with a *place* it is named."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        if place:
            self._name(place, sentence.rstrip(".") or (QUIET | LOUD)[reason])

    def add_replaced(self, place: str) -> None:
        """Count and name one that was taken with U+FFFD."""
        self.replaced += 1
        self._name(place, "it has bytes that are wrong in its encoding, now U+FFFD")

    def _name(self, place: str, reason: str) -> None:
        self.to_name += 1
        if len(self.named) < _KEPT:
            self.named.append(Fault(place, reason))

    def take(self, other: Skipped) -> None:
        """Add what another one has counted."""
        for reason, count in other.counts.items():
            self.counts[reason] = self.counts.get(reason, 0) + count
        self.named += other.named[: max(0, _KEPT - len(self.named))]
        self.to_name += other.to_name
        self.replaced += other.replaced

    @property
    def loud(self) -> int:
        """How many were passed over for a reason that the user has to know of."""
        return sum(self.counts.get(reason, 0) for reason in LOUD)


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How documents are read; it can be sent to another process.

    *canonical* makes a page of a kind its text; it raises one of *hostile* where that would take too long. *decoded_page*
    decodes a page of an archive, given its URL, its headers and its body without content codings; it returns ``type`` or
    ``encoding`` for a page that cannot be read.
    """

    canonical: Callable[[str, str], str]
    hostile: tuple[type[Exception], ...]
    max_bytes: int
    decoded_page: Callable[[str, Headers, bytes], DecodedPage | str]


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a batch: what the index takes, in pieces, and what was passed over.

    *text_bytes* counts the texts as UTF-8, *read_bytes* the batch as it was read.
    """

    prepared: tuple[Prepared, ...]
    skipped: Skipped
    text_bytes: int
    read_bytes: int


def batches(documents: Iterable[RawDocument]) -> Iterator[list[RawDocument]]:
    """The documents in pieces that are worth sending to another process."""
    batch: list[RawDocument] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.data)
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def weight_of(batch: Sequence[RawDocument]) -> int:
    """How many bytes of memory the documents of a batch take."""
    return sum(sys.getsizeof(document.data) for document in batch)


def take(batch: Sequence[RawDocument], reading: ReadingOptions, parameters: Parameters) -> Taken:
    """Read a batch and prepare it for an index with *parameters*."""
    skipped = Skipped()
    pieces = _pieces(texts_of(batch, reading, skipped))
    # A loop would keep each piece until there is the next one.
    prepared = tuple(map(partial(prepare, parameters=parameters), pieces))
    return Taken(
        prepared,
        skipped,
        sum(int(piece.byte_counts[piece.texts].sum()) for piece in prepared),
        sum(len(document.data) for document in batch),
    )


def texts_of(batch: Iterable[RawDocument], reading: ReadingOptions, skipped: Skipped) -> Iterator[Text]:
    """Yield the documents of a batch as (doc_id, host, text), in their order, and count what is passed over."""
    for document in batch:
        text = _text_of(document, reading, skipped)
        if text is not None:
            yield document.doc_id, document.host, text


def _pieces(texts: Iterable[Text]) -> Iterator[list[Text]]:
    piece: list[Text] = []
    size = 0
    for text in texts:
        piece.append(text)
        size += len(text[2])
        if size >= _PIECE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


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
        skipped.add(page, document.place if page in LOUD else "", "its declared encoding is no charset")
        return None
    # What a server calls a text may be anything.
    if is_binary_text(page.text):
        skipped.add("type")
        return None
    if _has_replaced(page.text, body, page.encoding):
        skipped.add_replaced(document.place)
    return page


def decoded(data: bytes, kind: str) -> tuple[str, bool]:
    r"""The text of a file, and whether something was wrong in its encoding and is U+FFFD now.

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

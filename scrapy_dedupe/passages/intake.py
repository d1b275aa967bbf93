"""From raw documents to texts that an index takes: content codings undone, bytes decoded, markup made text.

This is the expensive half of reading, and it is pure: it runs in worker processes, on what `sources` gives. What a page
says is told by a function that the caller passes in, because the rooms of this package do not know each other.

Encodings. A byte order mark decides; then, for markup, the charset that is declared (by HTTP, else in the document);
then UTF-8. A page of an archive that declares nothing and is no UTF-8 is read as Windows-1252, as Scrapy reads it. What
is declared and is no charset counts for nothing. What is wrong in an encoding becomes U+FFFD, and such documents are
counted.

Memory. A batch is prepared in pieces as it is read, since a small body may swell to a large one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from w3lib.encoding import html_to_unicode, read_bom

from scrapy_dedupe.tasks.faults import Fault
from scrapy_dedupe.warc.charsets import declared_encodings, is_charset
from scrapy_dedupe.warc.codings import Undecodable, decoded_body

from .forms import PLAIN, has_nul, is_binary
from .preparation import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
    "revisit": "revisits, which repeat a page",
}
"""Why something is passed over that nobody would expect in the index, with words for it."""

LOUD: Final[dict[str, str]] = {
    "open": "archives that a crawl has open",
    "no-text": "files that were named and are no text",
    "large": "documents that are too large",
    "hostile": "pages whose markup would take too long",
    "coding": "pages whose content coding cannot be undone",
}
"""Why something is passed over that the user has to know of."""

_KEPT: Final = 1_000
_BATCH_BYTES: Final = 2 << 20
_BATCH_DOCUMENTS: Final = 1_000
# Characters of texts that are prepared at once.
_PIECE: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class RawDocument:
    """A document as it was found. *data* is a text, or bytes with *codings* applied, in the order in which they were.

    *content_type* is what HTTP declares, None for a file. *place* tells where it was found: a file, and what in it.
    """

    doc_id: str
    host: str | None
    data: bytes | str
    kind: str
    place: str
    content_type: str | None = None
    codings: tuple[str, ...] = ()


@dataclass(slots=True)
class Skipped:
    """How many documents were passed over, by reason, and the first thousand of those *to_name* that have to be named.

    *replaced* counts documents that were taken with U+FFFD for what was wrong in their encoding.
    """

    counts: dict[str, int] = field(default_factory=dict)
    named: list[Fault] = field(default_factory=list)
    to_name: int = 0
    replaced: int = 0

    def add(self, reason: str, place: str = "", sentence: str = "") -> None:
        """Count one; with a *place* it is named."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.to_name += bool(place)
        if place and len(self.named) < _KEPT:
            self.named.append(Fault(place, sentence.rstrip(".") or (QUIET | LOUD)[reason]))

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
class Reading:
    """How documents are read; it can be sent to another process.

    *canonical* makes a page of a kind its text; it raises one of *hostile* where that would take too long.
    """

    canonical: Callable[[str, str], str]
    hostile: tuple[type[Exception], ...]
    max_bytes: int


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


def take(batch: Sequence[RawDocument], reading: Reading, parameters: Parameters) -> Taken:
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


def texts_of(batch: Iterable[RawDocument], reading: Reading, skipped: Skipped) -> Iterator[Text]:
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


def _text_of(document: RawDocument, reading: Reading, skipped: Skipped) -> str | None:
    data = document.data
    if isinstance(data, bytes):
        if document.codings:
            try:
                data = decoded_body(data, document.codings, reading.max_bytes)
            except Undecodable as error:
                skipped.add("coding", document.place, str(error))
                return None
        # What a server calls a text may be anything.
        if document.content_type is not None and (is_binary(data) or has_nul(data)):
            skipped.add("type")
            return None
        data, is_replaced = decoded(data, document.kind, document.content_type)
        skipped.replaced += is_replaced
    if document.kind == PLAIN:
        return data
    try:
        return reading.canonical(document.kind, data)
    except reading.hostile as error:
        skipped.add("hostile", document.place, str(error))
        return None


def decoded(data: bytes, kind: str, content_type: str | None = None) -> tuple[str, bool]:
    r"""A text, and whether something was wrong in its encoding and is U+FFFD now.

    *content_type* is None for a file, for which nothing is guessed.

    >>> decoded(b"caf\xc3\xa9", PLAIN), decoded(b"caf\xe9", PLAIN)
    (('café', False), ('caf\ufffd', True))
    >>> decoded(b"caf\xe9", "html", ""), decoded(b"<meta charset=latin1>caf\xe9", "html")
    (('café', False), ('<meta charset=latin1>café', False))
    """
    encoding, mark = read_bom(data)
    if encoding is not None and mark is not None:
        data = data[len(mark) :]
        text = data.decode(encoding, "replace")
    elif kind == PLAIN:
        encoding, text = "utf-8", data.decode("utf-8", "replace")
    else:
        declared = next(filter(is_charset, declared_encodings(content_type, data)), None)
        guessed = None if declared or content_type is None else _detected(data)
        encoding, text = html_to_unicode(f"charset={declared or guessed or 'utf-8'}", data)
    return text, "\ufffd" in text and not _is_sound(data, encoding)


def _detected(data: bytes) -> str | None:
    return next((encoding for encoding in ("utf-8", "cp1252") if _is_sound(data, encoding)), None)


def _is_sound(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except (LookupError, UnicodeError):
        return False
    return True

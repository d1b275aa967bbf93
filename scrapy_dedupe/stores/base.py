"""The values of the crawl index, and the protocol of a store for texts.

Two stores implement it with the same behaviour, checked by the same tests: :mod:`.sqlite` (embedded, the default)
and :mod:`.redis` (shared, Redis or Valkey). Open a store with :func:`scrapy_dedupe.stores.open_store`, and use it from
one thread at a time.

Every method may raise :class:`~scrapy_dedupe.errors.StoreUnavailable`; opening may also raise
:class:`~scrapy_dedupe.errors.StoreRefused`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    OnForgotten: TypeAlias = Callable[[str, int], None]
    OnDone: TypeAlias = Callable[[str, int, int], None]
    """Progress callback of long work: the kind of things, how many are done, and roughly how many there are."""


@dataclass(frozen=True, slots=True)
class Original:
    """The ``response`` record that a revisit refers to.

    ``digest`` is the payload digest without its label; ``date`` the digits of its WARC-Date (14, or 17 with
    milliseconds); ``size`` the size of its compressed record in bytes; ``wacz_index`` the position of its container
    among the containers of the crawl. The location of the record (``record_id`` with angle brackets, ``file``,
    ``offset``) is unknown for records of other programs.

    ``status`` is the HTTP status of an imported record if it is known and not 200. ``form`` is the spelling of the
    digest in an imported record if it is not the usual one (see :data:`~scrapy_dedupe.stores.index_values.FORMS`). An
    original with either has no ``record_id``.
    """

    digest: str
    crawl: str
    date: str
    url: str
    size: int
    wacz_index: int = 0
    record_id: str | None = None
    file: str | None = None
    offset: int | None = None
    status: int | None = None
    form: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of URLs of a crawl, and the sizes that it stored and saved, in bytes."""

    total_urls: int = 0
    dupe_urls: int = 0
    conserved_size: int = 0
    total_crawl_size: int = 0

    def __add__(self, other: Counts) -> Counts:
        # astuple() copies deeply, which takes as long as reading a record.
        return Counts(
            self.total_urls + other.total_urls,
            self.dupe_urls + other.dupe_urls,
            self.conserved_size + other.conserved_size,
            self.total_crawl_size + other.total_crawl_size,
        )


class UrlCapture(NamedTuple):
    """The last complete GET payload that a crawl recorded for a URL, as a ``response`` or a ``revisit``.

    ``digest`` is the payload digest without its label, ``date`` the digits of the record's WARC-Date (14 or 17).
    ``validators``, at most 255 bytes, are opaque values that the caller compares when the server answers that nothing
    has changed. ``file`` and ``offset`` locate the record; they are unknown for records of other programs.
    """

    url: str
    digest: str
    date: str
    validators: bytes = b""
    file: str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """A container of another crawl that revisits of this crawl refer to.

    ``wacz_index`` is the position among the containers of ``crawl``, ``file`` the WARC file in it, if known.
    """

    crawl: str
    wacz_index: int = 0
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A revisit whose original is not in the index. ``size`` is the size of its compressed record in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Source:
    """A unit of import: a WACZ, a WARC file or a CDXJ file.

    ``name`` is unique in the index: the file name of a container, otherwise a path or URL. ``place`` is the path or URL
    to read; ``crawl`` the crawl that gets the records. ``hash`` (SHA-256 in hex, without a label) and ``size`` in bytes
    belong to a container, if known. ``token`` identifies one claim of a source; it is empty for a source that was not
    claimed.
    """

    name: str
    crawl: str
    place: str
    is_container: bool = False
    hash: str | None = None
    size: int | None = None
    token: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ImportNotes:
    """Notes on imports. ``progress`` is from 0 to 1, ``finished`` the time (ISO 8601, UTC) of the last import.

    ``removed_crawls`` is the number of committed crawls that the last manifest did not name, ``removed_size`` their
    size in bytes.
    """

    progress: float | None = None
    finished: str | None = None
    removed_crawls: int = 0
    removed_size: int = 0


@dataclass(frozen=True, slots=True)
class CrawlInfo:
    """A crawl in the index. ``state``: ``uncommitted``, ``committed`` or ``canceled``.

    ``incomplete``: some of its records are on disk and not yet in the index. ``software`` is None for a crawl of another
    program. ``imported``: its records were imported; an uncommitted imported crawl is one whose first import is running
    or was interrupted. ``concurrent``: other crawls may refer to its records before it is committed. ``waiting`` is the
    number of payloads that its revisits refer to and that are not in the index. ``marked``: Browsertrix has marked the
    committed crawl for removal, and forgets it at its next purge.
    """

    id: str
    state: str
    payload: str
    started: str | None
    committed: str | None
    counts: Counts
    files: tuple[str, ...] = ()
    stats: Mapping[str, object] | None = None
    incomplete: bool = False
    software: str | None = None
    imported: bool = False
    concurrent: bool = False
    waiting: int = 0
    marked: bool = False

    @property
    def is_foreign(self) -> bool:
        """Whether its records were imported, or added by another program."""
        return self.imported or self.software is None


@dataclass(frozen=True, slots=True)
class SeenText:
    """A capture of a text: the page's URL, crawl and time, and the verdict on it.

    ``digest`` is the 16-byte key of the text, ``seen_ms`` the time in milliseconds since the epoch (UTC).
    ``original`` is the digest of the original text, None for a new text. It differs from ``digest`` for a near copy,
    whose ``similarity`` is the estimate, and for a copy of an imported text. ``source`` is the 16-byte key of the
    undecoded page, by which :meth:`ContentStore.recall` finds the text again; empty if it is not remembered.
    """

    digest: bytes
    url: str
    crawl: str
    seen_ms: int
    kind: str = "unique"
    original: bytes | None = None
    similarity: float | None = None
    source: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of the text of ``capture``, for finding similar texts.

    ``bands`` are 8-byte hashes: the buckets in which similar texts are searched and into which this text is put.
    ``more_bands`` are buckets that are only searched. ``rows`` has one byte per row of the signature of the whole
    text. ``rare_rows`` has the same for the rest of the text, without the template of its host; it is empty if no
    template is known.

    ``identity`` has five keys of 3 bytes that name the page: its URL, the tail of its URL, its title, and the words of its
    URL without and with the query. A key of zeros says nothing. If the last byte of the third key is odd, it is the key of
    the beginning of the text in place of the title. The words are the same if they are equal with the query,
    or if they are equal without it and one page has none. ``identity`` is empty if pages are compared by their texts only.

    Another text is near if at least ``min_equal`` rows are equal, and

    - both pages have the same URL, or the same tail and not different titles, or
    - they have the same title or the same words, neither is different, and at least ``min_equal_named`` rows of the rests
      are equal, or
    - they have the same tail and different titles, or the same beginning, or nothing can be compared, and at least
      ``min_equal_rare`` rows of the rests are equal. Without identities this applies to all texts.

    Of several near texts, those that need the fewest equal rows of the rests come first, then the most similar one.

    The rows of a rest are its rare rows. If only one of the two texts has rare rows, the comparison uses the rows in which
    its rare row equals its row, because these are determined by its rest: there must be at least 8 of them, and the same
    share of them must be equal. If the key of the words is 0xFFFFFF, the page has no rest.
    """

    capture: SeenText
    bands: Sequence[bytes]
    rows: bytes
    min_equal: int
    rare_rows: bytes = b""
    min_equal_rare: int = 0
    more_bands: Sequence[bytes] = ()
    identity: bytes = b""
    min_equal_named: int = 0


@dataclass(frozen=True, slots=True)
class TextMatch:
    """A text that is already in the store.

    ``seen_ms`` is the time of its first capture, in milliseconds since the epoch (UTC). ``had_this_url`` is true if the
    URL of the query had this text in an earlier capture. ``similarity`` is the share of equal rows, 1.0 for an equal
    text; the caller converts it to an estimate. ``pending``: the page with the text is still being processed, and may
    fail.
    """

    digest: bytes
    url: str
    crawl: str
    seen_ms: int
    had_this_url: bool
    similarity: float = 1.0
    pending: bool = False


@dataclass(frozen=True, slots=True)
class NearAnswer:
    """The answer for a new text with a signature: the kept text that is near to it, if any.

    ``is_template``: a whole text was similar, but belongs to another page made from the same template. For a near text,
    ``rest`` is the share of equal rows of the rests, None if they were not compared, and ``identity`` that of its page.
    """

    seen: TextMatch | None = None
    is_template: bool = False
    rest: float | None = field(default=None, compare=False)
    identity: bytes = field(default=b"", compare=False)


class ContentStore(Protocol):
    """Remembers texts.

    A claimed text is *pending* until its page succeeds (:meth:`settle`). When a page is requested again because it
    failed, or because the process was killed while it was being processed, it is therefore not a copy of itself.
    """

    def parameters(self) -> dict[str, str]:
        """The parameters of the near layer with which the store was written."""

    def check_parameters(self, parameters: Mapping[str, str]) -> None:
        """Record the parameters of the near layer in a new store; compare them with those of an existing store.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused`, naming both values, if one differs.
        """

    def remember_for(self, seconds: float | None) -> None:
        """Treat texts as new when their first capture is older than *seconds*. None keeps texts permanently."""

    def claim(
        self,
        captures: Sequence[SeenText],
        signatures: Sequence[Signature | None] = (),
        *,
        pending: bool = True,
    ) -> list[TextMatch | NearAnswer | None]:
        """Test and insert each text in one atomic step: None if it is new, otherwise its first capture.

        A text that is pending at the same URL counts as new. All captures take one round trip or one transaction.
        ``pending=False`` confirms the texts at once.

        *signatures* is empty, or has an entry for each capture, None if the text must not be compared with others. The
        answer for a new text with a signature is the most similar kept text that is near; if there is none, this text
        is kept. Candidates are the texts in any bucket of the signature. A kept text is put into each of its buckets; a
        bucket holds the last text only. A near text that is pending at the same URL is an earlier attempt of this page
        and is not returned.
        """

    def find(
        self, captures: Sequence[SeenText], signatures: Sequence[Signature | None] = ()
    ) -> list[TextMatch | NearAnswer | None]:
        """As :meth:`claim`, without writing."""

    def has_sources(self) -> bool:
        """Whether :meth:`recall` may find a text."""

    def recall(self, captures: Sequence[SeenText]) -> list[TextMatch | None]:
        """As :meth:`find` for pages whose text was not read: their ``source`` selects the text, not their ``digest``.

        None also for an unknown source. The source of a text is that of its first capture.
        """

    def settle(
        self,
        passed: Sequence[SeenText],
        failed: Sequence[SeenText] = (),
        dropped: Sequence[SeenText] = (),
    ) -> None:
        """Confirm the texts of pages that succeeded; forget those of pages that failed.

        Texts of dropped copies are forgotten too, because nobody received them; the verdict on them is recorded.

        A page that succeeds while the first page with its text is pending becomes the first one. Safe to repeat.
        """

    def captures(self, url: str) -> list[tuple[SeenText, TextMatch | None]]:
        """The captures of a URL, oldest first: each text, and its original if that is another page."""

    def captures_of(self, urls: Iterable[str]) -> dict[str, list[SeenText]]:
        """The captures of each of these URLs that has some, oldest first. Reads all texts once."""

    def forget(self, url: str) -> int:
        """Forget the texts first captured at *url*, and the recorded captures of *url*. Return the number of texts."""

    def purge(
        self,
        *,
        before_ms: int | None = None,
        crawl: str | None = None,
        on_forgotten: OnForgotten | None = None,
    ) -> int:
        """Forget the texts whose first capture is older than ``before_ms``, or belongs to ``crawl``. Return their number.

        With neither, forget all texts, and also the parameters and templates, as if the store was new.
        ``on_forgotten`` is called repeatedly with a kind and a number of forgotten things: first ``texts``, then the
        data that belongs to them.
        """

    def count(self, *, before_ms: int | None = None, crawl: str | None = None) -> int:
        """The number of texts that :meth:`purge` would forget."""

    def load_template(self, host: str) -> bytes | None:
        """The template of a host that :meth:`save_template` saved last; None if there is none."""

    def save_template(self, host: str, template: bytes) -> None:
        """Save the template of a host."""

    def flush(self) -> None:
        """Make the claimed texts durable, as far as the store itself can."""

    def statistics(self) -> dict[str, int]:
        """Numbers of ``texts`` (distinct), ``kept`` (compared with new texts), ``pending`` and ``templates``."""

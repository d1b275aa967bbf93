"""What a store is: two small protocols, one for texts and one for the crawl index.

Two stores keep them, with the same behaviour and one contract test suite: :mod:`.sqlite` (embedded, the
default) and :mod:`.redis` (shared, Redis or Valkey). A store is opened with :func:`scrapy_dedupe.stores.open_store`
and is used from one thread at a time.

Every method may raise :class:`~scrapy_dedupe.errors.StoreUnavailable`; opening may also raise
:class:`~scrapy_dedupe.errors.StoreRefused`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Capture:
    """A page as it was read: its text, URL, crawl and time, and what was decided about it.

    ``digest`` is the 16-byte key of the text, ``seen_ms`` the time in milliseconds since the epoch (UTC).
    ``original`` is the digest of the text that this one is a copy of, None for a text that is new; it is another one
    than ``digest`` for a near copy, whose ``similarity`` is the estimate, and for a copy of an imported text.
    """

    digest: bytes
    url: str
    crawl: str
    seen_ms: int
    kind: str = "unique"
    original: bytes | None = None
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """What finds texts that are similar to that of ``capture``.

    ``bands`` are 8-byte hashes: the buckets in which other texts are found, and into which this one goes.
    ``more_bands`` are buckets in which others are found too. ``rows`` is one byte for each row of the signature of the
    whole text, ``rare_rows`` the same of its rest, without what is template on its host; empty when that is not
    known.

    Another text is near if at least ``min_equal`` of the rows are equal and the rests are near as well: at least
    ``min_equal_rare`` of the rare rows are equal. If the rest of one text alone is known, the rows that its rest
    decides, those in which its rare row is the row itself, stand for it: there have to be at least 8, and the same
    share of them has to be equal.
    """

    capture: Capture
    bands: Sequence[bytes]
    rows: bytes
    min_equal: int
    rare_rows: bytes = b""
    min_equal_rare: int = 0
    more_bands: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class SeenText:
    """A text that the store already held.

    ``seen_ms`` is the time of that first capture, in milliseconds since the epoch (UTC). ``had_this_url``
    tells whether the URL that was asked for now had this very text in an earlier capture. ``similarity`` is
    the share of equal rows, 1.0 for an equal text; what it says about the texts is for the caller to work out.
    ``pending``: the page with the text has not gone through yet, and may fail.
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
    """The kept text that a signature is near to, if any.

    ``is_template``: there was one whose whole text is near, but not the part that is no template.
    """

    seen: SeenText | None = None
    is_template: bool = False


class ContentStore(Protocol):
    """Remembers which texts were read.

    A text is *pending* from the moment at which it was claimed until its page went through (:meth:`settle`). A page
    that failed, or that was in hand when the process was killed, is not a copy of itself when it comes again.
    """

    def parameters(self) -> dict[str, str]:
        """The parameters of the near layer that the store was written with."""

    def check_parameters(self, parameters: Mapping[str, str]) -> None:
        """Record the parameters of the near layer in a new store, compare them with those of an old one.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused`, naming both values, when one differs.
        """

    def remember_for(self, seconds: float | None) -> None:
        """Take texts whose first capture is older as new. None: never."""

    def claim_texts(self, captures: Sequence[Capture], *, pending: bool = True) -> list[SeenText | None]:
        """Test and insert each text in one atomic step: None if it is new, else the capture that came first.

        A text that is pending at the same URL is new. All captures take one round trip, or one transaction.
        ``pending=False`` says that nothing can fail any more.
        """

    def claim_near(self, signatures: Sequence[Signature]) -> list[NearAnswer]:
        """For each: find the kept text most similar to this one, or else keep this one; in one atomic step.

        Its text was claimed before. Of the texts in one of its buckets, the most similar one of those that are near
        is answered, and nothing is kept. One that is pending at the same URL is this page, in an earlier attempt. Otherwise the text goes into each of its buckets (the last one in a bucket
        stays there).
        """

    def find_texts(self, captures: Sequence[Capture]) -> list[SeenText | None]:
        """As :meth:`claim_texts`, without writing anything."""

    def find_near(self, signatures: Sequence[Signature]) -> list[NearAnswer]:
        """As :meth:`claim_near`, without writing anything."""

    def settle(
        self,
        passed: Sequence[Capture],
        failed: Sequence[Capture] = (),
        dropped: Sequence[Capture] = (),
    ) -> None:
        """Confirm the texts of pages that went through; forget those of pages that failed.

        Those of copies that were dropped are forgotten too, since nobody got them; what was decided of them is noted.

        A page that went through while the first one with its text is pending becomes the first one. Safe to repeat.
        """

    def captures(self, url: str) -> list[tuple[Capture, SeenText | None]]:
        """What is known of a URL, oldest first: each text that it had, and the original if that is another page."""

    def forget(self, url: str) -> int:
        """Forget the texts whose first capture is at *url*, and what was noted of it. How many texts."""

    def purge(self, *, before_ms: int | None = None, crawl: str | None = None) -> int:
        """Forget the texts whose first capture is older than ``before_ms``, or was made by ``crawl``. How many.

        With neither: all texts, and the parameters and templates with them, as if the store was new.
        """

    def count(self, *, before_ms: int | None = None, crawl: str | None = None) -> int:
        """How many texts :meth:`purge` would forget."""

    def load_template(self, host: str) -> bytes | None:
        """What :meth:`save_template` was given last for a host."""

    def save_template(self, host: str, template: bytes) -> None:
        """Keep what is known of a host's template."""

    def flush(self) -> None:
        """Make durable what was claimed so far, as far as the store can do that itself."""

    def statistics(self) -> dict[str, int]:
        """``texts`` (distinct texts), ``kept`` (texts that others are compared with), ``pending``, ``templates``."""


@dataclass(frozen=True, slots=True)
class Original:
    """The ``response`` record that a revisit refers to.

    ``digest`` is the payload digest without its label; ``date`` the digits of its WARC-Date (14, or 17 with
    milliseconds); ``size`` the bytes of its compressed record; ``wacz_index`` the place of its container
    among the crawl's. Where the record lies (``record_id`` with its angle brackets, ``file``, ``offset``) is
    known only for records of this package.
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


@dataclass(frozen=True, slots=True)
class Counts:
    """What a crawl holds and saved. Sizes in bytes."""

    total_urls: int = 0
    dupe_urls: int = 0
    conserved_size: int = 0
    total_crawl_size: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.total_urls + other.total_urls,
            self.dupe_urls + other.dupe_urls,
            self.conserved_size + other.conserved_size,
            self.total_crawl_size + other.total_crawl_size,
        )


@dataclass(frozen=True, slots=True)
class UrlCapture:
    """The last complete GET payload that a crawl recorded of a URL, as a ``response`` or a ``revisit``.

    ``digest`` is the payload digest without its label, ``date`` the digits of the record's WARC-Date (14 or 17).
    ``validators``, at most 255 bytes, are whatever the caller wants to compare when the server says that nothing has
    changed.
    """

    url: str
    digest: str
    date: str
    validators: bytes = b""


@dataclass(frozen=True, slots=True)
class Need:
    """A container of another crawl that revisits of this one refer to.

    ``wacz_index`` is its place among the containers of ``crawl``, ``file`` the WARC file there, where it is known.
    """

    crawl: str
    wacz_index: int = 0
    file: str | None = None


@dataclass(frozen=True, slots=True)
class CrawlInfo:
    """One crawl as the index knows it. ``state``: ``uncommitted``, ``committed`` or ``canceled``.

    ``incomplete``: records of it are on disk that could not be entered yet.
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


class IndexStore(Protocol):
    """The crawl index: which payloads are stored, by which crawl, and who may refer to whom."""

    def start(self, crawl: str, payload: str) -> None:
        """Begin a crawl, or go on with one that is not committed.

        ``payload`` is how the crawl hashes (``stored`` or ``decoded``). Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` for a committed id, and
        :class:`~scrapy_dedupe.errors.StoreRefused` when the index was made with the other ``payload``.
        """

    def find(self, crawl: str, digests: Sequence[str]) -> list[Original | None]:
        """Look up payloads: in the crawl itself first, then in committed crawls. In one round trip."""

    def find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        """Look up URLs: in the crawl itself first, else the latest capture of the committed crawls."""

    def add(
        self,
        crawl: str,
        originals: Sequence[Original],
        counts: Counts,
        urls: Sequence[UrlCapture] = (),
        needs: Sequence[Need] = (),
    ) -> None:
        """Enter records that are on disk, in one atomic step.

        The first one of ``originals`` with a payload wins, the last one of ``urls`` with a URL. ``counts`` are added
        to those of the crawl.
        """

    def needs(self, crawl: str) -> list[Need]:
        """What the revisits of the crawl refer to in other crawls, in order of crawl, container and file."""

    def add_file(self, crawl: str, name: str) -> None:
        """Note a WARC file of the crawl, before its first record. Idempotent."""

    def rename_file(self, crawl: str, old: str, new: str) -> None:
        """Note that a WARC file of the crawl is found under another path or URL now.

        The crawl may be committed. What others need of the file follows. Safe to repeat. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` for a file that the crawl does not have.
        """

    def add_container(self, crawl: str, filename: str) -> int:
        """Give the crawl a container that is not packed yet; its place among the crawl's. Idempotent."""

    def set_container(self, crawl: str, filename: str, sha256_hex: str, size: int) -> None:
        """Note the hash and the size in bytes of a packed container, which is added if it is new. Idempotent.

        A committed crawl that has no container, or has this one without a hash, can be given it too.
        """

    def set_counts(self, crawl: str, counts: Counts) -> None:
        """Replace the counts of a crawl by those of a recount."""

    def mark_incomplete(self, crawl: str, flag: bool) -> None:
        """Note whether records of an uncommitted crawl are on disk that are not entered here yet."""

    def reset(self, crawl: str) -> None:
        """Forget records, counts, URLs and needs of an uncommitted crawl, before they are read anew from its files.

        Its files and containers stay known.
        """

    def commit(self, crawl: str, stats: Mapping[str, object] | None = None) -> None:
        """Make the crawl's records visible to other crawls. Safe to repeat and to resume."""

    def cancel(self, crawl: str) -> None:
        """Forget an uncommitted crawl. Its files stay. Safe to repeat."""

    def crawls(self) -> list[CrawlInfo]:
        """Every crawl, in the order of their start."""

    def containers(self, crawl: str) -> list[dict[str, object]]:
        """The WACZ files of a crawl, each with its ``filename`` and, once packed, ``hash`` and ``size``.

        One that cannot be read is empty, so that each keeps its place.
        """

    def totals(self) -> Counts:
        """The sums over the committed crawls."""


class Store(Protocol):
    """An open store."""

    url: str

    @property
    def content(self) -> ContentStore:
        """The texts."""

    @property
    def index(self) -> IndexStore:
        """The crawl index."""

    def probe(self) -> None:
        """Write, read and delete a value, so that a broken store fails at the start of a crawl."""

    def close(self) -> None:
        """Give back what the store holds. Safe to repeat."""

"""What a store is: small protocols: for texts, for the crawl index, and for reports.

Two stores keep them, with the same behaviour and one contract test suite: :mod:`.sqlite` (embedded, the
default) and :mod:`.redis` (shared, Redis or Valkey). A store is opened with :func:`scrapy_dedupe.stores.open_store`
and is used from one thread at a time.

Every method may raise :class:`~scrapy_dedupe.errors.StoreUnavailable`; opening may also raise
:class:`~scrapy_dedupe.errors.StoreRefused`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .index_model import (
    Counts,
    CrawlInfo,
    ImportNotes,
    IndexStore,
    Need,
    Original,
    Source,
    UrlCapture,
    Waiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    OnForgotten: TypeAlias = Callable[[str, int], None]

__all__ = [
    "ContentStore",
    "Counts",
    "CrawlInfo",
    "ImportNotes",
    "IndexStore",
    "NearAnswer",
    "Need",
    "Original",
    "ReportStore",
    "SeenText",
    "Signature",
    "Source",
    "Store",
    "TextMatch",
    "UrlCapture",
    "Waiting",
]


@dataclass(frozen=True, slots=True)
class SeenText:
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

    capture: SeenText
    bands: Sequence[bytes]
    rows: bytes
    min_equal: int
    rare_rows: bytes = b""
    min_equal_rare: int = 0
    more_bands: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class TextMatch:
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

    seen: TextMatch | None = None
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

    def claim_texts(self, captures: Sequence[SeenText], *, pending: bool = True) -> list[TextMatch | None]:
        """Test and insert each text in one atomic step: None if it is new, else the capture that came first.

        A text that is pending at the same URL is new. All captures take one round trip, or one transaction.
        ``pending=False`` says that nothing can fail any more.
        """

    def claim_near(self, signatures: Sequence[Signature]) -> list[NearAnswer]:
        """For each: find the kept text most similar to this one, or else keep this one; in one atomic step.

        Its text was claimed before. Of the texts in one of its buckets, the most similar one of those that are near
        is answered, and nothing is kept. One that is pending at the same URL is this page, in an earlier attempt.
        Otherwise the text goes into each of its buckets (the last one in a bucket stays there).
        """

    def find_texts(self, captures: Sequence[SeenText]) -> list[TextMatch | None]:
        """As :meth:`claim_texts`, without writing anything."""

    def find_near(self, signatures: Sequence[Signature]) -> list[NearAnswer]:
        """As :meth:`claim_near`, without writing anything."""

    def settle(
        self,
        passed: Sequence[SeenText],
        failed: Sequence[SeenText] = (),
        dropped: Sequence[SeenText] = (),
    ) -> None:
        """Confirm the texts of pages that went through; forget those of pages that failed.

        Those of copies that were dropped are forgotten too, since nobody got them; what was decided of them is noted.

        A page that went through while the first one with its text is pending becomes the first one. Safe to repeat.
        """

    def captures(self, url: str) -> list[tuple[SeenText, TextMatch | None]]:
        """What is known of a URL, oldest first: each text that it had, and the original if that is another page."""

    def forget(self, url: str) -> int:
        """Forget the texts whose first capture is at *url*, and what was noted of it. How many texts."""

    def purge(
        self,
        *,
        before_ms: int | None = None,
        crawl: str | None = None,
        on_forgotten: OnForgotten | None = None,
    ) -> int:
        """Forget the texts whose first capture is older than ``before_ms``, or was made by ``crawl``. How many.

        With neither: all texts, and the parameters and templates with them, as if the store was new. ``on_forgotten``
        is told of what so many are gone, first of ``texts``, then of what was kept for them.
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


class ReportStore(Protocol):
    """Keeps what was seen during crawls, for reports: bytes that only who wrote them understands.

    A crawl that is canceled or purged loses what is kept of it. It need not be one of the index.
    """

    def save(self, crawl: str, data: bytes) -> None:
        """Keep *data* of a crawl, in the place of what was kept of it. In one atomic step."""

    def load(self, crawl: str) -> bytes | None:
        """What is kept of a crawl; None if there is nothing."""

    def delete(self, crawl: str) -> None:
        """Forget what is kept of a crawl. Safe to repeat."""

    def crawls(self) -> list[str]:
        """The crawls of which something is kept, in the order of their ids."""


class Store(Protocol):
    """An open store."""

    url: str

    @property
    def content(self) -> ContentStore:
        """The texts."""

    @property
    def index(self) -> IndexStore:
        """The crawl index."""

    @property
    def reports(self) -> ReportStore:
        """What was seen during crawls."""

    def probe(self) -> None:
        """Write, read and delete a value, so that a broken store fails at the start of a crawl."""

    def close(self) -> None:
        """Give back what the store holds. Safe to repeat."""

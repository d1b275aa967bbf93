"""What the crawl index of a store is: its values, and the protocol that both stores fulfil."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    OnDone: TypeAlias = Callable[[str, int, int], None]
    """Told of long work again and again: so many of things of a kind are done, of about so many in all."""


@dataclass(frozen=True, slots=True)
class Original:
    """The ``response`` record that a revisit refers to.

    ``digest`` is the payload digest without its label; ``date`` the digits of its WARC-Date (14, or 17 with
    milliseconds); ``size`` the bytes of its compressed record; ``wacz_index`` the place of its container
    among the crawl's. Where the record lies (``record_id`` with its angle brackets, ``file``, ``offset``) is
    not known for records of other programs.

    ``status`` is the HTTP status of an imported record, where it is known and is not 200. ``form`` says how an
    imported record writes its digest, where that is not the usual form (see
    :data:`~scrapy_dedupe.stores.index_values.FORMS`). An original with either has no ``record_id``.
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
class Waiting:
    """A revisit whose original is not in the index. ``size`` is that of its compressed record in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Source:
    """What is imported at once: a WACZ, a WARC file or a CDXJ.

    ``name`` is unique in the index: the file name of a container, the path or URL of anything else. ``place`` is where
    it is read, a path or URL; ``crawl`` the crawl that its records are entered under. ``hash`` (SHA-256 in hex, bare)
    and ``size`` in bytes are those of a container, where they are known. ``token`` tells one claim of a source from
    the next one; it is empty for a source that was not claimed.
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
    """What was noted of imports. ``progress`` from 0 to 1, ``finished`` the time (ISO 8601, UTC) of the last one.

    ``removed_crawls`` are committed crawls that the last manifest did not name, ``removed_size`` their size in bytes.
    """

    progress: float | None = None
    finished: str | None = None
    removed_crawls: int = 0
    removed_size: int = 0


@dataclass(frozen=True, slots=True)
class CrawlInfo:
    """One crawl as the index knows it. ``state``: ``uncommitted``, ``committed`` or ``canceled``.

    ``incomplete``: records of it are on disk that could not be entered yet. ``software`` is None for a crawl of
    another program. ``imported``: its records were imported, not crawled here; an imported crawl that is uncommitted
    is one whose first import is under way or was cut off. ``concurrent``: others may refer to its records before
    it is committed. ``waiting``: how many payloads its revisits name whose originals are not in the index. ``marked``:
    Browsertrix has marked the committed crawl for removal, and forgets it at its next purge.
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


class IndexStore(Protocol):
    """The crawl index: which payloads are stored, by which crawl, and who may refer to whom.

    ``unreadable`` counts the stored values that were passed over so far because they do not parse.
    """

    unreadable: int

    def start(self, crawl: str, payload: str, *, concurrent: bool = False) -> None:
        """Begin a crawl, or go on with one that is not committed.

        ``payload`` is how the crawl hashes (``stored`` or ``decoded``). With ``concurrent`` others may refer to its
        records as soon as they are entered; this is decided when a crawl begins, and stays when it goes on. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` for a committed id or one that is being imported, and
        :class:`~scrapy_dedupe.errors.StoreRefused` when the index was made with the other ``payload``.
        """

    def find(self, crawl: str, digests: Sequence[str], *, lasting: bool = False) -> list[Original | None]:
        """Look up payloads: in the crawl itself first, then in committed and concurrent crawls. In one round trip.

        A digest is found in whatever alphabet another program has written it. What is answered has it as asked. With
        ``lasting`` crawls that Browsertrix has marked for removal are left out: no new revisit should refer to them.
        """

    def find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        """Look up URLs: in the crawl itself first, else the latest capture of the committed crawls."""

    def add(
        self,
        crawl: str,
        originals: Sequence[Original],
        counts: Counts,
        urls: Sequence[UrlCapture] = (),
        needs: Sequence[Need] = (),
        waiting: Sequence[Waiting] = (),
    ) -> None:
        """Enter records that are on disk, in one atomic step.

        The first one of ``originals`` with a payload wins, the last one of ``urls`` with a URL. ``counts`` are added
        to those of the crawl. ``waiting`` are revisits that :meth:`resolve` will look at.
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

    def commit(
        self, crawl: str, stats: Mapping[str, object] | None = None, on_done: OnDone | None = None
    ) -> None:
        """Make the crawl's records visible to other crawls. Safe to repeat and to resume.

        Raises :class:`~scrapy_dedupe.errors.CrawlStateError` for one whose import was cut off.
        """

    def cancel(self, crawl: str, on_done: OnDone | None = None) -> None:
        """Forget an uncommitted crawl. Its files stay. Safe to repeat."""

    # Import. A source is queued, claimed, begun, entered and ended; nobody finds its records before it has ended.

    def queue_sources(self, sources: Sequence[Source]) -> int:
        """Put sources at the end of the queue, those apart that are in it or were done; how many were put there."""

    def claim_source(self, lease_s: float) -> Source | None:
        """Take the next source of the queue; None if there is none.

        It has a new ``token``, and is this process's for so many seconds (see :meth:`renew_lease`); then it is given to
        the next who asks, before what is still in the queue. An entry of the queue that does not parse is dropped and
        counted as unreadable.
        """

    def renew_lease(self, source: Source, lease_s: float) -> None:
        """Keep a claimed source for so many seconds from now on.

        This and all that follows raise :class:`~scrapy_dedupe.errors.TakenOver`, having changed nothing, when another
        process has claimed or begun the source since, with another ``token``.
        """

    def release_source(self, source: Source) -> None:
        """Take a source out of the queue that could not be imported. Safe to repeat."""

    def queue_length(self) -> tuple[int, int]:
        """How many sources are in the queue, and how many are claimed."""

    def done_sources(self, names: Sequence[str]) -> list[bool]:
        """Whether sources with these names were imported, or are containers of committed crawls."""

    def begin_source(self, source: Source, payload: str) -> int:
        """Begin to enter a source; the place of its container among the crawl's, 0 if it is none.

        A crawl that is unknown or was canceled is begun; one that was imported, or that another program made, is
        extended. What an earlier attempt with this source left is forgotten first. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` for a crawl that was crawled here, and
        :class:`~scrapy_dedupe.errors.StoreRefused` when the index was made with the other ``payload``.
        """

    def add_imported(
        self,
        source: Source,
        originals: Sequence[Original],
        urls: Sequence[UrlCapture] = (),
        files: Sequence[str] = (),
    ) -> None:
        """Enter records of a source that was begun, hidden from all crawls but its own. Each has a file.

        ``files`` are WARC files of the source, of which there may be nothing to enter.

        The first one with a payload wins, also over those of other sources of the crawl. Safe to repeat. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` if the source was not begun, or was dropped.
        """

    def end_source(
        self,
        source: Source,
        counts: Counts,
        needs: Sequence[Need] = (),
        waiting: Sequence[Waiting] = (),
    ) -> None:
        """End a source: its records are found from now on, its crawl is committed, and its counts are added.

        Its container gets its ``hash`` and ``size``; it leaves the queue and is done. Atomic for readers at any size;
        safe to repeat and to resume, the counts are added once. ``waiting`` are revisits that :meth:`resolve` will
        look at.
        """

    def drop_source(self, source: Source) -> None:
        """Forget what was entered of a source that has not ended; a crawl that has nothing else is forgotten too.

        Safe to repeat, also for a source that was never begun. It stays in the queue. The place of its container stays
        taken if there are others behind it.
        """

    def unfinished_sources(self) -> list[Source]:
        """Sources that were begun and have not ended, in the order of their names."""

    def resolve(self) -> int:
        """Look for the originals of revisits that wait; how many revisits have one now.

        Each adds ``max(0, size of the original - its own size)`` to the conserved size of its crawl, and a need, if the
        original is in another crawl (the crawl's own originals come first, then committed ones). Exactly once for each,
        whatever is cut off.
        """

    def import_notes(self) -> ImportNotes:
        """What was noted of imports."""

    def note_imports(self, notes: ImportNotes) -> None:
        """Replace what was noted of imports."""

    # Removal and repair

    def purge(self, crawls: Sequence[str], on_done: OnDone | None = None) -> None:
        """Forget committed or canceled crawls: nothing of them is left but what others need of them.

        A payload that a kept crawl has too is that crawl's from now on. Atomic for readers, who never see an index
        that lacks something of a kept crawl; safe to repeat and to resume (see :meth:`unfinished_purge`); other
        crawls may commit meanwhile. Raises :class:`~scrapy_dedupe.errors.CrawlStateError`, having done
        nothing, for a crawl that is uncommitted.
        """

    def forget_canceled(self, crawl: str) -> None:
        """Take a canceled crawl out of the list of crawls, as if it had never been. Any other crawl stays."""

    def unfinished_purge(self) -> list[str]:
        """The crawls of a purge that was cut off after it had taken effect; purging them again ends it."""

    def replace(self, crawl: str, by: str) -> None:
        """Let a committed crawl have what the uncommitted crawl ``by`` has, and forget that one.

        Records, files, URLs, needs, waiting revisits and the counts change in one step for readers; state, time, stats
        and containers of *crawl* stay. Safe to repeat and to resume.
        """

    def merged_faults(self) -> int:
        """In how many places the merged index differs from what the committed crawls hold.

        The merged index is what readers find payloads by, with the sums of all counts. 0 where there is none beside
        the crawls.
        """

    def rebuild_merged(self) -> None:
        """Make the merged index anew beside the old one, and put it in its place."""

    def records(self, crawl: str) -> Iterator[Original]:
        """The originals of a crawl, in batches, in no order; without those that are hidden."""

    def crawls(self) -> list[CrawlInfo]:
        """Every crawl, in the order of their start."""

    def containers(self, crawl: str) -> list[dict[str, object]]:
        """The WACZ files of a crawl, each with its ``filename`` and, once packed, ``hash`` and ``size``.

        One that cannot be read is empty, so that each keeps its place.
        """

    def totals(self) -> Counts:
        """The sums over the committed crawls."""

"""The crawl index: its values, and the protocol that both stores implement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

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
        return Counts(
            self.total_urls + other.total_urls,
            self.dupe_urls + other.dupe_urls,
            self.conserved_size + other.conserved_size,
            self.total_crawl_size + other.total_crawl_size,
        )


@dataclass(frozen=True, slots=True)
class UrlCapture:
    """The last complete GET payload that a crawl recorded for a URL, as a ``response`` or a ``revisit``.

    ``digest`` is the payload digest without its label, ``date`` the digits of the record's WARC-Date (14 or 17).
    ``validators``, at most 255 bytes, are opaque values that the caller compares when the server answers that nothing
    has changed.
    """

    url: str
    digest: str
    date: str
    validators: bytes = b""


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


class IndexStore(Protocol):
    """The crawl index: which payloads are stored, by which crawl, and which crawls may refer to them.

    ``unreadable`` counts the stored values that were skipped so far because they cannot be parsed.
    """

    unreadable: int

    def start(self, crawl: str, payload: str, *, concurrent: bool = False) -> None:
        """Begin a crawl, or continue one that is not committed.

        ``payload`` is the form of payloads that the crawl hashes (``stored`` or ``decoded``). With ``concurrent``
        other crawls may refer to its records as soon as they are added; a continued crawl keeps its first value.
        Raises :class:`~scrapy_dedupe.errors.CrawlStateError` for an id that is committed or is being imported, and
        :class:`~scrapy_dedupe.errors.StoreRefused` if the index was created with the other ``payload``.
        """

    def find(self, crawl: str, digests: Sequence[str], *, lasting: bool = False) -> list[Original | None]:
        """Look up payloads: in the crawl itself first, then in committed and concurrent crawls. In one round trip.

        A digest is found in every alphabet in which a program may have written it; the result has the spelling of the
        query. ``lasting`` excludes crawls that Browsertrix has marked for removal: no new revisit should refer to them.
        """

    def find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        """Look up URLs: in the crawl itself first, then the latest capture of the committed crawls."""

    def add(
        self,
        crawl: str,
        originals: Sequence[Original],
        counts: Counts,
        urls: Sequence[UrlCapture] = (),
        needs: Sequence[Need] = (),
        waiting: Sequence[Waiting] = (),
    ) -> None:
        """Add records that are on disk, in one atomic step.

        The first of ``originals`` with the same payload wins, and the last of ``urls`` with the same URL. ``counts`` are
        added to those of the crawl. ``waiting`` are revisits for :meth:`resolve`.
        """

    def needs(self, crawl: str) -> list[Need]:
        """What the revisits of the crawl refer to in other crawls, sorted by crawl, container and file."""

    def add_file(self, crawl: str, name: str) -> None:
        """Record a WARC file of the crawl, before its first record is added. Idempotent."""

    def rename_file(self, crawl: str, old: str, new: str) -> None:
        """Record that a WARC file of the crawl has another path or URL now.

        The crawl may be committed. Needs of other crawls for the file are updated. Safe to repeat. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` for a file that the crawl does not have.
        """

    def add_container(self, crawl: str, filename: str) -> int:
        """Add a container that is not packed yet; return its position among those of the crawl. Idempotent."""

    def set_container(self, crawl: str, filename: str, sha256_hex: str, size: int) -> None:
        """Record the hash and the size in bytes of a packed container, and add it if it is new. Idempotent.

        Also works for a committed crawl that has no container, or has this one without a hash.
        """

    def set_counts(self, crawl: str, counts: Counts) -> None:
        """Replace the counts of a crawl after a recount."""

    def mark_incomplete(self, crawl: str, flag: bool) -> None:
        """Record whether some records of an uncommitted crawl are on disk and not yet in the index."""

    def reset(self, crawl: str) -> None:
        """Forget records, counts, URLs and needs of an uncommitted crawl, before they are read from its files again.

        Its files and containers are kept.
        """

    def commit(
        self, crawl: str, stats: Mapping[str, object] | None = None, on_done: OnDone | None = None
    ) -> None:
        """Make the crawl's records visible to other crawls. Safe to repeat and to resume.

        Raises :class:`~scrapy_dedupe.errors.CrawlStateError` for a crawl whose import was interrupted.
        """

    def cancel(self, crawl: str, on_done: OnDone | None = None) -> None:
        """Forget an uncommitted crawl. Its files are kept. Safe to repeat."""

    # Import. A source is queued, claimed, begun, filled and ended. Its records cannot be found before it has ended.

    def queue_sources(self, sources: Sequence[Source]) -> int:
        """Append sources to the queue, except those that are queued or done already. Return the number appended."""

    def claim_source(self, lease_s: float) -> Source | None:
        """Take the next source of the queue; None if there is none.

        The source has a new ``token``. It is claimed for *lease_s* seconds (see :meth:`renew_lease`); after that it is
        given to the next caller, before the sources in the queue. An entry that cannot be parsed is dropped and counted
        as unreadable.
        """

    def renew_lease(self, source: Source, lease_s: float) -> None:
        """Extend the claim of a source to *lease_s* seconds from now.

        This and all following methods raise :class:`~scrapy_dedupe.errors.TakenOver`, without any change, if another
        process has claimed or begun the source since, with another ``token``.
        """

    def release_source(self, source: Source) -> None:
        """Remove a source that could not be imported from the queue. Safe to repeat."""

    def queue_length(self) -> tuple[int, int]:
        """The numbers of queued and of claimed sources."""

    def done_sources(self, names: Sequence[str]) -> list[bool]:
        """Whether sources with these names were imported, or are containers of committed crawls."""

    def begin_source(self, source: Source, payload: str) -> int:
        """Begin to import a source. Return the position of its container among those of the crawl, 0 if it has none.

        An unknown or canceled crawl is begun; a crawl that was imported, or made by another program, is extended. The
        results of an earlier attempt with this source are removed first. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` for a crawl that was crawled here, and
        :class:`~scrapy_dedupe.errors.StoreRefused` if the index was created with the other ``payload``.
        """

    def add_imported(
        self,
        source: Source,
        originals: Sequence[Original],
        urls: Sequence[UrlCapture] = (),
        files: Sequence[str] = (),
    ) -> None:
        """Add records of a begun source. Only its own crawl can find them. Each record has a file.

        ``files`` are WARC files of the source, including those without records to add.

        The first record with a payload wins, also over records of other sources of the crawl. Safe to repeat. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` if the source was not begun, or was dropped.
        """

    def end_source(
        self,
        source: Source,
        counts: Counts,
        needs: Sequence[Need] = (),
        waiting: Sequence[Waiting] = (),
    ) -> None:
        """End a source: its records become visible, its crawl is committed, and its counts are added.

        Its container gets its ``hash`` and ``size``; the source leaves the queue and is done. Atomic for readers at any
        size. Safe to repeat and to resume; the counts are added once. ``waiting`` are revisits for :meth:`resolve`.
        """

    def drop_source(self, source: Source) -> None:
        """Forget the records of a source that has not ended; a crawl without any other data is forgotten too.

        Safe to repeat, also for a source that was never begun. The source stays in the queue. The position of its
        container stays reserved if others follow it.
        """

    def unfinished_sources(self) -> list[Source]:
        """Sources that were begun and have not ended, sorted by name."""

    def resolve(self) -> int:
        """Look up the originals of waiting revisits. Return the number of revisits that were resolved.

        Each adds ``max(0, size of the original - its own size)`` to the conserved size of its crawl, and a need if the
        original is in another crawl (the crawl's own originals come first, then those of committed crawls). Each is
        counted exactly once, even if the process is interrupted.
        """

    def import_notes(self) -> ImportNotes:
        """The notes on imports."""

    def note_imports(self, notes: ImportNotes) -> None:
        """Replace the notes on imports."""

    # Removal and repair

    def purge(self, crawls: Sequence[str], on_done: OnDone | None = None) -> None:
        """Forget committed or canceled crawls, except what other crawls need of them.

        A payload that a remaining crawl also has becomes that crawl's. Atomic for readers, who always see all data of
        the remaining crawls. Safe to repeat and to resume (see :meth:`unfinished_purge`). Other crawls may commit
        meanwhile. Raises :class:`~scrapy_dedupe.errors.CrawlStateError`, without any change, for an uncommitted crawl.
        """

    def forget_canceled(self, crawl: str) -> None:
        """Remove a canceled crawl from the list of crawls, as if it had never existed. Ignores other crawls."""

    def unfinished_purge(self) -> list[str]:
        """The crawls of a purge that was interrupted after it took effect; purging them again completes it."""

    def replace(self, crawl: str, by: str) -> None:
        """Replace the data of a committed crawl by that of the uncommitted crawl ``by``, and forget ``by``.

        Records, files, URLs, needs, waiting revisits and counts change in one step for readers; the state, times, stats
        and containers of *crawl* are kept. Safe to repeat and to resume.
        """

    def merged_faults(self) -> int:
        """The number of differences between the merged index and the data of the committed crawls.

        Readers look up payloads in the merged index; it also holds the sums of all counts. 0 for a store without a
        separate merged index.
        """

    def rebuild_merged(self) -> None:
        """Build a new merged index next to the old one, and replace the old one by it."""

    def records(self, crawl: str) -> Iterator[Original]:
        """The originals of a crawl, in batches and in no particular order; without hidden ones."""

    def crawls(self) -> list[CrawlInfo]:
        """All crawls, in the order of their start."""

    def containers(self, crawl: str) -> list[dict[str, object]]:
        """The WACZ files of a crawl, each with its ``filename`` and, once packed, ``hash`` and ``size``.

        An unreadable entry is returned as an empty dictionary, so that the positions stay correct.
        """

    def totals(self) -> Counts:
        """The sums over all committed crawls."""

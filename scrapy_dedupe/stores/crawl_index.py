"""The crawl index: shared by many crawls, in SQLite or in Redis.

A crawl is started, looks up and adds payloads while it runs, and is committed or canceled at its end. After the commit
other crawls may refer to its records. The index accepts digests, dates and URLs in any usual form and normalizes them
(see :mod:`.normal_forms`). The two stores implement the methods with a leading underscore, which get checked and
normalized values.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from scrapy_dedupe.errors import CrawlStateError, SettingError

from .base import Counts, Need, Original, Source, UrlCapture, Waiting
from .normal_forms import date_digits, plain_digest, plain_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .base import CrawlInfo, ImportNotes, OnDone

PAYLOAD_MODES = ("stored", "decoded")

REPAIR_SUFFIX = "~repair"
"""The suffix of the id of a temporary crawl that will replace a crawl (see :mod:`scrapy_dedupe.crawls.repairing`)."""

_CRAWL_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Addition(NamedTuple):
    """What is added to a crawl in one step (see :meth:`CrawlIndex.add`)."""

    originals: Sequence[Original]
    counts: Counts = Counts()
    urls: Sequence[UrlCapture] = ()
    needs: Sequence[Need] = ()
    waiting: Sequence[Waiting] = ()


class CrawlIndex(AbstractContextManager["CrawlIndex"]):
    """The crawl index of an open store, used by one thread at a time.

    ``unreadable`` counts the stored values that were skipped so far because they cannot be parsed. Methods that are
    given a crawl id raise :class:`~scrapy_dedupe.errors.SettingError` for an invalid one, and
    :class:`~scrapy_dedupe.errors.CrawlStateError` for a crawl whose state does not allow the change.
    """

    added_at_once = 1_000
    """How many records an import should add with one call."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.unreadable = 0
        self.on_close: Callable[[], None] | None = None
        """Closes the store of an index that was opened on its own."""

    # Crawls

    def start(self, crawl: str, payload: str = "stored", *, concurrent: bool = False) -> None:
        """Begin a crawl, or continue one that is not committed.

        ``payload`` is the body that its digests are computed from: as it is ``stored``, or ``decoded``. With
        ``concurrent`` other crawls may refer to its records as soon as they are added; a continued crawl keeps its first
        value. Raises :class:`~scrapy_dedupe.errors.CrawlStateError` for an id that is committed or is being imported,
        and :class:`~scrapy_dedupe.errors.StoreRefused` if the index was created with the other ``payload``.
        """
        self._start(_checked_id(crawl), _checked_payload(payload), concurrent=concurrent)

    def find(self, crawl: str, digests: Sequence[str], *, lasting: bool = False) -> list[Original | None]:
        """Look up payloads: in the crawl itself first, then in committed and concurrent crawls. In one round trip.

        A digest is found in every alphabet in which a program may have written it; the result has the normalized
        spelling. ``lasting`` excludes crawls that Browsertrix has marked for removal: no new revisit should refer to
        them.
        """
        plain = [plain_digest(digest) for digest in digests]
        return self.find_plain(_checked_id(crawl), plain, lasting=lasting)

    @abstractmethod
    def find_plain(self, crawl: str, digests: Sequence[str], *, lasting: bool) -> list[Original | None]:
        """Like :meth:`find`, for digests in normal form (see :mod:`.normal_forms`)."""

    def find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        """Look up URLs: in the crawl itself first, then the latest capture of the committed crawls. In one round trip.

        The result has the URLs in the requested form.
        """
        found = self._find_urls(_checked_id(crawl), [plain_url(url) for url in urls])
        return [
            capture if capture is None or capture.url == url else capture._replace(url=url)
            for url, capture in zip(urls, found, strict=True)
        ]

    def add(
        self,
        crawl: str,
        originals: Sequence[Original],
        counts: Counts | None = None,
        urls: Sequence[UrlCapture] = (),
        needs: Sequence[Need] = (),
        waiting: Sequence[Waiting] = (),
    ) -> None:
        """Add records that are on disk, in one atomic step.

        Of ``originals`` with the same payload the first is used, of ``urls`` with the same URL the last. ``counts`` are
        added to the counts of the crawl; ``needs`` are containers of other crawls that its revisits refer to,
        ``waiting`` are revisits whose originals are not in the index, for :meth:`resolve`.
        """
        added = Addition(
            [_plain_original(original, crawl) for original in originals],
            counts or Counts(),
            [_plain_capture(capture) for capture in urls],
            _checked_needs(crawl, needs),
            [replace(revisit, digest=plain_digest(revisit.digest)) for revisit in waiting],
        )
        self.add_plain(_checked_id(crawl), added)

    @abstractmethod
    def add_plain(self, crawl: str, added: Addition) -> None:
        """Like :meth:`add`, for values in normal form (see :mod:`.normal_forms`), of a crawl that was started."""

    @abstractmethod
    def needs(self, crawl: str) -> list[Need]:
        """What the revisits of the crawl refer to in other crawls, sorted by crawl, container and file."""

    def add_file(self, crawl: str, name: str) -> None:
        """Record a WARC file of the crawl, before its first record is added. Idempotent."""
        self._add_file(_checked_id(crawl), _checked_name(crawl, name, "WARC"))

    def rename_file(self, crawl: str, old: str, new: str) -> None:
        """Record the new path or URL of a WARC file of the crawl, committed or not.

        The needs of other crawls for the file are updated. Safe to repeat. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` for a file that the crawl does not have.
        """
        self._rename_file(_checked_id(crawl), old, _checked_name(crawl, new, "WARC"))

    def add_container(self, crawl: str, filename: str) -> int:
        """Add a WACZ file that is not packed yet; return its position among the containers of the crawl.

        Safe to repeat.
        """
        return self._add_container(_checked_id(crawl), _checked_name(crawl, filename, "WACZ"))

    def set_container(self, crawl: str, filename: str, sha256_hex: str, size: int) -> None:
        """Record the hash and the size in bytes of a packed WACZ file, and add it if it is new. Idempotent.

        The hash may have a label; the index stores it without. Also works for a committed crawl that has no container,
        or has this one without a hash.
        """
        digest = plain_digest(sha256_hex)
        if len(digest) != 64:
            raise SettingError(
                f"The hash of the WACZ file {filename} is {sha256_hex!r}. Allowed: a SHA-256 in hex."
            )
        self._set_container(_checked_id(crawl), _checked_name(crawl, filename, "WACZ"), digest, size)

    @abstractmethod
    def set_counts(self, crawl: str, counts: Counts) -> None:
        """Replace the counts of a crawl after a recount."""

    @abstractmethod
    def mark_incomplete(self, crawl: str, flag: bool) -> None:
        """Record whether some records of an uncommitted crawl are on disk and not yet in the index."""

    @abstractmethod
    def reset(self, crawl: str) -> None:
        """Forget records, counts, URLs and needs of an uncommitted crawl, before they are read from its files again.

        Its files and containers are kept.
        """

    def commit(
        self, crawl: str, stats: Mapping[str, object] | None = None, on_done: OnDone | None = None
    ) -> None:
        """Make the crawl's records visible to other crawls. Safe to repeat and to resume.

        Afterwards waiting revisits of other crawls are resolved. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` for a crawl whose import was interrupted.
        """
        with self._naming_nearest(crawl):
            self._commit(_checked_id(crawl), stats, on_done)
        self.resolve()

    def cancel(self, crawl: str, on_done: OnDone | None = None) -> None:
        """Forget an uncommitted crawl. Its files are kept. Safe to repeat."""
        with self._naming_nearest(crawl):
            self._cancel(_checked_id(crawl), on_done)

    # Import. A source is queued, claimed, begun, filled and ended. Its records cannot be found before it has ended.

    def queue_sources(self, sources: Sequence[Source]) -> int:
        """Append sources to the queue, except those that are queued or done already. Return the number appended."""
        for source in sources:
            checked_crawl_id(source.crawl)
            _checked_name(source.crawl, source.name, "WACZ" if source.is_container else "source")
        return self._queue_sources(sources)

    @abstractmethod
    def claim_source(self, lease_s: float = 300.0) -> Source | None:
        """Take the next source of the queue; None if there is none.

        The source has a new ``token``. It is claimed for *lease_s* seconds (see :meth:`renew_lease`); after that it is
        given to the next caller, before the sources in the queue. An entry that cannot be parsed is dropped and counted
        as unreadable.
        """

    @abstractmethod
    def renew_lease(self, source: Source, lease_s: float = 300.0) -> None:
        """Extend the claim of a source to *lease_s* seconds from now.

        This and all following methods raise :class:`~scrapy_dedupe.errors.TakenOver`, without any change, if another
        process has claimed or begun the source since, with another ``token``.
        """

    @abstractmethod
    def release_source(self, source: Source) -> None:
        """Remove a source that could not be imported from the queue. Safe to repeat."""

    @abstractmethod
    def queue_length(self) -> tuple[int, int]:
        """The numbers of queued and of claimed sources."""

    @abstractmethod
    def done_sources(self, names: Sequence[str]) -> list[bool]:
        """Whether sources with these names were imported, or are containers of committed crawls."""

    def begin_source(self, source: Source, payload: str) -> int:
        """Begin to import a source. Return the position of its container in the crawl, 0 if it has none.

        An unknown or canceled crawl is begun; a crawl that was imported, or made by another program, is extended. The
        results of an earlier attempt with this source are removed first. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` for a crawl that was crawled here, and
        :class:`~scrapy_dedupe.errors.StoreRefused` if the index was created with the other ``payload``.
        """
        checked_crawl_id(source.crawl)
        return self._begin_source(source, _checked_payload(payload))

    def add_imported(
        self,
        source: Source,
        originals: Sequence[Original],
        urls: Sequence[UrlCapture] = (),
        files: Sequence[str] = (),
    ) -> None:
        """Add records of a begun source, about :attr:`added_at_once` of them. Only its own crawl can find them.

        Each record has a file. ``files`` are WARC files of the source, including those without records to add. The first
        record with a payload wins, also over records of other sources of the crawl. Safe to repeat. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` if the source was not begun, or was dropped.
        """
        self._add_imported(
            source,
            # In normal form: they are entries of records or of lines of a CDXJ (see scrapy_dedupe.crawls.entries).
            originals,
            urls,
            [_checked_name(source.crawl, name, "WARC") for name in files],
        )

    def end_source(
        self,
        source: Source,
        counts: Counts,
        needs: Sequence[Need] = (),
        waiting: Iterable[Waiting] = (),
    ) -> None:
        """End a source: its records become visible, its crawl is committed, and its counts are added.

        Its container gets its ``hash`` and ``size``; the source leaves the queue and is done. Atomic for readers at any
        size. Safe to repeat and to resume; the counts are added once. ``waiting`` are revisits for :meth:`resolve`, with
        digests in normal form. They may be too many for memory, and are iterated again if the store asks for it.
        """
        self._end_source(source, counts, _checked_needs(source.crawl, needs), waiting)

    @abstractmethod
    def drop_source(self, source: Source) -> None:
        """Forget the records of a source that has not ended; a crawl without any other data is forgotten too.

        Safe to repeat, also for a source that was never begun. The source stays in the queue. The position of its
        container stays reserved if others follow it.
        """

    @abstractmethod
    def unfinished_sources(self) -> list[Source]:
        """Sources that were begun and have not ended, sorted by name."""

    @abstractmethod
    def resolve(self) -> int:
        """Look up the originals of waiting revisits. Return the number of revisits that were resolved.

        Each adds ``max(0, size of the original - its own size)`` to the conserved size of its crawl, and a need if the
        original is in another crawl (the crawl's own originals come first, then those of committed crawls). Each is
        counted exactly once, even if the process is interrupted.
        """

    @property
    @abstractmethod
    def import_notes(self) -> ImportNotes:
        """The notes on imports."""

    @abstractmethod
    def note_imports(self, notes: ImportNotes) -> None:
        """Replace the notes on imports."""

    # Removal and repair

    @abstractmethod
    def purge(self, crawls: Sequence[str], on_done: OnDone | None = None) -> None:
        """Forget committed or canceled crawls, except what other crawls need of them.

        A payload that a remaining crawl also has becomes that crawl's. Atomic for readers, who always see all data of
        the remaining crawls. Safe to repeat and to resume (see :meth:`unfinished_purge`). Other crawls may commit
        meanwhile. The numbers of missing crawls in the notes on imports are reset: the next import counts them again.
        Raises :class:`~scrapy_dedupe.errors.CrawlStateError`, without any change, for an uncommitted crawl.
        """

    @abstractmethod
    def forget_canceled(self, crawl: str) -> None:
        """Remove a canceled crawl from the list of crawls, as if it had never existed. Ignores other crawls."""

    def unfinished_purge(self) -> list[str]:
        """The crawls of a purge that was interrupted after it took effect; purging them again completes it."""
        return []

    @abstractmethod
    def replace(self, crawl: str, by: str) -> None:
        """Replace the data of a committed crawl by the data of the uncommitted crawl ``by``, and forget ``by``.

        Records, files, URLs, needs, waiting revisits and counts change in one step for readers; the state, times, stats
        and containers of *crawl* are kept. Safe to repeat and to resume.
        """

    def merged_faults(self) -> int:
        """The number of differences between the merged index and the data of the committed crawls.

        Readers look up payloads in the merged index; it also holds the sums of all counts. 0 for a store without a
        separate merged index.
        """
        return 0

    def rebuild_merged(self) -> None:
        """Build a new merged index next to the old one, and replace the old one by it, if there is one."""

    @abstractmethod
    def records(self, crawl: str) -> Iterator[Original]:
        """The originals of a crawl, in batches and in no particular order; without hidden ones."""

    @abstractmethod
    def crawls(self) -> list[CrawlInfo]:
        """All crawls, in the order of their start."""

    def crawl(self, crawl: str) -> CrawlInfo | None:
        """One crawl; None if the index does not list it."""
        return next((info for info in self.crawls() if info.id == crawl), None)

    @abstractmethod
    def containers(self, crawl: str) -> list[dict[str, object]]:
        """The WACZ files of a crawl, each with its ``filename`` and, once packed, ``hash`` and ``size``.

        An unreadable entry is returned as an empty dictionary, so that the positions stay correct.
        """

    @property
    @abstractmethod
    def counts(self) -> Counts:
        """The sums over all committed crawls."""

    # For the stores

    @abstractmethod
    def _start(self, crawl: str, payload: str, *, concurrent: bool) -> None: ...

    @abstractmethod
    def _find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]: ...

    @abstractmethod
    def _add_file(self, crawl: str, name: str) -> None: ...

    @abstractmethod
    def _rename_file(self, crawl: str, old: str, new: str) -> None: ...

    @abstractmethod
    def _add_container(self, crawl: str, filename: str) -> int: ...

    @abstractmethod
    def _set_container(self, crawl: str, filename: str, sha256_hex: str, size: int) -> None: ...

    @abstractmethod
    def _commit(self, crawl: str, stats: Mapping[str, object] | None, on_done: OnDone | None) -> None: ...

    @abstractmethod
    def _cancel(self, crawl: str, on_done: OnDone | None = None) -> None: ...

    @abstractmethod
    def _queue_sources(self, sources: Sequence[Source]) -> int: ...

    @abstractmethod
    def _begin_source(self, source: Source, payload: str) -> int: ...

    @abstractmethod
    def _add_imported(
        self, source: Source, originals: Sequence[Original], urls: Sequence[UrlCapture], files: Sequence[str]
    ) -> None: ...

    @abstractmethod
    def _end_source(
        self, source: Source, counts: Counts, needs: Sequence[Need], waiting: Iterable[Waiting]
    ) -> None: ...

    @contextmanager
    def _naming_nearest(self, crawl: str) -> Iterator[None]:
        try:
            yield
        except CrawlStateError as error:
            known = [info.id for info in self.crawls()]
            if crawl in known:
                raise
            raise CrawlStateError(f"{error}{did_you_mean(crawl, known)}") from error

    def close(self) -> None:
        """Close the store that was opened with the index. Safe to repeat."""
        if self.on_close is not None:
            self.on_close()

    def __exit__(self, *error: object) -> None:
        self.close()


def did_you_mean(crawl: str, known: Iterable[str]) -> str:
    """A sentence, preceded by a space, that suggests the known crawl with the most similar id; or an empty string.

    >>> did_you_mean("site-1", ["site-11", "other"])
    ' Did you mean site-11?'
    """
    nearest = get_close_matches(crawl, [*known], n=1, cutoff=0.75)
    return f" Did you mean {nearest[0]}?" if nearest else ""


def is_crawl_id(text: str) -> bool:
    """Whether a text is allowed as a crawl id."""
    return bool(_CRAWL_ID.fullmatch(text))


def checked_crawl_id(crawl: str) -> str:
    """The crawl id itself. Raises :class:`SettingError` for one that is not allowed."""
    if not isinstance(crawl, str) or not is_crawl_id(crawl):
        raise SettingError(
            f"The crawl id is {crawl!r}. Allowed: 1 to 128 letters, digits, dots, underscores and hyphens."
        )
    return crawl


def _checked_id(crawl: str) -> str:
    """Like :func:`checked_crawl_id`, but also accepts the id of a temporary repair, which users cannot choose."""
    return checked_crawl_id(crawl.removesuffix(REPAIR_SUFFIX)) and crawl


def _plain_original(original: Original, crawl: str) -> Original:
    digest, date, url = plain_digest(original.digest), date_digits(original.date), plain_url(original.url)
    return replace(original, digest=digest, crawl=crawl, date=date, url=url)


def _plain_capture(capture: UrlCapture) -> UrlCapture:
    return capture._replace(
        url=plain_url(capture.url),
        digest=plain_digest(capture.digest),
        date=date_digits(capture.date),
    )


def _checked_needs(crawl: str, needs: Sequence[Need]) -> Sequence[Need]:
    for need in needs:
        # The needed crawl may be one of another program, which has other rules for ids.
        if not need.crawl or need.wacz_index < 0:
            raise SettingError(f"The crawl {crawl} was given {need}, which names no container of a crawl.")
    return needs


def _checked_payload(payload: str) -> str:
    if payload not in PAYLOAD_MODES:
        raise SettingError(f"The payload mode is {payload!r}. Allowed: stored or decoded (DEDUPE_PAYLOAD).")
    return payload


def _checked_name(crawl: str, name: str, kind: str) -> str:
    if not name:
        raise SettingError(f"The crawl {crawl} was given a {kind} file without a name.")
    if "\0" in name:
        raise SettingError(f"The {kind} file {name!r} of the crawl {crawl} has a NUL in its name. Rename it.")
    return name

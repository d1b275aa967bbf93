"""The crawl index: shared by many crawls.

A crawl is started, looks up and adds payloads while it runs, and is committed or canceled at its end. After the commit
other crawls may refer to its records. The index accepts digests, dates and URLs in any usual form and normalizes them:
digests without label, hex in lower and Base32 in upper case; dates as 14 digits, or 17 with milliseconds; URLs with
white space percent-encoded.
"""

from __future__ import annotations

import re
import secrets
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Self

from scrapy_dedupe.errors import CrawlStateError, SettingError
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import Counts

from .values import date_digits, plain_digest, plain_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from scrapy_dedupe.stores.base import (
        CrawlInfo,
        ImportNotes,
        IndexStore,
        Need,
        Original,
        Source,
        Store,
        UrlCapture,
        Waiting,
    )
    from scrapy_dedupe.stores.index_model import OnDone

PAYLOAD_MODES = ("stored", "decoded")

REPAIR_SUFFIX = "~repair"
"""The suffix of the id of a temporary crawl that will replace a crawl (see :mod:`.repairing`)."""

_CRAWL_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def open_index(url: str, *, timeout_s: float = 5.0, create: bool = True) -> CrawlIndex:
    """Open the index of the store at *url*.

    With ``create=False`` an SQLite file that does not exist is an error. Raises what
    :func:`~scrapy_dedupe.stores.open_store` raises.
    """
    store = open_store(url, timeout_s=timeout_s, create=create)
    return CrawlIndex(store.index, store)


class CrawlIndex:
    """The crawl index in an open store. Closing it closes ``owned``, the store that it was opened with.

    Every method with a crawl id raises :class:`~scrapy_dedupe.errors.SettingError` for an invalid one;
    :class:`~scrapy_dedupe.stores.base.IndexStore` documents the other exceptions of each method.
    """

    def __init__(self, store: IndexStore, owned: Store | None = None) -> None:
        self._store = store
        self._owned = owned

    def start(self, crawl: str, payload: str = "stored", *, concurrent: bool = False) -> None:
        """Begin a crawl, or continue an uncommitted one.

        ``payload`` is the body that its digests are computed from: as it is ``stored``, or ``decoded``. With
        ``concurrent`` other crawls may refer to its records as soon as they are added.
        """
        self._store.start(_checked_id(crawl), _checked_payload(payload), concurrent=concurrent)

    def find(self, crawl: str, digests: Sequence[str], *, lasting: bool = False) -> list[Original | None]:
        """Look up payloads: in the crawl itself first, then in committed crawls, in one round trip.

        With ``lasting`` crawls that Browsertrix has marked for removal are ignored.
        """
        plain = [plain_digest(digest) for digest in digests]
        return self._store.find(_checked_id(crawl), plain, lasting=lasting)

    def find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        """The last capture of each URL: in the crawl itself, else the latest one in the committed crawls.

        The result has the URLs in the requested form. One round trip.
        """
        found = self._store.find_urls(_checked_id(crawl), [plain_url(url) for url in urls])
        return [
            None if capture is None else replace(capture, url=url)
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

        The first of ``originals`` with a payload wins, the last of ``urls`` with a URL. ``counts`` are added
        to those of the crawl; ``needs`` are containers of other crawls that its revisits refer to, ``waiting`` are
        revisits whose originals are not in the index.
        """
        self._store.add(
            _checked_id(crawl),
            [_plain_original(original, crawl) for original in originals],
            counts or Counts(),
            [_plain_capture(capture) for capture in urls],
            _checked_needs(crawl, needs),
            _plain_waiting(waiting),
        )

    def needs(self, crawl: str) -> list[Need]:
        """The containers and files of other crawls that revisits refer to, in order of crawl, container and file."""
        return self._store.needs(crawl)

    def add_file(self, crawl: str, name: str) -> None:
        """Register a WARC file of the crawl, before its first record. Idempotent."""
        self._store.add_file(_checked_id(crawl), _checked_name(crawl, name, "WARC"))

    def rename_file(self, crawl: str, old: str, new: str) -> None:
        """Record the new path or URL of a WARC file of the crawl, committed or not.

        The needs of other crawls are updated too. Safe to repeat. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` for a file that the crawl does not have.
        """
        self._store.rename_file(_checked_id(crawl), old, _checked_name(crawl, new, "WARC"))

    def add_container(self, crawl: str, filename: str) -> int:
        """Register a WACZ file of the crawl that is not packed yet; return its position. Idempotent."""
        return self._store.add_container(_checked_id(crawl), _checked_name(crawl, filename, "WACZ"))

    def set_container(self, crawl: str, filename: str, sha256_hex: str, size: int) -> None:
        """Record the hash and the size in bytes of a packed WACZ file, which is added if it is new. Idempotent.

        The hash may have a label; the index stores it without.
        """
        digest = plain_digest(sha256_hex)
        if len(digest) != 64:
            raise SettingError(
                f"The hash of the WACZ file {filename} is {sha256_hex!r}. Allowed: a SHA-256 in hex."
            )
        self._store.set_container(_checked_id(crawl), _checked_name(crawl, filename, "WACZ"), digest, size)

    def set_counts(self, crawl: str, counts: Counts) -> None:
        """Replace the counts of a crawl with those of a recount."""
        self._store.set_counts(_checked_id(crawl), counts)

    def mark_incomplete(self, crawl: str, flag: bool) -> None:
        """Record whether the index lacks records of an uncommitted crawl that are on disk."""
        self._store.mark_incomplete(_checked_id(crawl), flag)

    def reset(self, crawl: str) -> None:
        """Remove records, counts, URLs and needs of an uncommitted crawl, before they are read again from its files.

        Its files and containers stay registered.
        """
        self._store.reset(_checked_id(crawl))

    def commit(
        self, crawl: str, stats: Mapping[str, object] | None = None, on_done: OnDone | None = None
    ) -> None:
        """Make the crawl's records visible to other crawls. Safe to repeat and to resume.

        Afterwards waiting revisits of other crawls are resolved.
        """
        with self._naming_nearest(crawl):
            self._store.commit(_checked_id(crawl), stats, on_done)
        self._store.resolve()

    def cancel(self, crawl: str, on_done: OnDone | None = None) -> None:
        """Remove an uncommitted crawl from the index. Its files stay. Safe to repeat."""
        with self._naming_nearest(crawl):
            self._store.cancel(_checked_id(crawl), on_done)

    # Import: IndexStore documents the details and exceptions of each method.

    def queue_sources(self, sources: Sequence[Source]) -> int:
        """Add sources to the queue, except those that are queued or done; return how many were added."""
        for source in sources:
            checked_crawl_id(source.crawl)
            _checked_name(source.crawl, source.name, "WACZ" if source.is_container else "source")
        return self._store.queue_sources(sources)

    def claim_source(self, lease_s: float = 300.0) -> Source | None:
        """Claim the next source of the queue for *lease_s* seconds; None if there is none."""
        return self._store.claim_source(lease_s)

    def renew_lease(self, source: Source, lease_s: float = 300.0) -> None:
        """Extend the claim of a source to *lease_s* seconds from now."""
        self._store.renew_lease(source, lease_s)

    def release_source(self, source: Source) -> None:
        """Remove a source that could not be imported from the queue. Safe to repeat."""
        self._store.release_source(source)

    def queue_length(self) -> tuple[int, int]:
        """The number of sources in the queue, and the number of claimed ones."""
        return self._store.queue_length()

    def done_sources(self, names: Sequence[str]) -> list[bool]:
        """Whether sources with these names were imported, or are containers of committed crawls."""
        return self._store.done_sources(names)

    def begin_source(self, source: Source, payload: str) -> int:
        """Begin to add a source; return the position of its container in the crawl, 0 if it is not a container."""
        checked_crawl_id(source.crawl)
        return self._store.begin_source(source, _checked_payload(payload))

    def add_imported(
        self,
        source: Source,
        originals: Sequence[Original],
        urls: Sequence[UrlCapture] = (),
        files: Sequence[str] = (),
    ) -> None:
        """Add records of a begun source, visible only to its own crawl. Each has a file.

        ``files`` are WARC files of the source, including those without records to add.
        """
        self._store.add_imported(
            source,
            [_plain_original(original, source.crawl) for original in originals],
            [_plain_capture(capture) for capture in urls],
            [_checked_name(source.crawl, name, "WARC") for name in files],
        )

    def end_source(
        self,
        source: Source,
        counts: Counts,
        needs: Sequence[Need] = (),
        waiting: Sequence[Waiting] = (),
    ) -> None:
        """Complete a source: its records become visible, and its counts are added once."""
        self._store.end_source(source, counts, _checked_needs(source.crawl, needs), _plain_waiting(waiting))

    def drop_source(self, source: Source) -> None:
        """Remove the records of a source that is not complete. Safe to repeat."""
        self._store.drop_source(source)

    def unfinished_sources(self) -> list[Source]:
        """Sources that were begun and are not complete."""
        return self._store.unfinished_sources()

    def resolve(self) -> int:
        """Look up the originals of waiting revisits; return how many revisits were resolved."""
        return self._store.resolve()

    @property
    def unreadable(self) -> int:
        """The number of values of the index that were skipped so far because they cannot be read."""
        return self._store.unreadable

    @property
    def import_notes(self) -> ImportNotes:
        """The stored information about imports."""
        return self._store.import_notes()

    def note_imports(self, notes: ImportNotes) -> None:
        """Replace the stored information about imports."""
        self._store.note_imports(notes)

    # Removal and repair

    def purge(self, crawls: Sequence[str], on_done: OnDone | None = None) -> None:
        """Remove committed or canceled crawls. Atomic for readers, safe to repeat and to resume."""
        self._store.purge(crawls, on_done)

    def forget_canceled(self, crawl: str) -> None:
        """Remove a canceled crawl from the list of crawls. Any other crawl stays."""
        self._store.forget_canceled(_checked_id(crawl))

    def unfinished_purge(self) -> list[str]:
        """The crawls of a purge that was interrupted after it had taken effect; purging them again completes it."""
        return self._store.unfinished_purge()

    def replace(self, crawl: str, by: str) -> None:
        """Replace the contents of a committed crawl with those of the uncommitted crawl ``by``, and remove the latter."""
        self._store.replace(crawl, by)

    def merged_faults(self) -> int:
        """The number of differences between the merged index and the entries of the committed crawls."""
        return self._store.merged_faults()

    def rebuild_merged(self) -> None:
        """Build a new merged index, then replace the old one with it."""
        self._store.rebuild_merged()

    def records(self, crawl: str) -> Iterator[Original]:
        """The originals of a crawl, in any order."""
        return self._store.records(crawl)

    def crawls(self) -> list[CrawlInfo]:
        """Every crawl, in the order of their start."""
        return self._store.crawls()

    def containers(self, crawl: str) -> list[dict[str, object]]:
        """The WACZ files of a crawl, each with its ``filename`` and, once packed, ``hash`` and ``size``.

        An unreadable entry is empty, so that the others keep their positions.
        """
        return self._store.containers(crawl)

    @property
    def counts(self) -> Counts:
        """The sums over the committed crawls."""
        return self._store.totals()

    @contextmanager
    def _naming_nearest(self, crawl: str) -> Iterator[None]:
        try:
            yield
        except CrawlStateError as error:
            known = [info.id for info in self._store.crawls()]
            if crawl in known:
                raise
            raise CrawlStateError(f"{error}{did_you_mean(crawl, known)}") from error

    def close(self) -> None:
        """Close the store that was opened with the index. Safe to repeat."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def did_you_mean(crawl: str, known: Iterable[str]) -> str:
    """A sentence, preceded by a space, that suggests the known crawl with the most similar id; or an empty string.

    >>> did_you_mean("site-1", ["site-11", "other"])
    ' Did you mean site-11?'
    """
    nearest = get_close_matches(crawl, [*known], n=1, cutoff=0.75)
    return f" Did you mean {nearest[0]}?" if nearest else ""


def checked_crawl_id(crawl: str) -> str:
    """The crawl id itself. Raises :class:`SettingError` for one that is not allowed."""
    if not isinstance(crawl, str) or not _CRAWL_ID.fullmatch(crawl):
        raise SettingError(
            f"The crawl id is {crawl!r}. Allowed: 1 to 128 letters, digits, dots, underscores and hyphens."
        )
    return crawl


def new_crawl_id(spider_name: str) -> str:
    """A new crawl id: the spider's name, the time (UTC) and a random part."""
    return f"{plain_name(spider_name, 96)}-{datetime.now(UTC):%Y%m%d%H%M%S}-{secrets.token_hex(4)}"


def plain_name(spider_name: str, most_chars: int) -> str:
    """The name of a spider as a prefix of crawl ids and file names; *crawl* if no character of it can be used.

    Characters other than ASCII letters, digits, dots, underscores and hyphens become hyphens. Different spiders may get
    the same name, so it identifies nothing.

    >>> plain_name("news/2026", 64), plain_name("новости", 64), plain_name("..", 64)
    ('news-2026', 'crawl', 'crawl')
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", spider_name).lstrip(".-")[:most_chars].rstrip(".-")
    return name or "crawl"


def _checked_id(crawl: str) -> str:
    """Like :func:`checked_crawl_id`, but also accepts the id of a temporary repair, which users cannot choose."""
    return checked_crawl_id(crawl.removesuffix(REPAIR_SUFFIX)) and crawl


def _plain_original(original: Original, crawl: str) -> Original:
    plain = (plain_digest(original.digest), crawl, date_digits(original.date), plain_url(original.url))
    if plain == (original.digest, original.crawl, original.date, original.url):
        return original
    digest, crawl, date, url = plain
    return replace(original, digest=digest, crawl=crawl, date=date, url=url)


def _plain_capture(capture: UrlCapture) -> UrlCapture:
    return replace(
        capture,
        url=plain_url(capture.url),
        digest=plain_digest(capture.digest),
        date=date_digits(capture.date),
    )


def _plain_waiting(waiting: Sequence[Waiting]) -> list[Waiting]:
    return [replace(revisit, digest=plain_digest(revisit.digest)) for revisit in waiting]


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

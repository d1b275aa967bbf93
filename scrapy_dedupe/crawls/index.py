"""The crawl index: one memory for many crawls.

A crawl is started, looks up and adds payloads while it runs, and is committed or canceled at its end. From the
commit on other crawls may refer to its records. The index takes digests, dates and URLs in any usual form and
keeps them in one: digests without label, hex in lower and Base32 in upper case; dates as 14 digits, or 17 with
milliseconds; URLs with white space percent-encoded.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import Counts, CrawlInfo, IndexStore, Need, Original, UrlCapture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from scrapy_dedupe.stores.base import Store

PAYLOAD_MODES = ("stored", "decoded")

_CRAWL_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f\s\ud800-\udfff]")
_HEX = re.compile(r"[0-9a-fA-F]+")
_BASE32 = re.compile(r"[A-Za-z2-7]+")
_DATE = re.compile(r"\d{14}(?:\d{3})?")
# MD5, SHA-1, SHA-224, SHA-256, SHA-384, SHA-512.
_HEX_LENGTHS = frozenset({32, 40, 56, 64, 96, 128})
# SHA-1, SHA-256 and SHA-512 without padding.
_BASE32_LENGTHS = frozenset({32, 52, 103})


def open_index(url: str, *, timeout_s: float = 5.0, create: bool = True) -> CrawlIndex:
    """Open the index of the store at *url*.

    With ``create=False`` an SQLite file that does not exist is an error. Raises what
    :func:`~scrapy_dedupe.stores.open_store` raises.
    """
    store = open_store(url, timeout_s=timeout_s, create=create)
    return CrawlIndex(store.index, store)


class CrawlIndex:
    """The crawl index in an open store. Closing it closes ``owned``, the store that it was opened with.

    Every method that is given a crawl id raises :class:`~scrapy_dedupe.errors.SettingError` for one that is
    not allowed, and those of :class:`~scrapy_dedupe.stores.base.IndexStore` say what else they raise.
    """

    def __init__(self, store: IndexStore, owned: Store | None = None) -> None:
        self._store = store
        self._owned = owned

    def start(self, crawl: str, payload: str = "stored") -> None:
        """Begin a crawl, or go on with one that is not committed.

        ``payload`` is what its digests are made of: the body as it is ``stored``, or ``decoded``.
        """
        if payload not in PAYLOAD_MODES:
            raise SettingError(
                f"The payload mode is {payload!r}. Allowed: stored or decoded (DEDUPE_PAYLOAD)."
            )
        self._store.start(checked_crawl_id(crawl), payload)

    def find(self, crawl: str, digests: Sequence[str]) -> list[Original | None]:
        """Look up payloads: in the crawl itself first, then in committed crawls. In one round trip."""
        return self._store.find(checked_crawl_id(crawl), [plain_digest(digest) for digest in digests])

    def find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        """The last capture of each URL: that of the crawl itself, else the latest one of the committed crawls.

        It has the URL in the form in which it was asked for. One round trip.
        """
        found = self._store.find_urls(checked_crawl_id(crawl), [plain_url(url) for url in urls])
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
    ) -> None:
        """Enter records that are on disk, in one atomic step.

        The first one of ``originals`` with a payload wins, the last one of ``urls`` with a URL. ``counts`` are added
        to those of the crawl; ``needs`` are containers of other crawls that its revisits refer to.
        """
        plain = [
            replace(
                original,
                digest=plain_digest(original.digest),
                crawl=crawl,
                date=date_digits(original.date),
                url=plain_url(original.url),
            )
            for original in originals
        ]
        captures = [
            replace(
                capture,
                url=plain_url(capture.url),
                digest=plain_digest(capture.digest),
                date=date_digits(capture.date),
            )
            for capture in urls
        ]
        for need in needs:
            # The crawl may be one of another program, whose ids are not ours to judge.
            if not need.crawl or need.wacz_index < 0:
                raise SettingError(
                    f"The crawl {crawl} was given {need}, which names no container of a crawl."
                )
        self._store.add(checked_crawl_id(crawl), plain, counts or Counts(), captures, needs)

    def needs(self, crawl: str) -> list[Need]:
        """What the revisits of the crawl refer to in other crawls, in order of crawl, container and file."""
        return self._store.needs(checked_crawl_id(crawl))

    def add_file(self, crawl: str, name: str) -> None:
        """Note a WARC file of the crawl, before its first record. Idempotent."""
        self._store.add_file(checked_crawl_id(crawl), _checked_name(crawl, name, "WARC"))

    def rename_file(self, crawl: str, old: str, new: str) -> None:
        """Note that a WARC file of the crawl, committed or not, is found under another path or URL now.

        What other crawls need of the file follows. Safe to repeat. Raises
        :class:`~scrapy_dedupe.errors.CrawlStateError` for a file that the crawl does not have.
        """
        self._store.rename_file(checked_crawl_id(crawl), old, _checked_name(crawl, new, "WARC"))

    def add_container(self, crawl: str, filename: str) -> int:
        """Give the crawl a WACZ file that is not packed yet; its place among the crawl's. Idempotent."""
        return self._store.add_container(checked_crawl_id(crawl), _checked_name(crawl, filename, "WACZ"))

    def set_container(self, crawl: str, filename: str, sha256_hex: str, size: int) -> None:
        """Note the hash and the size in bytes of a packed WACZ file, which is added if it is new. Idempotent.

        The hash may be labelled; the index keeps it bare.
        """
        digest = plain_digest(sha256_hex)
        if len(digest) != 64:
            raise SettingError(
                f"The hash of the WACZ file {filename} is {sha256_hex!r}. Allowed: a SHA-256 in hex."
            )
        self._store.set_container(
            checked_crawl_id(crawl), _checked_name(crawl, filename, "WACZ"), digest, size
        )

    def set_counts(self, crawl: str, counts: Counts) -> None:
        """Replace the counts of a crawl by those of a recount."""
        self._store.set_counts(checked_crawl_id(crawl), counts)

    def mark_incomplete(self, crawl: str, flag: bool) -> None:
        """Note whether records of an uncommitted crawl are on disk that are not entered yet."""
        self._store.mark_incomplete(checked_crawl_id(crawl), flag)

    def reset(self, crawl: str) -> None:
        """Forget records, counts, URLs and needs of an uncommitted crawl, before they are read anew from its files.

        Its files and containers stay known.
        """
        self._store.reset(checked_crawl_id(crawl))

    def commit(self, crawl: str, stats: Mapping[str, object] | None = None) -> None:
        """Make the crawl's records visible to other crawls. Safe to repeat and to resume."""
        self._store.commit(checked_crawl_id(crawl), stats)

    def cancel(self, crawl: str) -> None:
        """Forget an uncommitted crawl. Its files stay. Safe to repeat."""
        self._store.cancel(checked_crawl_id(crawl))

    def crawls(self) -> list[CrawlInfo]:
        """Every crawl, in the order of their start."""
        return self._store.crawls()

    def containers(self, crawl: str) -> list[dict[str, object]]:
        """The WACZ files of a crawl, each with its ``filename`` and, once packed, ``hash`` and ``size``.

        One that cannot be read is empty, so that each keeps its place.
        """
        return self._store.containers(checked_crawl_id(crawl))

    @property
    def counts(self) -> Counts:
        """The sums over the committed crawls."""
        return self._store.totals()

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


def checked_crawl_id(crawl: str) -> str:
    """The crawl id itself. Raises :class:`SettingError` for one that is not allowed."""
    if not isinstance(crawl, str) or not _CRAWL_ID.fullmatch(crawl):
        raise SettingError(
            f"The crawl id is {crawl!r}. Allowed: 1 to 128 letters, digits, dots, underscores and hyphens."
        )
    return crawl


def new_crawl_id(spider_name: str) -> str:
    """A new crawl id: the spider's name, the time (UTC) and a random part.

    Characters that a crawl id does not take become hyphens, and a long name is cut.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", spider_name).strip("-")[:96] or "crawl"
    return f"{name}-{datetime.now(UTC):%Y%m%d%H%M%S}-{secrets.token_hex(4)}"


def plain_digest(digest: str) -> str:
    """A digest as the index keeps it: without label, hex in lower case, Base32 in upper case without padding.

    The length tells Base32 from hex; where both have the same one (32 characters: SHA-1 in Base32, MD5 in hex)
    the label does, or else the letters. Raises :class:`SettingError` for what is neither.

    >>> plain_digest("SHA-1:3i42h3s6nnfq2msvx7xzkyayscx5qbyj")
    '3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ'
    """
    label, _, value = digest.rpartition(":")
    value = value.rstrip("=")
    is_hex = len(value) in _HEX_LENGTHS and _HEX.fullmatch(value) is not None
    if is_hex and len(value) == 32:
        is_hex = label.lower().replace("-", "") != "sha1"
    if is_hex:
        return value.lower()
    if len(value) in _BASE32_LENGTHS and _BASE32.fullmatch(value):
        return value.upper()
    raise SettingError(
        f"The digest is {digest!r}. Allowed: a label such as sha256: and hex or Base32, or no label."
    )


def plain_url(url: str) -> str:
    """A URL as the index keeps it: with white space and control characters percent-encoded (UTF-8).

    >>> plain_url("https://example.com/a b")
    'https://example.com/a%20b'
    """
    if not url:
        raise SettingError("A record without a URL cannot be entered in the index.")
    return _NOT_IN_URLS.sub(_percent, url)


def date_digits(date: str) -> str:
    """A date as the index keeps it: 14 digits, or 17 with milliseconds.

    >>> date_digits("2026-08-01T12:00:00.123Z"), date_digits("2026-08-01T12:00:00Z")
    ('20260801120000123', '20260801120000')
    """
    digits = re.sub(r"[-:T.Z]", "", date)
    if _DATE.fullmatch(digits):
        try:
            datetime.strptime(digits[:14], "%Y%m%d%H%M%S")
        except ValueError:
            pass
        else:
            return digits
    raise SettingError(
        f"The date is {date!r}. Allowed: a UTC time in seconds or milliseconds, or its digits."
    )


def _checked_name(crawl: str, name: str, kind: str) -> str:
    if not name:
        raise SettingError(f"The crawl {crawl} was given a {kind} file without a name.")
    if "\0" in name:
        raise SettingError(f"The {kind} file {name!r} of the crawl {crawl} has a NUL in its name. Rename it.")
    return name


def _percent(match: re.Match[str]) -> str:
    encoded = match[0].encode("utf-8", "surrogatepass")
    return "".join(f"%{byte:02X}" for byte in encoded)

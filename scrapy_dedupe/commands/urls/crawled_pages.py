"""The pages of committed crawls with the keys of their texts, for URL rules.

URLs and payload digests come from the WARC files of the crawl, texts from the store. For a page whose text is not in
the store, the digest of its payload is the key, unless a page with the same payload has a text. Links with
``rel=canonical`` are read from the archived pages and from HTTP headers.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack, closing, suppress
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from scrapy_dedupe.crawls.crawl_files import CrawlArchive, sizes_of
from scrapy_dedupe.errors import ArchiveError, CrawlStateError, DamagedInput, StoreUnavailable
from scrapy_dedupe.tasks.progress import Reached, part
from scrapy_dedupe.urls.differences import candidates, differences
from scrapy_dedupe.urls.rule_evidence import PageFact
from scrapy_dedupe.warc.bodies import decoded_pieces
from scrapy_dedupe.warc.codings import Undecodable
from scrapy_dedupe.warc.exchanges import exchanges
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.stores.base import ContentStore, SeenText
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.urls.rules import UrlRule
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_MOST_REDIRECTS = 20
_HEAD_BYTES = 1 << 16
_LINK = re.compile(rb"<link\s[^>]*>", re.IGNORECASE)
_IS_CANONICAL = re.compile(rb"""\brel\s*=\s*(?:["']\s*)?canonical\b""", re.IGNORECASE)
_HREF = re.compile(rb"""\bhref\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+))""", re.IGNORECASE)
_HEADER = re.compile(rb"""<([^>]*)>\s*;[^,<]*\brel\s*=\s*(?:"\s*)?canonical\b""", re.IGNORECASE)


class CrawledPages:
    """The pages of the crawls *ids*, or of all committed crawls. A context manager.

    ``crawls`` are the ids, ``damaged`` the damaged places of files, which are skipped. ``nominated`` counts the rules that
    ``rel=canonical`` links suggest, of the pages read so far.

    Raises :class:`~scrapy_dedupe.errors.CrawlStateError` for a crawl that is not committed.
    """

    def __init__(
        self, stores: CommandStores, ids: Sequence[str], folder: Path | None, watch: Progress
    ) -> None:
        self._stores = stores
        self._folder = folder or stores.settings.warc.folder
        self._watch = watch
        self._ids = ids
        self._closing = ExitStack()
        self.crawls: list[str] = []
        self.damaged: list[str] = []
        self.nominated: Counter[tuple[UrlRule, ...]] = Counter()

    def __enter__(self) -> Self:
        with self._closing as stack:
            self._index: CrawlIndex = stack.enter_context(self._stores.open_index())
            self._texts = self._opened_texts(stack)
            states = {info.id: info.state for info in self._index.crawls()}
            for crawl in self._ids:
                if states.get(crawl) != "committed":
                    state = states.get(crawl, "unknown")
                    raise CrawlStateError(
                        f"The crawl {crawl} is {state}. URL rules need committed crawls; `scrapy dedupe crawls` lists them."
                    )
            committed = [crawl for crawl, state in states.items() if state == "committed"]
            self.crawls = list(dict.fromkeys(self._ids)) or committed
            if not self.crawls:
                raise CrawlStateError(
                    "The crawl index has no committed crawl. Crawl first, or import a crawl with scrapy dedupe import."
                )
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def _opened_texts(self, stack: ExitStack) -> ContentStore | None:
        try:
            return stack.enter_context(closing(self._stores.open_content())).content
        except StoreUnavailable:
            # A crawl without the content layer has no store of texts.
            if self._stores.content_url == self._stores.index_url:
                raise
            return None

    def facts(self) -> Iterator[PageFact]:
        """The pages of all crawls."""
        for crawl in self.crawls:
            yield from self.of_crawl(crawl)

    def of_crawl(self, crawl: str) -> Iterator[PageFact]:
        """The pages of a crawl, in the order in which they were recorded, then its redirects."""
        archive = CrawlArchive(self._index, crawl, self._folder, self._note)
        if not archive.paths:
            raise ArchiveError(
                f"There are no WARC files of the crawl {crawl} in {self._folder} or in the crawl index. Name their folder"
                " with --warc-dir."
            )
        sizes: dict[str, int] = {}
        targets: dict[str, tuple[str, int]] = {}
        answers: list[tuple[str, str, bool]] = []
        with closing(archive), part(self._watch, crawl, sizes_of(archive.paths)):
            for record, status in self._answers(archive):
                url = record.target_uri or ""
                if status in _REDIRECTS:
                    location = record.http.get(b"Location") if record.http is not None else None
                    if location:
                        targets[url] = urljoin(url, location.decode("latin-1")), record.frame.block_length
                elif status == 200 and record.payload_digest is not None:
                    answers.append((url, record.payload_digest.value, _is_html(record)))
                    if record.type == "response":
                        self.nominated.update(candidates(url, _canonical_url(record) or url))
                        sizes.setdefault(record.payload_digest.value, record.frame.block_length)
        captures = self._captures({url for url, _, _ in answers}, crawl)
        # Equal payloads have the same text.
        texts = {
            payload: (found.digest, found.original or found.digest)
            for url, payload, _ in answers
            for found in captures.get(url, ())
            if len(captures[url]) == 1
        }
        pages: dict[str, PageFact] = {}
        for url, payload, is_html in answers:
            size_bytes = sizes.get(payload, 0)
            for found in captures.get(url, ()):
                pages[url] = PageFact(url, found.digest, found.original or found.digest, size_bytes)
                yield pages[url]
            if url not in captures:
                text = b"payload:" + payload.encode()
                # A page without text in a crawl with texts: another payload is another page.
                keys = texts.get(payload, (text, text if captures or not is_html else b""))
                pages[url] = PageFact(url, *keys, size_bytes)
                yield pages[url]
        for url, (_, size_bytes) in targets.items():
            if url in pages:
                continue
            page = _redirected(url, targets, pages)
            if page is None:
                target = b"redirect:" + targets[url][0].encode("utf-8", "surrogatepass")
                yield PageFact(url, target, target, size_bytes)
            elif differences(url, page.url):
                yield PageFact(url, page.text, page.family, size_bytes)
            else:
                # Two redirects to one page, such as those of dead links to the home page, are no evidence for a rule,
                # but redirects to different pages are evidence against it.
                own = b"redirect:" + url.encode("utf-8", "surrogatepass")
                yield PageFact(url, own, page.family, size_bytes)

    def _answers(self, archive: CrawlArchive) -> Iterator[tuple[StoredRecord, int]]:
        """The responses to GET requests in the files, and revisits of them, with their status."""
        for path in archive.paths:
            reached = Reached(self._watch)
            for record, method in exchanges(read_records(path, on_damage=self._note)):
                reached(record.offset)
                if method == "GET":
                    has_status = record.http is not None and record.http.status not in (None, 304)
                    yield record, (record.http.status or 200) if has_status and record.http else 200

    def _captures(self, urls: set[str], crawl: str) -> dict[str, list[SeenText]]:
        """The captures of URLs in a crawl. A page that has not changed has only a capture of an earlier crawl."""
        known = {} if self._texts is None else self._texts.captures_of(urls)
        return {
            url: [capture for capture in captures if capture.crawl == crawl] or captures[-1:]
            for url, captures in known.items()
        }

    def _note(self, damage: Damage) -> None:
        self.damaged.append(str(damage))


def _redirected(url: str, targets: dict[str, tuple[str, int]], found: dict[str, PageFact]) -> PageFact | None:
    """The page to which a URL redirects in the end, if it was recorded."""
    for _ in range(_MOST_REDIRECTS):
        if url not in targets:
            return found.get(url)
        url = targets[url][0].partition("#")[0]
    return None


def _canonical_url(record: StoredRecord) -> str | None:
    """The URL that a page names as its own with ``rel=canonical``, in its HTTP header or in its first 64 KiB."""
    found = None
    for name, value in record.http_headers:
        if name.lower() == b"link" and (match := _HEADER.search(value)):
            found = match[1]
    if found is None and _is_html(record):
        head = b""
        with suppress(Undecodable, DamagedInput):
            for piece in decoded_pieces(record):
                head += piece
                if len(head) >= _HEAD_BYTES:
                    break
        for tag in _LINK.findall(head[:_HEAD_BYTES]) if b"canonical" in head else ():
            if _IS_CANONICAL.search(tag) and (match := _HREF.search(tag)):
                found = match[1] or match[2] or match[3]
                break
    if not found:
        return None
    with suppress(ValueError):
        return urljoin(record.target_uri or "", unescape(found.decode("utf-8", "replace")).strip())
    return None


def _is_html(record: StoredRecord) -> bool:
    content_type = record.http.get(b"Content-Type") if record.http is not None else None
    return content_type is None or b"html" in content_type.lower()

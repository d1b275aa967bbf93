"""Content deduplication as a library, without a crawl."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.stores import open_store

from .canonical import kind_of, mime_of
from .judge import Judge
from .options import JudgeOptions, NearOptions
from .pages import Page, PageReading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from .judge import Verdict

_NEAR = NearOptions()

# The number of documents that are looked up in one call.
_BATCH = 32


@dataclass(frozen=True, slots=True)
class Document:
    """A page: its URL, its decoded body, and the Content-Type that it was served with."""

    url: str
    html: str
    content_type: str = "text/html"

    def __post_init__(self) -> None:
        for name in ("url", "html", "content_type"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise TypeError(f"{name} of a Document must be str, not {type(value).__name__}.")


@dataclass(frozen=True, slots=True)
class _Options:
    """The settings of the content layer, in lower case and without their prefix."""

    canonicalizer: str = "text"
    near_threshold: float | Mapping[str, float] = _NEAR.threshold
    near_recall: float | Mapping[str, float] = _NEAR.recall
    near_num_perm: int | Mapping[str, int] = _NEAR.num_perm
    near_shingle_size: int | Mapping[str, int] = _NEAR.shingle_size
    near_min_chars: int | Mapping[str, int] = _NEAR.min_chars
    near_identity: bool = True
    template_guard: bool = True
    content_max_bytes: int = 4_000_000
    content_ttl: float | None = None
    crawl_id: str = "deduplicator"
    store_timeout: float = 5.0


class Deduplicator:
    """Checks whether the text of a document, or almost the same text, was seen before.

    *options* are the settings of the content layer in lower case without their prefix: ``canonicalizer``,
    ``near_threshold``, ``near_recall``, ``near_num_perm``, ``near_shingle_size``, ``near_min_chars`` (each a number, or a
    mapping of content types to numbers), ``near_identity``, ``template_guard``, ``content_max_bytes``, ``content_ttl`` (seconds),
    ``crawl_id`` (the crawl under which the documents are stored) and ``store_timeout``. Raises
    :class:`~scrapy_dedupe.errors.SettingError` for an unknown option or a value that is not allowed, and
    :class:`~scrapy_dedupe.errors.StoreError` when the store is unusable. A missing SQLite file is created. Use an
    instance from one thread at a time.
    """

    def __init__(self, store_url: str = "sqlite:///dedupe.sqlite", **options: Any) -> None:
        settings = _read_options(options)
        judge_options = JudgeOptions.of(settings, remember_for_s=settings.content_ttl)
        self._max_bytes = settings.content_max_bytes
        self._crawl = settings.crawl_id
        self._store = open_store(store_url, timeout_s=settings.store_timeout)
        self._is_closed = False
        try:
            self._judge = Judge(self._store.content, judge_options)
        except BaseException:
            self._store.close()
            raise

    def check(self, document: Document) -> Verdict:
        """Return the verdict on *document*, and remember its text if it is new.

        The verdict is ``unknown`` for a document whose type is not a text type, which is larger than
        ``content_max_bytes`` (counted in UTF-8), which has no text, or whose markup would take too long to parse.
        Raises :class:`~scrapy_dedupe.errors.StoreError`.
        """
        return self._check([document])[0]

    def check_many(self, documents: Iterable[Document]) -> list[Verdict]:
        """Return the verdicts on *documents*, in their order. Each document is also compared with earlier ones."""
        verdicts: list[Verdict] = []
        rest = iter(documents)
        while batch := list(islice(rest, _BATCH)):
            verdicts += self._check(batch)
        return verdicts

    def forget(self, url: str) -> bool:
        """Forget the texts first seen at *url*, for a document that could not be saved. False if there were none."""
        self._check_open()
        return self._store.content.forget(url) > 0

    def flush(self) -> None:
        """Make the stored texts survive a power failure. (They survive a kill of the process anyway.)"""
        self._check_open()
        self._judge.save()
        self._store.content.flush()

    def close(self) -> None:
        """Save the learned templates and close the store. Safe to repeat."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._judge.save()
            finally:
                self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, documents: list[Document]) -> list[Verdict]:
        self._check_open()
        readings = [self._read(document) for document in documents]
        return [judged.verdict for judged in self._judge.decide(readings, pending=False)]

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("The Deduplicator is closed.")

    def _read(self, document: Document) -> PageReading:
        kind = kind_of(document.content_type)
        if kind is None:
            return PageReading(reason="type")
        if _is_longer(document.html, self._max_bytes):
            return PageReading(reason="size")
        mime = mime_of(document.content_type)
        return self._judge.read(Page(document.url, document.html, self._crawl, kind, mime))


def _is_longer(text: str, limit_bytes: int) -> bool:
    # A code point has 1 to 4 bytes in UTF-8, so most texts need not be encoded.
    if len(text) > limit_bytes:
        return True
    return len(text) * 4 > limit_bytes and len(text.encode("utf-8", "surrogatepass")) > limit_bytes


def _read_options(options: dict[str, Any]) -> _Options:
    known = [field.name for field in fields(_Options)]
    for name in options:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise SettingError(
                f"The option {name} is unknown; did you mean {nearest}? Known: {', '.join(known)}."
            )
    settings = _Options(**options)
    if not isinstance(settings.content_max_bytes, int) or settings.content_max_bytes < 1:
        raise SettingError(
            f"content_max_bytes is {settings.content_max_bytes!r}. Allowed: a whole number of at least 1."
        )
    ttl = settings.content_ttl
    if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not ttl >= 1):
        raise SettingError(f"content_ttl is {ttl!r}. Allowed: a number of seconds of at least 1, or None.")
    if not isinstance(settings.store_timeout, (int, float)) or not 0 < settings.store_timeout <= 600:
        raise SettingError(
            f"store_timeout is {settings.store_timeout!r}. Allowed: a number of seconds above 0, at most 600."
        )
    if not isinstance(settings.crawl_id, str) or not re.fullmatch(
        r"[A-Za-z0-9._-]{1,128}", settings.crawl_id
    ):
        raise SettingError(
            f"crawl_id is {settings.crawl_id!r}. Allowed: 1 to 128 letters, digits, dots, underscores and hyphens."
        )
    return settings

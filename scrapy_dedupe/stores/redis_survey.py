"""Queries over all seen texts in Redis or Valkey, for commands. They read every key.

The keys are described in :mod:`.redis_content`. Other processes may write at the same time: a value is deleted only if
it is still the one that was read.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from .base import SeenText, TextMatch
from .content_values import raw, url_key
from .scripting import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import redis

    from .base import OnForgotten
    from .scripting import ScriptCaller

T = TypeVar("T")

_FORGET = Script("content_forget")

_SCAN_AT_ONCE = 1_000
# The number of values that one call deletes, and of bucket hashes that one call checks.
_FORGET_AT_ONCE = 500
_HASHES_AT_ONCE = 20


class _Text(NamedTuple):
    """A text and its first capture. ``value`` is the stored form, ``place`` the position of the crawl in the list."""

    digest: bytes
    value: bytes
    seen_ms: int
    place: bytes
    url: bytes

    @property
    def is_pending(self) -> bool:
        return self.value.startswith(b"p")


class RedisSurvey:
    """Queries the texts under *prefix*. Raises the exceptions of redis-py and store errors."""

    def __init__(self, client: redis.Redis, prefix: bytes, scripts: ScriptCaller) -> None:
        self._client = client
        self._prefix = prefix
        self._scripts = scripts

    def captures(self, url: str, lifetime_ms: int) -> list[tuple[SeenText, TextMatch | None]]:
        """Like :meth:`~.base.ContentStore.captures`; a *lifetime_ms* of 0 means that texts are kept permanently."""
        its_url = raw(url)
        known = {
            text.digest: SeenText(text.digest, url, self._crawl(text.place).decode(), text.seen_ms)
            for text in self._texts()
            if text.url == its_url
        }
        for digest, value in self._notes(self._key(b"c", url_key(url))):
            kind, ms, place, similarity, original = value.split(b" ", 4)
            capture = SeenText(
                digest,
                url,
                self._crawl(place).decode(),
                int(ms),
                kind.decode(),
                original or None,
                float(similarity) if similarity else None,
            )
            if capture.kind == "near" or capture.original is not None or digest not in known:
                known[digest] = capture
        return [
            (capture, None if capture.kind == "unique" else self._original(capture, lifetime_ms))
            for capture in sorted(known.values(), key=lambda capture: (capture.seen_ms, capture.digest))
        ]

    def forget(self, url: str) -> int:
        """As :meth:`~.base.ContentStore.forget`."""
        its_url = raw(url)
        forgotten = self._forget_texts(text for text in self._texts() if text.url == its_url)
        self._client.delete(self._key(b"c", url_key(url)))
        return forgotten

    def purge(self, before_ms: int | None, crawl: str | None, on_forgotten: OnForgotten) -> int:
        """As :meth:`~.base.ContentStore.purge`."""
        is_meant = self._first_captures(before_ms, crawl)
        purged = self._forget_texts(
            (text for text in self._texts() if is_meant(text.seen_ms, text.place)),
            partial(on_forgotten, "texts"),
        )
        signatures = ((b"s", digest, b"") for digest in self._names(b"s"))
        self._forget(signatures, on_some=partial(on_forgotten, "signatures"))
        for keys in batches(self._names(b"c"), _SCAN_AT_ONCE):
            for name in keys:
                notes = self._notes(self._key(b"c", name))
                texts = self._values([self._key(b"t", digest) for digest, _ in notes])
                gone = []
                for (digest, value), text in zip(notes, texts, strict=True):
                    _, ms, its_place, _ = value.split(b" ", 3)
                    if text is None or is_meant(int(ms), its_place):
                        gone.append((b"c", name + digest, value))
                self._forget(gone)
            on_forgotten("captures", len(keys))
        bands = ((b"b", name, b"") for name in self._names(b"b"))
        self._forget(bands, _HASHES_AT_ONCE, partial(on_forgotten, "bands"))
        if before_ms is None and crawl is None:
            for hosts in batches(self._names(b"h"), _SCAN_AT_ONCE):
                self._client.delete(*(self._key(b"h", host) for host in hosts))
            self._client.delete(self._key(b"p"))
        return purged

    def count(self, before_ms: int | None, crawl: str | None) -> int:
        """As :meth:`~.base.ContentStore.count`."""
        is_meant = self._first_captures(before_ms, crawl)
        # A scan may return a key twice.
        return len({text.digest for text in self._texts() if is_meant(text.seen_ms, text.place)})

    def statistics(self) -> dict[str, int]:
        """Like :meth:`~.base.ContentStore.statistics`. Counters would include expired texts."""
        pending = [text.is_pending for text in self._texts()]
        return {
            "texts": len(pending),
            "kept": sum(1 for _ in self._names(b"s")),
            "pending": sum(pending),
            "templates": sum(1 for _ in self._names(b"h")),
        }

    def _first_captures(self, before_ms: int | None, crawl: str | None) -> Callable[[int, bytes], bool]:
        """Return a function that tests whether a first capture with this time and crawl is selected."""
        place = None
        if crawl is not None:
            # An unknown crawl has no texts, and no crawl has an empty position.
            place = cast("bytes | None", self._client.hget(cast("str", self._key(b"i")), crawl)) or b""
        return lambda ms, its_place: (
            (before_ms is None or ms < before_ms) and (place is None or its_place == place)
        )

    def _key(self, kind: bytes, name: bytes = b"") -> bytes:
        return self._prefix + kind + name

    def _names(self, kind: bytes) -> Iterator[bytes]:
        """The keys of this kind, without the prefix and *kind*."""
        start = self._key(kind)
        for key in self._client.scan_iter(match=start + b"*", count=_SCAN_AT_ONCE):
            yield key[len(start) :]

    def _texts(self) -> Iterator[_Text]:
        for digests in batches(self._names(b"t"), _SCAN_AT_ONCE):
            values = self._values([self._key(b"t", digest) for digest in digests])
            for digest, value in zip(digests, values, strict=True):
                if value is not None:
                    _, ms, place, url = value.split(b" ", 3)
                    yield _Text(digest, value, int(ms), place, url)

    def _values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return cast("list[bytes | None]", self._client.mget(keys)) if keys else []

    def _notes(self, key: bytes) -> list[tuple[bytes, bytes]]:
        return list(cast("dict[bytes, bytes]", self._client.hgetall(cast("str", key))).items())

    def _crawl(self, place: bytes) -> bytes:
        return cast("bytes", self._client.lindex(cast("str", self._key(b"n")), int(place)))

    def _original(self, capture: SeenText, lifetime_ms: int) -> TextMatch | None:
        digest = capture.original or capture.digest
        value = self._values([self._key(b"t", digest)])[0]
        if value is None:
            return None
        _, _, place, url = value.split(b" ", 3)
        noted = self._client.hget(cast("str", self._key(b"c", url_key(capture.url))), cast("str", digest))
        had_this_url = url == raw(capture.url)
        if noted is not None and not had_this_url:
            _, ms, _ = cast("bytes", noted).split(b" ", 2)
            had_this_url = not lifetime_ms or int(ms) + lifetime_ms > capture.seen_ms
        return seen_text(digest, value, self._crawl(place), had_this_url)

    def _forget_texts(
        self, texts: Iterable[_Text], on_some: Callable[[int], None] = lambda count: None
    ) -> int:
        return self._forget(((b"t", text.digest, text.value) for text in texts), on_some=on_some)

    def _forget(
        self,
        things: Iterable[tuple[bytes, bytes, bytes]],
        at_once: int = _FORGET_AT_ONCE,
        on_some: Callable[[int], None] = lambda count: None,
    ) -> int:
        forgotten = 0
        for some in batches(things, at_once):
            words = (word for thing in some for word in thing)
            forgotten += self._scripts.run(_FORGET, self._key(b"i"), self._prefix, *words)
            on_some(len(some))
        return forgotten


def seen_text(
    digest: bytes, first: bytes, crawl: bytes, had_this_url: object, similarity: float = 1.0
) -> TextMatch:
    """A text match from the stored form of a first capture."""
    state, seen_ms, _, url = first.split(b" ", 3)
    return TextMatch(
        digest=digest,
        url=url.decode("utf-8", "surrogatepass"),
        crawl=crawl.decode(),
        seen_ms=int(seen_ms),
        had_this_url=bool(had_this_url),
        similarity=similarity,
        pending=state == b"p",
    )


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Split *items* into lists of at most *size* items."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch

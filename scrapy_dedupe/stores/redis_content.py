"""Seen texts in Redis or Valkey.

All keys start with a prefix, by default ``dedupe:{content}:v2:``. The part in braces keeps them in one slot of a
cluster; ``v2`` is the version of the format below. Values are plain bytes.

====================  ===========================================================================================
``p``                 hash: the parameters of the near layer
``n``                 list: crawl ids; elsewhere a crawl is given by its position in this list, counted from 0
``i``                 hash: crawl id to its position
``t`` + digest        string: ``STATE MILLISECONDS POSITION URL``, the first capture of a text; the state is ``p``
                      (pending) or ``c`` (confirmed). The digest has 16 bytes
``c`` + URL key       hash: the digest of another text of this URL, to ``KIND MILLISECONDS POSITION SIMILARITY
                      ORIGINAL``. ORIGINAL is a digest, or empty if the original is the same text. The URL key is the
                      first 16 bytes of BLAKE2b of the URL. The first capture of a text is here too if it is a copy of
                      another text
``s`` + digest        string: the row bytes of a kept text: those of the whole text, then those of the text without
                      the template, if they differ
``b`` + 2 bytes       hash: the other 6 bytes of a band hash, to the digest of the last text that was kept in this
                      bucket
``h`` + host          string: the template of a host (:mod:`scrapy_dedupe.content.template`)
====================  ===========================================================================================

Each call is one script for any number of texts; it is atomic and takes one round trip.

A separate key per bucket would take about 90 bytes, 16 times per text. The 65,536 hashes take about 7 MB in total. In
the compact form that servers use up to 512 entries (2 million texts), a bucket takes about 26 bytes, and a kept text
with its first capture less than a kilobyte.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from .base import NearAnswer, SeenText, TextMatch
from .content_values import all_captures, raw, refuse_other_parameters, url_key
from .redis_faults import redis_faults
from .scripting import Script, ScriptCaller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import redis

    from .base import OnForgotten, Signature

PREFIX = "dedupe:{content}:v2:"

T = TypeVar("T")

_TEXTS, _NEAR, _SETTLE, _FORGET = map(
    Script, ("content_texts", "content_near", "content_settle", "content_forget")
)

# The number of pages settled per call; a larger call would block the server for too long.
_SETTLE_AT_ONCE = 500
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


class RedisContent:
    """The :class:`~.base.ContentStore` of an open Redis store."""

    def __init__(self, client: redis.Redis, url: str, prefix: str = PREFIX) -> None:
        self._client = client
        self._url = url
        self._prefix = prefix.encode()
        self._crawls = self._prefix + b"i"
        self._scripts = ScriptCaller(client, url)
        self._lifetime = b"0"

    def parameters(self) -> dict[str, str]:
        with redis_faults(self._url):
            stored = cast("dict[bytes, bytes]", self._client.hgetall(self._key(b"p")))
        return {name.decode(): value.decode() for name, value in stored.items()}

    def check_parameters(self, parameters: Mapping[str, str]) -> None:
        with redis_faults(self._url):
            pipeline = self._client.pipeline()
            for name, value in parameters.items():
                pipeline.hsetnx(self._key(b"p"), name, value)
            pipeline.execute()
        refuse_other_parameters(self._url, self.parameters(), parameters)

    def remember_for(self, seconds: float | None) -> None:
        self._lifetime = b"0" if seconds is None else b"%d" % round(seconds * 1000)

    def claim_texts(self, captures: Sequence[SeenText], *, pending: bool = True) -> list[TextMatch | None]:
        return self._texts(b"claim" if pending else b"sure", captures)

    def find_texts(self, captures: Sequence[SeenText]) -> list[TextMatch | None]:
        return self._texts(b"find", captures)

    def claim_near(self, signatures: Sequence[Signature]) -> list[NearAnswer]:
        return self._near(b"claim", signatures)

    def find_near(self, signatures: Sequence[Signature]) -> list[NearAnswer]:
        return self._near(b"find", signatures)

    def settle(
        self,
        passed: Sequence[SeenText],
        failed: Sequence[SeenText] = (),
        dropped: Sequence[SeenText] = (),
    ) -> None:
        outcomes = ((b"+", passed), (b"-", failed), (b"=", dropped))
        pages = [(outcome, capture) for outcome, captures in outcomes for capture in captures]
        for some in batches(pages, _SETTLE_AT_ONCE):
            arguments: list[bytes] = []
            for operation, capture in some:
                url = raw(capture.url)
                original = capture.original if capture.original != capture.digest else None
                similarity = "" if capture.similarity is None else repr(float(capture.similarity))
                arguments += (
                    operation, capture.digest, url_key(capture.url), url, capture.crawl.encode(),
                    b"%d" % capture.seen_ms, capture.kind.encode(), original or b"", similarity.encode(),
                )  # fmt: skip
            self._scripts.run(_SETTLE, self._crawls, self._prefix, self._lifetime, *arguments)

    def captures(self, url: str) -> list[tuple[SeenText, TextMatch | None]]:
        with redis_faults(self._url):
            its_url = raw(url)
            first = {
                text.digest: SeenText(text.digest, url, self._crawl(text.place).decode(), text.seen_ms)
                for text in self._stored_texts()
                if text.url == its_url
            }
            noted = []
            for digest, value in self._notes(self._key(b"c", url_key(url))):
                kind, ms, place, similarity, original = value.split(b" ", 4)
                decided = kind.decode(), original or None, float(similarity) if similarity else None
                noted.append(SeenText(digest, url, self._crawl(place).decode(), int(ms), *decided))
            return all_captures(first, noted, self._original)

    def forget(self, url: str) -> int:
        with redis_faults(self._url):
            its_url = raw(url)
            forgotten = self._forget_texts(text for text in self._stored_texts() if text.url == its_url)
            self._client.delete(self._key(b"c", url_key(url)))
            return forgotten

    def purge(
        self,
        *,
        before_ms: int | None = None,
        crawl: str | None = None,
        on_forgotten: OnForgotten | None = None,
    ) -> int:
        report = on_forgotten or (lambda what, count: None)
        with redis_faults(self._url):
            is_meant = self._first_captures(before_ms, crawl)
            purged = self._forget_texts(
                (text for text in self._stored_texts() if is_meant(text.seen_ms, text.place)),
                partial(report, "texts"),
            )
            signatures = ((b"s", digest, b"") for digest in self._names(b"s"))
            self._forget(signatures, on_some=partial(report, "signatures"))
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
                report("captures", len(keys))
            bands = ((b"b", name, b"") for name in self._names(b"b"))
            self._forget(bands, _HASHES_AT_ONCE, partial(report, "bands"))
            if before_ms is None and crawl is None:
                for hosts in batches(self._names(b"h"), _SCAN_AT_ONCE):
                    self._client.delete(*(self._key(b"h", host) for host in hosts))
                self._client.delete(self._key(b"p"))
            return purged

    def count(self, *, before_ms: int | None = None, crawl: str | None = None) -> int:
        with redis_faults(self._url):
            is_meant = self._first_captures(before_ms, crawl)
            # A scan may return a key twice.
            return len({text.digest for text in self._stored_texts() if is_meant(text.seen_ms, text.place)})

    def load_template(self, host: str) -> bytes | None:
        with redis_faults(self._url):
            return cast("bytes | None", self._client.get(self._key(b"h", raw(host))))

    def save_template(self, host: str, template: bytes) -> None:
        with redis_faults(self._url):
            self._client.set(self._key(b"h", raw(host)), template)

    def statistics(self) -> dict[str, int]:
        with redis_faults(self._url):
            pending = [text.is_pending for text in self._stored_texts()]
            return {
                "texts": len(pending),
                "kept": sum(1 for _ in self._names(b"s")),
                "pending": sum(pending),
                "templates": sum(1 for _ in self._names(b"h")),
            }

    def flush(self) -> None:
        """Do nothing: the configuration of the server decides when it writes to disk."""

    def close(self) -> None:
        """Return the connection of the scripts to the pool."""
        self._scripts.close()

    def _key(self, kind: bytes, name: bytes = b"") -> bytes:
        return self._prefix + kind + name

    def _texts(self, operation: bytes, captures: Sequence[SeenText]) -> list[TextMatch | None]:
        if not captures:
            return []
        arguments: list[bytes] = []
        for capture in captures:
            arguments += (
                capture.digest, url_key(capture.url), raw(capture.url), capture.crawl.encode(),
                b"%d" % capture.seen_ms,
            )  # fmt: skip
        answers = self._scripts.run(_TEXTS, self._crawls, self._prefix, operation, self._lifetime, *arguments)
        return [
            None if answer is None else seen_text(capture.digest, *answer)
            for capture, answer in zip(captures, answers, strict=True)
        ]

    def _near(self, operation: bytes, signatures: Sequence[Signature]) -> list[NearAnswer]:
        if not signatures:
            return []
        arguments: list[bytes] = []
        for signature in signatures:
            capture = signature.capture
            arguments += (
                capture.digest, url_key(capture.url), raw(capture.url), b"%d" % capture.seen_ms,
                b"%d" % signature.min_equal, b"%d" % signature.min_equal_rare, signature.rows,
                signature.rare_rows, b"".join(signature.bands), b"".join(signature.more_bands),
            )  # fmt: skip
        answers = self._scripts.run(_NEAR, self._crawls, self._prefix, operation, self._lifetime, *arguments)
        return [
            NearAnswer(None, bool(answer))
            if isinstance(answer, int)
            else NearAnswer(
                seen_text(answer[4], answer[0], answer[1], answer[2], answer[3] / len(signature.rows))
            )
            for signature, answer in zip(signatures, answers, strict=True)
        ]

    # Scans over all texts. Other processes may write meanwhile: a value is deleted only if it is still the one read.

    def _first_captures(self, before_ms: int | None, crawl: str | None) -> Callable[[int, bytes], bool]:
        """Return a function that tests whether a first capture with this time and crawl is selected."""
        place = None
        if crawl is not None:
            # An unknown crawl has no texts, and no crawl has an empty position.
            place = cast("bytes | None", self._client.hget(cast("str", self._key(b"i")), crawl)) or b""
        return lambda ms, its_place: (
            (before_ms is None or ms < before_ms) and (place is None or its_place == place)
        )

    def _names(self, kind: bytes) -> Iterator[bytes]:
        """The keys of this kind, without the prefix and *kind*."""
        start = self._key(kind)
        for key in self._client.scan_iter(match=start + b"*", count=_SCAN_AT_ONCE):
            yield key[len(start) :]

    def _stored_texts(self) -> Iterator[_Text]:
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

    def _original(self, capture: SeenText) -> TextMatch | None:
        digest = capture.original or capture.digest
        value = self._values([self._key(b"t", digest)])[0]
        if value is None:
            return None
        _, _, place, url = value.split(b" ", 3)
        noted = self._client.hget(cast("str", self._key(b"c", url_key(capture.url))), cast("str", digest))
        had_this_url = url == raw(capture.url)
        if noted is not None and not had_this_url:
            lifetime = int(self._lifetime)
            _, ms, _ = cast("bytes", noted).split(b" ", 2)
            had_this_url = not lifetime or int(ms) + lifetime > capture.seen_ms
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
            forgotten += self._scripts.run(_FORGET, self._crawls, self._prefix, *words)
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

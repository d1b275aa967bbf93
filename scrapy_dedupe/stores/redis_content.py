"""Seen texts in Redis or Valkey.

All keys start with a prefix, by default ``dedupe:{content}:v3:``; ``v3`` is the version of the format below. Numbers are
big-endian.

==============  =================================================================================================
``p``           hash: the parameters of the near layer
``n``           list: crawl ids; elsewhere a crawl is given by its position in this list, counted from 0
``i``           hash: crawl id to its position
``h``           hash: host to its template (:mod:`scrapy_dedupe.content.template`)
``t`` + number  hashes: digest of a text (16 bytes) to its first capture: the state, ``p`` (pending) or ``c``
                (confirmed); the time in milliseconds (6 bytes); the position of the crawl (3 bytes); the URL, whose
                scheme is one digit (0 for ``https://``, 1 for ``http://``, 2 for anything else)
``s`` + number  hashes: the first 5 bytes of the digest of a kept text to its signature
                (:func:`.content_values.packed_signature`) and the other 11 bytes of the digest
``b`` + number  hashes: the first 5 bytes of a band hash to the first 5 bytes of the digest of the last text that was
                kept in this bucket
``c`` + number  hashes: the URL key (8 bytes) and the digest of another text of this URL, to the letter of the verdict,
                time and crawl as above, the similarity (a double, or nothing), and the original's digest (nothing if
                the original is the same text). The URL key is a BLAKE2b hash of the URL. The first capture of a text
                is here too if it is a copy of another text
``m`` + number  hashes: the key of the undecoded page in which a text was seen first (16 bytes) to the digest of the text
``g``           hash: ``t``, ``s``, ``b``, ``c`` or ``m`` to the number of hashes of this kind, if there are several
==============  =================================================================================================

A key of its own per text would take a hundred bytes more than its content. Servers keep a hash with at most 512 fields
and 64 bytes per value in a compact form, without pointers. Therefore values of 64 to 319 bytes are split: the pieces
have 64 bytes, except for the last one, which is shorter; the names of all but the first end with the number of the
piece (1 byte). Longer values are stored whole. The number of hashes grows with their content, one at a time (linear
hashing, Litwin 1980): the first 4 bytes of a name, modulo the number of hashes rounded up to a power of two, select
the hash, or the one from which it will be split off if it does not exist yet.

With a lifetime, expired entries are deleted when their hash is full, and at the latest by a purge.

Each call is one script for any number of texts; it is atomic and takes one round trip.

**Clusters.** In a cluster the texts are in 16 shards (:mod:`.cluster`). Each has its own keys with a prefix such as
``dedupe:{content:17}:v3:``, except for ``p`` and ``h``. The fifth byte of a digest or band hash, modulo 16, selects the
shard, so the data of a text is in one shard, and its buckets are in several. The field ``shards`` of ``p`` is the number
of shards. Whether a text is new is still decided by one atomic script. The comparison with near texts takes up to two more
round trips for a batch: :mod:`.redis_cluster_content`. Buckets of expired texts are only emptied by a purge. The shard
of a source is not that of its text, so any purge forgets all sources.
"""

from __future__ import annotations

import struct
from functools import partial
from itertools import chain, islice, starmap
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from scrapy_dedupe.errors import StoreRefused

from .base import NearAnswer, SeenText, TextMatch
from .cluster import hash_tags, script_caller
from .content_values import (
    BAND_BYTES,
    REF_BYTES,
    CapturesByUrl,
    joined_url,
    packed_rows,
    raw,
    refuse_other_parameters,
    split_url,
    url_key,
    with_originals,
)
from .redis_faults import redis_faults
from .scripting import Script, script_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import redis

    from .base import OnForgotten, Signature
    from .scripting import ScriptCall

PREFIX = "dedupe:{content}:v3:"

# Format 2 was never released.
_OLD_PREFIX = b"dedupe:{content}:v2:"

T = TypeVar("T")

COMMON: Final = script_text("content_common")
CLAIM, _SETTLE, _FORGET = (
    Script(name, before=COMMON) for name in ("content_claim", "content_settle", "content_forget")
)

_PIECE_BYTES: Final = 64
_NAME_BYTES: Final = {b"t": 16, b"s": REF_BYTES, b"c": 24, b"m": 16, b"b": BAND_BYTES}
_LETTERS: Final = {"unique": b"u", "unchanged": b"s", "exact": b"e", "near": b"n"}
_KINDS: Final = {letter: kind for kind, letter in _LETTERS.items()}

# The number of pages settled per call; a larger call would block the server for too long.
_SETTLE_AT_ONCE = 500
# The number of hashes that are read at once, of values that one call deletes, and of bucket hashes that it checks.
_SCAN_AT_ONCE = 50
_FORGET_AT_ONCE = 500
_HASHES_AT_ONCE = 20


class RedisContent:
    """The :class:`~.base.ContentStore` of an open Redis store."""

    def __init__(self, client: redis.Redis | redis.RedisCluster, url: str, prefix: str = PREFIX) -> None:
        self._client = client
        self._url = url
        self._prefix = prefix.encode()
        name = prefix[prefix.index("{") + 1 : prefix.index("}")]
        # The prefixes of the shards.
        self._shards = [prefix.replace(name, tag, 1).encode() for tag in hash_tags(client, name)]
        self._scripts = script_caller(client, url)
        self._lifetime_ms: int | None = None

    def parameters(self) -> dict[str, str]:
        with redis_faults(self._url):
            if self._client.exists(_OLD_PREFIX + b"n", _OLD_PREFIX + b"p"):
                raise StoreRefused(
                    f"The texts in the store {self._url} have format 2; this version of scrapy-dedupe reads format 3"
                    " only. Delete them: scrapy dedupe content purge --all"
                )
            stored = cast("dict[bytes, bytes]", self._client.hgetall(self._key(b"p")))
        shards = int(stored.pop(b"shards", 1))
        if stored and shards != len(self._shards):
            raise StoreRefused(
                f"The texts in the store {self._url} are in {shards} shards, not in {len(self._shards)}: they were copied from"
                " or to a cluster, or written by another version. Delete them: scrapy dedupe content purge --all"
            )
        return {name.decode(): value.decode() for name, value in stored.items()}

    def check_parameters(self, parameters: Mapping[str, str]) -> None:
        with redis_faults(self._url):
            # redis-py 5 has no transactions in a cluster.
            pipeline = self._client.pipeline(transaction=len(self._shards) == 1)
            if len(self._shards) > 1:
                pipeline.hsetnx(self._key(b"p"), "shards", str(len(self._shards)))
            for name, value in parameters.items():
                pipeline.hsetnx(self._key(b"p"), name, value)
            pipeline.execute()
        refuse_other_parameters(self._url, self.parameters(), parameters)

    def remember_for(self, seconds: float | None) -> None:
        self._lifetime_ms = None if seconds is None else round(seconds * 1000)

    def claim(
        self,
        captures: Sequence[SeenText],
        signatures: Sequence[Signature | None] = (),
        *,
        pending: bool = True,
    ) -> list[TextMatch | NearAnswer | None]:
        return self._ask(b"claim" if pending else b"sure", captures, signatures)

    def find(
        self, captures: Sequence[SeenText], signatures: Sequence[Signature | None] = ()
    ) -> list[TextMatch | NearAnswer | None]:
        return self._ask(b"find", captures, signatures)

    def has_sources(self) -> bool:
        with redis_faults(self._url):
            pipeline = self._client.pipeline(transaction=False)
            for shard in self._shards:
                pipeline.exists(shard + b"m0")
            return any(pipeline.execute())

    def recall(self, captures: Sequence[SeenText]) -> list[TextMatch | None]:
        return cast("list[TextMatch | None]", self._ask(b"recall", captures))

    def settle(
        self,
        passed: Sequence[SeenText],
        failed: Sequence[SeenText] = (),
        dropped: Sequence[SeenText] = (),
    ) -> None:
        outcomes = ((b"+", passed), (b"-", failed), (b"=", dropped))
        pages = [(outcome, capture) for outcome, captures in outcomes for capture in captures]
        for some in batches(pages, _SETTLE_AT_ONCE):
            by_shard = self._by_shard(some, lambda page: page[1].digest)
            self._run_many(
                _SETTLE, [(shard, [*chain(*starmap(_outcome, its))]) for shard, its in by_shard.items()]
            )

    def captures(self, url: str) -> list[tuple[SeenText, TextMatch | None]]:
        captures = self.captures_of([url]).get(url, ())
        with redis_faults(self._url):
            return with_originals(captures, self._original)

    def captures_of(self, urls: Iterable[str]) -> dict[str, list[SeenText]]:
        by_stored, by_key = {}, {}
        for url in urls:
            by_stored[_stored_url(url)], by_key[url_key(url)] = url, url
        captures = CapturesByUrl()
        with redis_faults(self._url):
            for digest, value in self._records(b"t"):
                if (its_url := by_stored.get(value[10:])) is not None:
                    captures.add_first(SeenText(digest, its_url, *self._crawl_and_time(digest, value)))
            for name, value in self._records(b"c"):
                if (its_url := by_key.get(name[:8])) is not None:
                    rest = value[10:]
                    similarity = struct.unpack(">d", rest[:8])[0] if len(rest) % 16 else None
                    original = rest[len(rest) % 16 :] or None
                    crawl, seen_ms = self._crawl_and_time(name[8:], value)
                    kind = _KINDS[value[:1]]
                    captures.add_noted(
                        SeenText(name[8:], its_url, crawl, seen_ms, kind, original, similarity)
                    )
        return captures.in_order()

    def forget(self, url: str) -> int:
        with redis_faults(self._url):
            its_url, its_key = _stored_url(url), url_key(url)
            forgotten = self._forget((b"t", *text) for text in self._records(b"t") if text[1][10:] == its_url)
            self._forget((b"c", *note) for note in self._records(b"c") if note[0].startswith(its_key))
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
            texts = ((b"t", *text) for text in self._records(b"t") if is_meant(*text))
            purged = self._forget(texts, partial(report, "texts"))
            signatures = ((b"s", ref + value[REF_BYTES - 16 :], b"") for ref, value in self._records(b"s"))
            self._forget(signatures, partial(report, "signatures"))
            notes = (
                (b"c" if is_meant(name[8:], value) else b"o", name, value)
                for name, value in self._records(b"c")
            )
            self._forget(notes, partial(report, "captures"))
            sources = ((b"m", *source) for source in self._records(b"m"))
            self._forget(sources, partial(report, "sources"))
            self._forget_buckets(partial(report, "bands"))
            emptied = [word for kind in (b"t", b"s", b"b", b"c", b"m") for word in (b"g", kind, b"")]
            self._run_many(_FORGET, [(shard, emptied) for shard in self._shards])
            if before_ms is None and crawl is None:
                self._client.delete(self._key(b"h"), self._key(b"p"))
                old = self._client.scan_iter(match=_OLD_PREFIX + b"*", count=1_000)
                for keys in batches(old, 1_000):
                    self._client.delete(*keys)
            return purged

    def count(self, *, before_ms: int | None = None, crawl: str | None = None) -> int:
        with redis_faults(self._url):
            is_meant = self._first_captures(before_ms, crawl)
            # A text is read twice if it is moved to another hash meanwhile.
            return len({digest for digest, value in self._records(b"t") if is_meant(digest, value)})

    def load_template(self, host: str) -> bytes | None:
        with redis_faults(self._url):
            return cast("bytes | None", self._client.hget(self._name(b"h"), cast("str", raw(host))))

    def save_template(self, host: str, template: bytes) -> None:
        with redis_faults(self._url):
            self._client.hset(self._name(b"h"), cast("str", raw(host)), cast("str", template))

    def statistics(self) -> dict[str, int]:
        with redis_faults(self._url):
            pending = {digest: value.startswith(b"p") for digest, value in self._records(b"t")}
            return {
                "texts": len(pending),
                "kept": len({ref for ref, _ in self._records(b"s")}),
                "pending": sum(pending.values()),
                "templates": self._client.hlen(self._name(b"h")),
            }

    def forget_crawls(self) -> None:
        """Delete the ids of all crawls, when no text is left."""
        with redis_faults(self._url):
            for shard in self._shards:
                self._client.delete(shard + b"n", shard + b"i")

    def flush(self) -> None:
        """Do nothing: the configuration of the server decides when it writes to disk."""

    def close(self) -> None:
        """Return the connection of the scripts to the pool."""
        self._scripts.close()

    def _key(self, kind: bytes) -> bytes:
        return self._prefix + kind

    def _name(self, kind: bytes) -> str:
        return cast("str", self._key(kind))

    def _shard(self, name: bytes) -> bytes:
        """The prefix of the shard of a digest, a reference to it, or a band."""
        # The number of a hash depends on the first four bytes.
        return self._shards[name[4] % len(self._shards)]

    def _by_shard(self, items: Iterable[T], name_of: Callable[[T], bytes]) -> dict[bytes, list[T]]:
        """The items in each shard; *name_of* an item is a name as of :meth:`_shard`."""
        if len(self._shards) == 1:
            return {self._shards[0]: [*items]}
        by_shard: dict[bytes, list[T]] = {}
        for item in items:
            by_shard.setdefault(self._shard(name_of(item)), []).append(item)
        return by_shard

    def _run_many(self, script: Script, calls: Iterable[tuple[bytes, Sequence[bytes]]]) -> list[Any]:
        """The answers of the script for the arguments of each shard."""
        return self._scripts.run_many(self._script_calls(script, calls))

    def _script_calls(
        self, script: Script, calls: Iterable[tuple[bytes, Sequence[bytes]]]
    ) -> list[ScriptCall]:
        lifetime = b"%d" % (self._lifetime_ms or 0)
        return [(script, shard + b"i", (shard, lifetime, *arguments)) for shard, arguments in calls]

    def _ask(
        self, operation: bytes, captures: Sequence[SeenText], signatures: Sequence[Signature | None] = ()
    ) -> list[TextMatch | NearAnswer | None]:
        if not captures:
            return []
        arguments = texts_words(captures)
        for number, it in enumerate(signatures, 1):
            if it is not None:
                arguments += (
                    b"%d" % number, b"%d" % it.min_equal, b"%d" % it.min_equal_rare,
                    b"%d" % it.min_equal_named, it.identity, it.rows,
                    packed_rows(it.rows, it.rare_rows)[len(it.rows) :], _joined(it.bands), _joined(it.more_bands),
                )  # fmt: skip
        calls = [(self._shards[0], (operation, b"%d" % len(captures), *arguments))]
        (found,) = self._run_many(CLAIM, calls)
        asked = zip(captures, signatures or [None] * len(captures), found, strict=True)
        return [answer_of(*each) for each in asked]

    def _original(self, capture: SeenText) -> TextMatch | None:
        asked = SeenText(capture.original or capture.digest, capture.url, capture.crawl, capture.seen_ms)
        (found,) = self._ask(b"look", [asked])
        return cast("TextMatch | None", found)

    # Scans over all texts. Other processes may write meanwhile: a value is deleted only if it is still the one read.

    def _first_captures(self, before_ms: int | None, crawl: str | None) -> Callable[[bytes, bytes], bool]:
        """Return a function that tests whether a capture of this digest with this stored value is selected."""
        places = {}
        if crawl is not None:
            for shard in self._shards:
                place = cast("bytes | None", self._client.hget(cast("str", shard + b"i"), crawl))
                # An unknown crawl has no texts, and no position is negative.
                places[shard] = int(place or -1)
        return lambda digest, value: (
            (before_ms is None or _seen_ms(value) < before_ms)
            and (crawl is None or _place(value) == places[self._shard(digest)])
        )

    def _hashes(self, shard: bytes, kind: bytes) -> int:
        return int(cast("bytes | None", self._client.hget(cast("str", shard + b"g"), cast("str", kind))) or 1)

    def _records(self, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All names and values of this kind. Those that are moved to a new hash meanwhile may come twice."""
        for shard in self._shards:
            yield from self._records_in(shard, kind)

    def _records_in(self, shard: bytes, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
        width = _NAME_BYTES[kind]
        number = 0
        while number < (count := self._hashes(shard, kind)):
            for some in batches(range(number, count), _SCAN_AT_ONCE):
                pipeline = self._client.pipeline(transaction=False)
                for number in some:
                    pipeline.hgetall(cast("str", shard + kind + b"%d" % number))
                for found in cast("list[dict[bytes, bytes]]", pipeline.execute()):
                    for name, value in found.items():
                        if len(name) == width:
                            yield name, _whole(found, name, value)
            number = count

    def _crawl_and_time(self, digest: bytes, value: bytes) -> tuple[str, int]:
        crawls = cast("str", self._shard(digest) + b"n")
        crawl = cast("bytes", self._client.lindex(crawls, _place(value)))
        return crawl.decode(), _seen_ms(value)

    def _forget(
        self,
        things: Iterable[tuple[bytes, bytes, bytes]],
        on_some: Callable[[int], None] = lambda count: None,
    ) -> int:
        """Forget things whose names end with a digest."""
        forgotten = 0
        for some in batches(things, _FORGET_AT_ONCE):
            by_shard = self._by_shard(some, lambda thing: thing[1][-16:])
            forgotten += sum(
                self._run_many(_FORGET, [(shard, [*chain(*its)]) for shard, its in by_shard.items()])
            )
            on_some(len(some))
        return forgotten

    def _forget_buckets(self, on_some: Callable[[int], None]) -> None:
        """Empty the buckets of texts that are not kept any more."""
        numbers = range(self._hashes(self._shards[0], b"b"))
        for some in batches(numbers, _HASHES_AT_ONCE):
            words = [word for number in some for word in (b"b", b"%d" % number, b"")]
            self._run_many(_FORGET, [(self._shards[0], words)])
            on_some(len(some))


def _outcome(outcome: bytes, capture: SeenText) -> tuple[bytes, ...]:
    """Arguments of the script for the outcome of a page."""
    original = capture.original if capture.original != capture.digest else None
    similarity = b"" if capture.similarity is None else struct.pack(">d", capture.similarity)
    return (
        outcome, *origin_words(capture), capture.crawl.encode(), _LETTERS[capture.kind], similarity,
        original or b"",
    )  # fmt: skip


def texts_words(captures: Iterable[SeenText], *, with_sources: bool = True) -> list[bytes]:
    """Arguments of the script for texts."""
    arguments: list[bytes] = []
    for capture in captures:
        source = capture.source if with_sources else b""
        arguments += (*origin_words(capture), capture.crawl.encode(), source)
    return arguments


def origin_words(capture: SeenText) -> tuple[bytes, bytes, bytes, bytes]:
    """Arguments of the scripts: digest, URL key, URL and time of a capture."""
    url = capture.url
    return capture.digest, url_key(url), _stored_url(url), capture.seen_ms.to_bytes(6, "big")


def _stored_url(url: str) -> bytes:
    scheme, rest = split_url(url)
    return b"%d%b" % (scheme, raw(rest) if isinstance(rest, str) else rest)


def _seen_ms(value: bytes) -> int:
    return int.from_bytes(value[1:7], "big")


def _place(value: bytes) -> int:
    return int.from_bytes(value[7:10], "big")


def _whole(found: Mapping[bytes, bytes], name: bytes, first: bytes) -> bytes:
    """The value whose first piece is *first*, with its other pieces in the same hash."""
    pieces = [first]
    while len(pieces[-1]) == _PIECE_BYTES:
        pieces.append(found[name + bytes([len(pieces)])])
    return b"".join(pieces)


def _joined(bands: Sequence[bytes]) -> bytes:
    return b"".join(band[:BAND_BYTES] for band in bands)


def answer_of(capture: SeenText, signature: Signature | None, found: Any) -> TextMatch | NearAnswer | None:
    """The answer of the script for a text."""
    if found is None:
        return None
    if isinstance(found, int):
        return NearAnswer(None, bool(found))
    if len(found) == 3:
        return match_of(capture.digest, *found)
    if len(found) == 4:
        first, crawl, had_this_url, digest = found
        return match_of(digest, first, crawl, had_this_url)
    assert signature is not None
    first, crawl, had_this_url, equal, digest, equal_rest, compared, identity = found
    return NearAnswer(
        seen=match_of(digest, first, crawl, had_this_url, equal / len(signature.rows)),
        rest=equal_rest / compared if compared else None,
        identity=identity,
    )


def match_of(
    digest: bytes, first: bytes, crawl: bytes, had_this_url: object, similarity: float = 1.0
) -> TextMatch:
    """A text match from the stored form of a first capture."""
    return TextMatch(
        digest=digest,
        url=joined_url(int(first[10:11]), first[11:]),
        crawl=crawl.decode(),
        seen_ms=_seen_ms(first),
        had_this_url=bool(had_this_url),
        similarity=similarity,
        pending=first.startswith(b"p"),
    )


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Split *items* into lists of at most *size* items."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch

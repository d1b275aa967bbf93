"""Seen texts in a Redis Cluster, where the buckets of a text and the texts in them are in several shards.

:mod:`.redis_content` describes the keys and the shards. A batch of texts takes up to three steps. Each takes one round trip
for each master:

1.  The script ``content_claim`` tests whether each text is new, and stores the new ones. The buckets of all signatures are
    read.
2.  The texts in the buckets of new texts are read, and compared here, as in SQLite.
3.  Texts that are near to none are kept, and put into their buckets.

Two processes that claim two similar texts at the same time may keep both, since neither finds the other one. This takes a
little memory, and a later near copy is compared with both.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import redis

from .base import TextMatch
from .content_values import BAND_BYTES, REF_BYTES, compare_in_order
from .redis_content import (
    CLAIM,
    COMMON,
    PREFIX,
    RedisContent,
    answer_of,
    batches,
    match_of,
    origin_words,
    texts_words,
)
from .scripting import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .base import NearAnswer, SeenText, Signature

_NEAR: Final = Script("content_near", before=COMMON)

# The number of buckets that are checked at once.
_BUCKETS_AT_ONCE: Final = 500

# A stored signature ends with the rest of the digest.
_TAIL: Final = REF_BYTES - 16


def open_content(client: redis.Redis | redis.RedisCluster, url: str, prefix: str = PREFIX) -> RedisContent:
    """The texts in a server or cluster."""
    kind = ClusterContent if isinstance(client, redis.RedisCluster) else RedisContent
    return kind(client, url, prefix)


class ClusterContent(RedisContent):
    """The :class:`~.base.ContentStore` of an open cluster."""

    def recall(self, captures: Sequence[SeenText]) -> list[TextMatch | None]:
        sources = [(capture.source,) for capture in captures if capture.source]
        digests = dict(zip(sources, self._step(b"source", sources), strict=True))
        asked = [replace(capture, digest=digests.get((capture.source,)) or b"") for capture in captures]
        matches = iter(self._ask(b"find", [capture for capture in asked if capture.digest]))
        return [cast("TextMatch | None", next(matches)) if capture.digest else None for capture in asked]

    def _ask(
        self, operation: bytes, captures: Sequence[SeenText], signatures: Sequence[Signature | None] = ()
    ) -> list[TextMatch | NearAnswer | None]:
        by_shard = self._by_shard(range(len(captures)), lambda number: captures[number].digest)
        claims = [
            (
                shard,
                (
                    operation,
                    b"%d" % len(its),
                    *texts_words([captures[number] for number in its], with_sources=False),
                ),
            )
            for shard, its in by_shard.items()
        ]
        asked = [it for it in signatures if it is not None]
        bands = [(band,) for band in dict.fromkeys(chain.from_iterable(map(_buckets, asked)))]
        searches = self._calls(b"search", bands)
        found = self._scripts.run_many(
            [*self._script_calls(CLAIM, claims), *self._script_calls(_NEAR, searches)]
        )
        answers: list[TextMatch | NearAnswer | None] = [None] * len(captures)
        for its, its_answers in zip(by_shard.values(), found[: len(claims)], strict=True):
            for number, answer in zip(its, its_answers, strict=True):
                answers[number] = answer_of(captures[number], None, answer)
        claimed: dict[bytes, SeenText] = {}
        if operation in {b"claim", b"sure"}:
            taken = [it for it, known in zip(captures, answers, strict=True) if known is None]
            # Of several captures of a text, the last one counts, as in the script.
            claimed = {it.digest: it for it in taken}
            self._step(b"note", [(it.source, it.digest) for it in taken if it.source])
        new = {
            number: it for number, it in enumerate(signatures) if it is not None and answers[number] is None
        }
        if new:
            refs = self._in_order(bands, found[len(claims) :])
            buckets = {band: ref for (band,), ref in zip(bands, refs, strict=True) if ref is not None}
            near = self._near([*new.values()], buckets, operation, claimed)
            for number, its_answer in zip(new, near, strict=True):
                answers[number] = its_answer
        return answers

    def _near(
        self,
        signatures: Sequence[Signature],
        buckets: dict[bytes, bytes],
        operation: bytes,
        claimed: dict[bytes, SeenText],
    ) -> list[NearAnswer]:
        """The near texts of new texts. If *operation* is not "find", texts that are near to none are kept.

        *claimed* are the captures that the batch has claimed, by their digests.
        """
        places = [*map(_buckets, signatures)]
        asked = [
            (ref, signature.capture)
            for signature, its_places in zip(signatures, places, strict=True)
            for ref in {buckets[place] for place in its_places if place in buckets}
        ]
        values = self._step(b"read", [(ref, *origin_words(capture)[1:]) for ref, capture in asked])
        kept: dict[bytes, tuple[bytes, bytes]] = {}
        firsts: dict[tuple[bytes, SeenText], list[Any]] = {}
        for (ref, capture), value in zip(asked, values, strict=True):
            if value is not None:
                packed, digest = value[0][:_TAIL], ref + value[0][_TAIL:]
                kept[ref] = digest, packed
                firsts[digest, capture] = value[1:]
        is_claim = operation != b"find"

        def first_capture(digest: bytes, capture: SeenText, similarity: float) -> TextMatch | None:
            if digest in claimed:
                return self._claimed_match(
                    claimed[digest], capture, similarity, pending=operation == b"claim"
                )
            if not (found := firsts.get((digest, capture))):
                return None
            first, crawl, had_this_url = found
            return match_of(digest, first, crawl, had_this_url, similarity)

        answers, new = compare_in_order(
            signatures, places, buckets, kept, _reference, first_capture, keep=is_claim
        )
        if new:
            signed = [signatures[number] for number in new]
            fills = [(band[:BAND_BYTES], _reference(it.capture.digest)) for it in signed for band in it.bands]
            keeps = [(it.capture.digest, kept[_reference(it.capture.digest)][1]) for it in signed]
            self._run_many(_NEAR, [*self._calls(b"keep", keeps), *self._calls(b"fill", fills)])
        return answers

    def _claimed_match(
        self, first: SeenText, capture: SeenText, similarity: float, *, pending: bool
    ) -> TextMatch | None:
        """The first capture of a text that the same batch has claimed, for the answer to a later *capture*."""
        had_this_url = first.url == capture.url
        if (had_this_url and pending) or self._is_forgotten(first.seen_ms, capture.seen_ms):
            return None
        return TextMatch(
            first.digest, first.url, first.crawl, first.seen_ms, had_this_url, similarity, pending=pending
        )

    def _is_forgotten(self, seen_ms: int, now_ms: int) -> bool:
        return self._lifetime_ms is not None and seen_ms + self._lifetime_ms <= now_ms

    def _forget_buckets(self, on_some: Callable[[int], None]) -> None:
        for buckets in batches(self._records(b"b"), _BUCKETS_AT_ONCE):
            refs = [*{ref for _, ref in buckets}]
            known = self._step(b"known", [(ref,) for ref in refs])
            gone = {ref for ref, is_known in zip(refs, known, strict=True) if not is_known}
            self._step(b"empty", [bucket for bucket in buckets if bucket[1] in gone])
            on_some(len(buckets))

    def _step(self, step: bytes, items: Sequence[tuple[bytes, ...]]) -> list[Any]:
        """Run a step of ``content_near.lua`` for items in the shards of their first words; the answer for each of them."""
        return self._in_order(items, self._run_many(_NEAR, self._calls(step, items)))

    def _in_order(self, items: Sequence[tuple[bytes, ...]], found: Sequence[Any]) -> list[Any]:
        numbers = self._by_shard(range(len(items)), lambda number: items[number][0])
        answers: list[Any] = [None] * len(items)
        for its, its_answers in zip(numbers.values(), found, strict=True):
            # Steps that write have no answers.
            for number, answer in zip(its, its_answers, strict=False):
                answers[number] = answer
        return answers

    def _calls(self, step: bytes, items: Sequence[tuple[bytes, ...]]) -> list[tuple[bytes, Sequence[bytes]]]:
        by_shard = self._by_shard(items, lambda item: item[0])
        return [(shard, (step, *chain.from_iterable(its))) for shard, its in by_shard.items()]


def _buckets(signature: Signature) -> list[bytes]:
    return [band[:BAND_BYTES] for band in (*signature.bands, *signature.more_bands)]


def _reference(digest: bytes) -> bytes:
    return digest[:REF_BYTES]

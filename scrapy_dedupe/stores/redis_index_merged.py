"""Rebuilding the merged index in Redis, for removal and repair.

A new ``alldupes`` is built next to the old one from the data of the crawls, in batches. Meanwhile commits, ends of
sources, concurrent crawls and removals of digests write to both. One script then replaces the old one by the new one,
forgets the removed crawls and recomputes the sums: readers see either the old index or the new one. An interruption
before this script changes nothing that readers see; the unfinished index is overwritten the next time.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, cast

from scrapy_dedupe.errors import CrawlStateError

from . import redis_index_keys as keys_of
from .index_values import digest_key, read_place, state_message
from .redis_faults import redis_faults
from .redis_index_base import state_of, text_of
from .redis_index_import import RedisImports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .base import OnDone, Original

# A process that does not renew its lease for this time has stopped; batches take a few milliseconds.
_LEASE_MS = 10_000
_POLL_S = 0.02


class RedisMerged(RedisImports):
    """The methods of :class:`~.crawl_index.CrawlIndex` for removal and repair."""

    def _cancel(self, crawl: str, on_done: OnDone | None = None) -> None:
        self._check()
        answer = self._run("index_cancel", crawl, "begin", secrets.token_hex(8))
        state = text_of(answer[0])
        if state == "done":
            return
        self._require(crawl, state, "canceled")
        token = answer[1]
        for source in self._begun():
            if source.crawl == crawl:
                self._drop(source.name, "cancel", token)
        self._release(crawl, token, on_done)
        self._run("index_cancel", crawl, "end", token)

    def purge(self, crawls: Sequence[str], on_done: OnDone | None = None) -> None:
        self._check()
        states = self._states(crawls)
        for crawl, state in states.items():
            if state == "uncommitted":
                raise CrawlStateError(state_message(crawl, state, "purged", self._url))
        for crawl, state in states.items():
            if state == "canceling":
                self._cancel(crawl)
        known = [crawl for crawl, state in states.items() if state != "unknown"]
        if known:
            self._rebuild("purged", known, "purge", *known, on_done=on_done)

    def forget_canceled(self, crawl: str) -> None:
        self._check()
        self._run("index_forget_canceled", crawl)

    def replace(self, crawl: str, by: str) -> None:
        self._check()
        replaced = self._ask("HGET", keys_of.meta(crawl), "replaced")
        states = self._states([crawl, by])
        if states[by] == "unknown" and replaced == by.encode():
            return
        for other, wanted in ((crawl, "committed"), (by, "uncommitted")):
            if states[other] != wanted:
                raise CrawlStateError(state_message(other, states[other], "replaced", self._url))
        self._rebuild("replaced", [by], "replace", crawl, by, sources={crawl: by})

    def rebuild_merged(self) -> None:
        self._check()
        self._rebuild("rebuilt", [], "rebuild")

    def merged_faults(self) -> int:
        self._check()
        crawls = sorted(self._ask("SMEMBERS", keys_of.COMMITTED))
        parts = [*(("crawl", crawl) for crawl in crawls), ("merged", ""), ("counts", "")]
        return sum(int(found) for part in parts for _, found in self._steps("index_merged_faults", *part))

    def records(self, crawl: str) -> Iterator[Original]:
        self._check()
        names: list[bytes] = []
        for _, *found in self._steps("index_records", crawl):
            shorts = [digest_key(text_of(digest)) for digest in found[::2]]
            places = self._ask("HMGET", keys_of.where(crawl), *shorts) if shorts else []
            for digest, entry, place in zip(found[::2], found[1::2], places, strict=True):
                known = read_place(place or b"")
                number = None if known is None else known[0]
                if number is not None and number >= len(names):
                    names = self._ask("ZRANGE", keys_of.files(crawl), 0, -1)
                file = b"" if number is None or number >= len(names) else names[number]
                original = self._read_original(text_of(digest), crawl, entry, place or b"", file)
                if original is not None:
                    yield original

    # Helpers

    def _states(self, crawls: Sequence[str]) -> dict[str, str]:
        with redis_faults(self._url):
            pipeline = self._client.pipeline()
            for crawl in crawls:
                pipeline.sismember(keys_of.COMMITTED, crawl)
                pipeline.sismember(keys_of.UNCOMMITTED, crawl)
                pipeline.hexists(keys_of.CANCELED, crawl)
                pipeline.hexists(keys_of.meta(crawl), "canceling")
            answers: list[Any] = pipeline.execute()
        states: dict[str, str] = {}
        for place, crawl in enumerate(crawls):
            *memberships, is_canceling = answers[4 * place : 4 * place + 4]
            state = state_of(*memberships)
            states[crawl] = "canceling" if state == "canceled" and is_canceling else state
        return states

    def _rebuild(
        self,
        action: str,
        left_out: Sequence[str],
        *words: str,
        sources: Mapping[str, str] | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        """Build the merged index without the crawls *left_out*; *words* are the operation of the last script."""
        while True:
            answer = self._rebuild_once(left_out, words, sources or {}, on_done)
            if answer[0] == b"lost":
                self._await_other()
                continue
            if answer[0] != b"ok":
                self._require(text_of(answer[1]), text_of(answer[0]), action)
            return

    def _rebuild_once(
        self,
        left_out: Sequence[str],
        words: Sequence[str],
        sources: Mapping[str, str],
        on_done: OnDone | None,
    ) -> list[bytes]:
        who = secrets.token_hex(8)
        replaced, by = next(iter(sources.items()), ("", ""))
        self._run("index_merged_begin", who, _LEASE_MS, replaced, by, *left_out)
        crawls = self._in_order_of_commit(frozenset(crawl.encode() for crawl in left_out))
        while True:
            report = self._progress([sources.get(text_of(crawl), crawl) for crawl in crawls], on_done)
            for crawl in crawls:
                origin = sources.get(text_of(crawl), crawl)
                for cursor, count in self._steps("index_merged_batch", who, _LEASE_MS, crawl, origin):
                    report(count)
                    if not cursor:
                        return [b"lost"]
            answer = cast("list[bytes]", self._run("index_merged_swap", who, *words))
            if answer[0] != b"more":
                return answer
            crawls = answer[1:]

    def _in_order_of_commit(self, left_out: frozenset[bytes]) -> list[bytes]:
        members = self._ask("SMEMBERS", keys_of.COMMITTED) - left_out
        times = {crawl: self._ask("HGET", b"dedupe:crawl:" + crawl, "committed") for crawl in members}
        others = self._ask("SUNION", keys_of.CONCURRENT, keys_of.COMMITTING)
        marked = self._ask("SMEMBERS", keys_of.MARKED)
        # A crawl that Browsertrix will remove comes last: it must not own payloads that other crawls have too.
        ordered = sorted(members, key=lambda crawl: (crawl in marked, times[crawl] or b"", crawl))
        return ordered + sorted(others - members - left_out)

    def _await_other(self) -> None:
        """Wait until another process that rebuilds the merged index has finished or has stopped."""
        while self._ask("EXISTS", keys_of.REBUILDING):
            time.sleep(_POLL_S)

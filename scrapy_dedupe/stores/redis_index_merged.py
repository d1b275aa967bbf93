"""The merged index in Redis made anew, for removal and repair.

A new ``alldupes`` is made beside the old one from what the crawls hold, batch by batch. Commits, ends of sources,
concurrent crawls and whatever takes digests out again write to both meanwhile. One script then puts the new one in the
place of the old one, forgets the crawls that are removed, and counts the sums anew: readers see the index as it was or
as it is. Whoever is cut off before that has changed nothing that readers see; what is left is overwritten next time.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, cast

from scrapy_dedupe.errors import CrawlStateError

from . import redis_index_keys as keys_of
from .index_values import digest_key, read_place, state_message
from .redis_faults import redis_faults
from .redis_index_base import SCAN_BATCH, state_of, text_of
from .redis_index_import import RedisImports
from .redis_index_keys import CANCELED, COMMITTED, COMMITTING, CONCURRENT, MARKED, REBUILDING, UNCOMMITTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .base import Original
    from .index_model import OnDone

# A process that is silent for so long has given up; batches take a few milliseconds.
_LEASE_MS = 10_000
_POLL_S = 0.02


class RedisMerged(RedisImports):
    """The part of an :class:`~.base.IndexStore` that removes and repairs."""

    def cancel(self, crawl: str, on_done: OnDone | None = None) -> None:
        """Forget an uncommitted crawl, with what was entered of sources that have not ended."""
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
        """Forget committed or canceled crawls."""
        self._check()
        states = self._states(crawls)
        for crawl, state in states.items():
            if state == "uncommitted":
                raise CrawlStateError(state_message(crawl, state, "purged", self._url))
        for crawl, state in states.items():
            if state == "canceling":
                self.cancel(crawl)
        known = [crawl for crawl, state in states.items() if state != "unknown"]
        if known:
            self._make("purged", known, "purge", *known, on_done=on_done)

    def forget_canceled(self, crawl: str) -> None:
        """Take a canceled crawl out of the list of crawls."""
        self._check()
        self._run("index_forget_canceled", crawl)

    def unfinished_purge(self) -> list[str]:
        """None: a purge takes effect and ends in one step."""
        return []

    def replace(self, crawl: str, by: str) -> None:
        """Let a committed crawl have what the uncommitted crawl ``by`` has, and forget that one."""
        self._check()
        with redis_faults(self._url):
            replaced = cast("bytes | None", self._client.hget(keys_of.meta(crawl), "replaced"))
        states = self._states([crawl, by])
        if states[by] == "unknown" and replaced == by.encode():
            return
        for other, wanted in ((crawl, "committed"), (by, "uncommitted")):
            if states[other] != wanted:
                raise CrawlStateError(state_message(other, states[other], "replaced", self._url))
        self._make("replaced", [by], "replace", crawl, by, sources={crawl: by})

    def rebuild_merged(self) -> None:
        """Make the merged index anew beside the old one, and put it in its place."""
        self._check()
        self._make("rebuilt", [], "rebuild")

    def merged_faults(self) -> int:
        """In how many places the merged index differs from what the committed crawls hold."""
        self._check()
        with redis_faults(self._url):
            committed = cast("set[bytes]", self._client.smembers(COMMITTED))
        parts: list[tuple[str, bytes]] = [("crawl", crawl) for crawl in sorted(committed)]
        parts += [("merged", b""), ("counts", b"")]
        faults = 0
        for what, crawl in parts:
            cursor = b"0"
            while True:
                cursor, found = self._run("index_merged_faults", what, crawl, cursor, SCAN_BATCH)
                faults += int(found)
                if cursor == b"0":
                    break
        return faults

    def records(self, crawl: str) -> Iterator[Original]:
        """The originals of a crawl, in batches, in no order; without those that are hidden."""
        self._check()
        names: list[bytes] = []
        cursor = b"0"
        while True:
            answer = self._run("index_records", crawl, cursor, SCAN_BATCH)
            cursor, found = answer[0], answer[1:]
            with redis_faults(self._url):
                places = cast(
                    "list[bytes | None]",
                    self._client.hmget(
                        keys_of.where(crawl), [digest_key(text_of(digest)) for digest in found[::2]]
                    )
                    if found
                    else [],
                )
            for digest, entry, place in zip(found[::2], found[1::2], places, strict=True):
                known = read_place(place or b"")
                number = None if known is None else known[0]
                if number is not None and number >= len(names):
                    with redis_faults(self._url):
                        names = cast("list[bytes]", self._client.zrange(keys_of.files(crawl), 0, -1))
                file = b"" if number is None or number >= len(names) else names[number]
                original = self._read_original(text_of(digest), crawl, entry, place or b"", file)
                if original is not None:
                    yield original
            if cursor == b"0":
                return

    # Helpers

    def _states(self, crawls: Sequence[str]) -> dict[str, str]:
        with redis_faults(self._url):
            pipeline = self._client.pipeline()
            for crawl in crawls:
                for key in (COMMITTED, UNCOMMITTED, MARKED):
                    pipeline.sismember(key, crawl)
                pipeline.hexists(CANCELED, crawl)
                pipeline.hexists(keys_of.meta(crawl), "canceling")
            answers: list[Any] = pipeline.execute()
        states: dict[str, str] = {}
        for place, crawl in enumerate(crawls):
            is_committed, is_uncommitted, is_marked, is_canceled, is_canceling = answers[
                5 * place : 5 * place + 5
            ]
            state = state_of(is_committed, is_uncommitted, is_marked or is_canceled)
            states[crawl] = "canceling" if state == "canceled" and is_canceling else state
        return states

    def _make(
        self,
        action: str,
        left_out: Sequence[str],
        what: str,
        *words: str,
        sources: Mapping[str, str] | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        while True:
            answer = self._made(left_out, what, words, sources or {}, on_done)
            if answer[0] == b"lost":
                self._await_other()
                continue
            if answer[0] != b"ok":
                self._require(text_of(answer[1]), text_of(answer[0]), action)
            return

    def _made(
        self,
        left_out: Sequence[str],
        what: str,
        words: Sequence[str],
        sources: Mapping[str, str],
        on_done: OnDone | None,
    ) -> list[bytes]:
        who = secrets.token_hex(8)
        replaced, by = next(iter(sources.items()), ("", ""))
        self._run("index_merged_begin", who, _LEASE_MS, replaced, by, *left_out)
        crawls = self._in_order_of_commit(frozenset(crawl.encode() for crawl in left_out))
        while True:
            tell = self._telling([sources.get(text_of(crawl), crawl) for crawl in crawls], on_done)
            for crawl in crawls:
                origin = sources.get(text_of(crawl), crawl)
                cursor = b"0"
                while True:
                    cursor, count = self._run(
                        "index_merged_batch", who, _LEASE_MS, crawl, origin, cursor, SCAN_BATCH
                    )
                    tell(count)
                    if cursor in (b"0", b""):
                        break
                if not cursor:
                    return [b"lost"]
            answer = cast("list[bytes]", self._run("index_merged_swap", who, what, *words))
            if answer[0] != b"more":
                return answer
            crawls = answer[1:]

    def _in_order_of_commit(self, left_out: frozenset[bytes]) -> list[bytes]:
        with redis_faults(self._url):
            members = cast("set[bytes]", self._client.smembers(COMMITTED)) - left_out
            committed = sorted(members)
            pipeline = self._client.pipeline(transaction=False)
            for crawl in committed:
                pipeline.hget(b"dedupe:crawl:" + crawl, "committed")
            times = dict(zip(committed, pipeline.execute(), strict=True))
            others = cast("set[bytes]", self._client.sunion([CONCURRENT, COMMITTING]))
            marked = cast("set[bytes]", self._client.smembers(MARKED))
        # What Browsertrix will remove is the original of what no other crawl has.
        ordered = sorted(committed, key=lambda crawl: (crawl in marked, times[crawl] or b"", crawl))
        return ordered + sorted(others - members - left_out)

    def _await_other(self) -> None:
        """Wait for another process that makes the merged index, until it has done so or is silent."""
        while True:
            with redis_faults(self._url):
                if not self._client.exists(REBUILDING):
                    return
            time.sleep(_POLL_S)

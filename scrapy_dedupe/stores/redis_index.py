"""The crawl index in Redis or Valkey, with the keys of :mod:`.redis_index_keys`.

**Commit**: the id is added to ``dedupe:committing``; the digests are added to ``alldupes`` in batches; one script then
moves the id to ``allcrawls`` and adds the counts. Therefore a crawl in ``allcrawls`` has all its digests in
``alldupes`` and its counts in ``allcounts`` exactly once, even if a process dies between two steps. Readers accept only
records of crawls in ``allcrawls`` and ``dedupe:concurrent``; the digests of the latter are added to ``alldupes`` by the
script that adds the records. **Cancel** moves the id first, removes the crawl's digests from ``alldupes``, and then
deletes the keys; ``canceling`` is kept until this has finished. **Reset** does the same with ``resetting``. Each of the
three operations has a token, and each of its steps compares it. A process that resumes an interrupted operation gets
the same token; a process that was overtaken, so that the id belongs to another crawl now, changes nothing.

**Purge** and repair build a new ``alldupes`` next to the old one from the data of the crawls, in batches. Meanwhile
commits, ends of sources, concurrent crawls and removals of digests write to both. One script then replaces the old one
by the new one, forgets the removed crawls and recomputes the sums: readers see either the old index or the new one. An
interruption before this script changes nothing that readers see; the unfinished index is overwritten the next time.

Import is in :mod:`.redis_index_base`.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import astuple
from typing import TYPE_CHECKING, cast

from scrapy_dedupe.errors import CrawlStateError

from . import redis_index_keys as keys_of
from .base import Counts, CrawlInfo, Need, Original, UrlCapture
from .index_values import (
    container_json,
    digest_key,
    need_order,
    need_text,
    read_canceled,
    read_capture,
    read_container,
    read_need,
    read_place,
    read_stats,
    software,
    state_message,
    stats_json,
    unknown_file_message,
    url_hash,
    utc_now,
)
from .redis_faults import redis_faults
from .redis_index_base import (
    FORMAT,
    RedisIndexBase,
    file_name,
    record_words,
    spellings,
    state_of,
    text_of,
    waiting_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .base import OnDone
    from .crawl_index import Addition

_CRAWLS_AT_ONCE = 100

# A process that does not renew its lease for this time has stopped; batches take a few milliseconds.
_LEASE_MS = 10_000
_POLL_S = 0.02


class RedisIndex(RedisIndexBase):
    """The crawl index on a client with ``decode_responses=False``."""

    # Crawls

    def _start(self, crawl: str, payload: str, *, concurrent: bool) -> None:
        words: list[str | int] = [crawl, payload, utc_now(), FORMAT, software(), int(concurrent)]
        words += keys_of.types(crawl)
        while True:
            answer = self._run("index_start", *words)
            if answer[0] != b"resetting":
                break
            self.reset(crawl)
        self._require_start(crawl, payload, answer, "crawled again")

    def find_plain(self, crawl: str, digests: Sequence[str], *, lasting: bool) -> list[Original | None]:
        if not digests:
            return []
        answer = self._run("index_find", crawl, int(lasting), *spellings(digests))
        return [
            None if found is None else self._original(digest, found)
            for digest, found in zip(digests, answer, strict=True)
        ]

    def _find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        if not urls:
            return []
        answer = self._run("index_find_urls", crawl, *map(url_hash, urls))
        values = answer[::2]
        captures = [
            None if value is None else read_capture(url, value, file_name(file) or None)
            for url, value, file in zip(urls, values, answer[1::2], strict=True)
        ]
        self.unreadable += captures.count(None) - values.count(None)
        return captures

    def add_plain(self, crawl: str, added: Addition) -> None:
        originals, counts, urls, needs, waiting = added
        words: list[str | bytes | int] = [
            crawl, secrets.token_bytes(8), *astuple(counts), len(originals), len(urls), len(needs)
        ]  # fmt: skip
        words += record_words(originals, urls)
        words += map(need_text, needs)
        words += waiting_words(waiting)
        self._require(crawl, text_of(self._run("index_add", *words)), "added to")

    def _add_file(self, crawl: str, name: str) -> None:
        self._note(crawl, "added to", "file", name)

    def _rename_file(self, crawl: str, old: str, new: str) -> None:
        state = text_of(self._run("index_rename_file", crawl, old, new))
        if state == "no file":
            raise CrawlStateError(unknown_file_message(crawl, old, self._url))
        self._require(crawl, state, "changed")
        # After a crash the client repeats this. A need that is added at the same time has one of the two names.
        crawls = sorted(self._ask("SUNION", keys_of.UNCOMMITTED, keys_of.COMMITTED))
        words = [need_text(Need(crawl)).split(" ")[0] + " ", f" {old}", f" {new}"]
        for first in range(0, len(crawls), _CRAWLS_AT_ONCE):
            self._run("index_rename_needs", *words, *crawls[first : first + _CRAWLS_AT_ONCE])

    def _add_container(self, crawl: str, filename: str) -> int:
        return self._note_container(crawl, filename, container_json(filename), "add")

    def _set_container(self, crawl: str, filename: str, sha256_hex: str, size: int) -> None:
        self._note_container(crawl, filename, container_json(filename, sha256_hex, size), "fill")

    def set_counts(self, crawl: str, counts: Counts) -> None:
        self._note(crawl, "recounted", "counts", *astuple(counts))

    def mark_incomplete(self, crawl: str, flag: bool) -> None:
        self._note(crawl, "marked", "incomplete" if flag else "complete")

    def reset(self, crawl: str) -> None:
        answer = self._run("index_note", crawl, "closed", secrets.token_hex(8))
        if isinstance(answer, bytes):
            self._require(crawl, text_of(answer), "reset")
        token = answer[0]
        self._release(crawl, token)
        self._note(crawl, "reset", "reset", token)

    def _commit(self, crawl: str, stats: Mapping[str, object] | None, on_done: OnDone | None) -> None:
        answer = self._run("index_commit_begin", crawl, stats_json(stats) or "", secrets.token_hex(8))
        state = text_of(answer[0])
        if state == "committed":
            return
        self._require(crawl, state, "committed")
        token, report = answer[1], self._progress([crawl], on_done)
        for _, count in self._steps("index_commit_batch", crawl, token):
            report(count)
        state = text_of(self._run("index_commit_end", crawl, token, utc_now()))
        if state != "committed":
            self._require(crawl, state, "committed")

    # Removal and repair

    def _cancel(self, crawl: str, on_done: OnDone | None = None) -> None:
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
        self._run("index_forget_canceled", crawl)

    def replace(self, crawl: str, by: str) -> None:
        replaced = self._ask("HGET", keys_of.meta(crawl), "replaced")
        states = self._states([crawl, by])
        if states[by] == "unknown" and replaced == by.encode():
            return
        for other, wanted in ((crawl, "committed"), (by, "uncommitted")):
            if states[other] != wanted:
                raise CrawlStateError(state_message(other, states[other], "replaced", self._url))
        self._rebuild("replaced", [by], "replace", crawl, by, sources={crawl: by})

    def rebuild_merged(self) -> None:
        self._rebuild("rebuilt", [], "rebuild")

    def merged_faults(self) -> int:
        crawls = sorted(self._ask("SMEMBERS", keys_of.COMMITTED))
        parts = [*(("crawl", crawl) for crawl in crawls), ("merged", ""), ("counts", "")]
        return sum(int(found) for part in parts for _, found in self._steps("index_merged_faults", *part))

    # Queries

    def records(self, crawl: str) -> Iterator[Original]:
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

    def crawls(self) -> list[CrawlInfo]:
        self._check()
        with redis_faults(self._url):
            pipeline = self._client.pipeline()
            for key in (keys_of.COMMITTED, keys_of.UNCOMMITTED, keys_of.MARKED):
                pipeline.smembers(key)
            pipeline.hgetall(keys_of.CANCELED)
            pipeline.hget(keys_of.MARK, "payload")
            committed, uncommitted, marked, canceled, payload = pipeline.execute()
            states = {
                text_of(crawl): state_of(crawl in committed, crawl in uncommitted, True)
                for crawl in (*committed, *uncommitted, *canceled)
            }
            ended = {text_of(crawl): read_canceled(text_of(value)) for crawl, value in canceled.items()}
            marked = {text_of(crawl) for crawl in marked}
            pipeline = self._client.pipeline(transaction=False)
            for crawl in states:
                pipeline.hgetall(keys_of.meta(crawl))
                pipeline.hmget(keys_of.counts(crawl), keys_of.COUNTS)
                pipeline.zrange(keys_of.files(crawl), 0, -1)
                pipeline.hkeys(keys_of.hidden(crawl))
                pipeline.hlen(keys_of.waiting(crawl))
            answers = pipeline.execute()
        # Crawls without a mode are Browsertrix's. If all were canceled, nothing shows which program made them.
        has_any = "uncommitted" in states.values() or "committed" in states.values()
        mode = text_of(payload) if payload else "decoded" if has_any else "stored"
        crawls = []
        for place, (crawl, state) in enumerate(states.items()):
            raw, counts, names, hidden, waiting = answers[5 * place : 5 * place + 5]
            meta = {text_of(name): text_of(value) for name, value in raw.items()}
            if state == "canceled":
                meta |= ended.get(crawl, {})
            crawls.append(
                CrawlInfo(
                    id=crawl,
                    state=state,
                    payload=mode,
                    started=meta.get("started"),
                    committed=meta.get("committed"),
                    counts=self._read_counts(counts),
                    files=tuple(dict.fromkeys(file_name(name) for name in names if name not in hidden)),
                    stats=read_stats(meta.get("stats")),
                    incomplete="incomplete" in meta,
                    software=meta.get("software"),
                    imported="imported" in meta,
                    concurrent="concurrent" in meta,
                    waiting=waiting,
                    marked=state == "committed" and crawl in marked,
                )
            )
        return sorted(crawls, key=lambda info: (info.started or "", info.id))

    @property
    def counts(self) -> Counts:
        return self._read_counts(self._ask("HMGET", keys_of.TOTALS, *keys_of.COUNTS))

    def containers(self, crawl: str) -> list[dict[str, object]]:
        found = [read_container(item) for item in self._ask("LRANGE", keys_of.wacz(crawl), 0, -1)]
        self.unreadable += found.count(None)
        return [container or {} for container in found]

    def needs(self, crawl: str) -> list[Need]:
        found = [read_need(value) for value in self._ask("SMEMBERS", keys_of.needs(crawl))]
        self.unreadable += found.count(None)
        return sorted((need for need in found if need is not None), key=need_order)

    # Helpers

    def _note(self, crawl: str, action: str, *words: str | bytes | int) -> None:
        self._require(crawl, text_of(self._run("index_note", crawl, *words)), action)

    def _note_container(self, crawl: str, filename: str, text: str, how: str) -> int:
        answer = self._run("index_container", crawl, filename, text, how)
        if not isinstance(answer, int):
            self._require(crawl, text_of(answer), "added to")
        return int(answer)

    def _rebuild(
        self,
        action: str,
        left_out: Sequence[str],
        *words: str,
        sources: Mapping[str, str] | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        """Build the merged index without the crawls *left_out*; *words* are the operation of the last script."""
        while (answer := self._rebuild_once(left_out, words, sources or {}, on_done))[0] == b"lost":
            # Another process rebuilds the merged index: wait until it has finished or has stopped.
            while self._ask("EXISTS", keys_of.REBUILDING):
                time.sleep(_POLL_S)
        if answer[0] != b"ok":
            self._require(text_of(answer[1]), text_of(answer[0]), action)

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

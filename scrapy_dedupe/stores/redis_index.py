"""The crawl index in Redis or Valkey, with the keys of :mod:`.redis_index_keys`.

**Commit**: the id is added to ``dedupe:committing``; the digests are added to ``alldupes`` in batches; one script then
moves the id to ``allcrawls`` and adds the counts. Therefore a crawl in ``allcrawls`` has all its digests in
``alldupes`` and its counts in ``allcounts`` exactly once, even if a process dies between two steps. Readers accept only
records of crawls in ``allcrawls`` and ``dedupe:concurrent``; the digests of the latter are added to ``alldupes`` by the
script that adds the records. **Cancel** moves the id first, removes the crawl's digests from ``alldupes``, and then
deletes the keys; ``canceling`` is kept until this has finished. **Reset** does the same with ``resetting``. Each of the
three operations has a token, and each of its steps compares it. A process that resumes an interrupted operation gets
the same token; a process that was overtaken, so that the id belongs to another crawl now, changes nothing.

Import is in :mod:`.redis_index_import`, removal and repair in :mod:`.redis_index_merged`.
"""

from __future__ import annotations

import secrets
from dataclasses import astuple
from itertools import chain
from typing import TYPE_CHECKING, cast

from scrapy_dedupe.errors import CrawlStateError

from . import redis_index_keys as keys_of
from .base import Counts, CrawlInfo, Need, Original, UrlCapture, Waiting
from .index_values import (
    container_json,
    need_order,
    need_text,
    packed_capture,
    read_canceled,
    read_capture,
    read_container,
    read_need,
    read_stats,
    software,
    stats_json,
    unknown_file_message,
    url_hash,
    utc_now,
)
from .redis_faults import redis_faults
from .redis_index_base import FORMAT, file_name, record_words, spellings, state_of, text_of
from .redis_index_import import waiting_sizes
from .redis_index_merged import RedisMerged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .index_model import OnDone

_CRAWLS_AT_ONCE = 100


class RedisIndex(RedisMerged):
    """The crawl index on a client with ``decode_responses=False``."""

    # Crawls

    def _start(self, crawl: str, payload: str, *, concurrent: bool) -> None:
        keys = chain.from_iterable(keys_of.types(crawl).items())
        words: list[str | int] = [crawl, payload, utc_now(), FORMAT, software(), int(concurrent), *keys]
        while True:
            answer = self._run("index_start", *words)
            if answer[0] != b"resetting":
                break
            self.reset(crawl)
        self._require_start(crawl, payload, answer, "crawled again")

    def find_plain(self, crawl: str, digests: Sequence[str], *, lasting: bool) -> list[Original | None]:
        if not digests:
            return []
        self._check()
        answer = self._run("index_find", crawl, int(lasting), *spellings(digests))
        return [
            None if found is None else self._original(digest, found)
            for digest, found in zip(digests, answer, strict=True)
        ]

    def _find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        if not urls:
            return []
        self._check()
        answer = self._run("index_find_urls", crawl, *map(url_hash, urls))
        captures = [
            None if value is None else read_capture(url, value)
            for url, value in zip(urls, answer, strict=True)
        ]
        self.unreadable += captures.count(None) - answer.count(None)
        return captures

    def add_plain(
        self,
        crawl: str,
        originals: Sequence[Original],
        counts: Counts | None = None,
        urls: Sequence[UrlCapture] = (),
        needs: Sequence[Need] = (),
        waiting: Sequence[Waiting] = (),
    ) -> None:
        self._check()
        words: list[str | bytes | int] = [
            crawl, secrets.token_bytes(8), *astuple(counts or Counts()), len(originals), len(urls), len(needs)
        ]  # fmt: skip
        for original in originals:
            words += record_words(original)
        for capture in urls:
            words += (url_hash(capture.url), packed_capture(capture))
        words += map(need_text, needs)
        words += chain.from_iterable(waiting_sizes(waiting))
        self._require(crawl, text_of(self._run("index_add", *words)), "added to")

    def _add_file(self, crawl: str, name: str) -> None:
        self._note(crawl, "added to", "file", name)

    def _rename_file(self, crawl: str, old: str, new: str) -> None:
        self._check()
        state = text_of(self._run("index_rename_file", crawl, old, new))
        if state == "no file":
            raise CrawlStateError(unknown_file_message(crawl, old, self._url))
        self._require(crawl, state, "changed")
        # After a crash the client repeats this. A need that is added at the same time has one of the two names.
        with redis_faults(self._url):
            crawls = sorted(cast("set[bytes]", self._client.sunion([keys_of.UNCOMMITTED, keys_of.COMMITTED])))
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
        self._check()
        answer = self._run("index_note", crawl, "closed", secrets.token_hex(8))
        if isinstance(answer, bytes):
            self._require(crawl, text_of(answer), "reset")
        token = answer[0]
        self._release(crawl, token)
        self._note(crawl, "reset", "reset", token)

    def _commit(self, crawl: str, stats: Mapping[str, object] | None, on_done: OnDone | None) -> None:
        self._check()
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

    # Queries

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
                for crawl in (*committed, *uncommitted, *marked, *canceled)
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
        self._check()
        with redis_faults(self._url):
            counts = cast("list[bytes | None]", self._client.hmget(keys_of.TOTALS, keys_of.COUNTS))
        return self._read_counts(counts)

    def containers(self, crawl: str) -> list[dict[str, object]]:
        self._check()
        with redis_faults(self._url):
            items = cast("list[bytes]", self._client.lrange(keys_of.wacz(crawl), 0, -1))
        found = [read_container(item) for item in items]
        self.unreadable += found.count(None)
        return [container or {} for container in found]

    def needs(self, crawl: str) -> list[Need]:
        self._check()
        with redis_faults(self._url):
            values = cast("set[bytes]", self._client.smembers(keys_of.needs(crawl)))
        found = [read_need(value) for value in values]
        self.unreadable += found.count(None)
        return sorted((need for need in found if need is not None), key=need_order)

    # Helpers

    def _note(self, crawl: str, action: str, *words: str | bytes | int) -> None:
        self._check()
        self._require(crawl, text_of(self._run("index_note", crawl, *words)), action)

    def _note_container(self, crawl: str, filename: str, text: str, how: str) -> int:
        self._check()
        answer = self._run("index_container", crawl, filename, text, how)
        if not isinstance(answer, int):
            self._require(crawl, text_of(answer), "added to")
        return int(answer)

"""Import into the crawl index in Redis: the queue, sources, and waiting revisits.

The records of a source are added directly to the keys of its crawl. They are hidden while the source is in
``dedupe:begun``: readers of other crawls skip the digests in its ``dedupe:entered``. **Ending** a source adds its
digests to ``alldupes`` in batches; one script then removes the source from ``dedupe:begun``, commits its crawl and adds
its counts. Therefore either all records of a source are in the index and its counts in the sums exactly once, or
nothing, even if a process dies between two steps. **Dropping** a source removes the same digests again, and forgets the
source when none is left. Each script compares the token of the claim, so that a process whose claim has expired changes
nothing that another process has begun since.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import astuple, replace
from itertools import islice
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError, StoreRefused, TakenOver

from . import redis_index_keys as keys_of
from .base import Counts, ImportNotes, Need, Original, Source, UrlCapture, Waiting
from .crawl_index import plain_waiting
from .index_values import (
    container_json,
    digest_key,
    need_text,
    other_spelling,
    payload_message,
    read_source,
    software,
    source_json,
    state_message,
    twice_message,
    utc_now,
)
from .redis_faults import redis_faults
from .redis_index_base import (
    FORMAT,
    SCAN_BATCH,
    RedisIndexBase,
    record_words,
    spellings,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class RedisImports(RedisIndexBase):
    """The methods of :class:`~.crawl_index.CrawlIndex` for imports."""

    # The queue

    def _queue_sources(self, sources: Sequence[Source]) -> int:
        added = 0
        for first in range(0, len(sources), SCAN_BATCH):
            words: list[str] = []
            for source in sources[first : first + SCAN_BATCH]:
                words += (source.name, source_json(source))
            answer = self._run("index_queue", "queue", *words)
            if not isinstance(answer, int):
                self._refuse_type(answer)
            added += answer
        return added

    def claim_source(self, lease_s: float = 300.0) -> Source | None:
        token = secrets.token_hex(8)
        while answer := self._run("index_queue", "claim", _milliseconds(lease_s), token):
            if len(answer) > 2:
                self._refuse_type(answer)
            if len(answer) == 1 and (source := read_source(answer[0])) is not None:
                return replace(source, token=token)
            self._run("index_queue", "drop", answer[0])
            self.unreadable += 1
        return None

    def renew_lease(self, source: Source, lease_s: float = 300.0) -> None:
        state = self._run("index_queue", "renew", source.name, source.token, _milliseconds(lease_s))
        self._require_source(source, state, "imported into")

    def release_source(self, source: Source) -> None:
        state = self._run("index_queue", "release", source.name, source.token)
        self._require_source(source, state, "imported into")

    def queue_length(self) -> tuple[int, int]:
        return self._ask("LLEN", keys_of.QUEUE), self._ask("LLEN", keys_of.CLAIMED)

    def done_sources(self, names: Sequence[str]) -> list[bool]:
        with redis_faults(self._url):
            pipeline = self._client.pipeline(transaction=False)
            for name in names:
                pipeline.sismember(keys_of.DONE_SOURCES, name)
            return [bool(answer) for answer in pipeline.execute()]

    # Sources

    def _begin_source(self, source: Source, payload: str) -> int:
        container = container_json(source.name) if source.is_container else ""
        while True:
            answer = self._run(
                "index_source_begin", source.crawl, source.name, source_json(source), payload, utc_now(), FORMAT,
                software(), container, source.token, *keys_of.types(source.crawl, source.name),
            )  # fmt: skip
            if answer[0] != b"leftover":
                break
            self.drop_source(source)
        if answer[0] == b"taken":
            self._require_source(source, answer[0], "imported into")
        if answer[0] in (b"payload", b"foreign"):
            raise StoreRefused(payload_message(source.name, payload, text_of(answer[1]), self._url))
        if answer[0] == b"done":
            raise CrawlStateError(twice_message(source, self._url))
        self._require_start(
            source.crawl, payload, answer[:1] if answer[0] == b"ok" else answer, "imported into"
        )
        return int(answer[1])

    def _add_imported(
        self, source: Source, originals: Sequence[Original], urls: Sequence[UrlCapture], files: Sequence[str]
    ) -> None:
        words: list[str | bytes | int] = [
            source.crawl,
            source.name,
            source.token,
            len(files) + len(originals),
        ]
        for name in files:
            words += ("", "", "", name, "")
        words += record_words(originals, urls)
        self._require_source(source, self._run("index_source_add", *words))

    def _end_source(
        self, source: Source, counts: Counts, needs: Sequence[Need], waiting: Iterable[Waiting]
    ) -> None:
        owner = (source.crawl, source.name, source.token)
        state = b"again"
        while state == b"again":
            state, *_ = self._run("index_source_ending", *owner)
            if state != b"ok":
                break
            rest, batches = iter(waiting), 0
            while batch := plain_waiting(islice(rest, SCAN_BATCH)):
                batches += 1
                self._run("index_source_stage", *owner, batches, *waiting_words(batch))
            for _ in self._steps("index_source_spare", *owner):
                pass
            entered = self._ask("SCARD", keys_of.entered(source.name))
            for _ in self._steps("index_source_enter", *owner):
                pass
            container = container_json(source.name, source.hash, source.size) if source.is_container else ""
            state = self._run(
                "index_source_end", source.crawl, source.name, *astuple(counts), entered, container, utc_now(),
                source.token, batches, *map(need_text, needs),
            )  # fmt: skip
        if state != b"done":
            self._require_source(source, state)
        self._merge_source(source.name)

    def drop_source(self, source: Source) -> None:
        state = self._drop(source.name, "owner", source.token)
        self._require_source(source, state, "imported into")

    def unfinished_sources(self) -> list[Source]:
        found = self._begun()
        states = self._states([source.crawl for source in found])
        # Sources of a crawl whose cancellation was interrupted are being forgotten.
        return [source for source in found if states[source.crawl] in ("committed", "uncommitted")]

    # Waiting revisits

    def resolve(self) -> int:
        for name in self._ask("HKEYS", keys_of.MERGING):
            self._merge_source(text_of(name))
        waiters = sorted(self._ask("SMEMBERS", keys_of.WAITERS))
        resolved = sum(self._resolve_crawl(text_of(crawl)) for crawl in waiters)
        return resolved + self._resolve_revs()

    @property
    def import_notes(self) -> ImportNotes:
        names = ("updateProgress", "removedCrawls", "removedCrawlSize")
        progress, crawls, size = self._ask("HMGET", keys_of.TOTALS, *names)
        finished = self._ask("GET", keys_of.LAST_IMPORT)
        return ImportNotes(
            self._read_float(progress),
            None if finished is None else text_of(finished),
            int(self._read_float(crawls) or 0),
            int(self._read_float(size) or 0),
        )

    def note_imports(self, notes: ImportNotes) -> None:
        with redis_faults(self._url):
            last = self._client.get(keys_of.LAST_IMPORT)
            # If another program has imported since the last scan, its revisits must still be scanned.
            was_scanned = last is None or last == self._client.hget(keys_of.MARK, "scanned")
            pipeline = self._client.pipeline()
            if notes.progress is None:
                pipeline.hdel(keys_of.TOTALS, "updateProgress")
            else:
                pipeline.hset(keys_of.TOTALS, "updateProgress", f"{notes.progress:g}")
            pipeline.hset(
                keys_of.TOTALS,
                mapping={"removedCrawls": notes.removed_crawls, "removedCrawlSize": notes.removed_size},
            )
            if notes.finished is None:
                pipeline.delete(keys_of.LAST_IMPORT)
            else:
                pipeline.set(keys_of.LAST_IMPORT, notes.finished)
                if was_scanned:
                    pipeline.hset(keys_of.MARK, "scanned", notes.finished)
            pipeline.execute()

    # Helpers

    def _require_source(self, source: Source, state: bytes, action: str = "added to") -> None:
        if state == b"taken":
            raise TakenOver(state_message(source.crawl, "taken", action, self._url))
        self._require(source.crawl, text_of(state), action)

    def _begun(self) -> list[Source]:
        found = []
        for value in self._ask("HGETALL", keys_of.BEGUN).values():
            token, brace, text = value[2:].partition(b"{")
            source = read_source(brace + text)
            if source is None:
                self.unreadable += 1
            else:
                found.append(replace(source, token=text_of(token)))
        return sorted(found, key=lambda source: source.name)

    def _drop(self, name: str, who: str, token: str | bytes) -> bytes:
        """Forget a source, as its owner or while canceling its crawl; ``taken`` if it belongs to another process."""
        answer = self._run("index_source_drop", name, "begin", who, token)
        if answer == [b"", b"taken"]:
            return b"taken"
        while answer:
            crawl = answer[0]
            for digests in self._scanned("SSCAN", keys_of.entered(name)):
                while digests:
                    words = [word for digest in digests for word in (digest, digest_key(text_of(digest)))]
                    taken_out = self._run("index_source_drop", name, "part", crawl, *words)
                    if not taken_out:
                        break
                    digests = digests[int(taken_out[1]) :]
            answer = self._run("index_source_drop", name, "end")
            if answer != [b"again"]:
                break
            answer = [crawl]
        return b"ok"

    def _merge_source(self, name: str) -> None:
        while self._ask("HEXISTS", keys_of.MERGING, name):
            for kind in ("newurls", "newwaits"):
                for _ in self._steps("index_source_merge", name, kind):
                    pass

    def _resolve_crawl(self, crawl: str) -> int:
        return sum(
            int(self._run("index_resolve", crawl, *spellings(map(text_of, digests))))
            for digests in self._scanned("HSCAN", keys_of.waiting(crawl))
        )

    def _resolve_revs(self) -> int:
        """Resolve the revisits that Browsertrix's importer recorded; scans for its keys once after each of its imports."""
        finished = self._ask("GET", keys_of.LAST_IMPORT)
        if finished is not None and finished != self._ask("HGET", keys_of.MARK, "scanned"):
            with redis_faults(self._url):
                for key in self._client.scan_iter(match=b"rev:*:c", count=SCAN_BATCH):
                    self._client.sadd(keys_of.REVS, key[len(b"rev:") : -len(b":c")])
            self._ask("HSET", keys_of.MARK, "scanned", finished)
        resolved = 0
        for label in sorted(self._ask("SMEMBERS", keys_of.REVS)):
            bare = text_of(label).rpartition(":")[2]
            other = other_spelling(bare)
            ways: Iterable[str] = (bare,) if other is None else (bare, other)
            resolved += int(self._run("index_resolve_revs", label, *ways))
        return resolved

    def _read_float(self, value: bytes | None) -> float | None:
        try:
            return None if value is None else float(value)
        except ValueError:
            self.unreadable += 1
            return None


def waiting_words(waiting: Sequence[Waiting]) -> Iterator[str]:
    """The arguments of a script for waiting revisits: each digest, and their sizes as ``SIZE:COUNT,...``."""
    sizes: dict[str, Counter[int]] = {}
    for revisit in waiting:
        sizes.setdefault(revisit.digest, Counter())[revisit.size] += 1
    for digest, found in sizes.items():
        yield digest
        yield ",".join(f"{size}:{count}" for size, count in found.items())


def _milliseconds(lease_s: float) -> int:
    return max(1, round(lease_s * 1000))

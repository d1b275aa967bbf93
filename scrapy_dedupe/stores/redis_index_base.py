"""Shared parts of the crawl index in Redis: calls of scripts, the interpretation of their answers, and imports.

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
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, cast

from scrapy_dedupe.errors import CrawlStateError, StoreRefused, TakenOver

from . import redis_index_keys as keys_of
from .base import Counts, ImportNotes, Need, Original, Source, UrlCapture, Waiting
from .crawl_index import CrawlIndex
from .index_values import (
    container_json,
    digest_key,
    entry_text,
    need_text,
    other_spelling,
    packed_capture,
    packed_digest,
    packed_place,
    payload_message,
    payload_mode_message,
    read_details,
    read_entry,
    read_number,
    read_place,
    read_source,
    software,
    source_json,
    state_message,
    twice_message,
    url_hash,
    utc_now,
)
from .redis_faults import redis_faults
from .scripting import Script, ScriptCaller, script_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import redis

    from .base import OnDone

FORMAT = 2

# A batch blocks the server for one or two milliseconds; releasing may have to query every other crawl.
SCAN_BATCH = 1_000
RELEASE_BATCH = 200

_KEY = keys_of.MARK.encode()

# The first byte of a packed digest in Base32 (see index_values).
_BASE32_MARK = b"\x20"

# Scripts that only read.
_READ_ONLY = frozenset({"index_find_urls", "index_records"})
# This script is called for a single digest at a time, so that even defining the common functions would take a
# noticeable time: it defines them only when it needs them.
_LAZY = "index_find"
# These scripts check the format and the types of all keys before they change anything.
_CHECK_THEMSELVES = frozenset({"index_start", "index_source_begin"})


@cache
def index_script(name: str) -> Script:
    """The script ``scripts/NAME.lua``, preceded by the code that all scripts of the crawl index share."""
    common = script_text("index_common")
    if name == _LAZY:
        common = b"local function helpers()\n" + common + b"return merged\nend\n"
    elif name not in _READ_ONLY:
        common += script_text("index_changes")
    return Script(name, common)


class RedisIndexBase(CrawlIndex):
    """The methods of :class:`~.crawl_index.CrawlIndex` for imports, and shared helpers."""

    def __init__(self, client: redis.Redis, url: str) -> None:
        super().__init__(url)
        self._client = client
        self._is_checked = False
        self._scripts = ScriptCaller(client, url)

    def release_connection(self) -> None:
        """Return the connection of the scripts to the pool."""
        self._scripts.close()

    def _run(self, name: str, *arguments: str | bytes | int) -> Any:
        if not self._is_checked and name not in _CHECK_THEMSELVES:
            self._check()
        return self._scripts.run(
            index_script(name),
            _KEY,
            *[word if isinstance(word, bytes) else str(word).encode() for word in arguments],
        )

    def _ask(self, command: str, *words: str | bytes | int) -> Any:
        """The answer of the server to a single command, as redis-py parses it."""
        self._check()
        with redis_faults(self._url):
            return self._client.execute_command(command, *words)

    def _steps(self, name: str, *arguments: str | bytes | int, at_once: int = SCAN_BATCH) -> Iterator[Any]:
        """Call a script until it has finished, and yield its answers.

        An answer is, or starts with, the cursor for the next call: 0 at the end, and empty if the token of the
        operation is no longer valid.
        """
        cursor = b"0"
        while True:
            answer = self._run(name, *arguments, cursor, at_once)
            yield answer
            cursor = answer if isinstance(answer, bytes) else answer[0]
            if cursor in (b"0", b""):
                return
            # The "+" means that the server has not yet processed all digests at this cursor.
            cursor = cursor.removesuffix(b"+")

    def _scanned(self, command: str, key: str) -> Iterator[Any]:
        """The batches of members of a key, with ``SSCAN`` or ``HSCAN``."""
        cursor = b"0"
        while True:
            following, found = self._ask(command, key, cursor, "COUNT", RELEASE_BATCH)
            yield found
            # redis-py 5 converts it to a number.
            cursor = b"%d" % int(following)
            if cursor == b"0":
                return

    def _check(self) -> None:
        """Raise StoreRefused if the format of the index is unknown; checked once per open index."""
        if self._is_checked:
            return
        with redis_faults(self._url):
            found = cast("bytes | None", self._client.hget(keys_of.MARK, "format"))
        if found is not None and found != str(FORMAT).encode():
            self._refuse_format(text_of(found))
        self._is_checked = True

    def _refuse_format(self, found: str) -> None:
        is_older = found.isdigit() and len(found) < 10 and int(found) < FORMAT
        remedy = "Use" if is_older else "Upgrade scrapy-dedupe, or use"
        raise StoreRefused(
            f"The index {self._url} has format {found}; this version of scrapy-dedupe reads format {FORMAT}."
            f" {remedy} another index (DEDUPE_INDEX_URL)."
        )

    def _refuse_type(self, answer: Sequence[bytes]) -> NoReturn:
        _, key, found, expected = map(text_of, answer)
        raise StoreRefused(
            f"The key {key} in the index {self._url} is a {found}, not a {expected}: it was not written by"
            " scrapy-dedupe or Browsertrix. It was left unchanged; use another database number in the URL."
        )

    def _require(self, crawl: str, state: str, action: str) -> None:
        if state != "ok":
            raise CrawlStateError(state_message(crawl, state, action, self._url))

    def _require_start(self, crawl: str, payload: str, answer: Sequence[bytes], action: str) -> None:
        """Raise the exception for the answer of a script that begins a crawl or a source."""
        state, *more = (text_of(word) if isinstance(word, bytes) else str(word) for word in answer)
        if state == "type":
            self._refuse_type(answer)
        if state == "newer":
            self._refuse_format(more[0])
        if state in ("payload", "foreign"):
            index = f"{self._url} was made by Browsertrix and" if state == "foreign" else self._url
            raise StoreRefused(payload_mode_message(payload, more[0], index))
        self._require(crawl, state, action)
        self._is_checked = True

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

    def _progress(self, crawls: Iterable[str | bytes], on_done: OnDone | None) -> Callable[[int], None]:
        """Return a function that counts finished records of *crawls* and reports the progress to *on_done*."""
        if on_done is None:
            return lambda count: None
        with redis_faults(self._url):
            pipeline = self._client.pipeline(transaction=False)
            for crawl in crawls:
                pipeline.hlen(b"h:" + (crawl if isinstance(crawl, bytes) else crawl.encode()))
            total = sum(pipeline.execute())
        done = 0

        def report(count: int) -> None:
            nonlocal done
            done += count
            on_done("records", done, total)

        return report

    def _release(self, crawl: str, token: bytes, on_done: OnDone | None = None) -> None:
        report = self._progress([crawl], on_done)
        for _, count in self._steps("index_release", crawl, token, at_once=RELEASE_BATCH):
            report(count)

    def _original(self, digest: str, found: bytes) -> Original | None:
        """The original that a script found for a digest; None, and counted as unreadable, if it cannot be parsed."""
        try:
            crawl, entry, length, rest = found.split(b"\0", 3)
            size_of_place = int(length)
        except ValueError:
            self.unreadable += 1
            return None
        return self._read_original(digest, text_of(crawl), entry, rest[:size_of_place], rest[size_of_place:])

    def _read_original(
        self, digest: str, crawl: str, entry: bytes, place: bytes, file: bytes
    ) -> Original | None:
        parts = read_entry(entry)
        if parts is None:
            self.unreadable += 1
            return None
        wacz_index, date, url, size = parts
        known = read_place(place) if place else None
        if known is None:
            self.unreadable += bool(place)
            return Original(digest, crawl, date, url, size, wacz_index)
        _, offset, details = known
        record_id, status, form = read_details(details)
        name = file_name(file) or None
        return Original(digest, crawl, date, url, size, wacz_index, record_id, name, offset, status, form)

    def _read_counts(self, values: Sequence[bytes | None]) -> Counts:
        numbers = [0 if value is None else read_number(value) for value in values]
        self.unreadable += numbers.count(None)
        return Counts(*(number or 0 for number in numbers))

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
            while batch := list(islice(rest, SCAN_BATCH)):
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
        resolved = sum(
            int(self._run("index_resolve", crawl, *spellings(map(text_of, digests))))
            for crawl in map(text_of, waiters)
            for digests in self._scanned("HSCAN", keys_of.waiting(crawl))
        )
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


def spellings(digests: Iterable[str]) -> list[str | bytes]:
    """For each digest: itself, its short form, its other spelling, and the short form of the other spelling."""
    words: list[str | bytes] = []
    for digest in digests:
        # The short form of the other spelling follows from that of this one; decoding Base32 again would take longer
        # than the round trip.
        packed = packed_digest(digest)
        other = other_spelling(digest)
        if other is None:
            words += (digest, digest_key(digest), b"", b"")
        elif packed[:1] == _BASE32_MARK and len(digest) < len(other):
            words += (digest, packed[:16], other, packed[1:17])
        else:
            words += (digest, packed[:16], other, (_BASE32_MARK + packed)[:16])
    return words


def state_of(is_committed: object, is_uncommitted: object, is_canceled: object) -> str:
    """The state of a crawl from its memberships in sets; the same as ``state_of`` in ``index_common.lua``."""
    if is_committed:
        return "committed"
    if is_uncommitted:
        return "uncommitted"
    return "canceled" if is_canceled else "unknown"


def record_words(originals: Iterable[Original], urls: Iterable[UrlCapture]) -> list[str | bytes]:
    """The arguments of a script for records and captures of URLs to add."""
    words: list[str | bytes] = []
    for original in originals:
        words += (
            original.digest, digest_key(original.digest), entry_text(original), original.file or "",
            packed_place(original),
        )  # fmt: skip
    for capture in urls:
        words += (url_hash(capture.url), packed_capture(capture), capture.file or "")
    return words


def file_name(member: bytes) -> str:
    """The name of a WARC file from its member of the sorted set."""
    return text_of(member.partition(b"\0")[0])


def text_of(value: bytes) -> str:
    """Text for messages. Ids and names of other programs may contain any bytes; the result is never looked up."""
    return value.decode("utf-8", "backslashreplace")


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

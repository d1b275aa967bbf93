"""Shared parts of the crawl index in Redis: calls of scripts, and the interpretation of their answers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, cast

from scrapy_dedupe.errors import CrawlStateError, StoreRefused

from . import redis_index_keys as keys_of
from .base import Counts, Original
from .crawl_index import CrawlIndex
from .index_values import (
    digest_key,
    entry_text,
    other_spelling,
    packed_capture,
    packed_digest,
    packed_place,
    payload_mode_message,
    read_details,
    read_entry,
    read_number,
    read_place,
    state_message,
    url_hash,
)
from .redis_faults import redis_faults
from .scripting import Script, ScriptCaller, script_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import redis

    from .base import OnDone, UrlCapture

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
    """The methods that the other Redis classes of the index share."""

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

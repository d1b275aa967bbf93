"""The crawl index in Redis or Valkey, on the keys of :mod:`.redis_index_keys`.

**Commit**: the id goes into ``dedupe:committing``; the digests go into ``alldupes`` batch by batch; one script
then moves the id to ``allcrawls`` and adds the counts. A crawl that is in ``allcrawls`` therefore has all its
digests in ``alldupes`` and its counts in ``allcounts`` exactly once, at whatever step a process dies. Readers
accept records of crawls in ``allcrawls`` alone. **Cancel** moves the id first, takes back what a commit
that was cut off may have entered, and then forgets the keys; ``canceling`` stays until that is finished.
"""

from __future__ import annotations

import secrets
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from scrapy_dedupe.errors import CrawlStateError, StoreRefused

from . import redis_index_keys as keys_of
from .base import Counts, CrawlInfo, Need, Original, UrlCapture
from .faults import redis_faults
from .index_values import (
    container_json,
    digest_key,
    entry_text,
    need_order,
    need_text,
    packed_capture,
    packed_place,
    read_capture,
    read_container,
    read_entry,
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
from .redis_index_keys import (
    CANCELED,
    COMMITTED,
    COMMITTING,
    COUNTS,
    DONE_SOURCES,
    DUPES,
    MARK,
    TOTALS,
    UNCOMMITTED,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import redis

FORMAT = 1

# A batch holds the server for about a millisecond; releasing may have to ask every other crawl.
_COMMIT_BATCH = 1_000
_RELEASE_BATCH = 200
_CRAWLS_AT_ONCE = 100


class RedisIndex:
    """An :class:`~.base.IndexStore` on a client with ``decode_responses=False``.

    ``unreadable`` counts the stored values that were passed over because they do not parse.
    """

    def __init__(self, client: redis.Redis, url: str) -> None:
        self._client = client
        self._url = url
        self._is_checked = False
        self._scripts: dict[str, Any] = {}
        self.unreadable = 0

    # Life of a crawl

    def start(self, crawl: str, payload: str) -> None:
        """Begin a crawl, or go on with one that is not committed."""
        types = keys_of.types(crawl)
        arguments = [crawl, payload, utc_now(), FORMAT, software(), *types.values()]
        answer = [_text(word) for word in self._run("index_start", list(types), arguments)]
        if answer[0] == "type":
            raise StoreRefused(
                f"The key {answer[1]} in the index {self._url} is a {answer[2]}, not a {answer[3]}: it is not"
                " ours. It was left as it is; use another database number in the URL."
            )
        if answer[0] == "newer":
            self._refuse_format(answer[1])
        if answer[0] in ("payload", "foreign"):
            whose = "was made by Browsertrix and " if answer[0] == "foreign" else ""
            raise StoreRefused(
                f"The index {self._url} {whose}holds digests of {answer[1]} payloads, this crawl makes those of"
                f' {payload} ones. Set DEDUPE_PAYLOAD = "{answer[1]}", or use another index (DEDUPE_INDEX_URL).'
            )
        self._require(crawl, answer[0], "crawled again")
        self._is_checked = True

    def find(self, crawl: str, digests: Sequence[str]) -> list[Original | None]:
        """Look up payloads: in the crawl itself first, then in committed crawls. In one round trip."""
        if not digests:
            return []
        self._check()
        arguments: list[str | bytes] = [crawl]
        for digest in digests:
            arguments += (digest, digest_key(digest))
        keys = [keys_of.records(crawl), DUPES, COMMITTED, UNCOMMITTED, CANCELED]
        answer = self._run("index_find", keys, arguments)
        return [
            None if found is None else self._original(digest, found)
            for digest, found in zip(digests, answer, strict=True)
        ]

    def find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        """Look up URLs: in the crawl itself first, else the latest capture of the committed crawls."""
        if not urls:
            return []
        self._check()
        answer = self._run(
            "index_find_urls", [keys_of.urls(crawl), COMMITTED], [url_hash(url) for url in urls]
        )
        captures = [
            None if value is None else read_capture(url, value)
            for url, value in zip(urls, answer, strict=True)
        ]
        self.unreadable += captures.count(None) - answer.count(None)
        return captures

    def add(
        self,
        crawl: str,
        originals: Sequence[Original],
        counts: Counts,
        urls: Sequence[UrlCapture] = (),
        needs: Sequence[Need] = (),
    ) -> None:
        """Enter records that are on disk, URLs and needs, and add ``counts``, in one step."""
        self._check()
        keys = [
            UNCOMMITTED,
            COMMITTING,
            keys_of.records(crawl),
            keys_of.where(crawl),
            keys_of.files(crawl),
            keys_of.counts(crawl),
            keys_of.meta(crawl),
            COMMITTED,
            CANCELED,
            keys_of.urls(crawl),
            keys_of.needs(crawl),
        ]
        arguments: list[Any] = [crawl, secrets.token_bytes(8), *_numbers(counts), len(originals), len(urls)]
        for original in originals:
            arguments += (
                original.digest,
                digest_key(original.digest),
                entry_text(original),
                original.file or "",
                packed_place(original),
            )
        for capture in urls:
            arguments += (url_hash(capture.url), packed_capture(capture))
        arguments += map(need_text, needs)
        self._require(crawl, _text(self._run("index_add", keys, arguments)), "added to")

    def add_file(self, crawl: str, name: str) -> None:
        """Note a WARC file of the crawl."""
        self._note(crawl, "added to", [keys_of.files(crawl)], "file", name)

    def rename_file(self, crawl: str, old: str, new: str) -> None:
        """Note that a WARC file of the crawl is found under another name."""
        self._check()
        keys = [UNCOMMITTED, COMMITTED, CANCELED, keys_of.files(crawl)]
        state = _text(self._run("index_rename_file", keys, [crawl, old, new]))
        if state == "no file":
            raise CrawlStateError(unknown_file_message(crawl, old, self._url))
        self._require(crawl, state, "changed")
        # A client that dies in between asks again; a need that is noted meanwhile has one of the two names.
        with redis_faults(self._url):
            crawls = [
                _text(other) for other in cast("set[bytes]", self._client.sunion([UNCOMMITTED, COMMITTED]))
            ]
        words = [need_text(Need(crawl)).split(" ")[0] + " ", f" {old}", f" {new}"]
        for first in range(0, len(crawls), _CRAWLS_AT_ONCE):
            keys = [keys_of.needs(other) for other in crawls[first : first + _CRAWLS_AT_ONCE]]
            self._run("index_rename_needs", keys, words)

    def add_container(self, crawl: str, filename: str) -> int:
        """Give the crawl a container that is not packed yet; its place among the crawl's."""
        return self._note_container(crawl, filename, container_json(filename), "add")

    def set_container(self, crawl: str, filename: str, sha256_hex: str, size: int) -> None:
        """Note the hash and the size in bytes of a packed container."""
        self._note_container(crawl, filename, container_json(filename, sha256_hex, size), "fill")

    def set_counts(self, crawl: str, counts: Counts) -> None:
        """Replace the counts of a crawl."""
        self._note(crawl, "counted anew", [keys_of.counts(crawl)], "counts", *_numbers(counts))

    def mark_incomplete(self, crawl: str, flag: bool) -> None:
        """Note whether records of the crawl are on disk that are not entered yet."""
        self._note(crawl, "marked", [keys_of.meta(crawl)], "incomplete" if flag else "complete")

    def reset(self, crawl: str) -> None:
        """Forget all of an uncommitted crawl but its files and containers."""
        self._note(crawl, "reset", [keys_of.records(crawl)], "check")
        self._release(crawl)
        parts = (keys_of.records, keys_of.counts, keys_of.where, keys_of.urls, keys_of.needs)
        self._note(crawl, "reset", [key_of(crawl) for key_of in parts], "reset")

    def commit(self, crawl: str, stats: Mapping[str, object] | None = None) -> None:
        """Make the crawl's records visible to other crawls."""
        self._check()
        keys = [COMMITTED, UNCOMMITTED, CANCELED, COMMITTING, keys_of.meta(crawl)]
        state = _text(self._run("index_commit_begin", keys, [crawl, stats_json(stats) or ""]))
        if state == "committed":
            return
        self._require(crawl, state, "committed")
        cursor = b"0"
        while True:
            keys = [keys_of.records(crawl), DUPES, COMMITTING]
            cursor = self._run("index_commit_batch", keys, [crawl, cursor, _COMMIT_BATCH])
            if cursor in (b"0", b""):
                break
        keys = [
            UNCOMMITTED,
            COMMITTED,
            COMMITTING,
            keys_of.counts(crawl),
            TOTALS,
            keys_of.meta(crawl),
            keys_of.wacz(crawl),
            DONE_SOURCES,
        ]
        state = _text(self._run("index_commit_end", keys, [crawl, utc_now()]))
        if state != "committed":
            self._require(crawl, state, "committed")

    def cancel(self, crawl: str) -> None:
        """Forget an uncommitted crawl."""
        self._check()
        keys = [
            COMMITTED,
            UNCOMMITTED,
            CANCELED,
            COMMITTING,
            keys_of.meta(crawl),
            keys_of.records(crawl),
            keys_of.counts(crawl),
            keys_of.wacz(crawl),
            keys_of.where(crawl),
            keys_of.files(crawl),
            keys_of.urls(crawl),
            keys_of.needs(crawl),
        ]
        state = _text(self._run("index_cancel", keys, [crawl, "begin"]))
        if state == "done":
            return
        self._require(crawl, state, "canceled")
        self._release(crawl)
        self._run("index_cancel", keys, [crawl, "end"])

    # What the index knows

    def crawls(self) -> list[CrawlInfo]:
        """Every crawl, in the order of their start; those without a known start come first."""
        self._check()
        with redis_faults(self._url):
            pipeline = self._client.pipeline()
            for key in (UNCOMMITTED, COMMITTED, CANCELED):
                pipeline.smembers(key)
            pipeline.hget(MARK, "payload")
            *members, payload = pipeline.execute()
            states: dict[str, str] = {}
            for state, ids in zip(("uncommitted", "committed", "canceled"), members, strict=True):
                states.update((_text(crawl), state) for crawl in ids)
            pipeline = self._client.pipeline(transaction=False)
            for crawl in states:
                pipeline.hgetall(keys_of.meta(crawl))
                pipeline.hmget(keys_of.counts(crawl), COUNTS)
                pipeline.zrange(keys_of.files(crawl), 0, -1)
            answers = pipeline.execute()
        mode = _text(payload) if payload else "decoded"
        crawls = []
        for place, (crawl, state) in enumerate(states.items()):
            raw, counts, names = answers[3 * place : 3 * place + 3]
            meta = {_text(name): value for name, value in raw.items()}
            crawls.append(
                CrawlInfo(
                    id=crawl,
                    state=state,
                    payload=mode,
                    started=_text(meta["started"]) if "started" in meta else None,
                    committed=_text(meta["committed"]) if "committed" in meta else None,
                    counts=self._read_counts(counts),
                    files=tuple(dict.fromkeys(map(_file_name, names))),
                    stats=read_stats(meta.get("stats")),
                    incomplete="incomplete" in meta,
                )
            )
        return sorted(crawls, key=lambda info: (info.started or "", info.id))

    def totals(self) -> Counts:
        """The sums over the committed crawls."""
        self._check()
        with redis_faults(self._url):
            counts = cast("list[bytes | None]", self._client.hmget(TOTALS, COUNTS))
        return self._read_counts(counts)

    def containers(self, crawl: str) -> list[dict[str, object]]:
        """The WACZ files of a crawl, as ``c:{crawl}:wacz`` has them."""
        self._check()
        with redis_faults(self._url):
            items = cast("list[bytes]", self._client.lrange(keys_of.wacz(crawl), 0, -1))
        found = [read_container(item) for item in items]
        self.unreadable += found.count(None)
        return [container or {} for container in found]

    def needs(self, crawl: str) -> list[Need]:
        """What the revisits of the crawl refer to in other crawls."""
        self._check()
        with redis_faults(self._url):
            values = cast("set[bytes]", self._client.smembers(keys_of.needs(crawl)))
        found = [read_need(value) for value in values]
        self.unreadable += found.count(None)
        return sorted((need for need in found if need is not None), key=need_order)

    # Helpers

    def _run(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        script = self._scripts.get(name)
        if script is None:
            source = files(__package__).joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")
            script = self._scripts[name] = self._client.register_script(source)
        with redis_faults(self._url):
            return script(keys, arguments)

    def _check(self) -> None:
        """Refuse an index with a mark that we cannot read; asked once for each open index."""
        if self._is_checked:
            return
        with redis_faults(self._url):
            found = cast("bytes | None", self._client.hget(MARK, "format"))
        if found is not None and found != str(FORMAT).encode():
            self._refuse_format(_text(found))
        self._is_checked = True

    def _refuse_format(self, found: str) -> None:
        raise StoreRefused(
            f"The index {self._url} has format {found}, this version of scrapy-dedupe reads format {FORMAT}."
            " Upgrade scrapy-dedupe, or use another index (DEDUPE_INDEX_URL)."
        )

    def _require(self, crawl: str, state: str, action: str) -> None:
        if state != "ok":
            raise CrawlStateError(state_message(crawl, state, action, self._url))

    def _note(self, crawl: str, action: str, changed: Sequence[str], *words: Any) -> None:
        self._check()
        keys = [UNCOMMITTED, COMMITTING, COMMITTED, CANCELED, *changed]
        self._require(crawl, _text(self._run("index_note", keys, [crawl, *words])), action)

    def _note_container(self, crawl: str, filename: str, text: str, how: str) -> int:
        self._check()
        keys = [UNCOMMITTED, COMMITTED, CANCELED, keys_of.wacz(crawl)]
        answer = self._run("index_container", keys, [crawl, filename, text, how])
        if not isinstance(answer, int):
            self._require(crawl, _text(answer), "added to")
        return int(answer)

    def _release(self, crawl: str) -> None:
        cursor = b"0"
        while True:
            keys = [keys_of.records(crawl), DUPES, COMMITTED, COMMITTING]
            cursor = self._run("index_release", keys, [crawl, cursor, _RELEASE_BATCH])
            if cursor == b"0":
                break

    def _original(self, digest: str, found: bytes) -> Original | None:
        """What the script found for a digest, or None, counted, if it does not parse."""
        try:
            crawl, entry, length, rest = found.split(b"\0", 3)
            size_of_place = int(length)
            parts = read_entry(entry)
        except ValueError:
            parts = None
        if parts is None:
            self.unreadable += 1
            return None
        wacz_index, date, url, size = parts
        offset: int | None = None
        record_id: str | None = None
        file: str | None = None
        if size_of_place:
            known = read_place(rest[:size_of_place])
            if known is None:
                self.unreadable += 1
            else:
                _, offset, record_id = known
                file = _file_name(rest[size_of_place:]) or None
        return Original(digest, _text(crawl), date, url, size, wacz_index, record_id, file, offset)

    def _read_counts(self, values: Sequence[bytes | None]) -> Counts:
        self.unreadable += sum(value is not None and not value.isdigit() for value in values)
        return Counts(*(int(value) if value is not None and value.isdigit() else 0 for value in values))


def _numbers(counts: Counts) -> tuple[int, int, int, int]:
    return counts.total_urls, counts.dupe_urls, counts.conserved_size, counts.total_crawl_size


def _file_name(member: bytes) -> str:
    return _text(member.partition(b"\0")[0])


def _text(value: bytes) -> str:
    # Ids and names of other programs may hold any bytes; they are shown, never looked up.
    return value.decode("utf-8", "backslashreplace")

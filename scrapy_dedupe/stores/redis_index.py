"""The crawl index in Redis or Valkey, on Browsertrix's keys.

Written exactly as Browsertrix does, so that both crawlers can use one index:

=====================  ======  ==================================================================
``h:{crawl}``          hash    digest without label -> entry (see :mod:`.index_values`)
``h:{crawl}:counts``   hash    ``totalUrls``, ``dupeUrls``, ``conservedSize``, ``totalCrawlSize``
``c:{crawl}:wacz``     list    the crawl's containers, JSON with ``filename``, ``hash``, ``size``
``uncommittedcrawls``  set     crawl ids; ``allcrawls`` the committed ones, ``canceledcrawls``
``alldupes``           hash    digest -> the crawl whose record is the original
``allcounts``          hash    the sums over the committed crawls
``src:d``              set     names of the containers of committed crawls
=====================  ======  ==================================================================

Beside them, what Browsertrix has no field for:

========================  ======  ===============================================================
``dedupe:index``          hash    ``format`` 1, ``payload`` ``stored`` or ``decoded``
``dedupe:crawl:{crawl}``  hash    ``started``, ``committed``, ``software``, ``stats`` (JSON),
                                  ``incomplete``, ``canceling``, ``token`` of the last addition
``dedupe:files:{crawl}``  zset    WARC file -> its number from 0
``dedupe:where:{crawl}``  hash    first 16 bytes of the packed digest -> place of the record; empty if
                                  two digests of the crawl should ever begin alike
``dedupe:committing``     set     crawls with a commit that is under way or was cut off
========================  ======  ===============================================================

**Commit**: the id goes into ``dedupe:committing``; the digests go into ``alldupes`` batch by batch; one script
then moves the id to ``allcrawls`` and adds the counts. A crawl that is in ``allcrawls`` therefore has all its
digests in ``alldupes`` and its counts in ``allcounts`` exactly once, at whatever step a process dies. Readers
accept records of crawls in ``allcrawls`` alone. **Cancel** moves the id first, takes back what a commit
that was cut off may have entered, and then forgets the keys; ``canceling`` stays until that is finished.
"""

from __future__ import annotations

import json
import secrets
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from scrapy_dedupe.errors import CrawlStateError, StoreRefused

from .base import Counts, CrawlInfo, Original
from .faults import redis_faults
from .index_values import (
    digest_key,
    entry_text,
    packed_offset,
    packed_record_id,
    read_entry,
    read_place,
    read_stats,
    software,
    state_message,
    stats_json,
    utc_now,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import redis

FORMAT = 1

_MARK = "dedupe:index"
_COMMITTING = "dedupe:committing"
_COMMITTED = "allcrawls"
_UNCOMMITTED = "uncommittedcrawls"
_CANCELED = "canceledcrawls"
_DUPES = "alldupes"
_TOTALS = "allcounts"
_COUNTS = ("totalUrls", "dupeUrls", "conservedSize", "totalCrawlSize")

# A batch holds the server for about a millisecond; releasing may have to ask every other crawl.
_COMMIT_BATCH = 1_000
_RELEASE_BATCH = 200


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
        types = {
            _MARK: "hash",
            _meta(crawl): "hash",
            _COMMITTED: "set",
            _UNCOMMITTED: "set",
            _CANCELED: "set",
            _COMMITTING: "set",
            _DUPES: "hash",
            _TOTALS: "hash",
            _records(crawl): "hash",
            _counts(crawl): "hash",
            _wacz(crawl): "list",
            _files(crawl): "zset",
            _where(crawl): "hash",
        }
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
        keys = [_records(crawl), _DUPES, _COMMITTED, _UNCOMMITTED, _CANCELED]
        answer = self._run("index_find", keys, arguments)
        return [
            None if found is None else self._original(digest, found)
            for digest, found in zip(digests, answer, strict=True)
        ]

    def add(self, crawl: str, originals: Sequence[Original], counts: Counts) -> None:
        """Enter records that are on disk and add ``counts``, in one step."""
        self._check()
        keys = [
            _UNCOMMITTED,
            _COMMITTING,
            _records(crawl),
            _where(crawl),
            _files(crawl),
            _counts(crawl),
            _meta(crawl),
            _COMMITTED,
            _CANCELED,
        ]
        arguments: list[Any] = [crawl, secrets.token_bytes(8), *_numbers(counts)]
        for original in originals:
            arguments += (
                original.digest,
                digest_key(original.digest),
                entry_text(original),
                original.file or "",
                _place(original),
            )
        self._require(crawl, _text(self._run("index_add", keys, arguments)), "added to")

    def add_file(self, crawl: str, name: str) -> None:
        """Note a WARC file of the crawl."""
        self._note(crawl, "added to", [_files(crawl)], "file", name)

    def set_counts(self, crawl: str, counts: Counts) -> None:
        """Replace the counts of a crawl."""
        self._note(crawl, "counted anew", [_counts(crawl)], "counts", *_numbers(counts))

    def mark_incomplete(self, crawl: str, flag: bool) -> None:
        """Note whether records of the crawl are on disk that are not entered yet."""
        self._note(crawl, "marked", [_meta(crawl)], "incomplete" if flag else "complete")

    def reset(self, crawl: str) -> None:
        """Forget the records and counts of an uncommitted crawl; its files stay known."""
        self._note(crawl, "reset", [_records(crawl)], "check")
        self._release(crawl)
        self._note(crawl, "reset", [_records(crawl), _counts(crawl), _where(crawl)], "reset")

    def commit(self, crawl: str, stats: Mapping[str, object] | None = None) -> None:
        """Make the crawl's records visible to other crawls."""
        self._check()
        keys = [_COMMITTED, _UNCOMMITTED, _CANCELED, _COMMITTING, _meta(crawl)]
        state = _text(self._run("index_commit_begin", keys, [crawl, stats_json(stats) or ""]))
        if state == "committed":
            return
        self._require(crawl, state, "committed")
        cursor = b"0"
        while True:
            keys = [_records(crawl), _DUPES, _COMMITTING]
            cursor = self._run("index_commit_batch", keys, [crawl, cursor, _COMMIT_BATCH])
            if cursor in (b"0", b""):
                break
        keys = [
            _UNCOMMITTED,
            _COMMITTED,
            _COMMITTING,
            _counts(crawl),
            _TOTALS,
            _meta(crawl),
            _wacz(crawl),
            "src:d",
        ]
        state = _text(self._run("index_commit_end", keys, [crawl, utc_now()]))
        if state != "committed":
            self._require(crawl, state, "committed")

    def cancel(self, crawl: str) -> None:
        """Forget an uncommitted crawl."""
        self._check()
        keys = [
            _COMMITTED,
            _UNCOMMITTED,
            _CANCELED,
            _COMMITTING,
            _meta(crawl),
            _records(crawl),
            _counts(crawl),
            _wacz(crawl),
            _where(crawl),
            _files(crawl),
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
            for key in (_UNCOMMITTED, _COMMITTED, _CANCELED):
                pipeline.smembers(key)
            pipeline.hget(_MARK, "payload")
            *members, payload = pipeline.execute()
            states: dict[str, str] = {}
            for state, ids in zip(("uncommitted", "committed", "canceled"), members, strict=True):
                states.update((_text(crawl), state) for crawl in ids)
            pipeline = self._client.pipeline(transaction=False)
            for crawl in states:
                pipeline.hgetall(_meta(crawl))
                pipeline.hmget(_counts(crawl), _COUNTS)
                pipeline.zrange(_files(crawl), 0, -1)
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
                    files=tuple(_text(name) for name in names),
                    stats=read_stats(meta.get("stats")),
                    incomplete="incomplete" in meta,
                )
            )
        return sorted(crawls, key=lambda info: (info.started or "", info.id))

    def totals(self) -> Counts:
        """The sums over the committed crawls."""
        self._check()
        with redis_faults(self._url):
            counts = cast("list[bytes | None]", self._client.hmget(_TOTALS, _COUNTS))
        return self._read_counts(counts)

    def containers(self, crawl: str) -> list[dict[str, object]]:
        """The WACZ files of a crawl, as ``c:{crawl}:wacz`` has them."""
        self._check()
        with redis_faults(self._url):
            items = self._client.lrange(_wacz(crawl), 0, -1)
        found = []
        for item in items:
            try:
                container = json.loads(item)
            except ValueError:
                container = None
            if isinstance(container, dict):
                found.append(container)
            else:
                self.unreadable += 1
        return found

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
            found = cast("bytes | None", self._client.hget(_MARK, "format"))
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
        keys = [_UNCOMMITTED, _COMMITTING, _COMMITTED, _CANCELED, *changed]
        self._require(crawl, _text(self._run("index_note", keys, [crawl, *words])), action)

    def _release(self, crawl: str) -> None:
        cursor = b"0"
        while True:
            keys = [_records(crawl), _DUPES, _COMMITTED, _COMMITTING]
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
                file = _text(rest[size_of_place:]) or None
        return Original(digest, _text(crawl), date, url, size, wacz_index, record_id, file, offset)

    def _read_counts(self, values: Sequence[bytes | None]) -> Counts:
        self.unreadable += sum(value is not None and not value.isdigit() for value in values)
        return Counts(*(int(value) if value is not None and value.isdigit() else 0 for value in values))


def _place(original: Original) -> bytes:
    """What follows the file number in the place of a record; empty if nothing is known."""
    if original.record_id is None and original.file is None and original.offset is None:
        return b""
    record_id = b"" if original.record_id is None else packed_record_id(original.record_id)
    return packed_offset(original.offset) + record_id


def _numbers(counts: Counts) -> tuple[int, int, int, int]:
    return counts.total_urls, counts.dupe_urls, counts.conserved_size, counts.total_crawl_size


def _text(value: bytes) -> str:
    # Ids and names of other programs may hold any bytes; they are shown, never looked up.
    return value.decode("utf-8", "backslashreplace")


def _records(crawl: str) -> str:
    return f"h:{crawl}"


def _counts(crawl: str) -> str:
    return f"h:{crawl}:counts"


def _wacz(crawl: str) -> str:
    return f"c:{crawl}:wacz"


def _meta(crawl: str) -> str:
    return f"dedupe:crawl:{crawl}"


def _files(crawl: str) -> str:
    return f"dedupe:files:{crawl}"


def _where(crawl: str) -> str:
    return f"dedupe:where:{crawl}"

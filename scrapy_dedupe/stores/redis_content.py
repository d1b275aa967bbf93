"""The texts in Redis or Valkey.

All keys begin with a prefix, ``dedupe:{content}:v1:`` by default. The part in braces keeps them in one slot of
a cluster; ``v1`` is the version of what follows. Values are plain bytes.

====================  ===========================================================================================
``p``                 hash: the parameters of the near layer
``n``                 list: crawl ids; a place in it, from 0, stands for the id elsewhere
``i``                 hash: crawl id to its place
``k``                 hash of counters: ``texts`` and ``kept``
``t`` + digest        string: ``MILLISECONDS PLACE URL``, the first capture of a text. The digest has 16 bytes
``c`` + pair          empty string: another URL had this text. The pair is the first 16 bytes of SHA-1 of
                      digest and URL
``s`` + digest        string: the 128 row bytes of a kept text
``b`` + 2 bytes       hash: the other 6 bytes of a band hash to the digest of the last text that was kept in
                      this bucket
====================  ===========================================================================================

Each claim is one script, hence atomic and one round trip.

A key of its own for every bucket would cost some 90 bytes, 16 times a text. The 65,536 hashes cost about 7 MB
once; in their compact form, which servers use up to 512 entries (2 million texts), a bucket takes some 26 bytes,
and a kept text with its first capture less than a kilobyte.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from .base import SeenText
from .faults import redis_faults
from .sqlite_content import refuse_other_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import redis

PREFIX = "dedupe:{content}:v1:"


@cache
def _script(name: str) -> str:
    return files(__package__).joinpath("scripts", name).read_text(encoding="utf-8")


class RedisContent:
    """The :class:`~.base.ContentStore` of an open Redis store."""

    def __init__(self, client: redis.Redis, url: str, prefix: str = PREFIX) -> None:
        self._client = client
        self._url = url
        self._prefix = prefix.encode()
        self._text_script = client.register_script(_script("text.lua"))
        self._near_script = client.register_script(_script("near.lua"))

    def check_parameters(self, parameters: Mapping[str, str]) -> None:
        key = self._key(b"p")
        with redis_faults(self._url):
            pipeline = self._client.pipeline()
            for name, value in parameters.items():
                pipeline.hsetnx(key, name, value)
            pipeline.hgetall(key)
            stored = cast("dict[bytes, bytes]", pipeline.execute()[-1])
        refuse_other_parameters(
            self._url, {name.decode(): value.decode() for name, value in stored.items()}, parameters
        )

    def claim_text(self, digest: bytes, url: str, crawl: str, seen_ms: int) -> SeenText | None:
        raw_url = url.encode("utf-8", "surrogatepass")
        keys = [
            self._key(b"t", digest),
            self._key(b"c", pair(digest, raw_url)),
            self._key(b"i"),
            self._key(b"n"),
            self._key(b"k"),
        ]
        with redis_faults(self._url):
            answer = self._text_script(keys=keys, args=[raw_url, crawl, seen_ms])
        return _seen(answer)

    def claim_near(
        self, digest: bytes, bands: Sequence[bytes], rows: bytes, min_equal: int, url: str
    ) -> SeenText | None:
        """See :meth:`.base.ContentStore.claim_near`. The similarity is the share of equal ``rows``."""
        keys = [
            self._key(b"k"),
            self._key(b"n"),
            self._key(b"s", digest),
            *(self._key(b"b", band[:2]) for band in bands),
        ]
        with redis_faults(self._url):
            answer = self._near_script(
                keys=keys,
                args=[
                    self._prefix,
                    digest,
                    rows,
                    min_equal,
                    url.encode("utf-8", "surrogatepass"),
                    *(band[2:] for band in bands),
                ],
            )
        return _seen(answer, rows=len(rows))

    def statistics(self) -> dict[str, int]:
        with redis_faults(self._url):
            counters = cast("list[bytes | None]", self._client.hmget(self._key(b"k"), ["texts", "kept"]))
        texts, kept = (int(counter or 0) for counter in counters)
        return {"texts": texts, "kept": kept}

    def flush(self) -> None:
        """Nothing to do: when a server writes to its disk is a matter of its own configuration."""

    def _key(self, kind: bytes, name: bytes = b"") -> bytes:
        return self._prefix + kind + name


def pair(digest: bytes, url: bytes) -> bytes:
    """The name of the capture of a text at a URL; SHA-1, because that is what a script can compute too."""
    return hashlib.sha1(digest + url, usedforsecurity=False).digest()[:16]


def _seen(answer: Any, rows: int | None = None) -> SeenText | None:
    if answer is None:
        return None
    first, crawl, had_this_url, *equal = answer
    seen_ms, _, url = first.split(b" ", 2)
    return SeenText(
        url=url.decode("utf-8", "surrogatepass"),
        crawl=crawl.decode(),
        seen_ms=int(seen_ms),
        had_this_url=bool(had_this_url),
        similarity=equal[0] / rows if rows else 1.0,
    )

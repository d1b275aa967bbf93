"""Seen texts in Redis or Valkey.

All keys start with a prefix, by default ``dedupe:{content}:v2:``. The part in braces keeps them in one slot of a
cluster; ``v2`` is the version of the format below. Values are plain bytes.

====================  ===========================================================================================
``p``                 hash: the parameters of the near layer
``n``                 list: crawl ids; elsewhere a crawl is given by its position in this list, counted from 0
``i``                 hash: crawl id to its position
``t`` + digest        string: ``STATE MILLISECONDS POSITION URL``, the first capture of a text; the state is ``p``
                      (pending) or ``c`` (confirmed). The digest has 16 bytes
``c`` + URL key       hash: the digest of another text of this URL, to ``KIND MILLISECONDS POSITION SIMILARITY
                      ORIGINAL``. ORIGINAL is a digest, or empty if the original is the same text. The URL key is the
                      first 16 bytes of BLAKE2b of the URL. The first capture of a text is here too if it is a copy of
                      another text
``s`` + digest        string: the row bytes of a kept text: those of the whole text, then those of the text without
                      the template, if they differ
``b`` + 2 bytes       hash: the other 6 bytes of a band hash, to the digest of the last text that was kept in this
                      bucket
``h`` + host          string: the template of a host (:mod:`scrapy_dedupe.content.template`)
====================  ===========================================================================================

Each call is one script for any number of texts; it is atomic and takes one round trip.

A separate key per bucket would take about 90 bytes, 16 times per text. The 65,536 hashes take about 7 MB in total. In
the compact form that servers use up to 512 entries (2 million texts), a bucket takes about 26 bytes, and a kept text
with its first capture less than a kilobyte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .base import NearAnswer
from .content_values import raw, refuse_other_parameters, url_key
from .redis_faults import redis_faults
from .redis_survey import RedisSurvey, batches, seen_text
from .scripting import Script, ScriptCaller

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import redis

    from .base import OnForgotten, SeenText, Signature, TextMatch

PREFIX = "dedupe:{content}:v2:"

_TEXTS, _NEAR, _SETTLE = Script("content_texts"), Script("content_near"), Script("content_settle")

# The number of pages settled per call; a larger call would block the server for too long.
_SETTLE_AT_ONCE = 500


class RedisContent:
    """The :class:`~.base.ContentStore` of an open Redis store."""

    def __init__(self, client: redis.Redis, url: str, prefix: str = PREFIX) -> None:
        self._client = client
        self._url = url
        self._prefix = prefix.encode()
        self._crawls = self._prefix + b"i"
        self._scripts = ScriptCaller(client, url)
        self._survey = RedisSurvey(client, self._prefix, self._scripts)
        self._lifetime = b"0"

    def parameters(self) -> dict[str, str]:
        with redis_faults(self._url):
            stored = cast("dict[bytes, bytes]", self._client.hgetall(self._key(b"p")))
        return {name.decode(): value.decode() for name, value in stored.items()}

    def check_parameters(self, parameters: Mapping[str, str]) -> None:
        with redis_faults(self._url):
            pipeline = self._client.pipeline()
            for name, value in parameters.items():
                pipeline.hsetnx(self._key(b"p"), name, value)
            pipeline.execute()
        refuse_other_parameters(self._url, self.parameters(), parameters)

    def remember_for(self, seconds: float | None) -> None:
        self._lifetime = b"0" if seconds is None else b"%d" % round(seconds * 1000)

    def claim_texts(self, captures: Sequence[SeenText], *, pending: bool = True) -> list[TextMatch | None]:
        return self._texts(b"claim" if pending else b"sure", captures)

    def find_texts(self, captures: Sequence[SeenText]) -> list[TextMatch | None]:
        return self._texts(b"find", captures)

    def claim_near(self, signatures: Sequence[Signature]) -> list[NearAnswer]:
        return self._near(b"claim", signatures)

    def find_near(self, signatures: Sequence[Signature]) -> list[NearAnswer]:
        return self._near(b"find", signatures)

    def settle(
        self,
        passed: Sequence[SeenText],
        failed: Sequence[SeenText] = (),
        dropped: Sequence[SeenText] = (),
    ) -> None:
        outcomes = ((b"+", passed), (b"-", failed), (b"=", dropped))
        pages = [(outcome, capture) for outcome, captures in outcomes for capture in captures]
        for some in batches(pages, _SETTLE_AT_ONCE):
            arguments: list[bytes] = []
            for operation, capture in some:
                url = raw(capture.url)
                original = capture.original if capture.original != capture.digest else None
                similarity = "" if capture.similarity is None else repr(float(capture.similarity))
                arguments += (
                    operation, capture.digest, url_key(capture.url), url, capture.crawl.encode(),
                    b"%d" % capture.seen_ms, capture.kind.encode(), original or b"", similarity.encode(),
                )  # fmt: skip
            self._scripts.run(_SETTLE, self._crawls, self._prefix, self._lifetime, *arguments)

    def captures(self, url: str) -> list[tuple[SeenText, TextMatch | None]]:
        with redis_faults(self._url):
            return self._survey.captures(url, int(self._lifetime))

    def forget(self, url: str) -> int:
        with redis_faults(self._url):
            return self._survey.forget(url)

    def purge(
        self,
        *,
        before_ms: int | None = None,
        crawl: str | None = None,
        on_forgotten: OnForgotten | None = None,
    ) -> int:
        with redis_faults(self._url):
            return self._survey.purge(before_ms, crawl, on_forgotten or (lambda what, count: None))

    def count(self, *, before_ms: int | None = None, crawl: str | None = None) -> int:
        with redis_faults(self._url):
            return self._survey.count(before_ms, crawl)

    def load_template(self, host: str) -> bytes | None:
        with redis_faults(self._url):
            return cast("bytes | None", self._client.get(self._key(b"h", raw(host))))

    def save_template(self, host: str, template: bytes) -> None:
        with redis_faults(self._url):
            self._client.set(self._key(b"h", raw(host)), template)

    def statistics(self) -> dict[str, int]:
        with redis_faults(self._url):
            return self._survey.statistics()

    def flush(self) -> None:
        """Do nothing: the configuration of the server decides when it writes to disk."""

    def close(self) -> None:
        """Return the connection of the scripts to the pool."""
        self._scripts.close()

    def _key(self, kind: bytes, name: bytes = b"") -> bytes:
        return self._prefix + kind + name

    def _texts(self, operation: bytes, captures: Sequence[SeenText]) -> list[TextMatch | None]:
        if not captures:
            return []
        arguments: list[bytes] = []
        for capture in captures:
            arguments += (
                capture.digest, url_key(capture.url), raw(capture.url), capture.crawl.encode(),
                b"%d" % capture.seen_ms,
            )  # fmt: skip
        answers = self._scripts.run(_TEXTS, self._crawls, self._prefix, operation, self._lifetime, *arguments)
        return [
            None if answer is None else seen_text(capture.digest, *answer)
            for capture, answer in zip(captures, answers, strict=True)
        ]

    def _near(self, operation: bytes, signatures: Sequence[Signature]) -> list[NearAnswer]:
        if not signatures:
            return []
        arguments: list[bytes] = []
        for signature in signatures:
            capture = signature.capture
            arguments += (
                capture.digest, url_key(capture.url), raw(capture.url), b"%d" % capture.seen_ms,
                b"%d" % signature.min_equal, b"%d" % signature.min_equal_rare, signature.rows,
                signature.rare_rows, b"".join(signature.bands), b"".join(signature.more_bands),
            )  # fmt: skip
        answers = self._scripts.run(_NEAR, self._crawls, self._prefix, operation, self._lifetime, *arguments)
        return [
            NearAnswer(None, bool(answer))
            if isinstance(answer, int)
            else NearAnswer(
                seen_text(answer[4], answer[0], answer[1], answer[2], answer[3] / len(signature.rows))
            )
            for signature, answer in zip(signatures, answers, strict=True)
        ]

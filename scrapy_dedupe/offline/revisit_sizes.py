"""The approximate size of a revisit, before its original is known."""

from __future__ import annotations

from typing import Final

from scrapy_dedupe.offline.revisits import RevisitTarget, as_revisit, record_bytes
from scrapy_dedupe.warc.files import gzip_member
from scrapy_dedupe.warc.raw_heads import parsed_head

# It compresses as badly as a real id.
_SOME_ID: Final = b"<urn:uuid:7d4f1b0a-93c6-4e5d-8a2f-6b1c9e0d3f58>"
_SOME_DIGEST: Final = b"sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"


def revisit_bytes(heads: bytes, uri: bytes, date: bytes, *, is_gzip: bool) -> int:
    """The approximate size of the revisit of a record with these heads, which refers to an original by *uri* and *date*."""
    end = heads.index(b"\r\n\r\n") + 4
    head, block = parsed_head(heads[:end]), heads[end:]
    assert head is not None
    digest = head.get(b"WARC-Payload-Digest") or _SOME_DIGEST
    # Placeholders: the real id and digest are known only when the original is chosen.
    target = RevisitTarget(_SOME_ID, uri, date, digest[:8] + digest[:7:-1])
    for _ in head.get_all(b"WARC-Concurrent-To"):
        head = head.added((b"Former-WARC-Concurrent-To", _SOME_ID))
    data = record_bytes(as_revisit(head, target, block), block)
    return len(gzip_member(data)) if is_gzip else len(data)

"""Facts about a file for a verification, made by reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.verification.evidence import algorithms_of
from scrapy_dedupe.verification.old_files import OldRecord, stored_digest
from scrapy_dedupe.warc.bodies import hashed_records
from scrapy_dedupe.warc.framing import open_head
from scrapy_dedupe.warc.windows import WindowedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.sources import ReadableFile

_SHORT_BYTES = 1 << 12


def old_records(
    file: ReadableFile, *, on_damage: Callable[[Damage], None] | None = None
) -> Iterator[OldRecord]:
    """The facts about the records of *file*. Damage is handled as by `read_records`."""
    with WindowedFile(file) as window:
        for record, payload in hashed_records(window, algorithms_of, on_damage=on_damage):
            if not record.length:
                continue
            facts = OldRecord(
                record.offset, record.length, stored_digest(window, record.offset, record.length)
            )
            frame, http = record.frame, record.http if record.type == "response" else None
            if record.format == "warc" and (http or frame.block_length <= _SHORT_BYTES):
                head, start = open_head(window, frame), frame.kept[: http.length] if http else frame.kept
                facts = facts._replace(
                    start=head + start, head_bytes=len(head), block_bytes=frame.block_length
                )
            if record.format == "warc" and http:
                sha256 = bytes.fromhex(payload[0].hex)
                facts = facts._replace(payload_bytes=payload[0].size_bytes, payload_sha256=sha256)
            yield facts

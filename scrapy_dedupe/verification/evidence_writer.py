"""Writes the facts about one pair of files to their evidence file, while the files are compared."""

from __future__ import annotations

from contextlib import closing, contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING

from scrapy_dedupe.files import whole_file
from scrapy_dedupe.tasks.state import writing
from scrapy_dedupe.warc.bodies import is_in_chunks
from scrapy_dedupe.warc.references import can_be_original, digest_key, uri_key

from .evidence import (
    AFTER,
    BEFORE,
    BOTH,
    CONVERTED,
    NO_REFERENCE,
    PAYLOAD_TYPES,
    RECHUNKED,
    TABLES,
    UNCHANGED,
    Held,
    as_archive_errors,
    hashed_id,
    hashed_place,
    is_bare,
    key_of,
    open_tables,
    payload_digest_text,
    row_of,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.warc.reading import StoredRecord

    from .evidence import HashedRecord

_BATCH_ROWS = 5_000


@contextmanager
def evidence_file(path: Path, pair: int) -> Iterator[EvidenceWriter]:
    """Yield the writer of the evidence about pair number *pair*; *path* exists after the block. Raises ArchiveError."""
    temporary = whole_file.temporary_path(path, ".new")
    with as_archive_errors(path.parent), closing(open_tables(temporary)) as db:
        writer = EvidenceWriter(db, pair)
        yield writer
        writer.flush()
        db.commit()
    with writing(path):
        whole_file.put_in_place(temporary, path, durable=False)


class EvidenceWriter:
    """Adds rows to the tables of a database, in batches. Raises sqlite3.Error."""

    def __init__(self, db: sqlite3.Connection, pair: int) -> None:
        self._db = db
        self._pair = pair
        self._rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in TABLES}

    def add(
        self,
        before: HashedRecord | None,
        after: HashedRecord | None,
        change: int = UNCHANGED,
        places: tuple[int, int] | None = None,
    ) -> None:
        """Add a record before and after; None if one of the sides does not have it.

        *places* are the offsets before and after of an unchanged record, which was read from one of the files.
        """
        was, now = before and before[0], after and after[0]
        was_at, at = places or (was.offset if was else None, now.offset if now else None)
        if (was and was.type == "revisit") or (now and now.type == "revisit"):
            self._add_revisit(change, before, after, (was_at, at))
        elif before and after and change != RECHUNKED:
            # Id, URI, date and payload have been compared and are the same on both sides.
            self.add_record(after, BOTH, at)
            before = after = None
        for found, side in ((before, BEFORE), (after, AFTER)):
            if found is not None:
                self.add_record(found, side)
        if now is not None:
            self._add_links(was or now, now, (was_at, at))

    def add_record(self, found: HashedRecord, sides: int, offset: int | None = None) -> None:
        """Add a record, unless it is a revisit. *sides* is BEFORE, AFTER, BOTH or ELSEWHERE.

        *offset* is its place after, which must be given if it was read from the file before.
        """
        record, payload = found
        if record.type not in PAYLOAD_TYPES:
            if record.type != "revisit" and record.id is not None:
                self._add("others", (hashed_id(record.id),))
            return
        text = payload_digest_text(record)
        digest = digest_key(text or f"sha1:{payload[1].hex}")
        place, record_id, bare = (
            hashed_place(record.target_uri, record.date),
            hashed_id(record.id),
            is_bare(record.id),
        )
        sha = bytes.fromhex(payload[0].hex)
        key = key_of(place, record_id, bare, record.date, sha, text or digest) if record.is_whole else None
        row = Held(
            uri_key(record.target_uri or ""), sides, place, record_id, bare, record.date,
            sha, digest, None if text == digest else text, int(record.is_whole),
            int(is_in_chunks(record, payload[0].size_bytes)),
            int(record.http_status == 200) if can_be_original(record) else None,
            2 * self._pair + (sides != BEFORE), record.offset if offset is None else offset, _position(record), key,
        )  # fmt: skip
        self._add("captures", row)

    def _add_revisit(
        self,
        change: int,
        before: HashedRecord | None,
        after: HashedRecord | None,
        places: tuple[int | None, int | None],
    ) -> None:
        was, now = before and before[0], after and after[0]
        payload = (before and before[1]) or (after and after[1])
        sha = bytes.fromhex(payload[0].hex) if payload else None
        old_id = new_id = former_id = None
        if now:
            new_id, former_id = hashed_id(now.id), hashed_id(now.get("Former-WARC-Record-ID"))
            if was and was.type != now.type:
                # A record of an ARC file has no id; the conversion to WARC gave it one.
                old_id = hashed_id(was.id) if was.format != "arc" else former_id
        references = [row_of(one) if one and one.type == "revisit" else None for one in (was, now)]
        key = None
        if change == CONVERTED and (to := references[1]) is not None:
            key = key_of(to.place, to.id, to.bare, to.date, sha, to.digest)
        own = (
            self._pair,
            change,
            places[0],
            was and _position(was),
            places[1],
            sha,
            old_id,
            new_id,
            former_id,
            key,
        )
        self._add("revisits", (*own, *(value for row in references for value in row or NO_REFERENCE)))

    def _add_links(
        self, before: StoredRecord, after: StoredRecord, places: tuple[int | None, int | None]
    ) -> None:
        """Add the fields that refer to other records; those of revisits to their originals are in ``revisits``."""
        is_revisit = "revisit" in (before.type, after.type)
        for name in ("WARC-Concurrent-To",) if is_revisit else ("WARC-Concurrent-To", "WARC-Refers-To"):
            values = after.get_all(name)
            for old, new in zip_longest(values if before is after else before.get_all(name), values):
                was = hashed_id(old)
                self._add("links", (self._pair, *places, name, was, was if new == old else hashed_id(new)))
        if before is after or is_revisit:
            return
        fields = [(record.refers_to_uri, record.refers_to_date) for record in (before, after)]
        if fields[0] != fields[1]:
            self._add("links", (self._pair, *places, "place", *[hashed_place(*field) for field in fields]))

    def _add(self, table: str, row: tuple[object, ...]) -> None:
        rows = self._rows[table]
        rows.append(row)
        if len(rows) >= _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows of the current batch."""
        for table, rows in self._rows.items():
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608 - constant names
                rows.clear()


def _position(record: StoredRecord) -> int | None:
    return record.frame.block_position if not record.length else None

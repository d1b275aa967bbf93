"""The rows of a file as facts about it, with which a verification need not read the file again (`old_files`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline.engine import open_engine, rows_of, source
from scrapy_dedupe.offline.old_files import OldRecord
from scrapy_dedupe.offline.rows import PURPOSE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A file of rows is sorted by offset.
_QUERY: Final = """
SELECT "offset", length, stored, start, head_bytes, block_bytes, CASE WHEN sha256 IS NOT NULL THEN size_bytes END, sha256
FROM read_parquet({}) WHERE stored IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Iterates over the facts in a file of rows, in the order of the records. Can be pickled. Raises ArchiveError."""

    rows: Path

    def __iter__(self) -> Iterator[OldRecord]:
        query = _QUERY.format(source(self.rows))
        with open_engine(PURPOSE, self._refused) as engine:
            rows = rows_of(engine.execute(query))
            for offset, length, stored, start, head_bytes, block_bytes, *payload in rows:
                head = None if start is None else start[:head_bytes]
                block = None if start is None else start[head_bytes:]
                yield OldRecord(offset, length, stored, head, block, block_bytes, *payload)

    def _refused(self, text: str) -> ArchiveError:
        return ArchiveError(f"{self.rows} cannot be read: {text}.")

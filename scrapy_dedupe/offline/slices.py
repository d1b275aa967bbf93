"""The slice of a file: its part of the plan, from which it is rewritten without any other file.

The slices are Parquet files in ``slices/file=N/``, where N is the number of the file in the plan; a file without changes
has none. The column ``kind`` says what a row is:

- ``change``: a record to change, with its offset and length. A copy that becomes a revisit (``is_converted``) has the values
  of its original: ``target_id``, ``target_uri``, ``target_date`` and ``target_digest``. Of any other record, references are
  updated.
- ``capture``: a record that these references may mean (`reference_changes.MeantRecord`).
- ``standing``: a capture that does not change, and may be meant too (`reference_changes.Standing`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline.engine import open_engine, rows_of, source
from scrapy_dedupe.offline.reference_changes import MeantRecord, Standing
from scrapy_dedupe.offline.revisits import RevisitTarget
from scrapy_dedupe.offline.rows import PURPOSE

if TYPE_CHECKING:
    from pathlib import Path

SLICES_FOLDER: Final = "slices"

_QUERY: Final = """
SELECT kind, is_converted, target_id, target_uri, target_date, target_digest, "offset", length, line, is_here, id, id_key, uri,
    date_key, digest_key, listed_key, payload_key FROM read_parquet([{}]) ORDER BY kind, "offset", line
"""


class PlannedChange(NamedTuple):
    """A record to change; ``target`` is the original of a copy that becomes a revisit."""

    offset: int
    length: int
    target: RevisitTarget | None


@dataclass(slots=True)
class Slice:
    """The part of the plan for one file. The changes are ordered by offset."""

    changes: list[PlannedChange] = field(default_factory=list)
    captures: list[MeantRecord] = field(default_factory=list)
    standing: list[Standing] = field(default_factory=list)


def slice_folder(folder: Path, file: int) -> Path:
    """The folder with the slice of a file; it does not exist for a file without changes."""
    return folder / SLICES_FOLDER / f"file={file}"


def read_slice(folder: Path) -> Slice:
    """Read the slice in a folder. Raises ArchiveError."""
    found = Slice()
    if not folder.exists():
        return found
    query = _QUERY.format(", ".join(map(source, sorted(folder.glob("*.parquet")))))
    with open_engine(PURPOSE, lambda text: ArchiveError(f"{folder} cannot be read: {text}.")) as engine:
        for kind, is_converted, *values in rows_of(engine.execute(query)):
            target = RevisitTarget(*values[:4]) if is_converted else None
            offset, length, line, is_here, *keys = values[4:]
            if kind == "change":
                found.changes.append(PlannedChange(offset, length, target))
            elif kind == "capture":
                found.captures.append(MeantRecord._make([line, is_here, is_converted, *keys, target]))
            else:
                _, id_key, uri, date_key, *_ = keys
                found.standing.append(Standing(id_key, is_here, uri, date_key))
    return found

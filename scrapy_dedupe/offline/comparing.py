"""Read payloads file by file, and compare them with stored ones, byte by byte.

A task reads records of one file in the order of their offsets. A payload is compared with one that an earlier task has
stored on disk. A payload that differs from it, or for which no payload is stored, is stored too.

The outputs of task N are ``N.payloads``, the stored payloads without separators, and ``N.results``, the number and the result
of each line, separated by a tab.

The place of a payload is ``FOLDER/N:START:SIZE:HASH``, with its BLAKE2b hash (RFC 7693), or ``-`` for none. A result is ``same``, ``alone`` (the record must
not replace another one), or the place of the stored payload.
"""

from __future__ import annotations

import errno
import io
from dataclasses import dataclass
from hashlib import blake2b
from typing import IO, TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.manifest_lines import parse_text_line, text_line
from scrapy_dedupe.offline.ordering import place_key
from scrapy_dedupe.offline.windows import are_same
from scrapy_dedupe.tasks.state import writing
from scrapy_dedupe.warc.bodies import decoded_pieces, has_more_than_payload, payload_pieces
from scrapy_dedupe.warc.codings import Undecodable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scrapy_dedupe.offline.manifest_lines import ManifestLine
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.work import Advance
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.zip_members import StoredMember

NO_PAYLOAD: Final = "-"
SAME: Final = "same"
ALONE: Final = "alone"

_PIECE_BYTES: Final = 1 << 20


def row_of(line: ManifestLine, number: int, payload: str) -> bytes:
    """The row of a record to read: line *number*, whose payload is compared with the one at the place *payload*.

    Its columns are separated by tabs: sort key, number, place, and the line.
    """
    return place_key(line) + f"\t{number:012}\t{payload}\t{text_line(line, 6)}\n".encode()


@dataclass(frozen=True, slots=True)
class ComparisonTask:
    """The records of the file *name*, for `WorkFolder.run`; *file* has their rows (`row_of`) in the order of offsets."""

    name: str
    file: StoredMember
    path: Path
    places: Places
    depends_on: object = None

    @property
    def outputs(self) -> tuple[Path, Path]:
        """The files of payloads and results."""
        return self.path.with_suffix(".payloads"), self.path.with_suffix(".results")


def read_payloads(task: ComparisonTask, faults: Faults, advance: Advance) -> None:
    """Read the records of one file, and write their results."""
    payloads, results = task.outputs
    with (
        writing(results),
        whole_file.replacing(payloads, suffix=".new") as stored,
        whole_file.replacing(results, suffix=".new") as table,
        task.file.open("rb") as rows,
        task.places.records(task.name) as record_of,
    ):
        for row in rows:
            _, _, number, payload, text = row[:-1].decode().split("\t")
            result = _result(task, parse_text_line(text), payload, record_of, stored, faults)
            table.write(f"{number}\t{result}\n".encode())
            advance(len(row))


def _result(
    task: ComparisonTask,
    line: ManifestLine,
    payload: str,
    record_of: Callable[[ManifestLine], StoredRecord],
    stored: IO[bytes],
    faults: Faults,
) -> str:
    place = f"{line.file}, offset {line.offset}"
    try:
        record = record_of(line)
        # Chunks that hold more than the payload would be lost with the record. A truncated body of chunks may have no
        # payload at all.
        if record.type == "revisit" or not record.is_whole or has_more_than_payload(record):
            return ALONE
        pieces_of = decoded_pieces if line.is_decoded else payload_pieces
        folder = task.path.parent
        if payload != NO_PAYLOAD and are_same(pieces_of(record), stored_pieces(folder.parent, payload)):
            return SAME
        start, hasher = stored.tell(), blake2b(digest_size=32)
        for piece in pieces_of(record):
            stored.write(piece)
            hasher.update(piece)
        return f"{folder.name}/{task.path.name}:{start}:{stored.tell() - start}:{hasher.hexdigest()}"
    except Undecodable as error:
        faults.add(place, f"the payload cannot be decoded: {error}")
    except (DamagedInput, ArchiveError) as error:
        # Leave out the place at the start of the error if it is the place of this line.
        before, _, reason = str(error).partition(f", offset {line.offset}: ")
        faults.add(place, reason if reason and before.endswith(line.file) else str(error))
    return ALONE


def stored_pieces(folder: Path, place: str) -> Iterator[bytes]:
    """The payload at a place, in pieces; *folder* is the parent of that of the task. Raises OSError."""
    name, start, size, _ = place.split(":")
    left = int(size)
    # Creating a Path takes as long as reading a payload of usual size.
    with io.FileIO(f"{folder}/{name}.payloads") as file:
        file.seek(int(start))
        while left:
            piece = file.read(min(left, _PIECE_BYTES))
            if not piece:
                raise OSError(errno.EIO, f"{file.name} is too short")
            yield piece
            left -= len(piece)

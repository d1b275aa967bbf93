"""Read payloads file by file, and compare them with stored ones, byte by byte.

A task reads records of one file in the order of their offsets. A payload is compared with one that an earlier task has
stored on disk. A payload that differs from it, or for which no payload is stored, is stored too. A task stores each
payload once: if the size and the BLAKE2b hash (RFC 7693) of two payloads are equal, their bytes are compared.

The outputs of task N are ``N.payloads``, the stored payloads without separators, and ``N.results``, the number and the result
of each line, separated by a tab.

The place of a payload is ``FOLDER/N:START:SIZE:HASH``, or ``-`` for none. A result is ``same``, ``alone`` (the record must
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
        whole_file.replacing_from(payloads, suffix=".new") as temporary,
        temporary.open("w+b") as file,
        whole_file.replacing(results, suffix=".new") as table,
        task.file.open("rb") as rows,
        task.places.records(task.name) as record_of,
    ):
        folder = task.path.parent
        stored = _StoredPayloads(file, f"{folder.name}/{task.path.name}")
        for row in rows:
            _, _, number, payload, text = row[:-1].decode().split("\t")
            result = _result(parse_text_line(text), payload, record_of, stored, folder.parent, faults)
            table.write(f"{number}\t{result}\n".encode())
            advance(len(row))


def _result(
    line: ManifestLine,
    payload: str,
    record_of: Callable[[ManifestLine], StoredRecord],
    stored: _StoredPayloads,
    folder: Path,
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
        if payload != NO_PAYLOAD and are_same(pieces_of(record), stored_pieces(folder, payload)):
            return SAME
        return stored.place_of(pieces_of(record))
    except Undecodable as error:
        faults.add(place, f"the payload cannot be decoded: {error}")
    except (DamagedInput, ArchiveError) as error:
        # Leave out the place at the start of the error if it is the place of this line.
        before, _, reason = str(error).partition(f", offset {line.offset}: ")
        faults.add(place, reason if reason and before.endswith(line.file) else str(error))
    return ALONE


class _StoredPayloads:
    """The payloads that a task stores in *file*, each once; *name* is the start of their places."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name
        self._end = 0
        self._known: dict[tuple[int, bytes], list[int]] = {}

    def place_of(self, pieces: Iterator[bytes]) -> str:
        """The place of a payload, which is stored if this task has not stored it before."""
        start, size, hasher = self._end, 0, blake2b(digest_size=32)
        self._file.seek(start)
        for piece in pieces:
            self._file.write(piece)
            hasher.update(piece)
            size += len(piece)
        alike = self._known.setdefault((size, hasher.digest()), [])
        for known in alike:
            # The payload is already stored; let the next one overwrite this copy.
            if are_same(_part(self._file, known, size), _part(self._file, start, size)):
                start = known
                break
        else:
            alike.append(start)
            self._end += size
        return f"{self._name}:{start}:{size}:{hasher.hexdigest()}"


def stored_pieces(folder: Path, place: str) -> Iterator[bytes]:
    """The payload at a place, in pieces; *folder* is the parent of that of the task. Raises OSError."""
    name, start, size, _ = place.split(":")
    # Creating a Path takes as long as reading a payload of usual size.
    with io.FileIO(f"{folder}/{name}.payloads") as file:
        yield from _part(file, int(start), int(size))


def _part(file: IO[bytes] | io.FileIO, start: int, size: int) -> Iterator[bytes]:
    while size:
        # Another reader may have moved the position.
        file.seek(start)
        piece = file.read(min(size, _PIECE_BYTES))
        if not piece:
            raise OSError(errno.EIO, f"{file.name} is too short")
        yield piece
        start, size = start + len(piece), size - len(piece)

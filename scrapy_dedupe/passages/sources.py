"""The documents in folders, files, archives and JSON lines, as a stream.

A source on the command line is a file, a folder, a pattern with the wildcards of `glob`, the URL of an archive, or ``-``
for JSON lines on standard input. A folder means all files below it, in the order of their names; a folder that is
reachable several times, through links, is read once. `text_reading.form_of` detects the form of a file. The id of a document is

- for a file, its path, starting with the source as it was given, with ``/`` between its parts, or relative to a base
  folder;
- for a page in an archive, its URL; pages are responses to GET requests with status 200 and a text Content-Type, and, after
  all others, revisits whose original is in one of the archives;
- for a JSON line, the content of one of its fields.

Documents are not decoded here: `text_reading` does that, in other processes. Memory holds one document at a time, of
bounded size, even if a file is larger or compressed. Damaged input is reported as a fault; skipped input is counted.

JSON lines have one object per line, with one field for the id and one for the text. Blank lines are ignored. A numeric id is used as it is written. A line that is not a JSON object, lacks a field, or has a
field that is not a string is a fault; the fault names the line. NaN and infinite numbers are accepted, since Python
writes them.

At most *max_bytes* of a line are read. Data outside of strings becomes Python objects of up to forty times its size, so
it has a separate limit, which is checked before parsing.
"""

from __future__ import annotations

import glob
import gzip
import json
import os
import re
import sqlite3
import stat
import zlib
from codecs import BOM_UTF8
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final, cast

from scrapy_dedupe.errors import DamagedInput, SettingError, StoreError, UsageError
from scrapy_dedupe.warc.containers import files_in
from scrapy_dedupe.warc.exchanges import exchanges
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.references import CaptureTable, Reference, reference_of
from scrapy_dedupe.warc.remote import is_url, place_file, shown
from scrapy_dedupe.warc.sources import GZIP_MAGIC

from .catalogue import MANIFEST, read_manifest
from .preparation import checked_name
from .text_reading import (
    ARCHIVE,
    BINARY,
    LINES,
    OPEN,
    PAGE,
    PLAIN,
    START_BYTES,
    RawDocument,
    form_of,
    has_nul,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from io import BufferedReader

    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .text_reading import Skipped

STANDARD_INPUT: Final = "-"
_WILDCARDS: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of reading.

    *kind_of* returns the kind of a page for a Content-Type, None if it is not a text type. *url_field* and *text_field* are
    fields of JSON lines. *host* is the host of all documents; None derives it from their ids.

    The ids of files are relative to *base*. *without* is a folder to exclude, such as the index itself. Documents larger
    than *max_bytes* are skipped.
    """

    kind_of: Callable[[str], str | None]
    max_bytes: int
    url_field: str = "url"
    text_field: str = "text"
    host: str | None = None
    base: Path | None = None
    without: Path | None = None


class DocumentSources:
    """The sources that *words* name. Raises UsageError for one that matches nothing, before anything is read."""

    def __init__(
        self,
        words: Sequence[str],
        options: SourceOptions,
        *,
        faults: Faults,
        skipped: Skipped,
        standard_input: IO[bytes] | None = None,
    ) -> None:
        self._options = options
        self._faults = faults
        self._skipped = skipped
        self._input = standard_input
        self._places = [place for word in words for place in _places_of(word)]
        self._base = None if options.base is None else os.path.abspath(options.base)  # noqa: PTH100 - links keep names
        for place in self._places:
            self._doc_id(place)
        self._folders: set[tuple[int, int]] = set()

    def documents(self) -> Iterator[RawDocument]:
        """Yield the documents once, in the order of the sources. Raises the exceptions of `Faults.add`."""
        with closing(Pages(self._options, faults=self._faults, skipped=self._skipped)) as pages:
            self._pages = pages
            for document in self._stored():
                pages.note(document.doc_id)
                yield document
            yield from pages.of_revisits()

    def _stored(self) -> Iterator[RawDocument]:
        # Checked here and not in __init__, since the folder may have been created in between.
        if self._options.without is not None and self._options.without.is_dir():
            self._folders.add(_identity(self._options.without.stat()))
        for place in self._places:
            if place == STANDARD_INPUT:
                assert self._input is not None
                yield from self._lines(self._input, "standard input")
            elif is_url(place):
                yield from self._archive(place_file(place), place)
            elif Path(place).is_dir():
                yield from self._files_below(Path(place))
            else:
                yield from self._file(Path(place), is_named=True)

    def _files_below(self, folder: Path) -> Iterator[RawDocument]:
        # Iterators over the folders on the current path, the deepest one last: no recursion, so any depth works.
        waiting: list[Iterator[Path]] = [iter(self._entries(folder))]
        while waiting:
            path = next(waiting[-1], None)
            if path is None:
                waiting.pop()
            elif os.path.isdir(path):  # noqa: PTH112 - raises no errors; opening the file reports them
                waiting.append(iter(self._entries(path)))
            else:
                yield from self._file(path, is_named=False)

    def _entries(self, folder: Path) -> list[Path]:
        """The paths in a folder, sorted; empty if the folder was already read."""
        place = folder.as_posix()
        try:
            identity = _identity(folder.stat())
            if identity in self._folders:
                if folder.is_symlink():
                    self._skipped.add("link", place, "the folder that it links to is read already")
                return []
            self._folders.add(identity)
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError as error:
            self._faults.add(place, _unreadable(error))
            return []
        if MANIFEST in names and _is_index(folder):
            self._skipped.add("index")
            return []
        return [folder / name for name in names]

    def _file(self, path: Path, *, is_named: bool) -> Iterator[RawDocument]:
        place = path.as_posix()
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                self._skip("special", place, "it is a pipe, a socket or a device", is_named=is_named)
                return
            with path.open("rb") as file:
                start = file.read(START_BYTES)
                form = form_of(path.name, start)
                if form == LINES:
                    yield from self._lines(_decompressed(file, start), place)
                elif form not in (ARCHIVE, OPEN, BINARY):
                    yield from self._document(_decompressed(file, start), place, form, is_named=is_named)
        except OSError as error:
            self._faults.add(place, _unreadable(error))
            return
        if form == ARCHIVE:
            yield from self._archive(path, place)
        elif form == OPEN:
            self._skipped.add(
                "open", place, "a crawl is writing it, or was killed; warc salvage repairs such a file"
            )
        elif form == BINARY:
            self._skip_binary(place, is_named=is_named)

    def _document(self, file: IO[bytes], place: str, form: str, *, is_named: bool) -> Iterator[RawDocument]:
        limit = self._options.max_bytes
        try:
            data = file.read(limit + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self._faults.add(place, f"it cannot be decompressed ({error})")
            return
        if len(data) > limit:
            self._skipped.add("large", place, f"it has more than {limit} bytes")
        elif has_nul(data):
            self._skip_binary(place, is_named=is_named)
        else:
            try:
                doc_id = checked_name(self._doc_id(place))
            except SettingError as error:
                self._faults.add(place, str(error))
                return
            yield RawDocument(doc_id, self._options.host, data, form, place)

    def _skip_binary(self, place: str, *, is_named: bool) -> None:
        what = "it is not text, and not an archive or a JSON lines file by its name"
        self._skip("binary", place if is_named else "", what, is_named=is_named)

    def _skip(self, reason: str, place: str, what: str, *, is_named: bool) -> None:
        """Count a file that is not expected to be readable, unless the user named the file itself."""
        self._skipped.add("no-text" if is_named else reason, place, what)

    def _lines(self, file: IO[bytes], place: str) -> Iterator[RawDocument]:
        """The documents in JSON lines; messages call the file *place*."""
        options = self._options
        number = 0
        lines = _lines_of(file, options.max_bytes)
        while True:
            number += 1
            where = f"{place}, line {number}"
            try:
                line = next(lines, b"")
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self._faults.add(where, f"the rest of the file cannot be decompressed ({error})")
                return
            if line is None:
                self._skipped.add("large", where, f"the line has more than {options.max_bytes} bytes")
                continue
            if not line:
                return
            if number == 1:
                line = line.removeprefix(BOM_UTF8)
            if line.isspace() or not line:
                continue
            if not _is_within_limit_outside_strings(line):
                self._skipped.add(
                    "large",
                    where,
                    f"the line has more than {_MAX_BYTES_OUTSIDE_STRINGS} bytes outside of strings",
                )
                continue
            try:
                value, is_replaced = _parsed(line)
                doc_id, text = _values(value, options)
            except ValueError as error:
                self._faults.add(where, str(error))
                continue
            # Only an escape sequence can produce a lone surrogate.
            if b"\\u" in line and _LONE_SURROGATE.search(text):
                text, is_replaced = _LONE_SURROGATE.sub("\ufffd", text), True
            if is_replaced:
                self._skipped.add_replaced(where)
            yield RawDocument(doc_id, options.host, text, PLAIN, where)

    def _archive(self, file: ReadableFile, place: str) -> Iterator[RawDocument]:
        try:
            members = files_in(file)
        except DamagedInput as error:
            self._faults.add(shown(place), _without_place(error, place))
            return
        for member in members:
            try:
                yield from self._pages.in_file(member)
            except OSError as error:
                self._faults.add(shown(str(member)), _unreadable(error))

    def _doc_id(self, place: str) -> str:
        """The id of the document in a file. Raises UsageError if the file is outside of the base folder."""
        if self._base is not None and place != STANDARD_INPUT and not is_url(place):
            try:
                place = Path(os.path.abspath(place)).relative_to(self._base).as_posix()  # noqa: PTH100
            except ValueError:
                raise UsageError(
                    f"{place} is not below {self._options.base}. Give --base a folder that contains all files."
                ) from None
        return id_of_name(place)


def id_of_name(name: str) -> str:
    r"""A valid document id for a file name, or for a command line argument, that may have bytes that are not UTF-8.

    >>> id_of_name("caf\udce9.txt")
    'caf\\xe9.txt'
    """
    # Such a name has surrogates for these bytes, but a document id must not contain surrogates.
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _places_of(word: str) -> list[str]:
    if word == STANDARD_INPUT or is_url(word):
        return [word]
    if os.path.lexists(word):
        return [PurePosixPath(word).as_posix()]
    found = sorted(glob.glob(word, recursive=True)) if _WILDCARDS & set(word) else []  # noqa: PTH207 - absolute ones
    if not found:
        raise UsageError(
            f"{word!r} matches nothing. Name files, folders, patterns such as 'folder/*.warc.gz', or - for"
            " JSON lines on standard input."
        )
    return found


def _is_index(folder: Path) -> bool:
    """Whether the folder has a passage index with a readable manifest."""
    try:
        return read_manifest(folder) is not None
    except StoreError:
        return False


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _decompressed(file: BufferedReader, start: bytes) -> IO[bytes]:
    """The decompressed content of a file from its beginning. *start* was already read."""
    file.seek(0)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if start.startswith(GZIP_MAGIC) else file


def _unreadable(error: OSError) -> str:
    return f"it cannot be read ({error.strerror or error})"


def _without_place(error: DamagedInput, place: str) -> str:
    """The message of an error without the name of the file, which the fault names anyway."""
    where = shown(place) if is_url(place) else str(Path(place).absolute())
    message = str(error)
    return (
        message.removeprefix(where).lstrip(": ")
        if message.startswith((f"{where} ", f"{where}:"))
        else message
    )


_PIECE: Final = 1 << 20
_MAX_BYTES_OUTSIDE_STRINGS: Final = 4 << 20
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _Number(str):
    """A number as it is written. Used for ids, and because Python refuses integers of thousands of digits."""

    __slots__ = ()


_DECODER: Final = json.JSONDecoder(parse_int=_Number, parse_float=_Number)


def _lines_of(file: IO[bytes], max_bytes: int) -> Iterator[bytes | None]:
    """Yield the lines with their line ends; None for a line that is too long."""
    while line := file.readline(max_bytes + 2):
        if len(line.rstrip(b"\r\n")) <= max_bytes:
            yield line
            continue
        while not line.endswith(b"\n") and (line := file.readline(_PIECE)):
            pass
        yield None


def _is_within_limit_outside_strings(line: bytes) -> bool:
    """Whether the data outside of strings is within the limit, where each string counts as two bytes."""
    if len(line) <= _MAX_BYTES_OUTSIDE_STRINGS:
        return True
    # Without escapes, every quote begins or ends a string. A regular expression for strings takes memory per escape.
    bare = line.replace(rb"\\", b"").replace(rb"\"", b"")
    size = end = 0
    while (start := bare.find(b'"', end)) >= 0:
        size += start - end + 2
        if size > _MAX_BYTES_OUTSIDE_STRINGS:
            return False
        end = bare.find(b'"', start + 1) + 1
        if not end:
            return True  # not valid JSON
    return size + len(bare) - end <= _MAX_BYTES_OUTSIDE_STRINGS


def _parsed(line: bytes) -> tuple[Any, bool]:
    """The value of a line, and whether invalid UTF-8 was replaced. Raises ValueError with the reason."""
    try:
        text, is_replaced = line.decode(), False
    except UnicodeDecodeError:
        text, is_replaced = line.decode("utf-8", "replace"), True
    try:
        return _DECODER.decode(text), is_replaced
    except RecursionError as error:
        raise ValueError("it is not readable JSON: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"it is not valid JSON ({error})") from error


def _values(value: Any, options: SourceOptions) -> tuple[str, str]:
    """The id and the text of a line. Raises ValueError (such as SettingError) with the reason."""
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - of the input, not of the call
    found = []
    for name, option in ((options.url_field, "--url-field"), (options.text_field, "--text-field")):
        if name not in value:
            raise ValueError(f"it has no field {name!r}; choose another field with {option}")
        if not isinstance(value[name], str) or (
            name == options.text_field and isinstance(value[name], _Number)
        ):
            raise ValueError(f"its field {name!r} is not a string; choose another field with {option}")
        found.append(str(value[name]))
    doc_id, text = found
    return checked_name(doc_id), text


class Pages:
    """The pages in the WARC and ARC files of a run. Only the identifying fields of captures and revisits are kept, on disk.

    A revisit is indexed under its own URL with the payload of its original. The original may be in a file that is read later,
    so revisits wait in a temporary SQLite file until all files have been read. A page with the same URL that is read later
    replaces them.

    Closed by `close`.
    """

    def __init__(self, options: SourceOptions, *, faults: Faults, skipped: Skipped) -> None:
        self._options = options
        self._faults = faults
        self._skipped = skipped
        self._captures = CaptureTable()
        # The empty name makes a temporary file that SQLite removes itself.
        self._waiting = sqlite3.connect("", isolation_level=None)
        self._waiting.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE TABLE revisits (url BLOB, fields TEXT, is_replaced INTEGER DEFAULT 0);"
            "CREATE INDEX by_url ON revisits (url);"
        )
        self._has_revisits = False

    def close(self) -> None:
        """Delete the temporary data."""
        self._captures.close()
        self._waiting.close()

    def in_file(self, file: ReadableFile) -> Iterator[RawDocument]:
        """Yield the responses to GET requests with status 200 and a text Content-Type, in the order of the file.

        Raises OSError if the file cannot be read, and what `Faults.add` raises.
        """
        records = self._captures.noted(read_records(file, on_damage=self._faults.add_damage))
        for record, method in exchanges(records):
            place = f"{shown(str(file))}, offset {record.offset}"
            if record.type == "revisit":
                self._wait(record, method, place)
            elif reason := _reason_against(record, method):
                self._skipped.add(reason)
            else:
                assert record.http is not None
                yield from self._document(record.target_uri or "", _content_type(record), record, place)

    def note(self, doc_id: str) -> None:
        """Record that a document was indexed, so that no older revisit replaces it."""
        if self._has_revisits:
            self._waiting.execute("UPDATE revisits SET is_replaced = 1 WHERE url = ?", (_bytes(doc_id),))

    def of_revisits(self) -> Iterator[RawDocument]:
        """Yield the pages of the revisits. Call it after all files have been read."""
        rows = self._waiting.execute("SELECT fields, is_replaced FROM revisits ORDER BY rowid")
        for fields, is_replaced in rows:
            url, content_type, place, values = json.loads(fields)
            found = self._captures.original(Reference(**values))
            if found is None:
                self._skipped.add("revisit")
                continue
            if is_replaced:
                continue
            try:
                original = self._captures.record_of(found)
            except (OSError, DamagedInput) as error:
                self._faults.add(place, f"its original cannot be read again ({error})")
                continue
            if original.http is not None and original.http.status != 200 and content_type is None:
                self._skipped.add("status")
                continue
            yield from self._document(url, content_type or _content_type(original), original, place)

    def _wait(self, revisit: StoredRecord, method: str, place: str) -> None:
        reference = reference_of(revisit)
        # The head of a 304 does not describe the page.
        has_head = revisit.http is not None and not reference.is_unmodified
        if reason := _reason_against(revisit, method) if has_head else _reason_against_method(method):
            self._skipped.add(reason)
            return
        content_type = _content_type(revisit) if has_head else None
        if content_type and self._options.kind_of(content_type) is None:
            self._skipped.add("type")
            return
        self._has_revisits = True
        url = revisit.target_uri or ""
        fields = json.dumps([url, content_type, place, asdict(reference)])
        self._waiting.execute("INSERT INTO revisits (url, fields) VALUES (?, ?)", (_bytes(url), fields))

    def _document(
        self, url: str, content_type: str, source: StoredRecord, place: str
    ) -> Iterator[RawDocument]:
        """Yield the page of *url* with the payload of *source*, unless it cannot be indexed."""
        # The body decides about a page without Content-Type.
        if content_type and self._options.kind_of(content_type) is None:
            self._skipped.add("type")
            return
        try:
            url = checked_name(url)
        except SettingError as error:
            self._faults.add(place, str(error))
            return
        # Compute the size of the body, so that it is not read into memory if it is too large.
        head_bytes = source.http.length if source.http is not None else 0
        if source.frame.block_length - head_bytes > self._options.max_bytes:
            self._skipped.add("large", place, f"{url} has more than {self._options.max_bytes} bytes")
            return
        try:
            body = source.payload()
        except DamagedInput as error:
            self._faults.add(place, str(error))
            return
        yield RawDocument(
            url, self._options.host, body, PAGE, f"{place} ({url})", _headers(source, content_type)
        )


def _content_type(record: StoredRecord) -> str:
    if record.http is None:
        return record.get("Content-Type") or ""
    # Scrapy reads the last one.
    *_, value = b"", *record.http.get_all(b"Content-Type")
    return value.decode("latin-1")


def _headers(source: StoredRecord, content_type: str) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of *source*, whose payload is indexed, with this Content-Type."""
    headers = () if source.http is None else source.http.headers
    others = tuple((name, value) for name, value in headers if name.lower() != b"content-type")
    return (*others, (b"Content-Type", content_type.encode("latin-1"))) if content_type else others


def _reason_against(record: StoredRecord, method: str) -> str | None:
    if record.http is None or record.http.status is None:
        return "type"
    return "status" if record.http.status != 200 else _reason_against_method(method)


def _reason_against_method(method: str) -> str | None:
    return None if method.upper() == "GET" else "method"


def _bytes(url: str) -> bytes:
    return url.encode("utf-8", "surrogatepass")

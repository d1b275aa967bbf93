"""The values of the crawl index."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    OnDone: TypeAlias = Callable[[str, int, int], None]
    """Progress callback of long work: the kind of things, how many are done, and roughly how many there are."""


@dataclass(frozen=True, slots=True)
class Original:
    """The ``response`` record that a revisit refers to.

    ``digest`` is the payload digest without its label; ``date`` the digits of its WARC-Date (14, or 17 with
    milliseconds); ``size`` the size of its compressed record in bytes; ``wacz_index`` the position of its container
    among the containers of the crawl. The location of the record (``record_id`` with angle brackets, ``file``,
    ``offset``) is unknown for records of other programs.

    ``status`` is the HTTP status of an imported record if it is known and not 200. ``form`` is the spelling of the
    digest in an imported record if it is not the usual one (see :data:`~scrapy_dedupe.stores.index_values.FORMS`). An
    original with either has no ``record_id``.
    """

    digest: str
    crawl: str
    date: str
    url: str
    size: int
    wacz_index: int = 0
    record_id: str | None = None
    file: str | None = None
    offset: int | None = None
    status: int | None = None
    form: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of URLs of a crawl, and the sizes that it stored and saved, in bytes."""

    total_urls: int = 0
    dupe_urls: int = 0
    conserved_size: int = 0
    total_crawl_size: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(int.__add__, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class UrlCapture:
    """The last complete GET payload that a crawl recorded for a URL, as a ``response`` or a ``revisit``.

    ``digest`` is the payload digest without its label, ``date`` the digits of the record's WARC-Date (14 or 17).
    ``validators``, at most 255 bytes, are opaque values that the caller compares when the server answers that nothing
    has changed.
    """

    url: str
    digest: str
    date: str
    validators: bytes = b""


@dataclass(frozen=True, slots=True)
class Need:
    """A container of another crawl that revisits of this crawl refer to.

    ``wacz_index`` is the position among the containers of ``crawl``, ``file`` the WARC file in it, if known.
    """

    crawl: str
    wacz_index: int = 0
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A revisit whose original is not in the index. ``size`` is the size of its compressed record in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Source:
    """A unit of import: a WACZ, a WARC file or a CDXJ file.

    ``name`` is unique in the index: the file name of a container, otherwise a path or URL. ``place`` is the path or URL
    to read; ``crawl`` the crawl that gets the records. ``hash`` (SHA-256 in hex, without a label) and ``size`` in bytes
    belong to a container, if known. ``token`` identifies one claim of a source; it is empty for a source that was not
    claimed.
    """

    name: str
    crawl: str
    place: str
    is_container: bool = False
    hash: str | None = None
    size: int | None = None
    token: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ImportNotes:
    """Notes on imports. ``progress`` is from 0 to 1, ``finished`` the time (ISO 8601, UTC) of the last import.

    ``removed_crawls`` is the number of committed crawls that the last manifest did not name, ``removed_size`` their
    size in bytes.
    """

    progress: float | None = None
    finished: str | None = None
    removed_crawls: int = 0
    removed_size: int = 0


@dataclass(frozen=True, slots=True)
class CrawlInfo:
    """A crawl in the index. ``state``: ``uncommitted``, ``committed`` or ``canceled``.

    ``incomplete``: some of its records are on disk and not yet in the index. ``software`` is None for a crawl of another
    program. ``imported``: its records were imported; an uncommitted imported crawl is one whose first import is running
    or was interrupted. ``concurrent``: other crawls may refer to its records before it is committed. ``waiting`` is the
    number of payloads that its revisits refer to and that are not in the index. ``marked``: Browsertrix has marked the
    committed crawl for removal, and forgets it at its next purge.
    """

    id: str
    state: str
    payload: str
    started: str | None
    committed: str | None
    counts: Counts
    files: tuple[str, ...] = ()
    stats: Mapping[str, object] | None = None
    incomplete: bool = False
    software: str | None = None
    imported: bool = False
    concurrent: bool = False
    waiting: int = 0
    marked: bool = False

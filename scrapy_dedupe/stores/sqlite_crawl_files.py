"""The data of a crawl in SQLite: records, captures of URLs, files, containers, needs, waiting revisits, and counts.

The functions take a connection and the number of a crawl or of a part of one. The caller provides the transaction. The
tables are described in :mod:`.sqlite_index_tables`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from operator import itemgetter
from typing import TYPE_CHECKING

from .base import Counts, Need
from .index_values import (
    UNKNOWN_FILE,
    container_fields,
    digest_start,
    need_order,
    packed_capture,
    packed_details,
    packed_digest,
    url_hash,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from .base import Original, UrlCapture, Waiting

_ADD = """
INSERT INTO original (id, digest, wacz_index, date, url, size, record, file, "offset")
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

# Every version of SQLite allows this number of parameters and two more.
_LOOKED_UP_AT_ONCE = 500

_ADDED_BEFORE = """
SELECT o.digest FROM original o CROSS JOIN crawl c ON c.number = o.id >> 32
WHERE (c.number = ? OR (coalesce(c.part_of, c.number) = ? AND c.commit_order IS NOT NULL))
AND substr(o.digest, 1, 8) IN ({})
"""

_ADD_URL = """
INSERT INTO crawl_url (hash, crawl, capture) VALUES (?, ?, ?)
ON CONFLICT (hash, crawl) DO UPDATE SET capture = excluded.capture
"""

_ADD_LATEST_URL = _ADD_URL.replace("= excluded.capture", "= max(capture, excluded.capture)")

# No packed digest of five bytes starts with this byte.
_REFERENCE = b"\x01"

_ADD_WAITING = """
INSERT INTO crawl_waiting (crawl, digest, size, revisits) VALUES (?, ?, ?, ?)
ON CONFLICT (crawl, digest, size) DO UPDATE SET revisits = revisits + excluded.revisits
"""


def id_range(number: int) -> tuple[int, int]:
    """The first and the last id that an original of a crawl or part can have."""
    return number << 32, ((number + 1) << 32) - 1


def add_originals(
    connection: sqlite3.Connection, number: int, crawl: int, originals: Sequence[Original]
) -> dict[bytes, int]:
    """Add records to a crawl or to a part of it, except those whose payload it has already.

    Returns the packed digests of the added records, with their running numbers. Records of another part of the crawl
    count only after that part has ended: until then it may still be forgotten.
    """
    first, last = id_range(number)
    row = connection.execute(
        "SELECT max(id) FROM original WHERE id BETWEEN ? AND ?", (first, last)
    ).fetchone()
    following = first if row[0] is None else row[0] + 1
    files: dict[str, int] = {}
    packed = [packed_digest(original.digest) for original in originals]
    known = _added_before(connection, number, crawl, packed)
    entered: dict[bytes, int] = {}
    rows = []
    for digest, original in zip(packed, originals, strict=True):
        name = original.file
        if name is not None and name not in files:
            files[name] = file_number(connection, number, name)
        if digest in known or digest in entered:
            continue
        entered[digest] = following - first
        rows.append(
            (
                following,
                digest,
                original.wacz_index,
                int(original.date),
                original.url,
                original.size,
                packed_details(original) or None,
                None if name is None else files[name],
                original.offset,
            )
        )
        following += 1
    connection.executemany(_ADD, rows)
    return entered


def _added_before(
    connection: sqlite3.Connection, number: int, crawl: int, digests: Sequence[bytes]
) -> set[bytes]:
    """The digests that the crawl or part has already, and others with the same first bytes."""
    known: set[bytes] = set()
    for first in range(0, len(digests), _LOOKED_UP_AT_ONCE):
        beginnings = [digest[:8] for digest in digests[first : first + _LOOKED_UP_AT_ONCE]]
        query = _ADDED_BEFORE.format(", ".join("?" * len(beginnings)))
        known.update(digest for (digest,) in connection.execute(query, (number, crawl, *beginnings)))
    return known


def add_urls(
    connection: sqlite3.Connection,
    number: int,
    urls: Sequence[UrlCapture],
    entered: Mapping[bytes, int],
    *,
    latest: bool = False,
) -> None:
    """Add captures of URLs: the last one of each URL, or with ``latest`` the one with the latest date.

    ``entered`` is the result of :func:`add_originals` for the same crawl or part.
    """
    rows = []
    files: dict[str, int] = {}
    for capture in urls:
        name = capture.file
        if name is not None and name not in files:
            files[name] = file_number(connection, number, name)
        value = packed_capture(capture, UNKNOWN_FILE if name is None else files[name])
        digest = packed_digest(capture.digest)
        if digest in entered:
            value = value[: -len(digest)] + _REFERENCE + entered[digest].to_bytes(4, "big")
        rows.append((url_hash(capture.url), number, value))
    # In the order of the hashes, since neighbours share a page. A URL may occur twice: the order of its captures counts.
    rows.sort(key=itemgetter(0))
    connection.executemany(_ADD_LATEST_URL if latest else _ADD_URL, rows)


def whole_capture(connection: sqlite3.Connection, number: int, value: bytes) -> bytes:
    """A packed capture with its digest; without the digest if the record that holds it is missing."""
    end = digest_start(value)
    if end is None or len(value) - end != 5 or value[end : end + 1] != _REFERENCE:
        return value
    row = connection.execute(
        "SELECT digest FROM original WHERE id = ?",
        (id_range(number)[0] + int.from_bytes(value[end + 1 :], "big"),),
    ).fetchone()
    return value[:end] + (b"" if row is None else row[0])


def file_name(connection: sqlite3.Connection, number: int, file: int | None) -> str | None:
    """The name of a WARC file of a crawl or part from its number; None if it is unknown."""
    row = connection.execute(
        "SELECT name FROM crawl_file WHERE crawl = ? AND number = ?", (number, file)
    ).fetchone()
    return None if row is None else row[0]


def add_waiting(connection: sqlite3.Connection, number: int, waiting: Sequence[Waiting]) -> None:
    """Record revisits whose originals are not in the index."""
    revisits = Counter((revisit.digest, revisit.size) for revisit in waiting)
    connection.executemany(
        _ADD_WAITING,
        [(number, packed_digest(digest), size, many) for (digest, size), many in revisits.items()],
    )


def add_counts(connection: sqlite3.Connection, crawl: int, counts: Counts) -> None:
    """Add *counts* to the counts of a crawl."""
    if counts != Counts():
        connection.execute(
            "UPDATE crawl SET total_urls = total_urls + ?, dupe_urls = dupe_urls + ?,"
            " conserved_size = conserved_size + ?, total_crawl_size = total_crawl_size + ?"
            " WHERE number = ?",
            (*astuple(counts), crawl),
        )


def file_number(connection: sqlite3.Connection, crawl: int, name: str) -> int:
    """The number of a WARC file. The file is added if it is new."""
    return _entered_number(connection, "crawl_file", "name", crawl, name)


def rename_file(connection: sqlite3.Connection, crawl: str, number: int, old: str, new: str) -> bool:
    """Rename a WARC file of a crawl and its parts. False if none of them has it, under the old or the new name."""
    is_it = "crawl IN (SELECT number FROM crawl WHERE number = ?1 OR part_of = ?1) AND name = ?2"
    rename = f"UPDATE crawl_file SET name = ?3 WHERE {is_it}"  # noqa: S608 - a constant
    find = f"SELECT 1 FROM crawl_file WHERE {is_it}"  # noqa: S608 - a constant
    renamed = connection.execute(rename, (number, old, new)).rowcount
    if not renamed and connection.execute(find, (number, new)).fetchone() is None:
        return False
    connection.execute(
        "UPDATE OR REPLACE crawl_need SET file = ? WHERE other = ? AND file = ?", (new, crawl, old)
    )
    return True


def container_number(connection: sqlite3.Connection, crawl: int, filename: str) -> int:
    """The number of a container. The container is added if it is new."""
    return _entered_number(connection, "crawl_container", "filename", crawl, filename)


def set_container(
    connection: sqlite3.Connection, crawl: int, filename: str, sha256_hex: str | None, size: int
) -> None:
    """Record hash and size of a container. The container is added if it is new."""
    place = container_number(connection, crawl, filename)
    connection.execute(
        "UPDATE crawl_container SET hash = ?, size = ? WHERE crawl = ? AND number = ?",
        (sha256_hex, size, crawl, place),
    )


def drop_container(connection: sqlite3.Connection, crawl: int, filename: str) -> None:
    """Forget a container that is not packed, if it is the last one: the positions of later ones must not change."""
    connection.execute(
        "DELETE FROM crawl_container WHERE crawl = ?1 AND filename = ?2"
        " AND number = (SELECT max(number) FROM crawl_container WHERE crawl = ?1) AND size IS NULL",
        (crawl, filename),
    )


def containers_of(connection: sqlite3.Connection, crawl: int) -> list[dict[str, object]]:
    """The containers of a crawl, each with its ``filename`` and, once packed, ``hash`` and ``size``."""
    rows = connection.execute(
        "SELECT filename, hash, size FROM crawl_container WHERE crawl = ? ORDER BY number", (crawl,)
    )
    return [container_fields(*row) for row in rows]


def add_needs(connection: sqlite3.Connection, crawl: int, needs: Sequence[Need]) -> None:
    """Record the needs of a crawl, each once."""
    connection.executemany(
        "INSERT OR IGNORE INTO crawl_need (crawl, other, wacz_index, file) VALUES (?, ?, ?, ?)",
        [(crawl, need.crawl, need.wacz_index, need.file or "") for need in needs],
    )


def needs_of(connection: sqlite3.Connection, crawl: int) -> list[Need]:
    """The needs of a crawl, sorted."""
    rows = connection.execute("SELECT other, wacz_index, file FROM crawl_need WHERE crawl = ?", (crawl,))
    return sorted((Need(other, wacz_index, file or None) for other, wacz_index, file in rows), key=need_order)


def _entered_number(connection: sqlite3.Connection, table: str, column: str, crawl: int, name: str) -> int:
    find = f"SELECT min(number) FROM {table} WHERE crawl = ? AND {column} = ?"  # noqa: S608 - constants
    (number,) = connection.execute(find, (crawl, name)).fetchone()
    if number is None:
        insert = (
            f"INSERT INTO {table} (crawl, number, {column}) SELECT ?1, coalesce(max(number) + 1, 0), ?2"  # noqa: S608
            f" FROM {table} WHERE crawl = ?1 RETURNING number"
        )
        ((number,),) = connection.execute(insert, (crawl, name)).fetchall()
    return int(number)

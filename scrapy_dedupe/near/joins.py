"""The joins over the rows of all files, in SQL.

The statements use what DuckDB and Spark SQL have in common, except for the names of a few functions: ``unnest`` is
``explode`` in Spark, ``list`` is ``collect_list``, and ``read_parquet`` is a table of files.

**Documents**: one row for each page, in the order of date, file and offset; pages without a valid date come last::

    document BIGINT     its number in this order, from 0
    file, offset, position, uri, date, text_key, chars, host, mime, names, is_compared
                        see `pages`; a revisit has those of its original for everything that depends on the text
    has_text BOOLEAN
    text BIGINT         the number of the first document with this text
    uri_copy BIGINT     how often its URI had this text, counted up to this document
    uri_number BIGINT   a number for its URI if documents of this URI have several texts; otherwise NULL
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.offline.engine import rows_of
from scrapy_dedupe.warc.references import CaptureRow, CaptureTable, Reference

from .deciding import DECISIONS, SIGNED, Decisions
from .tables import PARQUET, RowsWriter, copy, table_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from scrapy_dedupe.warc.sources import ReadableFile


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of *file*, called *name* in them: its pages and its captures."""

    name: str
    file: ReadableFile
    pages: Path
    captures: Path


MOST_SHARES: Final = 64
_SHARE_DOCUMENTS: Final = 1_000

ORIGINALS: Final = {
    "file": "VARCHAR",
    "offset": "BIGINT",
    "position": "BIGINT",
    "original_file": "VARCHAR",
    "original_offset": "BIGINT",
    "original_position": "BIGINT",
}

FORMATS: Final = {"parquet": PARQUET, "csv": "FORMAT csv, HEADER true", "jsonl": "FORMAT json"}

GROUPS: Final = {
    "document": "the number of the document, in the order of date, file and offset",
    "file": "the name of its file",
    "offset": "where its record begins in the file, in stored bytes",
    "uri": "WARC-Target-URI",
    "date": "WARC-Date as written",
    "text_key": "the key of its canonical text, 32 hexadecimal digits",
    "chars": "the length of its canonical text in code points",
    "verdict": "unique, unchanged, exact or near: the verdict of a crawl that reads the documents in this order",
    "exact_group": "the first document with the same text",
    "kept": "the kept document to which its text is near; if the text itself is kept, the first document with it",
    "kept_uri": "the URI of this document",
    "similarity": "the estimated similarity of the two texts, from 0 to 1",
    "component": "the first document of its component",
}
"""The columns of the result, with descriptions."""

_DOCUMENTS: Final = """
WITH found AS (
    SELECT
        page.file, page.offset, page.position, page.uri, page.date, page.date_ms, page.host, page.has_text,
        coalesce(page.text_key, original.text_key) AS text_key,
        coalesce(page.chars, original.chars) AS chars,
        coalesce(page.mime, original.mime) AS mime,
        coalesce(page.names, original.names) AS names,
        coalesce(page.is_compared, original.is_compared) AS is_compared
    FROM {pages} AS page
    LEFT JOIN {originals} AS found
        ON page.file = found.file AND page.offset = found.offset AND page.position = found.position
    LEFT JOIN {pages} AS original
        ON original.file = found.original_file AND original.offset = found.original_offset
        AND original.position = found.original_position
),
numbered AS (
    SELECT
        row_number() OVER (ORDER BY date_ms NULLS LAST, file, "offset", position) - 1 AS document,
        file, "offset", position, uri, date, text_key, chars, host, mime, names, is_compared, has_text
    FROM found
    WHERE text_key IS NOT NULL
),
grouped AS (
    SELECT
        *,
        min(document) OVER (PARTITION BY text_key) AS text,
        row_number() OVER (PARTITION BY text_key, uri ORDER BY document) AS uri_copy
    FROM numbered
),
uris AS (
    SELECT uri, min(document) AS uri_number
    FROM grouped
    GROUP BY uri
    HAVING min(text) < max(text)
)
SELECT grouped.*, uris.uri_number
FROM grouped LEFT JOIN uris ON grouped.uri = uris.uri
ORDER BY document
"""

_TEXTS: Final = """
WITH sources AS (
    SELECT text_key, min(document) AS source
    FROM {documents}
    WHERE has_text
    GROUP BY text_key
),
places AS (
    SELECT place.file, place.offset, place.position, first.document AS number, first.host, first.uri, first.mime,
        first.names, first.text_key, first.uri_number
    FROM sources
    JOIN {documents} AS place ON place.document = sources.source
    JOIN {documents} AS first ON first.text_key = sources.text_key AND first.document = first.text
    WHERE first.is_compared
)
SELECT
    places.number, hash(places.host) % {shares} AS share, places.host, places.uri, places.mime, places.names,
    places.text_key, page.text, places.uri_number IS NOT NULL AS has_versions
FROM {pages} AS page
JOIN places ON page.file = places.file AND page.offset = places.offset AND page.position = places.position
ORDER BY share, host, number
"""

_BANDS: Final = """
CREATE TABLE bands AS
SELECT number, unnest(bands) AS bucket, true AS is_put FROM {signatures}
UNION ALL
SELECT number, unnest(more_bands) AS bucket, false AS is_put FROM {signatures}
"""

# Nothing is put into the other buckets, or nothing else is.
_SHARED: Final = """
CREATE TABLE shared AS
SELECT bucket, row_number() OVER (ORDER BY bucket) - 1 AS place
FROM bands
GROUP BY bucket
HAVING count(*) > 1 AND bool_or(is_put)
"""

_PLACES: Final = """
CREATE TABLE places AS
SELECT
    bands.number,
    list(shared.place) FILTER (WHERE bands.is_put) AS puts,
    list(shared.place) FILTER (WHERE NOT bands.is_put) AS others
FROM bands JOIN shared ON bands.bucket = shared.bucket
GROUP BY bands.number
"""

_IN_ORDER: Final = """
SELECT document.document, document.text, document.uri_number, places.puts, places.others, {signed}
FROM {documents} AS document
LEFT JOIN places ON places.number = document.document
LEFT JOIN {signatures} AS signed ON signed.number = places.number
WHERE places.number IS NOT NULL OR document.uri_number IS NOT NULL
ORDER BY document.document
"""

_GROUPS: Final = """
SELECT
    document.document, document.file, document.offset, document.uri, document.date,
    lower(hex(document.text_key)) AS text_key, document.chars,
    CASE
        WHEN document.document = document.text
            THEN CASE WHEN coalesce(decided.kept, document.text) = document.text THEN 'unique' ELSE 'near' END
        WHEN document.uri_copy > 1 THEN 'unchanged'
        ELSE 'exact'
    END AS verdict,
    document.text AS exact_group, coalesce(decided.kept, document.text) AS kept, kept.uri AS kept_uri,
    coalesce(decided.similarity, 1.0) AS similarity, coalesce(decided.component, document.text) AS component
FROM {documents} AS document
LEFT JOIN {decisions} AS decided ON decided.number = document.text
JOIN {documents} AS kept ON kept.document = coalesce(decided.kept, document.text)
ORDER BY document.document
"""


def find_originals(engine: Any, files: Sequence[FileRows], originals: Path) -> None:
    """Write the original of each revisit in *files*, as far as it is in one of them."""
    pages = table_of(rows.pages for rows in files)
    revisits = f'SELECT file, "offset", position, reference FROM {pages} WHERE reference IS NOT NULL'  # noqa: S608
    with closing(CaptureTable()) as captures, RowsWriter(originals, ORIGINALS) as writer:
        if engine.execute(f"{revisits} LIMIT 1").fetchone() is not None:
            _add_captures(engine, files, captures)
        names = {str(rows.file): rows.name for rows in files}
        for *place, reference in rows_of(engine.execute(revisits)):
            found = captures.original(Reference(**json.loads(reference)))
            if found is not None:
                name = names[str(captures.file_of(found))]
                writer.write((*place, name, found.offset, found.block_position))


def _add_captures(engine: Any, files: Sequence[FileRows], captures: CaptureTable) -> None:
    for rows in files:
        query = f'SELECT * FROM {table_of([rows.captures])} ORDER BY "offset", block_position'  # noqa: S608
        for row in rows_of(engine.execute(query)):
            captures.add_row(rows.file, CaptureRow(*row))


def join_documents(engine: Any, files: Sequence[FileRows], originals: Path, documents: Path) -> None:
    """Write the documents of all files."""
    pages = table_of(rows.pages for rows in files)
    copy(engine, _DOCUMENTS.format(pages=pages, originals=table_of([originals])), documents)


def join_texts(engine: Any, files: Sequence[FileRows], documents: Path, texts: Path) -> None:
    """Write the texts to sign (see `signing`). The more documents, the more shares."""
    pages, numbered = table_of(rows.pages for rows in files), table_of([documents])
    ((count,),) = engine.execute(f"SELECT count(*) FROM {numbered}").fetchall()  # noqa: S608
    shares = min(MOST_SHARES, 1 + count // _SHARE_DOCUMENTS)
    copy(engine, _TEXTS.format(pages=pages, documents=numbered, shares=shares), texts)


def shares_of(engine: Any, texts: Path) -> list[tuple[int, int]]:
    """The shares of *texts*, each with the number of its texts, the largest first."""
    query = f"SELECT share, count(*) FROM {table_of([texts])} GROUP BY share ORDER BY 2 DESC, 1"  # noqa: S608
    rows: list[tuple[int, int]] = engine.execute(query).fetchall()
    return rows


def decide(engine: Any, documents: Path, signatures: Iterable[Path], decisions: Path) -> None:
    """Decide all texts by their signatures (see `deciding`)."""
    signed = table_of(signatures)
    for statement in (_BANDS, _SHARED, _PLACES):
        engine.execute(statement.format(signatures=signed))
    engine.execute("DROP TABLE bands")
    ((buckets,),) = engine.execute("SELECT count(*) FROM shared").fetchall()
    engine.execute("DROP TABLE shared")
    query = _IN_ORDER.format(
        documents=table_of([documents]),
        signatures=signed,
        signed=", ".join(f"signed.{name}" for name in SIGNED),
    )
    decided = Decisions(buckets)
    for number, text, uri, puts, others, *signature in rows_of(engine.execute(query)):
        decided.add(number, text, uri, None if signature[1] is None else (puts, others, *signature))
    engine.execute("DROP TABLE places")
    with RowsWriter(decisions, DECISIONS) as writer:
        for row in decided.rows():
            writer.write(row)


def write_groups(engine: Any, documents: Path, decisions: Path, groups: Path, file_format: str) -> None:
    """Write the result to *groups*, which gets its name when it is complete."""
    query = _GROUPS.format(documents=table_of([documents]), decisions=table_of([decisions]))
    copy(engine, query, groups, FORMATS[file_format])


def count_groups(engine: Any, documents: Path, decisions: Path) -> dict[str, Any]:
    """The numbers of the summary."""
    groups = _GROUPS.format(documents=table_of([documents]), decisions=table_of([decisions]))
    engine.execute(f"CREATE TABLE groups AS SELECT verdict, exact_group, kept, component FROM ({groups})")  # noqa: S608
    verdicts = dict(engine.execute("SELECT verdict, count(*) FROM groups GROUP BY verdict").fetchall())
    components = "SELECT count(*) AS size FROM groups GROUP BY component"
    query = f"SELECT count(*), coalesce(max(size), 0) FROM ({components}) WHERE size > 1"  # noqa: S608
    ((groups_count, largest),) = engine.execute(query).fetchall()
    engine.execute("DROP TABLE groups")
    return {
        **{kind: verdicts.get(kind, 0) for kind in ("unique", "unchanged", "exact", "near")},
        "groups": groups_count,
        "largest": largest,
    }

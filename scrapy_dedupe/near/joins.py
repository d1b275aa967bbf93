"""The joins over the rows of all files, in SQL.

DuckDB runs them in this process (`tables.Tables`), or other workers do (`spark.joins`). Rows with one key, such as the
copies of one text, may be very many, so no statement needs all of them in one place: it uses groups and joins, not windows.
Two parts are always done in this process: the originals of revisits are found by the rule that all commands share
(`find_originals`), and the texts in shared buckets are decided one after the other, since each decision depends on which
earlier texts were kept (`decide`).

**Documents**: one row for each page, in the order of date, file and offset; pages without a valid date come last::

    document BIGINT     its number in this order, from 0
    file, offset, position, uri, date, text_key, chars, host, mime, names, is_compared
                        see `pages`; a revisit has those of its original for everything that depends on the text
    has_text BOOLEAN
    text BIGINT         the number of the first document with this text
    is_again BOOLEAN    whether an earlier document of its URI has this text
    uri_number BIGINT   a number for its URI if documents of this URI have several texts; otherwise NULL
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.warc.references import CaptureRow, CaptureTable, Reference

from .deciding import DECISIONS, SIGNED, Decisions
from .signing import CHANGED_HOSTS
from .tables import PARQUET, RowsWriter, copy, joining, table_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from scrapy_dedupe.warc.sources import ReadableFile

    from .tables import Tables


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

_REVISITS: Final = 'SELECT file, "offset", position, reference FROM pages WHERE reference IS NOT NULL'

# The captures that the revisits may mean: often a small part of all.
_CAPTURES: Final = """
WITH reference_key AS (
    SELECT DISTINCT key FROM (SELECT unnest(reference_keys) AS key FROM pages WHERE reference IS NOT NULL)
)
SELECT * FROM captures WHERE id IN (SELECT key FROM reference_key)
UNION SELECT * FROM captures WHERE uri IN (SELECT key FROM reference_key)
UNION SELECT * FROM captures WHERE digest IN (SELECT reference_digest FROM pages WHERE reference_digest IS NOT NULL)
ORDER BY file, "offset", block_position
"""

_FOUND: Final = """
SELECT
    page.file, page.offset, page.position, page.uri, page.date, page.date_ms, page.host, page.has_text,
    coalesce(page.text_key, source.text_key) AS text_key,
    coalesce(page.chars, source.chars) AS chars,
    coalesce(page.mime, source.mime) AS mime,
    coalesce(page.names, source.names) AS names,
    coalesce(page.is_compared, source.is_compared) AS is_compared
FROM pages AS page
LEFT JOIN originals AS found
    ON page.file = found.file AND page.offset = found.offset AND page.position = found.position
LEFT JOIN pages AS source
    ON source.file = found.original_file AND source.offset = found.original_offset
    AND source.position = found.original_position
WHERE coalesce(page.text_key, source.text_key) IS NOT NULL
"""
_ORDER: Final = 'date_ms NULLS LAST, file, "offset", position'

_DOCUMENTS: Final = """
WITH firsts AS (
    SELECT text_key, min(document) AS text
    FROM numbered
    GROUP BY text_key
),
uri_firsts AS (
    SELECT uri, text_key, min(document) AS earliest
    FROM numbered
    GROUP BY uri, text_key
),
uris AS (
    SELECT uri, min(earliest) AS uri_number
    FROM uri_firsts
    GROUP BY uri
    HAVING count(*) > 1
)
SELECT
    one.document, one.file, one.offset, one.position, one.uri, one.date, one.text_key, one.chars, one.host, one.mime,
    one.names, one.is_compared, one.has_text, firsts.text, uri_firsts.earliest < one.document AS is_again, uris.uri_number
FROM numbered AS one
JOIN firsts ON firsts.text_key = one.text_key
JOIN uri_firsts ON uri_firsts.uri = one.uri AND uri_firsts.text_key = one.text_key
LEFT JOIN uris ON uris.uri = one.uri
ORDER BY document
"""

_TEXTS: Final = """
WITH sources AS (
    SELECT text_key, min(document) AS source
    FROM documents
    WHERE has_text
    GROUP BY text_key
),
wanted AS (
    SELECT place.file, place.offset, place.position, first.document AS number, first.host, first.uri, first.mime,
        first.names, first.text_key, first.uri_number
    FROM sources
    JOIN documents AS place ON place.document = sources.source
    JOIN documents AS first ON first.text_key = sources.text_key AND first.document = first.text
    WHERE first.is_compared
)
SELECT
    wanted.number, hash(wanted.host) % {shares} AS share, wanted.host, wanted.uri, wanted.mime, wanted.names,
    wanted.text_key, page.text, wanted.uri_number IS NOT NULL AS has_versions
FROM pages AS page
JOIN wanted ON page.file = wanted.file AND page.offset = wanted.offset AND page.position = wanted.position
ORDER BY share, host, number
"""

_BANDS: Final = """
CREATE TABLE bands AS
SELECT number, unnest(bands) AS bucket, true AS is_put FROM signatures
UNION ALL
SELECT number, unnest(more_bands) AS bucket, false AS is_put FROM signatures
"""

# Nothing is put into the other buckets, or nothing else is.
_SHARED: Final = "SELECT bucket FROM bands GROUP BY bucket HAVING count(*) > 1 AND bool_or(is_put)"

_PLACES: Final = """
CREATE TABLE places AS
SELECT
    bands.number,
    list(shared.place) FILTER (WHERE bands.is_put) AS puts,
    list(shared.place) FILTER (WHERE NOT bands.is_put) AS others
FROM bands AS bands JOIN shared AS shared ON bands.bucket = shared.bucket
GROUP BY bands.number
"""

_IN_ORDER: Final = """
SELECT document.document, document.text, document.uri_number, places.puts, places.others, {signed}
FROM documents AS document
LEFT JOIN places AS places ON places.number = document.document
LEFT JOIN signatures AS signed ON signed.number = places.number
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
        WHEN document.is_again THEN 'unchanged'
        ELSE 'exact'
    END AS verdict,
    document.text AS exact_group, coalesce(decided.kept, document.text) AS kept, kept.uri AS kept_uri,
    coalesce(decided.similarity, 1.0) AS similarity, coalesce(decided.component, document.text) AS component
FROM documents AS document
LEFT JOIN decisions AS decided ON decided.number = document.text
JOIN documents AS kept ON kept.document = coalesce(decided.kept, document.text)
ORDER BY document.document
"""


def find_originals(tables: Tables, files: Sequence[FileRows], originals: Path) -> None:
    """Write the original of each revisit in *files*, as far as it is in one of them."""
    tables.view("pages", [rows.pages for rows in files])
    tables.view("captures", [rows.captures for rows in files])
    file_of = {rows.name: rows.file for rows in files}
    name_of = {str(rows.file): rows.name for rows in files}
    with closing(CaptureTable()) as captures, RowsWriter(originals, ORIGINALS) as writer:
        ((count,),) = tables.fetch("SELECT count(*) FROM pages WHERE reference IS NOT NULL")
        if not count:
            return
        for name, *values in tables.fetch(_CAPTURES):
            captures.add_row(file_of[name], CaptureRow(*values))
        for *place, reference in tables.fetch(_REVISITS):
            found = captures.original(Reference(**json.loads(reference)))
            if found is not None:
                name = name_of[str(captures.file_of(found))]
                writer.write((*place, name, found.offset, found.block_position))


def join_documents(tables: Tables, files: Sequence[FileRows], originals: Path, documents: Path) -> None:
    """Write the documents of all files."""
    tables.view("pages", [rows.pages for rows in files])
    tables.view("originals", [originals])
    tables.number("numbered", "document", _FOUND, _ORDER)
    tables.write(_DOCUMENTS, documents)
    tables.run(["DROP TABLE numbered"])


def join_texts(
    tables: Tables, files: Sequence[FileRows], documents: Path, texts: Path, most_shares: int = MOST_SHARES
) -> None:
    """Write the texts to sign (see `signing`). The more documents, the more shares, up to *most_shares*."""
    tables.view("pages", [rows.pages for rows in files])
    tables.view("documents", [documents])
    ((count,),) = tables.fetch("SELECT count(*) FROM documents")
    tables.write(_TEXTS.format(shares=min(most_shares, 1 + count // _SHARE_DOCUMENTS)), texts)


def shares_of(tables: Tables, texts: Path) -> list[tuple[int, int]]:
    """The shares of *texts*, each with the number of its texts, the largest first."""
    tables.view("texts", [texts])
    found = tables.fetch("SELECT share, count(*) AS size FROM texts GROUP BY share ORDER BY size DESC, share")
    return [(share, count) for share, count in found]


def decide(tables: Tables, documents: Path, signatures: Iterable[Path], decisions: Path) -> None:
    """Decide all texts by their signatures (see `deciding`)."""
    tables.view("documents", [documents])
    tables.view("signatures", signatures)
    tables.run([_BANDS])
    tables.number("shared", "place", _SHARED, "bucket")
    tables.run([_PLACES, "DROP TABLE bands"])
    ((buckets,),) = tables.fetch("SELECT count(*) FROM shared")
    decided = Decisions(buckets)
    query = _IN_ORDER.format(signed=", ".join(f"signed.{name}" for name in SIGNED))
    for number, text, uri, puts, others, *signature in tables.fetch(query):
        decided.add(number, text, uri, None if signature[1] is None else (puts, others, *signature))
    tables.run(["DROP TABLE places", "DROP TABLE shared"])
    with RowsWriter(decisions, DECISIONS) as writer:
        for row in decided.rows():
            writer.write(row)


def shares_to_sign_again(
    tables: Tables, texts: Path, signatures: Iterable[Path], decisions: Path
) -> set[int]:
    """The shares with a text for which another assumption was made than what was decided."""
    tables.view("texts", [texts])
    tables.view("signatures", signatures)
    tables.view("decisions", [decisions])
    hosts = CHANGED_HOSTS.format(texts="texts", signatures="signatures", decisions="decisions")
    return {share for (share,) in tables.fetch(f"SELECT DISTINCT share FROM ({hosts})")}  # noqa: S608


def join_groups(tables: Tables, documents: Path, decisions: Path, groups: Path) -> None:
    """Write the rows of the result."""
    tables.view("documents", [documents])
    tables.view("decisions", [decisions])
    tables.write(_GROUPS, groups)


def count_groups(tables: Tables, groups: Path) -> dict[str, Any]:
    """The numbers of the summary."""
    tables.view("groups", [groups])
    verdicts = dict(tables.fetch("SELECT verdict, count(*) FROM groups GROUP BY verdict"))
    components = "SELECT count(*) AS size FROM groups GROUP BY component"
    query = f"SELECT count(*), coalesce(max(size), 0) FROM ({components}) WHERE size > 1"  # noqa: S608
    ((count, largest),) = tables.fetch(query)
    return {
        **{kind: verdicts.get(kind, 0) for kind in ("unique", "unchanged", "exact", "near")},
        "groups": count,
        "largest": largest,
    }


def write_groups(groups: Path, output: Path, file_format: str) -> None:
    """Write the result to the file *output*, which gets its name when it is complete."""
    with joining(groups.parent) as engine:
        copy(engine, f"SELECT * FROM {table_of([groups])} ORDER BY document", output, FORMATS[file_format])  # noqa: S608

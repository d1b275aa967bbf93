# ruff: noqa: S608 - only constants are inserted into the statements
"""The joins of the plan, in SQL that DuckDB runs, and Spark with few changes.

Given: the views ``line`` (`plan_lines`) and ``row`` (`rows`, with the column file), and the tables ``file`` (file, is_output)
and ``checked`` (rows of lines that were read one by one, with the column line).
"""

from __future__ import annotations

from typing import Final

from scrapy_dedupe.offline.rows import COLUMNS

# The place is that of the line, and the facts are for the verification.
_NOT_PLANNED: Final = ("offset", "length", "stored", "start", "head_bytes", "block_bytes")
# The heads of records whose revisits might not be smaller, if each refers to its original with at most 1,200 bytes.
_HEADS: Final = (
    "CASE WHEN {all_copies} OR r.heads_bytes + {added} + 1200 >= r.length THEN r.start END AS heads"
)
_VALUES: Final = ", ".join([*(f'r."{name}"' for name in COLUMNS if name not in _NOT_PLANNED), _HEADS])

_MATCHES: Final = """
    r.file = l.file AND r."offset" = l."offset" AND r.length = l.length AND r.target_uri = l.uri AND r.target_date = l.date
    AND CASE l.label WHEN 'md5' THEN r.md5 WHEN 'sha1' THEN r.sha1 WHEN 'sha256' THEN r.sha256 ELSE r.sha512 END = l.value
"""

UNMATCHED: Final = f"""
SELECT l.line, l.file, l."offset", l.length, l.uri, l.date, l.label, l.value FROM line l
LEFT JOIN row r ON {_MATCHES} WHERE l.role > 0 AND r.file IS NULL ORDER BY l.line
"""
"""Lines of originals and copies whose row is missing or differs."""

NO_RECORD: Final = """
SELECT l.file, l."offset" FROM line l LEFT JOIN row r ON r.file = l.file AND r."offset" = l."offset"
WHERE l.role = 0 AND r.file IS NULL AND l.file IN (SELECT file FROM row_file) ORDER BY l.line
"""
"""Other lines without a record at their place."""

# Nothing is known about a damaged record, or one that differs from its line.
_LINE: Final = """l.line, l.file, l."offset", l.length, l.label, l.value, l.listed_key, l.extension, l.copy, l.refers_uri,
    l.refers_date, l.role, coalesce(l.original, l.line) AS cluster, l.original AS listed_original"""
_KNOWN: Final = """id, id_key, uri, date, date_key, digest, digest_key"""

SURVEYED: Final = [
    f"""
CREATE TABLE scanned AS
SELECT {_LINE}, {_VALUES} FROM line l JOIN row r ON {_MATCHES} WHERE l.role > 0
UNION ALL
SELECT {_LINE}, {_VALUES} FROM line l JOIN checked r ON r.line = l.line
""",
    f"""
CREATE TABLE surveyed AS
SELECT * EXCLUDE ({_KNOWN}, concurrent_to, heads, is_gzip, target_uri, target_date, moment),
    {", ".join(f"CASE WHEN reason = 'damaged' THEN NULL ELSE {name} END AS {name}" for name in _KNOWN.split(", "))}
FROM scanned
""",
    "CREATE TABLE named_by AS SELECT line, file, unnest(concurrent_to) AS id_key FROM scanned WHERE reason IS DISTINCT FROM 'damaged'",
    "CREATE TABLE head AS SELECT line, heads, is_gzip FROM scanned WHERE role = 2 AND heads IS NOT NULL",
    "DROP TABLE scanned",
    # Captures that have no line of an original or copy.
    """
CREATE TABLE unlisted AS
SELECT r.file, r.id_key, r.uri, r.date_key FROM row r
LEFT JOIN line l ON l.role > 0 AND l.file = r.file AND l."offset" = r."offset"
WHERE r.kind IN ('response', 'resource') AND (l.file IS NULL OR r.reason = 'damaged')
""",
    # Requests with another method than GET name their responses, or are named by them.
    """
CREATE TABLE other_method AS SELECT DISTINCT file, id_key FROM (
    SELECT file, id_key FROM row WHERE is_other_method
    UNION ALL SELECT file, unnest(concurrent_to) AS id_key FROM row WHERE is_other_method
    UNION ALL SELECT file, unnest(refers_to) AS id_key FROM row WHERE is_other_method
) WHERE id_key IS NOT NULL
""",
    """
CREATE TABLE by_method AS
SELECT s.line FROM surveyed s JOIN other_method o ON o.file = s.file AND o.id_key = s.id_key
UNION SELECT n.line FROM named_by n JOIN other_method o ON o.file = n.file AND o.id_key = n.id_key
""",
    # If records of several payloads share one id, a reference by this id may lead to any of them.
    """
CREATE TABLE shared_id AS
SELECT id_key FROM surveyed WHERE id_key IS NOT NULL
GROUP BY id_key HAVING count(DISTINCT (label, value, extension)) > 1
UNION SELECT u.id_key FROM unlisted u WHERE u.id_key IN (SELECT id_key FROM surveyed WHERE id_key IS NOT NULL)
""",
    # What a record that cannot be changed refers to must not change.
    """
CREATE TABLE pinned_id AS
SELECT unnest(concurrent_to) AS id_key FROM row WHERE is_fixed
UNION SELECT unnest(refers_to) AS id_key FROM row WHERE is_fixed
""",
    # A reference by date or digest may mean any of the captures of this URI.
    """
CREATE TABLE pinned_uri AS
SELECT unnest(refers_uris) AS uri FROM row WHERE is_fixed AND kind = 'revisit'
UNION SELECT uri FROM row WHERE is_fixed AND kind = 'revisit' AND refers_uris IS NULL AND uri IS NOT NULL
""",
    # A digest of an unknown form leads to the records with the same text, and cannot be updated.
    """
CREATE TABLE pinned_digest AS
SELECT DISTINCT digest FROM row WHERE kind = 'revisit' AND digest IS NOT NULL AND digest_key IS NULL
""",
]
"""The listed originals and copies (``surveyed``), and what keeps them from being changed."""

CHOICES: Final = [
    """
CREATE TABLE eligible AS
SELECT s.* EXCLUDE (reason, unfit),
    coalesce(
        s.reason,
        CASE WHEN m.line IS NOT NULL THEN 'method' END,
        CASE WHEN s.role = 2 AND (p.id_key IS NOT NULL OR u.uri IS NOT NULL OR g.digest IS NOT NULL)
            THEN 'shared' END
    ) AS reason,
    coalesce(
        s.unfit,
        CASE WHEN m.line IS NOT NULL THEN 'method' END,
        CASE WHEN i.id_key IS NOT NULL THEN 'unreadable' END
    ) AS unfit
FROM surveyed s
LEFT JOIN by_method m ON m.line = s.line
LEFT JOIN shared_id i ON i.id_key = s.id_key
LEFT JOIN pinned_id p ON p.id_key = s.id_key
LEFT JOIN pinned_uri u ON u.uri = s.uri
LEFT JOIN pinned_digest g ON g.digest = s.digest
""",
    "DROP TABLE surveyed",
    # A cluster is a listed original and its copies. The first records of each cluster that can be originals: one without
    # chunks and one in chunks, so that the choice is fast in a large cluster too.
    """
CREATE TABLE serving AS
SELECT cluster, is_chunked, min(copy) AS copy, min_by(line, (copy, line)) AS line FROM eligible WHERE unfit IS NULL
GROUP BY cluster, is_chunked
""",
    """
CREATE TABLE earlier AS
SELECT s.line, min_by(v.line, (v.copy, v.line)) FILTER (WHERE s.is_chunked OR NOT v.is_chunked) AS original
FROM eligible s JOIN serving v ON v.cluster = s.listed_original
WHERE s.role = 2 AND (v.copy < s.copy OR (v.copy = s.copy AND v.line < s.line))
GROUP BY s.line
""",
    """
CREATE TABLE chosen AS
SELECT s.* EXCLUDE (reason), e.original,
    CASE WHEN s.role = 2 AND s.reason IS NULL AND e.original IS NULL THEN
        CASE WHEN e.line IS NOT NULL THEN 'chunks' WHEN o.unfit = 'unreadable' THEN 'unreadable' ELSE 'original' END
        ELSE s.reason END AS reason
FROM eligible s
LEFT JOIN earlier e ON e.line = s.line
LEFT JOIN eligible o ON o.line = s.listed_original
""",
    "DROP TABLE eligible",
    "DROP TABLE earlier",
]
"""The original of each copy (``chosen``)."""

SMALL_COPIES: Final = """
SELECT c.line, h.heads, h.is_gzip, c.refers_uri, c.refers_date FROM chosen c JOIN head h ON h.line = c.line
WHERE c.role = 2 AND c.reason IS NULL AND (
    {all_copies} OR c.heads_bytes + octet_length(c.refers_uri) + length(c.refers_date) + {added} >= c.length
)
"""
"""Copies whose revisit might not be smaller. All others get a size from the lengths of their parts."""

OUTCOMES: Final = [
    # 64: bytes for values that the estimated size does not include, such as the digits of another date.
    """
CREATE TABLE gaining AS
SELECT c.* EXCLUDE (reason), coalesce(
        z.revisit_bytes,
        c.heads_bytes + octet_length(c.refers_uri) + length(c.refers_date) + {added} // 2
    ) AS new_bytes,
    CASE WHEN c.role = 2 AND c.reason IS NULL AND new_bytes + 64
        + greatest(0, coalesce(octet_length(o.id), 0) - 47)
        + greatest(0, octet_length(o.uri) - octet_length(c.refers_uri)) >= c.length THEN 'no-gain'
        ELSE c.reason END AS reason
FROM chosen c
LEFT JOIN chosen o ON o.line = c.original
LEFT JOIN size z ON z.line = c.line
""",
    "DROP TABLE chosen",
    # A revisit that names this URL and second would only find the record in chunks.
    """
CREATE TABLE decided AS
SELECT g.* EXCLUDE (reason), coalesce(g.reason, CASE WHEN b.uri IS NOT NULL THEN 'chunks' END) AS reason,
    g.role = 2 AND g.reason IS NULL AND b.uri IS NULL AS is_converted
FROM gaining g LEFT JOIN (
    SELECT DISTINCT uri, listed_key, substr(date_key, 1, 19) AS second FROM gaining
    WHERE is_chunked AND (role = 1 OR reason IS NOT NULL)
) b ON g.role = 2 AND NOT g.is_chunked AND b.uri = g.uri AND b.listed_key = g.listed_key
    AND b.second = substr(g.date_key, 1, 19)
""",
    "DROP TABLE gaining",
]
"""Which copies become revisits (``decided``)."""

LEFT_COPIES: Final = """
SELECT d.reason, count(*) AS copies FROM decided d JOIN file f ON f.file = d.file
LEFT JOIN (SELECT DISTINCT original FROM decided WHERE is_converted) o ON o.original = d.line
WHERE d.role = 2 AND d.reason IS NOT NULL AND f.is_output AND o.original IS NULL
GROUP BY d.reason ORDER BY copies DESC, d.reason
"""
"""Unchanged copies in rewritten files, by reason. A record that is the original of a revisit is not a copy."""

SAVED: Final = """
SELECT l.uri, coalesce(d.mime, ''), d.length - d.new_bytes FROM decided d JOIN line l ON l.line = d.line
JOIN file f ON f.file = d.file WHERE d.is_converted AND f.is_output ORDER BY d.line
"""
"""URI, media type and saved bytes of each copy that becomes a revisit in a rewritten file."""

SLICES: Final = [
    # A reference with a URI and a digest means an unchanged record if there is any, otherwise the first record. This is not a
    # window function, because Spark sorts all rows of a window in one task.
    """
CREATE TABLE payload AS SELECT uri, payload_key, min(line) AS line FROM (
    SELECT uri, digest_key AS payload_key, line, is_converted FROM decided
    UNION ALL
    SELECT uri, listed_key AS payload_key, line, is_converted FROM decided WHERE listed_key LIKE 'sha256:%'
) WHERE uri IS NOT NULL AND payload_key IS NOT NULL
GROUP BY uri, payload_key HAVING bool_and(is_converted)
""",
    "CREATE TABLE converted_id AS SELECT DISTINCT id_key FROM decided WHERE is_converted",
    """
CREATE TABLE converted_place AS SELECT DISTINCT uri, substr(date_key, 1, 19) AS second FROM decided
WHERE is_converted AND uri IS NOT NULL AND date_key IS NOT NULL
""",
    # A reference is ambiguous only if a record that becomes a revisit has the same id, or the same URI and second.
    """
CREATE TABLE standing AS
SELECT o.file, o.id_key, o.uri, o.date_key FROM (
    SELECT file, id_key, uri, date_key FROM decided WHERE NOT is_converted
    UNION ALL SELECT file, id_key, uri, date_key FROM unlisted
) o
LEFT JOIN converted_id i ON i.id_key = o.id_key
LEFT JOIN converted_place p ON p.uri = o.uri AND p.second = substr(o.date_key, 1, 19)
WHERE i.id_key IS NOT NULL OR p.uri IS NOT NULL
""",
    "DROP TABLE unlisted",
    # Records of rewritten files that refer to others and can be changed.
    """
CREATE TABLE named_id AS
SELECT file, "offset", length, unnest(concurrent_to) AS id_key FROM row
WHERE NOT is_fixed AND file IN (SELECT file FROM file WHERE is_output)
UNION SELECT file, "offset", length, unnest(refers_to) AS id_key FROM row
WHERE NOT is_fixed AND file IN (SELECT file FROM file WHERE is_output)
""",
    """
CREATE TABLE revisit AS
SELECT file, "offset", length, refers_uris[1] AS uri, substr(refers_date_key, 1, 19) AS second, digest_key AS payload_key,
    coalesce(refers_uris[1], CASE WHEN refers_to IS NULL THEN uri END) AS payload_uri
FROM row WHERE kind = 'revisit' AND NOT is_fixed AND file IN (SELECT file FROM file WHERE is_output)
""",
    """
CREATE TABLE touched AS
SELECT n.file, n."offset", n.length FROM named_id n JOIN converted_id c ON c.id_key = n.id_key
UNION SELECT r.file, r."offset", r.length FROM revisit r
JOIN converted_place p ON p.uri = r.uri AND p.second = r.second
UNION SELECT r.file, r."offset", r.length FROM revisit r
JOIN payload p ON p.uri = r.payload_uri AND p.payload_key = r.payload_key
""",
    """
CREATE TABLE wanted_id AS SELECT DISTINCT n.file, n.id_key FROM named_id n
JOIN touched t ON t.file = n.file AND t."offset" = n."offset"
""",
    "DROP TABLE named_id",
    """
CREATE TABLE wanted_place AS SELECT DISTINCT r.file, r.uri, r.second FROM revisit r
JOIN touched t ON t.file = r.file AND t."offset" = r."offset" WHERE r.uri IS NOT NULL AND r.second IS NOT NULL
""",
    """
CREATE TABLE wanted_payload AS SELECT DISTINCT r.file, p.line, p.payload_key FROM revisit r
JOIN touched t ON t.file = r.file AND t."offset" = r."offset"
JOIN payload p ON p.uri = r.payload_uri AND p.payload_key = r.payload_key
""",
    """
CREATE TABLE wanted AS
SELECT w.file, d.line, CAST(NULL AS VARCHAR) AS payload_key FROM wanted_id w
JOIN decided d ON d.id_key = w.id_key AND d.is_converted
UNION SELECT w.file, d.line, CAST(NULL AS VARCHAR) AS payload_key FROM wanted_place w
JOIN decided d ON d.uri = w.uri AND substr(d.date_key, 1, 19) = w.second
UNION SELECT file, line, payload_key FROM wanted_payload
""",
]
"""What the references in each rewritten file may mean."""

SLICE_ROWS: Final = """
SELECT file, kind, "offset", length, line, is_here, is_converted, id, id_key, uri, date_key, digest_key, listed_key,
    payload_key, target_id, target_uri, target_date, target_digest FROM (
    SELECT t.file, 'change' AS kind, t."offset", t.length, NULL AS line, NULL AS is_here, d.line IS NOT NULL AS is_converted,
        NULL AS id, NULL AS id_key, NULL AS uri, NULL AS date_key, NULL AS digest_key, NULL AS listed_key,
        NULL AS payload_key, o.id AS target_id, o.uri AS target_uri, o.date AS target_date, o.digest AS target_digest
    FROM (
        SELECT file, "offset", length FROM touched
        UNION SELECT file, "offset", length FROM decided
        WHERE is_converted AND file IN (SELECT file FROM file WHERE is_output)
    ) t
    LEFT JOIN decided d ON d.is_converted AND d.file = t.file AND d."offset" = t."offset"
    LEFT JOIN decided o ON o.line = d.original
    UNION ALL
    SELECT w.file, 'capture', NULL, NULL, d.line, d.file = w.file, d.is_converted, d.id, d.id_key, d.uri, d.date_key,
        d.digest_key, d.listed_key, w.payload_key, o.id, o.uri, o.date, o.digest
    FROM wanted w JOIN decided d ON d.line = w.line LEFT JOIN decided o ON d.is_converted AND o.line = d.original
    UNION ALL
    SELECT file, 'standing', NULL, NULL, NULL, is_here, NULL, NULL, id_key, uri, date_key, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL
    FROM (
        SELECT w.file, s.file = w.file AS is_here, s.id_key, s.uri, s.date_key FROM wanted_id w
        JOIN standing s ON s.id_key = w.id_key
        UNION SELECT w.file, s.file = w.file AS is_here, s.id_key, s.uri, s.date_key FROM wanted_place w
        JOIN standing s ON s.uri = w.uri AND substr(s.date_key, 1, 19) = w.second
    )
)
"""
"""The rows of all slices, in any order: DuckDB needs more than its memory limit to sort them."""

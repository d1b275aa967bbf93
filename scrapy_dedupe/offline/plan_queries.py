# ruff: noqa: S608 - only constants are inserted into the statements
"""The joins of the plan, in SQL that DuckDB runs, and Spark with few changes.

Given: the views ``line`` (`plan_lines`) and ``row`` (`rows`, with the column file), and the tables ``file`` (file, is_output)
and ``checked`` (rows of lines that were read one by one, with the column line).

Only the view ``capture`` has the values of listed records. All decisions are made in tables of numbers, which are joined to
it at the end, since joins of wide tables need several times more memory and time.
"""

from __future__ import annotations

from typing import Final

_MATCHES: Final = """
    r.file = l.file AND r."offset" = l."offset" AND r.length = l.length AND r.target_uri = l.uri AND r.target_date = l.date
    AND CASE l.label WHEN 'md5' THEN r.md5 WHEN 'sha1' THEN r.sha1 WHEN 'sha256' THEN r.sha256 ELSE r.sha512 END = l.value
"""

NO_RECORD: Final = """
SELECT l.file, l."offset" FROM line l LEFT JOIN row r ON r.file = l.file AND r."offset" = l."offset"
WHERE l.role = 0 AND r.file IS NULL AND l.file IN (SELECT file FROM row_file) ORDER BY l.line
"""
"""Other lines without a record at their place."""

# Nothing is known about a damaged record, or one that differs from its line.
_KNOWN: Final = "id id_key uri date date_key digest digest_key concurrent_to"
_CAPTURE: Final = f"""
    l.line, l.file, l."offset", l.length, l.listed_key, l.extension, l.copy, l.role, l.original, l.refers_bytes,
    l.refers_uri_bytes,
    {", ".join(f"CASE WHEN r.reason = 'damaged' THEN NULL ELSE r.{name} END AS {name}" for name in _KNOWN.split())},
    r.reason, r.unfit, r.is_chunked, r.mime, r.heads_bytes
"""

LISTED: Final = """
SELECT line, file, "offset", length, label, value, listed_key, extension, copy, role, original, uri, date,
    octet_length(refers_uri) AS refers_uri_bytes, octet_length(refers_uri) + length(refers_date) AS refers_bytes
FROM line WHERE role > 0
"""
"""Lines of originals and copies (``listed``)."""

MATCHED: Final = f"SELECT {_CAPTURE} FROM {{listed}} l JOIN {{row}} r ON {_MATCHES}"
"""Those that match their row, with its values (``matched``). Only rows of the same file are joined."""

UNMATCHED: Final = """
SELECT l.line, l.file, l."offset", l.length, l.uri, l.date, l.label, l.value FROM listed l
ANTI JOIN matched m ON m.line = l.line ORDER BY l.line
"""
"""Those whose row is missing or differs."""

SURVEYED: Final = [
    f"CREATE TABLE checked_capture AS SELECT {_CAPTURE} FROM listed l JOIN checked r ON r.line = l.line",
    "DROP TABLE listed",
    "CREATE VIEW capture AS SELECT * FROM matched UNION ALL SELECT * FROM checked_capture",
    "CREATE TABLE named_by AS SELECT line, file, unnest(concurrent_to) AS id_key FROM capture",
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
SELECT c.line FROM capture c JOIN other_method o ON o.file = c.file AND o.id_key = c.id_key
UNION SELECT n.line FROM named_by n JOIN other_method o ON o.file = n.file AND o.id_key = n.id_key
""",
    "DROP TABLE named_by",
    # If records of several payloads share one id, a reference by this id may lead to any of them.
    """
CREATE TABLE shared_id AS
SELECT id_key FROM capture WHERE id_key IS NOT NULL
GROUP BY id_key HAVING count(DISTINCT (listed_key, extension)) > 1
UNION SELECT u.id_key FROM unlisted u SEMI JOIN capture c ON c.id_key = u.id_key
""",
    "CREATE TABLE ambiguous AS SELECT c.line FROM capture c JOIN shared_id i ON i.id_key = c.id_key",
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
    """
CREATE TABLE pinned AS
SELECT c.line FROM capture c JOIN pinned_id p ON p.id_key = c.id_key
UNION SELECT c.line FROM capture c JOIN pinned_uri p ON p.uri = c.uri
UNION SELECT c.line FROM capture c JOIN pinned_digest p ON p.digest = c.digest
""",
]
"""The listed originals and copies (``capture``), and what keeps them from being changed."""

CHOICES: Final = [
    """
CREATE TABLE eligible AS
SELECT c.line, c.file, c."offset", c.length, c.copy, c.role, coalesce(c.original, c.line) AS cluster,
    c.original AS listed_original, c.is_chunked, c.heads_bytes, c.refers_bytes, c.refers_uri_bytes,
    octet_length(c.id) AS id_bytes, octet_length(c.uri) AS uri_bytes,
    coalesce(
        c.reason,
        CASE WHEN m.line IS NOT NULL THEN 'method' WHEN c.role = 2 AND p.line IS NOT NULL THEN 'shared' END
    ) AS reason,
    coalesce(
        c.unfit, CASE WHEN m.line IS NOT NULL THEN 'method' WHEN a.line IS NOT NULL THEN 'unreadable' END
    ) AS unfit
FROM capture c
LEFT JOIN by_method m ON m.line = c.line
LEFT JOIN pinned p ON p.line = c.line
LEFT JOIN ambiguous a ON a.line = c.line
""",
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
    """
CREATE TABLE small AS SELECT line, file, "offset", length FROM chosen
WHERE role = 2 AND reason IS NULL AND ({all_copies} OR heads_bytes + refers_bytes + {added} >= length)
""",
]
"""The original of each copy (``chosen``)."""

SMALL_COPIES: Final = """
SELECT s.line, s.start, s.is_gzip, l.refers_uri, l.refers_date FROM (
    SELECT c.line, r.start, r.is_gzip FROM small c ANTI JOIN checked k ON k.line = c.line
    JOIN row r ON r.file = c.file AND r."offset" = c."offset" AND r.length = c.length
    UNION ALL SELECT c.line, r.start, r.is_gzip FROM small c JOIN checked r ON r.line = c.line
) s
JOIN line l ON l.line = s.line WHERE s.start IS NOT NULL
"""
"""Copies whose revisit might not be smaller. All others get a size from the lengths of their parts."""

OUTCOMES: Final = [
    # 64: bytes for values that the estimated size does not include, such as the digits of another date.
    """
CREATE TABLE gaining AS
SELECT c.* EXCLUDE (reason), coalesce(
        z.revisit_bytes, c.heads_bytes + c.refers_bytes + {added} // 2
    ) AS new_bytes,
    CASE WHEN c.role = 2 AND c.reason IS NULL AND new_bytes + 64
        + greatest(0, coalesce(o.id_bytes, 0) - 47) + greatest(0, o.uri_bytes - c.refers_uri_bytes) >= c.length
        THEN 'no-gain' ELSE c.reason END AS reason
FROM chosen c
LEFT JOIN chosen o ON o.line = c.original
LEFT JOIN size z ON z.line = c.line
""",
    "DROP TABLE chosen",
    # A revisit that names this URL and second would only find the record in chunks.
    """
CREATE TABLE blocking AS
SELECT DISTINCT c.uri, c.listed_key, substr(c.date_key, 1, 19) AS second FROM capture c JOIN gaining g ON g.line = c.line
WHERE g.is_chunked AND (g.role = 1 OR g.reason IS NOT NULL)
""",
    """
CREATE TABLE blocked AS
SELECT c.line FROM capture c
JOIN blocking b ON b.uri = c.uri AND b.listed_key = c.listed_key AND b.second = substr(c.date_key, 1, 19)
WHERE c.role = 2 AND NOT c.is_chunked
""",
    """
CREATE TABLE decided AS
SELECT g.line, g.file, g.role, g.original, g.length, g.new_bytes,
    coalesce(g.reason, CASE WHEN b.line IS NOT NULL THEN 'chunks' END) AS reason,
    g.role = 2 AND g.reason IS NULL AND b.line IS NULL AS is_converted
FROM gaining g LEFT JOIN blocked b ON b.line = g.line
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
SELECT l.uri, coalesce(c.mime, ''), d.length - d.new_bytes FROM decided d JOIN line l ON l.line = d.line
JOIN capture c ON c.line = d.line JOIN file f ON f.file = d.file WHERE d.is_converted AND f.is_output ORDER BY d.line
"""
"""URI, media type and saved bytes of each copy that becomes a revisit in a rewritten file."""

SLICES: Final = [
    """
CREATE TABLE converted AS
SELECT c.line, c.file, c."offset", c.length, d.original, c.id_key, c.uri, substr(c.date_key, 1, 19) AS second
FROM capture c JOIN decided d ON d.line = c.line WHERE d.is_converted
""",
    # Records of rewritten files that refer to others and can be changed.
    """
CREATE TABLE named_id AS
SELECT file, "offset", length, unnest(concurrent_to) AS id_key FROM row
WHERE NOT is_fixed AND file IN (SELECT file FROM file WHERE is_output)
UNION ALL SELECT file, "offset", length, unnest(refers_to) AS id_key FROM row
WHERE NOT is_fixed AND file IN (SELECT file FROM file WHERE is_output)
""",
    """
CREATE TABLE revisit AS
SELECT file, "offset", length, refers_uris[1] AS uri, substr(refers_date_key, 1, 19) AS second, digest_key AS payload_key,
    coalesce(refers_uris[1], CASE WHEN refers_to IS NULL THEN uri END) AS payload_uri
FROM row WHERE kind = 'revisit' AND NOT is_fixed AND file IN (SELECT file FROM file WHERE is_output)
""",
    # A reference with a URI and a digest means an unchanged record if there is any, otherwise the first record. This is not a
    # window function, because Spark sorts all rows of a window in one task.
    """
CREATE TABLE named_payload AS SELECT DISTINCT payload_uri AS uri, payload_key FROM revisit
WHERE payload_uri IS NOT NULL AND payload_key IS NOT NULL
""",
    """
CREATE TABLE payload AS
SELECT n.uri, n.payload_key, min(n.line) AS line FROM (
    SELECT p.uri, p.payload_key, c.line FROM capture c
    JOIN named_payload p ON p.uri = c.uri AND p.payload_key = c.digest_key
    UNION ALL SELECT p.uri, p.payload_key, c.line FROM capture c
    JOIN named_payload p ON p.uri = c.uri AND p.payload_key = c.listed_key WHERE c.listed_key LIKE 'sha256:%'
) n
JOIN decided d ON d.line = n.line
GROUP BY n.uri, n.payload_key HAVING bool_and(d.is_converted)
""",
    """
CREATE TABLE touched AS
SELECT n.file, n."offset", n.length FROM named_id n SEMI JOIN converted c ON c.id_key = n.id_key
UNION SELECT r.file, r."offset", r.length FROM revisit r
SEMI JOIN converted c ON c.uri = r.uri AND c.second = r.second
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
    # A URI and date may also mean a record that does not change.
    """
CREATE TABLE wanted AS
SELECT w.file, c.line, c.original, CAST(NULL AS VARCHAR) AS payload_key FROM wanted_id w JOIN converted c ON c.id_key = w.id_key
UNION SELECT w.file, c.line, CASE WHEN d.is_converted THEN d.original END, CAST(NULL AS VARCHAR) AS payload_key
FROM wanted_place w
JOIN capture c ON c.uri = w.uri AND substr(c.date_key, 1, 19) = w.second JOIN decided d ON d.line = c.line
UNION SELECT w.file, c.line, c.original, w.payload_key FROM wanted_payload w JOIN converted c ON c.line = w.line
""",
    # A reference is ambiguous only if a record that becomes a revisit has the same id, or the same URI and second.
    """
CREATE TABLE unchanged AS
SELECT c.file, c.id_key, c.uri, c.date_key FROM capture c JOIN decided d ON d.line = c.line WHERE NOT d.is_converted
UNION ALL SELECT file, id_key, uri, date_key FROM unlisted
""",
    "DROP TABLE unlisted",
    """
CREATE TABLE candidate AS
SELECT u.file, u.id_key, u.uri, u.date_key FROM unchanged u SEMI JOIN wanted_id w ON w.id_key = u.id_key
UNION SELECT u.file, u.id_key, u.uri, u.date_key FROM unchanged u
SEMI JOIN wanted_place w ON w.uri = u.uri AND w.second = substr(u.date_key, 1, 19)
""",
    "DROP TABLE unchanged",
    """
CREATE TABLE standing AS
SELECT s.file, s.id_key, s.uri, s.date_key FROM candidate s SEMI JOIN converted c ON c.id_key = s.id_key
UNION SELECT s.file, s.id_key, s.uri, s.date_key FROM candidate s
SEMI JOIN converted c ON c.uri = s.uri AND c.second = substr(s.date_key, 1, 19)
""",
    """
CREATE TABLE change AS
SELECT t.file, t."offset", t.length, d.original FROM (
    SELECT file, "offset", length FROM touched
    UNION SELECT file, "offset", length FROM converted WHERE file IN (SELECT file FROM file WHERE is_output)
) t
LEFT JOIN converted d ON d.file = t.file AND d."offset" = t."offset"
""",
    # One join of wide tables in each statement, since all tables of a statement are in memory at the same time.
    """
CREATE TABLE meant AS
SELECT w.file, c.line, w.original, c.file = w.file AS is_here, c.id, c.id_key, c.uri, c.date_key, c.digest_key, c.listed_key,
    w.payload_key
FROM wanted w JOIN capture c ON c.line = w.line
""",
    """
CREATE TABLE target AS
SELECT n.file, c.line, c.id, c.uri, c.date, c.digest FROM (
    SELECT file, original FROM change UNION SELECT file, original FROM wanted
) n JOIN capture c ON c.line = n.original
""",
    "DROP TABLE converted",
]
"""What the references in each rewritten file may mean."""

SLICE_ROWS: Final = [
    """SELECT file, 'change' AS kind, "offset", length, original FROM change""",
    "SELECT file, 'original' AS kind, line, id, uri, date, digest FROM target",
    """
SELECT file, 'capture' AS kind, line, original, is_here, id, id_key, uri, date_key, digest_key, listed_key, payload_key
FROM meant
""",
    """
SELECT file, 'standing' AS kind, is_here, id_key, uri, date_key FROM (
    SELECT w.file, s.file = w.file AS is_here, s.id_key, s.uri, s.date_key FROM wanted_id w
    JOIN standing s ON s.id_key = w.id_key
    UNION SELECT w.file, s.file = w.file AS is_here, s.id_key, s.uri, s.date_key FROM wanted_place w
    JOIN standing s ON s.uri = w.uri AND substr(s.date_key, 1, 19) = w.second
) d
""",
]
"""The rows of all slices, in any order."""

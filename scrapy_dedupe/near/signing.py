"""The signatures of texts, as rows of Parquet files.

A signature depends on the template of its host, which depends on the earlier texts of the host. So the texts of a host are
signed in the order of their documents, by one process. Hosts are independent of each other: `sign_texts` signs those of one
*share*, and can run in any process or on any machine.

The template counts a text unless it is near to a text that its URL had before, which is then another version of the same
page. This is known only after the join (`deciding`). It is assumed at first, by comparing each text with the earlier texts
of its URL. If the join decides otherwise, the texts of the host are signed again with the decisions (`job`).

**Texts**, the input: one row for each text that the near layer compares, sorted by share, host and number::

    number BIGINT         the number of the first document with this text
    share BIGINT          its share: hosts are distributed by their hashes
    host VARCHAR          see `pages`, like the following ones
    uri VARCHAR
    mime VARCHAR
    names VARCHAR[]
    text_key BLOB
    text BLOB
    has_versions BOOLEAN  whether documents with this URI have several texts

**Signatures**, the output: one row for each text, with the fields of `Signature`::

    number BIGINT
    bands BIGINT[]        the numbers of the buckets into which the text is put if it is kept
    more_bands BIGINT[]   other buckets that are searched
    row_bytes BLOB        NULL if the text is not compared, since all of it is template
    rare_rows BLOB
    identity BLOB
    min_equal BIGINT
    min_equal_rare BIGINT
    min_equal_named BIGINT
    text_key BLOB
    is_own_version BOOLEAN    the assumption, or the decision, that it was near to an earlier text of its URI
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zlib_ng import zlib_ng

from scrapy_dedupe.content.candidates import Candidates, near_layers
from scrapy_dedupe.content.pages import PageReading
from scrapy_dedupe.content.template import TemplateGuard
from scrapy_dedupe.stores.base import SeenText, Signature
from scrapy_dedupe.stores.content_values import bucket_numbers, equal_bytes
from scrapy_dedupe.stores.duckdb import rows_of

from .tables import RowsWriter, joining, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.content.candidates import NearCandidate
    from scrapy_dedupe.content.options import JudgeOptions

SIGNATURES: Final = {
    "number": "BIGINT",
    "bands": "BIGINT[]",
    "more_bands": "BIGINT[]",
    "row_bytes": "BLOB",
    "rare_rows": "BLOB",
    "identity": "BLOB",
    "min_equal": "BIGINT",
    "min_equal_rare": "BIGINT",
    "min_equal_named": "BIGINT",
    "text_key": "BLOB",
    "is_own_version": "BOOLEAN",
}

# The earlier texts of a URL with which a text is compared for the assumption. More would cost time for each new one.
_MOST_VERSIONS: Final = 16


CHANGED_HOSTS: Final = """
SELECT DISTINCT texts.share, texts.host
FROM {texts} AS texts
JOIN {signatures} AS signed ON signed.number = texts.number
LEFT JOIN {decisions} AS decided ON decided.number = texts.number
WHERE signed.is_own_version <> coalesce(decided.is_own_version, false)
"""
"""The hosts for which another assumption was made than what was decided, by share."""


@dataclass(frozen=True, slots=True)
class EarlierRound:
    """The signatures of a share in the last round, and the decisions that followed from all signatures."""

    signatures: Path
    decisions: Path


def sign_texts(
    texts: Path, share: int, signatures: Path, options: JudgeOptions, earlier: EarlierRound | None = None
) -> None:
    """Write the signatures of one *share* of *texts* to the new file *signatures*.

    After an *earlier* round, only the texts of hosts with another decision than was assumed are signed, and the rows of
    other hosts are copied. Raises ArchiveError for a system error.
    """
    layers = near_layers(options)
    versions = _Versions()
    with joining(signatures.parent) as engine, RowsWriter(signatures, SIGNATURES) as writer:
        if earlier is not None:
            writer.write_from(_rows_to_copy(texts, share, earlier))
        # One host after the other, whose template is never needed again. Each layer counts it for itself.
        guard = TemplateGuard(lambda host: None, lambda host, template: None, max_hosts=len(layers))
        candidates = Candidates(options, layers, guard if options.template_guard else None)
        last = None
        rows = rows_of(engine.execute(_texts_to_sign(texts, share, earlier)))
        for number, host, url, mime, names, key, text, has_versions, decided in rows:
            if host != last:
                last = host
                versions.clear()
            reading = PageReading(zlib_ng.decompress(text).decode(), mime, names=tuple(names))
            candidate = candidates.candidate(reading, SeenText(key, url, "", 0))
            assert candidate is not None
            is_own = (has_versions and versions.has_near(url, candidate)) if decided is None else decided
            candidates.count(candidate, is_own_version=is_own)
            writer.write(_row(number, key, candidate.signature, is_own_version=is_own))


def _changed(texts: Path, earlier: EarlierRound) -> str:
    return CHANGED_HOSTS.format(
        texts=table_of([texts]),
        signatures=table_of([earlier.signatures]),
        decisions=table_of([earlier.decisions]),
    )


def _texts_to_sign(texts: Path, share: int, earlier: EarlierRound | None) -> str:
    columns = "number, host, uri, mime, names, text_key, text, has_versions"
    if earlier is None:
        return f"SELECT {columns}, NULL FROM {table_of([texts])} WHERE share = {share} ORDER BY host, number"  # noqa: S608
    changed = _changed(texts, earlier)
    return (
        f"SELECT {columns}, coalesce(decided.is_own_version, false) FROM {table_of([texts])}"  # noqa: S608
        f" LEFT JOIN {table_of([earlier.decisions])} AS decided USING (number)"
        f" WHERE share = {share} AND host IN (SELECT host FROM ({changed})) ORDER BY host, number"
    )


def _rows_to_copy(texts: Path, share: int, earlier: EarlierRound) -> str:
    changed = _changed(texts, earlier)
    numbers = (
        f"SELECT number FROM {table_of([texts])}"  # noqa: S608
        f" WHERE share = {share} AND host NOT IN (SELECT host FROM ({changed}))"
    )
    return f"SELECT * FROM {table_of([earlier.signatures])} WHERE number IN ({numbers})"  # noqa: S608


def _row(number: int, key: bytes, signature: Signature | None, *, is_own_version: bool) -> tuple[object, ...]:
    if signature is None:
        return (number, [], [], None, None, None, None, None, None, key, is_own_version)
    return (
        number,
        bucket_numbers(b"".join(signature.bands)),
        bucket_numbers(b"".join(signature.more_bands)),
        signature.rows,
        signature.rare_rows,
        signature.identity,
        signature.min_equal,
        signature.min_equal_rare,
        signature.min_equal_named,
        key,
        is_own_version,
    )


class _Versions:
    """The last texts of each URL of a host that were not near to an earlier one: their rows and bands."""

    def __init__(self) -> None:
        self._texts: defaultdict[str, list[tuple[bytes, bytes]]] = defaultdict(list)

    def has_near(self, url: str, candidate: NearCandidate) -> bool:
        """Whether a text is near to an earlier one of its URL, and shares a bucket with it; otherwise it is added."""
        signature = candidate.signature
        if signature is None:
            return False
        earlier = self._texts[url]
        if earlier:
            searched = {*bucket_numbers(b"".join((*signature.bands, *signature.more_bands)))}
            for rows, bands in earlier:
                is_near = equal_bytes(rows, signature.rows) >= signature.min_equal
                if is_near and not searched.isdisjoint(bucket_numbers(bands)):
                    return True
        earlier.append((signature.rows, b"".join(signature.bands)))
        del earlier[:-_MOST_VERSIONS]
        return False

    def clear(self) -> None:
        self._texts.clear()

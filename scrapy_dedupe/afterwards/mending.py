"""What the records of a file refer to, once copies in the archive have become revisits.

A WARC-Concurrent-To that names a copy gets the id of its revisit. A revisit, conversion or metadata record that
refers to a copy is pointed to the copy's original, since a chain of revisits replays nowhere.

One id can stand on several records, where a file is there twice under two names. A reference in the file of a record
that was converted means that one; any other reference is left alone as long as the id stands somewhere on a record
that stays. So nothing dangles that did not dangle before.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from scrapy_dedupe.afterwards.revisits import Target, bare, pointed_to, revisit_id, with_concurrent
from scrapy_dedupe.warc.capture import parse_digest
from scrapy_dedupe.warc.dates import parse_date

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.afterwards.plan import Plan
    from scrapy_dedupe.warc.raw_heads import RawHead

MENTION: Final = re.compile(rb"\nWARC-(?:Concurrent-To|Refers-To|Type:[ \t]*revisit)", re.IGNORECASE)
"""Found in the head of every record that could refer to another."""

# References that take more than one look-up, and fields that go on in the next line.
_OTHERS: Final = re.compile(rb"\n(?:WARC-(?:Refers-To|Type:[ \t]*revisit)|[ \t])", re.IGNORECASE)
_CONCURRENT: Final = re.compile(rb"\nWARC-Concurrent-To[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)

# Digests that stand as `digest_key` gives them, as those of most manifests and records do.
_COMPARED: Final = re.compile(r"sha1:[A-Z2-7]{32}|sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}")

_CONVERTED = "SELECT 1 FROM plan.surveyed WHERE id_key = ? AND is_converted = 1 LIMIT 1"
_STAYS = "SELECT 1 FROM plan.surveyed WHERE id_key = ? AND is_converted = 0 LIMIT 1"
_HERE = "SELECT 1 FROM plan.surveyed WHERE id_key = ? AND is_converted = ? AND file = ? LIMIT 1"
_FOUND = (
    "SELECT s.id, o.id, o.uri, o.date, o.digest FROM plan.surveyed s JOIN line l ON l.id = s.line"
    " JOIN plan.surveyed o ON o.line = l.original "
)


class _Found(NamedTuple):
    target: Target
    new_id: bytes


def date_key(text: str | None) -> str | None:
    """A date as it is compared: the same for all texts of one time; None if it is none."""
    try:
        return parse_date(text).isoformat() if text else None
    except ValueError:
        return None


def digest_key(text: str | None) -> str | None:
    """A digest as it is compared, whatever its case or base; None if it is none of a known form."""
    if text and _COMPARED.fullmatch(text):
        return text
    try:
        return str(parse_digest(text)) if text else None
    except ValueError:
        return None


class Mender:
    """Mends the references of the records of one file."""

    def __init__(self, plan: Plan, file: int) -> None:
        self._execute = plan.connection.execute
        self._file = file
        # The records of an exchange name the same one, and stand together.
        self._new_id = lru_cache(1_024)(self._looked_up_id)

    def mended(self, head: RawHead) -> RawHead:
        """The head with its references mended; the same object if none has to be."""
        head = with_concurrent(head, self._new_id)
        refers_to = head.get(b"WARC-Refers-To")
        if (head.get(b"WARC-Type") or b"").lower() == b"revisit":
            found = self._of_revisit(head, refers_to)
            takes_digest = b"identical-payload-digest" in (head.get(b"WARC-Profile") or b"")
            is_revisit = True
        else:
            found = self._of_id(refers_to) if refers_to is not None else None
            takes_digest = is_revisit = False
        if found is None:
            return head
        return pointed_to(
            head, found.target, is_revisit=is_revisit, takes_digest=takes_digest, new_id=found.new_id
        )

    def concerns(self, head: bytes) -> bool:
        """Whether the bytes of a head may have references to mend; most requests name what stays."""
        if _OTHERS.search(head):
            return True
        return any(map(self._new_id, _CONCURRENT.findall(head)))

    def _of_revisit(self, head: RawHead, refers_to: bytes | None) -> _Found | None:
        digest = digest_key(_text(head.get(b"WARC-Payload-Digest")))
        uri = head.get(b"WARC-Refers-To-Target-URI")
        if refers_to is not None:
            if self._has(_STAYS, bare(refers_to)):
                return None
            if found := self._of_id(refers_to):
                return found
        if uri is not None:
            date = date_key(_text(head.get(b"WARC-Refers-To-Date")))
            return self._of_place(bare(uri), date, digest)
        if refers_to is None and digest is not None:
            return self._of_payload(bare(head.get(b"WARC-Target-URI") or b""), digest)
        return None

    def _looked_up_id(self, record_id: bytes) -> bytes | None:
        """The id that a reference to *record_id* has to name instead; None to leave it."""
        key = bare(record_id)
        if not self._has(_CONVERTED, key) or self._has(_HERE, key, 0, self._file):
            return None
        if self._has(_HERE, key, 1, self._file) or not self._has(_STAYS, key):
            return revisit_id(record_id)
        return None

    def _of_id(self, record_id: bytes) -> _Found | None:
        key = bare(record_id)
        if self._has(_STAYS, key):
            return None
        row = self._execute(
            _FOUND + "WHERE s.id_key = ? AND s.is_converted = 1 ORDER BY s.file <> ?, s.line LIMIT 1",
            (key, self._file),
        ).fetchone()
        return _found(row)

    def _of_place(self, uri: bytes, date: str | None, digest: str | None) -> _Found | None:
        """What a record of that URI and date was converted to, if none of them with that payload stays."""
        rows = self._execute(
            "SELECT line, is_converted, digest_key, listed_key FROM plan.surveyed WHERE uri = ? AND date_key = ?"
            " ORDER BY is_converted, line",
            (uri, date),
        )
        for line, is_converted, *keys in rows:
            if _could_be(digest, keys):
                return self._of_line(line) if is_converted else None
        return None

    def _of_payload(self, uri: bytes, digest: str) -> _Found | None:
        """As `_of_place`, for a revisit that says only by its own URI and digest what it repeats."""
        row = self._execute(
            "SELECT line, is_converted FROM plan.named WHERE uri = ? AND key = ? ORDER BY is_converted, line LIMIT 1",
            (uri, digest),
        ).fetchone()
        return self._of_line(row[0]) if row and row[1] else None

    def _of_line(self, line: int) -> _Found | None:
        return _found(self._execute(_FOUND + "WHERE s.line = ?", (line,)).fetchone())

    def _has(self, statement: str, *values: object) -> bool:
        return self._execute(statement, values).fetchone() is not None


def _found(row: Sequence[bytes] | None) -> _Found | None:
    if row is None:
        return None
    return _Found(Target(*row[1:]), revisit_id(row[0]))


def _could_be(digest: str | None, keys: Sequence[str | None]) -> bool:
    """Whether a digest is that of a record with *keys*, as far as can be told."""
    if digest is None:
        return True
    label = digest.partition(":")[0]
    same_label = [key for key in keys if key is not None and key.partition(":")[0] == label]
    return not same_label or digest in same_label


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")

"""Update the references of a file's records after copies in the archive have become revisits.

A WARC-Concurrent-To that names a copy gets the id of its revisit. A revisit, conversion or metadata record that
refers to a copy is pointed to the copy's original, since replay programs do not follow chains of revisits.

Several records can share one id, for example if a file is in the archive twice under two names. A reference in the
file of a converted record with this id means that record. Any other reference is not changed if some unchanged record
has the id. So no reference becomes dangling that was not dangling before.

A revisit refers to its original in up to four ways, and some of them may be wrong. URI and date have priority, since
replay programs use them; then the id; then the URI with the digest. A revisit never gets an original with another digest
than its own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from scrapy_dedupe.offline.record_ids import bare, revisit_id
from scrapy_dedupe.offline.revisits import RevisitTarget, pointed_to, with_concurrent
from scrapy_dedupe.warc.capture import parse_digest
from scrapy_dedupe.warc.dates import parse_date

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.offline.plan import RewritePlan
    from scrapy_dedupe.warc.raw_heads import RawHead

MENTION: Final = re.compile(
    rb"\n(?:WARC-(?:Concurrent-To|Refers-To|Type[ \t]*:[ \t]*revisit)|[ \t])", re.IGNORECASE
)
"""Matches the head of every record that may refer to another one."""

# References that need more than one query, and folded fields.
_OTHERS: Final = re.compile(rb"\n(?:WARC-(?:Refers-To|Type[ \t]*:[ \t]*revisit)|[ \t])", re.IGNORECASE)
_CONCURRENT: Final = re.compile(rb"\nWARC-Concurrent-To[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)

# Digests that already have the form of `digest_key`, as most in manifests and records do.
_COMPARED: Final = re.compile(r"sha1:[A-Z2-7]{32}|sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}")

_CONVERTED = "SELECT 1 FROM plan.surveyed WHERE id_key = ? AND is_converted = 1 LIMIT 1"
_STAYS = "SELECT 1 FROM plan.standing WHERE id_key = ? LIMIT 1"
_STAYS_HERE = "SELECT 1 FROM plan.standing WHERE id_key = ? AND file = ?"
_STAYS_AT = "SELECT 1 FROM plan.standing WHERE uri = ? AND date_key = ? LIMIT 1"
_CONVERTED_HERE = "SELECT 1 FROM plan.surveyed WHERE id_key = ? AND is_converted = 1 AND file = ? LIMIT 1"
_FOUND = (
    "SELECT s.id, o.id, o.uri, o.date, o.digest FROM plan.surveyed s JOIN plan.surveyed o ON o.line = s.original"
    " WHERE s.line = ?"
)
_BY_ID = (
    "SELECT line, uri, date_key, digest_key, listed_key FROM plan.surveyed WHERE id_key = ? AND is_converted = 1"
    " ORDER BY uri IS NOT ?, date_key IS NOT ?, file <> ?, line"
)
# Some programs write the date to the second for a record whose date has fractions.
_BY_PLACE = (
    "SELECT line, is_converted, date_key, id_key, digest_key, listed_key FROM plan.surveyed"
    " WHERE uri = ? AND date_key BETWEEN ? AND ?"
    " ORDER BY date_key <> ?, id_key IS NOT ?, digest_key IS NOT ? AND listed_key IS NOT ?, is_converted, line"
)
_BY_PAYLOAD = (
    "SELECT line, is_converted FROM plan.named WHERE uri = ? AND key = ? ORDER BY is_converted, line LIMIT 1"
)
_SECOND = len("2026-11-28T00:00:00")


class _FoundTarget(NamedTuple):
    target: RevisitTarget
    new_id: bytes


def date_key(text: str | None) -> str | None:
    """A date for comparison, equal for all texts of one time; None if it is invalid."""
    try:
        return parse_date(text).isoformat() if text else None
    except ValueError:
        return None


def digest_key(text: str | None) -> str | None:
    """A digest for comparison, independent of case and base; None if its form is unknown."""
    if text and _COMPARED.fullmatch(text):
        return text
    try:
        return str(parse_digest(text)) if text else None
    except ValueError:
        return None


class ReferenceChanges:
    """Updates the references of the records of one file."""

    def __init__(self, plan: RewritePlan, file: int) -> None:
        self._execute = plan.connection.execute
        self._file = file
        # The records of an exchange refer to the same record, and are next to each other.
        self._new_id = lru_cache(1_024)(self._looked_up_id)

    def updated(self, head: RawHead) -> RawHead:
        """The head with updated references; the same object if there is nothing to update."""
        head = with_concurrent(head, self._new_id)
        refers_to = head.get(b"WARC-Refers-To")
        if (head.get(b"WARC-Type") or b"").lower() == b"revisit":
            found = self._of_revisit(head, refers_to)
            # Replay programs search for the digest regardless of the profile.
            takes_digest = b"identical-payload-digest" in (head.get(b"WARC-Profile") or b"") or bool(
                head.get(b"WARC-Payload-Digest")
            )
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
        """Whether a head may have references to update. A fast check: most requests refer to unchanged records."""
        if _OTHERS.search(head):
            return True
        return any(map(self._new_id, _CONCURRENT.findall(head)))

    def _of_revisit(self, head: RawHead, refers_to: bytes | None) -> _FoundTarget | None:
        digest = digest_key(_text(head.get(b"WARC-Payload-Digest")))
        uri, date = head.get(b"WARC-Refers-To-Target-URI"), date_key(_text(head.get(b"WARC-Refers-To-Date")))
        uri = bare(uri) if uri else None
        record_id = bare(refers_to) if refers_to else None
        if uri is not None and date is not None:
            is_decided, found = self._of_place(uri, date, record_id, digest)
            if is_decided:
                return found
        if record_id is not None:
            is_decided, line = self._line_of_id(record_id, uri, date, digest)
            if is_decided:
                return self._of_line(line)
        if digest is None:
            return None
        if uri is None and record_id is None:
            uri = bare(head.get(b"WARC-Target-URI") or b"")
        return self._of_payload(uri, digest) if uri is not None else None

    def _looked_up_id(self, record_id: bytes) -> bytes | None:
        """The id that a reference to *record_id* must have instead; None if it does not change."""
        key = bare(record_id)
        if not self._has(_CONVERTED, key) or self._has(_STAYS_HERE, key, self._file):
            return None
        if self._has(_CONVERTED_HERE, key, self._file) or not self._has(_STAYS, key):
            return revisit_id(record_id)
        return None

    def _of_id(self, record_id: bytes) -> _FoundTarget | None:
        return self._of_line(self._line_of_id(bare(record_id), None, None, None)[1])

    def _line_of_id(
        self, key: bytes, uri: bytes | None, date: str | None, digest: str | None
    ) -> tuple[bool, int | None]:
        """Whether the id identifies a record, and the line of this record if it was converted."""
        rows = self._execute(_BY_ID, (key, uri, date, self._file)).fetchall()
        could_be = [row for row in rows if _could_be(digest, row[3:])]
        if self._has(_STAYS, key):
            # The reference means the unchanged record, unless URI, date and digest match another one.
            has_place = uri is not None and date is not None
            same = [row for row in could_be if has_place and (row[1], row[2]) == (uri, date)]
            return True, same[0][0] if same else None
        return bool(could_be), could_be[0][0] if could_be else None

    def _of_place(
        self, uri: bytes, date: str, record_id: bytes | None, digest: str | None
    ) -> tuple[bool, _FoundTarget | None]:
        """Whether URI and date identify a record, and the target of this record if it was converted."""
        second = date[:_SECOND]
        named = (date, record_id, digest or "", digest or "")
        rows = self._execute(_BY_PLACE, (uri, second, f"{second}~", *named))
        for line, is_converted, present, key, *keys in rows:
            is_named = digest is not None and record_id is not None and record_id == key
            if present != date and not is_named and self._has(_STAYS_AT, uri, date):
                # Replay programs prefer a record with exactly this date to one with the same second.
                return True, None
            # Without comparable digests, another capture of this time may be meant; then the id decides.
            is_certain = _is_comparable(digest, keys)
            is_meant = is_certain or record_id in (None, key) or not self._has(_STAYS, record_id)
            if is_meant and _could_be(digest, keys):
                return True, self._of_line(line) if is_converted else None
        return False, None

    def _of_payload(self, uri: bytes, digest: str) -> _FoundTarget | None:
        """The target of a record with this URI and digest, if all such records were converted."""
        row = self._execute(_BY_PAYLOAD, (uri, digest)).fetchone()
        return self._of_line(row[0]) if row and row[1] else None

    def _of_line(self, line: int | None) -> _FoundTarget | None:
        return None if line is None else _found(self._execute(_FOUND, (line,)).fetchone())

    def _has(self, statement: str, *values: object) -> bool:
        return self._execute(statement, values).fetchone() is not None


def _found(row: Sequence[bytes] | None) -> _FoundTarget | None:
    if row is None:
        return None
    return _FoundTarget(RevisitTarget(*row[1:]), revisit_id(row[0]))


def _could_be(digest: str | None, keys: Sequence[str | None]) -> bool:
    """Whether a digest matches a record with *keys*; true if they are not comparable."""
    return not _is_comparable(digest, keys) or digest in keys


def _is_comparable(digest: str | None, keys: Sequence[str | None]) -> bool:
    """Whether one of *keys* has the same algorithm as a digest."""
    label = digest.partition(":")[0] if digest else None
    return any(key.partition(":")[0] == label for key in keys if key is not None)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")

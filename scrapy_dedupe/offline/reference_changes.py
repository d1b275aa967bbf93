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
from typing import TYPE_CHECKING, Final, NamedTuple

from scrapy_dedupe.offline.revisits import bare, pointed_to, revisit_id, with_concurrent
from scrapy_dedupe.warc.capture import parse_digest
from scrapy_dedupe.warc.dates import valid_date_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scrapy_dedupe.offline.revisits import RevisitTarget
    from scrapy_dedupe.warc.raw_heads import RawHead

# Digests that already have the form of `digest_key`, as most in manifests and records do.
_COMPARED: Final = re.compile(r"sha1:[A-Z2-7]{32}|sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}")

_SECOND: Final = len("2026-11-28T00:00:00")


class MeantRecord(NamedTuple):
    """A listed record that a reference may mean.

    ``line`` numbers the lines of the manifests; ``id`` is its id as stored, ``target`` the original to which it refers as a
    revisit. ``payload_key`` is set for the record that a reference with its URI and this digest means.
    """

    line: int
    is_here: bool
    id: bytes | None
    id_key: bytes | None
    uri: bytes | None
    date_key: str | None
    digest_key: str | None
    listed_key: str | None
    payload_key: str | None
    target: RevisitTarget | None

    @property
    def is_converted(self) -> bool:
        """Whether it becomes a revisit."""
        return self.target is not None

    @property
    def keys(self) -> tuple[str | None, str | None]:
        """Its digests for comparison."""
        return self.digest_key, self.listed_key


class Standing(NamedTuple):
    """A capture that does not change, with the id, or the URI and second, of one that does. ``is_here``: in this file."""

    id_key: bytes | None
    is_here: bool
    uri: bytes | None
    date_key: str | None


def digest_key(text: str | None) -> str | None:
    """A digest for comparison, independent of case and base; None if its form is unknown."""
    if text and _COMPARED.fullmatch(text):
        return text
    try:
        return str(parse_digest(text)) if text else None
    except ValueError:
        return None


class ReferenceChanges:
    """Updates the references of the records of one file, with its slice of the plan."""

    def __init__(self, captures: Iterable[MeantRecord], standing: Iterable[Standing]) -> None:
        self._converted: dict[bytes, list[MeantRecord]] = {}
        self._at_place: dict[tuple[bytes, str], list[MeantRecord]] = {}
        self._with_payload: dict[tuple[bytes, str], MeantRecord] = {}
        for capture in captures:
            if capture.is_converted and capture.id_key is not None:
                self._converted.setdefault(capture.id_key, []).append(capture)
            if capture.uri is not None and capture.date_key is not None:
                self._at_place.setdefault((capture.uri, capture.date_key[:_SECOND]), []).append(capture)
            if capture.uri is not None and capture.payload_key is not None:
                self._with_payload[capture.uri, capture.payload_key] = capture
        self._staying_ids: set[bytes | None] = set()
        self._staying_here: set[bytes | None] = set()
        self._staying_places: set[tuple[bytes | None, str | None]] = set()
        for record in standing:
            self._staying_ids.add(record.id_key)
            if record.is_here:
                self._staying_here.add(record.id_key)
            self._staying_places.add((record.uri, record.date_key))

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
            found = None if refers_to is None else self._of_id(bare(refers_to), None, None, None)[1]
            takes_digest = is_revisit = False
        if found is None or found.target is None:
            return head
        new_id = revisit_id(found.id or b"")
        return pointed_to(head, found.target, is_revisit=is_revisit, takes_digest=takes_digest, new_id=new_id)

    def _of_revisit(self, head: RawHead, refers_to: bytes | None) -> MeantRecord | None:
        """The converted record that a revisit refers to."""
        digest = digest_key(_text(head.get(b"WARC-Payload-Digest")))
        uri, date = (
            head.get(b"WARC-Refers-To-Target-URI"),
            valid_date_key(_text(head.get(b"WARC-Refers-To-Date"))),
        )
        uri = bare(uri) if uri else None
        record_id = bare(refers_to) if refers_to else None
        if uri is not None and date is not None:
            is_decided, found = self._of_place(uri, date, record_id, digest)
            if is_decided:
                return found
        if record_id is not None:
            is_decided, found = self._of_id(record_id, uri, date, digest)
            if is_decided:
                return found
        if digest is None:
            return None
        if uri is None and record_id is None:
            uri = bare(head.get(b"WARC-Target-URI") or b"")
        if uri is None:
            return None
        # It was converted only if all records with this URI and digest were.
        found = self._with_payload.get((uri, digest))
        return found if found is not None and found.is_converted else None

    def _new_id(self, record_id: bytes) -> bytes | None:
        """The id that a reference to *record_id* must have instead; None if it does not change."""
        key = bare(record_id)
        converted = self._converted.get(key)
        if converted is None or key in self._staying_here:
            return None
        if key not in self._staying_ids or any(capture.is_here for capture in converted):
            return revisit_id(record_id)
        return None

    def _of_id(
        self, key: bytes, uri: bytes | None, date: str | None, digest: str | None
    ) -> tuple[bool, MeantRecord | None]:
        """Whether the id identifies a record, and this record if it was converted."""
        found = sorted(
            self._converted.get(key, ()),
            key=lambda one: (one.uri != uri, one.date_key != date, not one.is_here, one.line),
        )
        could_be = [capture for capture in found if _could_be(digest, capture.keys)]
        if key in self._staying_ids:
            # The reference means the unchanged record, unless URI, date and digest match another one.
            has_place = uri is not None and date is not None
            same = [one for one in could_be if has_place and (one.uri, one.date_key) == (uri, date)]
            return True, same[0] if same else None
        return bool(could_be), could_be[0] if could_be else None

    def _of_place(
        self, uri: bytes, date: str, record_id: bytes | None, digest: str | None
    ) -> tuple[bool, MeantRecord | None]:
        """Whether URI and date identify a record, and this record if it was converted."""
        # Some programs write the date to the second for a record whose date has fractions.
        found = sorted(
            self._at_place.get((uri, date[:_SECOND]), ()),
            key=lambda one: (
                one.date_key != date,
                one.id_key != record_id,
                (digest or "") not in one.keys,
                one.is_converted,
                one.line,
            ),
        )
        for capture in found:
            is_named = digest is not None and record_id is not None and record_id == capture.id_key
            if capture.date_key != date and not is_named and (uri, date) in self._staying_places:
                # Replay programs prefer a record with exactly this date to one with the same second.
                return True, None
            # Without comparable digests, another capture of this time may be meant; then the id decides.
            is_certain = _is_comparable(digest, capture.keys)
            is_meant = is_certain or record_id in (None, capture.id_key) or record_id not in self._staying_ids
            if is_meant and _could_be(digest, capture.keys):
                return True, capture if capture.is_converted else None
        return False, None


def _could_be(digest: str | None, keys: Sequence[str | None]) -> bool:
    """Whether a digest matches a record with *keys*; true if they are not comparable."""
    return not _is_comparable(digest, keys) or digest in keys


def _is_comparable(digest: str | None, keys: Sequence[str | None]) -> bool:
    """Whether one of *keys* has the same algorithm as a digest."""
    label = digest.partition(":")[0] if digest else None
    return any(key.partition(":")[0] == label for key in keys if key is not None)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")

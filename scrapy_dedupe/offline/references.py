"""Check that every reference leads to the same payload as before, resolved as replay programs do.

A revisit has up to four ways to its original, whose order is defined in `warc.references`. In a new or updated revisit,
every way must lead to a whole response or resource, never to a revisit. Its payload must be that of the record before,
and its digest must be in the revisit. In an unchanged revisit, each way that led to a payload before must lead to the
same payload after. The payload before is the one on which all ways agree; if they contradict each other, the first way
decides. If no way led to a payload, the reference is counted as dangling, and is not a fault of the rewriting. If a
reference was changed and its digest is a SHA-256, it means the payload of its URI with this SHA-256, even if that record
has a digest of another algorithm.

Replay programs show the body of the original under the HTTP head of the revisit. If the body is stored in chunks and
this head does not announce them, they show the chunks as part of the page. A change must not cause this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.offline.evidence import AFTER, BEFORE, CONVERTED, UNDONE, Side
from scrapy_dedupe.warc.reading import read_record
from scrapy_dedupe.warc.references import digest_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from scrapy_dedupe.offline.evidence import Evidence, Findings, Held, ReferenceRow, RevisitRow
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_KEPT_NOTES = 1_000
_SHA256_DIGITS = 64
_WAYS = {
    "place": "WARC-Refers-To-Target-URI and WARC-Refers-To-Date",
    "target": "WARC-Refers-To-Target-URI and the digest",
    "id": "WARC-Refers-To",
    "own": "its own URI and digest",
    "digest": "its digest",
    "unmodified": "WARC-Refers-To-Target-URI",
}
# These ways are tried only if the ways before them lead nowhere. Afterwards an earlier way may find the same payload.
_LAST_WAYS = ("target", "own", "digest", "unmodified")
_ORDER = list(_WAYS)
_ONLY_BY_DIGEST = (
    "the record that this revisit refers to is in neither archive; only its digest leads to a payload, which pywb and"
    " wabac.js do not search for"
)


class References:
    """Checks every revisit and every link of the evidence.

    ``place_of`` returns the text for a place, from the number of a pair, whether the file after is meant, and an
    offset; ``file_of`` returns the file of a capture by its number. ``pair_count`` is the number of pairs before the
    pairs of originals. `resolved` counts the revisits in the new archive that lead to a payload. `by_digest` counts the
    ones that refer to a missing record and can be resolved only by digest. `dangling_before` counts revisits that led
    nowhere before either. `ambiguous` counts new revisits whose original has the same URI, and a date in the same
    second, as a record with another payload.
    """

    def __init__(
        self,
        evidence: Evidence,
        findings: Findings,
        place_of: Callable[[int, bool, int | None], str | None],
        file_of: Callable[[int], ReadableFile],
        pair_count: int,
    ) -> None:
        self._evidence = evidence
        self._findings = findings
        self._place_of = place_of
        self._file_of = file_of
        self._sides = {side: Side(evidence, side, self._read) for side in (BEFORE, AFTER)}
        self._pair_count = pair_count
        self.resolved = 0
        self.dangling_before = 0
        self.by_digest = 0
        self.ambiguous = 0
        self.notes: list[str] = []

    def check_revisits(self) -> None:
        """Check every revisit after, and every revisit that became a response again."""
        for row in self._evidence.revisits():
            if row.is_clear:
                self.resolved += 1
            elif row.after is None:
                if row.change == UNDONE:
                    self._check_restored(row)
            elif row.change == CONVERTED:
                self._check_converted(row, row.after)
            elif row.before is None:
                self.resolved += bool(self._ways(row.after, AFTER))
            else:
                self._check_kept(row, row.before, row.after)

    def check_links(self) -> None:
        """Check every WARC-Concurrent-To, and the WARC-Refers-To of records other than revisits."""
        for pair, before, after in self._evidence.reused_ids():
            self._report(pair, before, after, "another record has its new record id too")
        for pair, before, after, field in self._evidence.dangling_links():
            self._report(pair, before, after, f"{field} refers to a record whose id has changed")
        for pair, before, after, field, old, new in self._evidence.changed_links(self._pair_count):
            if reason := self._reason_against(field, old, new):
                self._report(pair, before, after, reason)

    def _reason_against(self, field: str, old: bytes | None, new: bytes | None) -> str | None:
        """Why a value of a link that changed to another record is wrong; None if it is right."""
        is_place = field == "place"
        field = "WARC-Refers-To-Target-URI or -Date" if is_place else field
        if old is None or new is None:
            return f"{field} is gone, or was added"
        if field == "WARC-Concurrent-To":
            return f"{field} refers to another record, not to the new id of the former one"
        was, now = [side.at_place if is_place else side.named for side in self._sides.values()]
        if not _shas(was(old)) & _shas(now(new)):
            return f"{field} refers to a record with another payload, or to none"
        return None

    def _check_converted(self, row: RevisitRow, reference: ReferenceRow) -> None:
        originals = self._originals(row, reference, {row.sha}, is_new_id=True)
        if not originals:
            return
        self.resolved += 1
        self._check_digest(row, reference, originals)
        self._check_chunks(row, reference, originals)
        assert reference.place is not None
        if len(_shas(self._sides[AFTER].at_place(reference.place))) > 1:
            self.ambiguous += 1
            self._note(
                row, "a record with another payload has the same URI, and a date in the same second, as the original; a program"
                " that ignores fractions of a second may replay the other payload"
            )  # fmt: skip

    def _check_digest(self, row: RevisitRow, reference: ReferenceRow, originals: list[Held]) -> None:
        digests = sorted({held.digest_text for held in originals if held.digest_text})
        if reference.digest not in digests:
            self._report_row(
                row, f"WARC-Payload-Digest is {reference.digest}, but {' or '.join(digests)} in its original"
            )

    def _check_chunks(
        self, row: RevisitRow, reference: ReferenceRow, originals: Iterable[Held], led: Iterable[Held] = ()
    ) -> None:
        """Report a revisit without chunks in its HTTP head whose original has chunks, unless *led* had chunks too."""
        if reference.unchunked and _are_in_chunks(originals) and not _are_in_chunks(led):
            self._report_row(
                row, "its original is stored in transfer chunks, which replay shows, since its HTTP head does not announce them"
            )  # fmt: skip

    def _check_restored(self, row: RevisitRow) -> None:
        if row.before is None:
            return
        shas = self._payloads(self._ways(row.before, BEFORE))
        if not shas:
            self._report_row(row, "its payload cannot be verified: its original is missing")
        elif row.sha not in shas:
            self._report_row(row, "its payload is not that of the revisit's original")

    def _check_kept(self, row: RevisitRow, before: ReferenceRow, after: ReferenceRow) -> None:
        led = self._ways(before, BEFORE)
        shas = self._payloads(led)
        if before != after and not shas:
            led = {"target": self._by_digest(before, BEFORE)}
            shas = _shas(led["target"])
        if not shas:
            self._check_dangling(row, before, after)
            return
        if before == after:
            leads = self._ways(after, AFTER)
            now = {way for way, found in leads.items() if _shas(found) & shas}
            for way, found in led.items():
                better = _ORDER[: _ORDER.index(way)] if way in _LAST_WAYS else [way]
                if _shas(found) & shas and now.isdisjoint((way, *better)):
                    self._report_row(row, f"{_WAYS[way]} led to a payload before, but no longer leads to it")
                    return
            self._check_chunks(row, after, _of_payload(leads, shas), _of_payload(led, shas))
            self.resolved += 1
            if now == {"digest"} and (after.id or after.target):
                self.by_digest += 1
                self._note(row, _ONLY_BY_DIGEST)
            return
        if row.change == UNDONE:
            leads = self._ways(after, AFTER)
            wrong = [way for way, found in leads.items() if found and not _shas(found) & shas]
            there = self._sides[AFTER].at_place(after.place) if after.place is not None else ()
            # The update was reverted: the former original may be a capture again, next to another one of the same time.
            if not _shas([*_of_payload(leads, shas), *there, *self._by_digest(after, AFTER)]) & shas:
                self._report_row(
                    row, f"{_WAYS[(wrong or ['place'])[0]]} does not lead to the payload from before"
                )
                return
            self.resolved += 1
            return
        originals = self._originals(row, after, shas, is_new_id=before.id != after.id)
        if not originals:
            return
        self.resolved += 1
        self._check_chunks(row, after, originals, _of_payload(led, _shas(originals)))
        if before.digest is not None or after.digest is not None:
            self._check_digest(row, after, originals)

    def _check_dangling(self, row: RevisitRow, before: ReferenceRow, after: ReferenceRow) -> None:
        if before != after:
            self._report_row(row, "its reference led nowhere before, and was changed")
            return
        if after.id is not None:
            # An id is unique, so it identifies the original even if the digest is wrong.
            was, now = (_shas(side.named(after.id)) for side in self._sides.values())
            if was and not was & now:
                self._report_row(row, f"{_WAYS['id']} led to a payload before, but no longer leads to it")
                return
        if self._ways(after, AFTER):
            self.resolved += 1
            return
        self.dangling_before += 1
        self._note(row, self._why_dangling(after))

    def _why_dangling(self, reference: ReferenceRow) -> str:
        named = [] if reference.id is None else [*self._sides[AFTER].named(reference.id)]
        if reference.place is not None:
            named += self._sides[AFTER].at_place(reference.place)
        if named:
            return "the record that this revisit refers to has another digest than the revisit"
        if reference.named.is_unmodified and not (reference.id or reference.target or reference.digest):
            return "this revisit refers to no original"
        return "the original of this revisit is in neither archive"

    def _by_digest(self, reference: ReferenceRow, side: int) -> list[Held]:
        """The captures of a reference's URI with its digest, or with a payload that has its SHA-256."""
        uri = reference.uri if reference.target is None and reference.id is None else reference.target
        digest = digest_key(reference.digest)
        if uri is None or digest is None:
            return []
        found = [*self._sides[side].of_digest(digest, uri)]
        label, _, value = digest.partition(":")
        if label == "sha256" and len(value) == _SHA256_DIGITS:
            found += self._sides[side].of_payload(uri, bytes.fromhex(value))
        return found

    def _read(self, held: Held) -> StoredRecord:
        return read_record(self._file_of(held.file), held.offset, block_position=held.position)

    def _note(self, row: RevisitRow, text: str) -> None:
        if len(self.notes) < _KEPT_NOTES:
            self.notes.append(f"{self._place_of(row.pair, True, row.after_offset)}: {text}")

    @staticmethod
    def _payloads(ways: dict[str, list[Held]]) -> set[bytes]:
        """The payload of a revisit; several if records with different payloads match equally well."""
        found = list(ways.values())
        if not found:
            return set()
        return set.intersection(*map(_shas, found)) or _shas(found[0])

    def _originals(
        self, row: RevisitRow, reference: ReferenceRow, shas: AbstractSet[bytes | None], *, is_new_id: bool
    ) -> list[Held]:
        """The originals to which all ways of a new reference lead; reports the problem if there is none."""
        if reference.place is None:
            self._report_row(
                row, "it has no WARC-Refers-To-Target-URI and WARC-Refers-To-Date, so it does not replay"
            )
            return []
        held = [held for held in self._sides[AFTER].at_place(reference.place) if held.date == reference.date]
        found = self._right(row, held, shas, _WAYS["place"])
        if not found or reference.id is None:
            # Only an original without an id, as in ARC files, may be referred to by URI and date only.
            if found and all(one.id is not None for one in found):
                self._report_row(row, f"{_WAYS['id']} is missing, but its original has a record id")
            return found
        named = self._right(row, list(self._sides[AFTER].named(reference.id)), shas, _WAYS["id"])
        both = [held for held in named if (held.place, held.date) == (reference.place, reference.date)]
        if named and not both:
            self._report_row(row, f"{_WAYS['id']} refers to another record than {_WAYS['place']}")
        if both and is_new_id and all(held.bare != reference.bare for held in both):
            self._report_row(row, f"{_WAYS['id']} and the id of its original differ in angle brackets")
        return both

    def _right(
        self, row: RevisitRow, held: list[Held], shas: AbstractSet[bytes | None], way: str
    ) -> list[Held]:
        if not held:
            self._report_row(
                row,
                f"{way} refer to no existing response or resource"
                if way == _WAYS["place"]
                else f"{way} refers to no existing response or resource",
            )
            return []
        right = [one for one in held if one.sha in shas]
        if not right:
            self._report_row(row, f"{way}: the record has another payload")
            return []
        whole = [one for one in right if one.whole]
        if not whole:
            self._report_row(row, f"{way}: the payload of the record is truncated or partial")
        return whole

    def _ways(self, reference: ReferenceRow, side: int) -> dict[str, list[Held]]:
        """The captures to which each way of a reference leads, the first way first; ways that lead nowhere are omitted."""
        return dict(self._sides[side].ways(reference.named))

    def _report_row(self, row: RevisitRow, reason: str) -> None:
        self._report(row.pair, row.before_offset, row.after_offset, reason)

    def _report(self, pair: int, before: int | None, after: int | None, reason: str) -> None:
        self._findings.add(
            "reference", self._place_of(pair, False, before), self._place_of(pair, True, after), reason
        )


def _shas(held: Iterable[Held]) -> set[bytes]:
    return {one.sha for one in held}


def _of_payload(ways: dict[str, list[Held]], shas: AbstractSet[bytes | None]) -> list[Held]:
    return [one for held in ways.values() for one in held if one.sha in shas]


def _are_in_chunks(held: Iterable[Held]) -> bool:
    """Whether *held* is not empty and all are stored in chunks."""
    return {one.chunked for one in held} == {1}

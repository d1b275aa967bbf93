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

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.bodies import payload_pieces
from scrapy_dedupe.warc.reading import read_record
from scrapy_dedupe.warc.references import digest_key
from scrapy_dedupe.warc.windows import are_same

from .evidence import AFTER, BEFORE, CONVERTED, UNDONE, Side, hashed_place, row_of
from .findings import place_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .evidence import Evidence, Held, LinkRow, ReferenceRow, RevisitRow
    from .findings import Findings

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
# The queries read the rows of an index in its order, since other orders would read a page of the file for each row.
# All revisits, without the new ones that have one original with everything that this module requires.
_UNCLEAR = """
SELECT rowid FROM revisits WHERE change <> 1 OR key IS NULL OR a_place IN (SELECT place FROM ambiguous)
UNION ALL
SELECT rowid FROM revisits r INDEXED BY by_target WHERE key IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM captures c WHERE c.key = r.key AND c.sides & 2 AND NOT (c.chunked AND r.a_unchunked)
)"""
# Revisits of records that shared an id may share an id too, regardless of when they were made.
_WITH_USED_ID = """
SELECT rowid FROM revisits r INDEXED BY by_new_id WHERE change = 1 AND new_id IS NOT NULL AND (
    EXISTS (SELECT 1 FROM captures WHERE id = r.new_id)
    OR EXISTS (SELECT 1 FROM revisits WHERE new_id = r.new_id AND former_id IS NOT r.old_id)
    OR EXISTS (SELECT 1 FROM renamed WHERE new_id = r.new_id AND old_id IS NOT r.old_id)
    OR new_id IN (SELECT id FROM others)
)"""
# A link to the former id of a record, which no record has after.
_DANGLING_LINKS = """
SELECT rowid FROM links l WHERE field <> 'place' AND EXISTS (SELECT 1 FROM renamed WHERE old_id = l.new)
AND NOT EXISTS (SELECT 1 FROM captures WHERE id = l.new AND sides & 2)
AND NOT EXISTS (SELECT 1 FROM revisits WHERE new_id = l.new)"""
# A link to a record that is not in the file after any more, because it has a new id there. If another host rewrites the file
# of the record, only its old id is known: in the originals.
_IS_NEW_ID = """
field <> 'place' AND l.new IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM captures WHERE id = l.old AND sides & 2 AND file = 2 * l.pair + 1)
AND CASE
    WHEN EXISTS (SELECT 1 FROM renamed WHERE old_id = l.old AND new_id = l.new) THEN
        EXISTS (SELECT 1 FROM renamed WHERE old_id = l.old AND new_id = l.new AND pair = l.pair)
        OR NOT EXISTS (SELECT 1 FROM captures WHERE id = l.old AND sides & 2)
    ELSE
        EXISTS (SELECT 1 FROM captures WHERE id = l.old AND sides & 2)
        AND NOT EXISTS (SELECT 1 FROM captures WHERE id = l.old AND sides & 2 AND NOT sides & 4)
        AND NOT EXISTS (SELECT 1 FROM captures WHERE id = l.new)
        AND NOT EXISTS (SELECT 1 FROM revisits WHERE new_id = l.new) AND l.new NOT IN (SELECT id FROM others)
END"""
_WRONG_LINKS = f"""
SELECT rowid FROM links l INDEXED BY changed WHERE old IS NOT new AND NOT coalesce({_IS_NEW_ID}, 0)
"""  # noqa: S608 - a constant
_DANGLING = "the original of this revisit is in neither archive, or has another digest than the revisit"
_ONLY_BY_DIGEST = (
    "the record that this revisit refers to is in neither archive; only its digest leads to a payload, which pywb and"
    " wabac.js do not search for"
)


class References:
    """Checks every revisit and every link of the evidence, and replays a sample.

    *files* are the pairs of files in the order of their numbers. The counts of `verifying.Verification` are added to *counts*.
    """

    def __init__(
        self,
        evidence: Evidence,
        findings: Findings,
        counts: Counter[str],
        files: Sequence[tuple[ReadableFile | None, ReadableFile | None]],
    ) -> None:
        self._evidence = evidence
        self._findings = findings
        self._counts = counts
        self._files = files
        self._sides = {side: Side(evidence, side, self._read) for side in (BEFORE, AFTER)}
        self.notes: list[str] = []

    def check_revisits(self) -> None:
        """Check every revisit after, and every revisit that became a response again."""
        self._counts["resolved"] += self._evidence.converted_count
        for row in self._evidence.revisits(_UNCLEAR):
            if row.after is None:
                if row.change == UNDONE:
                    self._check_restored(row)
            elif row.change == CONVERTED:
                self._counts["resolved"] -= not self._is_right_original(row, row.after)
            elif row.before is None:
                self._counts["resolved"] += bool(self._ways(row.after, AFTER))
            else:
                self._check_kept(row, row.before, row.after)

    def check_links(self) -> None:
        """Check every WARC-Concurrent-To, and the WARC-Refers-To of records other than revisits."""
        for row in self._evidence.revisits(_WITH_USED_ID):
            self._report(row, "another record has its new record id too")
        for link in self._evidence.links(_DANGLING_LINKS):
            self._report(link, f"{link.field} refers to a record whose id has changed")
        for link in self._evidence.links(_WRONG_LINKS):
            if reason := self._reason_against(link):
                self._report(link, reason)

    def replay(self, sample: int, seed: int) -> None:
        """Replay *sample* random revisits, or all if there are fewer, as a replay program does."""
        for row in self._evidence.sample(sample, seed):
            self._counts["sample"] += 1
            try:
                reason = self._reason_against_replay(row)
            except DamagedInput as error:
                reason = str(error)
            if reason is None:
                self._counts["replayed"] += 1
            else:
                self._report(row, reason, "replay")

    def _reason_against_replay(self, row: RevisitRow) -> str | None:
        """Why a new revisit does not replay the payload of its response; None if it does. Raises DamagedInput."""
        assert row.before_offset is not None
        assert row.after_offset is not None
        response = read_record(
            self._file(2 * row.pair), row.before_offset, block_position=row.before_position
        )
        revisit = read_record(self._file(2 * row.pair + 1), row.after_offset)
        uri, date = revisit.refers_to_uri, revisit.refers_to_date
        place = hashed_place(uri, date)
        if place is None:
            return "a replay program cannot find its original"
        if all(held.date != date for held in self._sides[AFTER].at_place(place)):
            return "a replay program finds no record with the URI and date that it refers to"
        held = self._sides[AFTER].original(row_of(revisit).named)
        if held is None:
            return "a replay program finds no record with its digest and the URI and date that it refers to"
        original = self._read(held)
        if (original.target_uri, original.date) != (uri, date) or original.type == "revisit":
            return f"a replay program finds {original.path}, offset {original.offset}, which it does not refer to"
        if not are_same(payload_pieces(response), payload_pieces(original)):
            return f"replayed from {original.path}, offset {original.offset}, its payload differs"
        return None

    def _reason_against(self, link: LinkRow) -> str | None:
        """Why a value of a link that changed to another record is wrong; None if it is right."""
        field, old, new, is_place = link.field, link.old, link.new, link.field == "place"
        field = "WARC-Refers-To-Target-URI or -Date" if is_place else field
        if old is None or new is None:
            return f"{field} is gone, or was added"
        if field == "WARC-Concurrent-To":
            return f"{field} refers to another record, not to the new id of the former one"
        was, now = [side.at_place if is_place else side.named for side in self._sides.values()]
        if not _shas(was(old)) & _shas(now(new)):
            return f"{field} refers to a record with another payload, or to none"
        return None

    def _is_right_original(self, row: RevisitRow, reference: ReferenceRow) -> bool:
        """Check the reference of a new revisit; return whether it leads to its payload."""
        originals = self._originals(row, reference, {row.sha}, is_new_id=True)
        if not originals:
            return False
        self._check_digest(row, reference, originals)
        self._check_chunks(row, reference, originals)
        assert reference.place is not None
        if len(_shas(self._sides[AFTER].at_place(reference.place))) > 1:
            self._counts["ambiguous"] += 1
            self._note(
                row, "a record with another payload has the same URI, and a date in the same second, as the original; a program"
                " that ignores fractions of a second may replay the other payload"
            )  # fmt: skip
        return True

    def _check_digest(self, row: RevisitRow, reference: ReferenceRow, originals: list[Held]) -> None:
        digests = sorted({held.digest_text for held in originals if held.digest_text})
        if reference.digest not in digests:
            self._report(
                row, f"WARC-Payload-Digest is {reference.digest}, but {' or '.join(digests)} in its original"
            )

    def _check_chunks(
        self, row: RevisitRow, reference: ReferenceRow, originals: Iterable[Held], led: Iterable[Held] = ()
    ) -> None:
        """Report a revisit without chunks in its HTTP head whose original has chunks, unless *led* had chunks too."""
        if reference.unchunked and _are_in_chunks(originals) and not _are_in_chunks(led):
            self._report(
                row, "its original is stored in transfer chunks, which replay shows, since its HTTP head does not announce them"
            )  # fmt: skip

    def _check_restored(self, row: RevisitRow) -> None:
        if row.before is None:
            return
        shas = self._payloads(self._ways(row.before, BEFORE))
        if not shas:
            self._report(row, "its payload cannot be verified: its original is missing")
        elif row.sha not in shas:
            self._report(row, "its payload is not that of the revisit's original")

    def _check_kept(self, row: RevisitRow, before: ReferenceRow, after: ReferenceRow) -> None:
        """Check a revisit that is on both sides."""
        led = self._ways(before, BEFORE)
        shas = self._payloads(led)
        if before != after and not shas:
            led = {"target": self._by_digest(before, BEFORE)}
            shas = _shas(led["target"])
        if not shas:
            self._check_dangling(row, before, after)
        elif before == after:
            self._check_unchanged(row, after, led, shas)
        elif row.change == UNDONE:
            self._check_undone(row, after, shas)
        elif originals := self._originals(row, after, shas, is_new_id=before.id != after.id):
            self._counts["resolved"] += 1
            self._check_chunks(row, after, originals, _of_payload(led, _shas(originals)))
            if before.digest is not None or after.digest is not None:
                self._check_digest(row, after, originals)

    def _check_unchanged(
        self, row: RevisitRow, after: ReferenceRow, led: dict[str, list[Held]], shas: set[bytes]
    ) -> None:
        """Check an unchanged reference, of which some of the ways *led* to the payloads *shas* before."""
        leads = self._ways(after, AFTER)
        now = {way for way, found in leads.items() if _shas(found) & shas}
        for way, found in led.items():
            better = _ORDER[: _ORDER.index(way)] if way in _LAST_WAYS else [way]
            if _shas(found) & shas and now.isdisjoint((way, *better)):
                self._report(row, f"{_WAYS[way]} led to a payload before, but no longer leads to it")
                return
        self._check_chunks(row, after, _of_payload(leads, shas), _of_payload(led, shas))
        self._counts["resolved"] += 1
        if now == {"digest"} and (after.id or after.target):
            self._counts["by_digest"] += 1
            self._note(row, _ONLY_BY_DIGEST)

    def _check_undone(self, row: RevisitRow, after: ReferenceRow, shas: set[bytes]) -> None:
        """Check a reference that has its former value again, and must lead to one of the payloads *shas*."""
        leads = self._ways(after, AFTER)
        there = self._sides[AFTER].at_place(after.place) if after.place is not None else ()
        # The former original may be a capture again, next to another one of the same time.
        if _shas([*_of_payload(leads, shas), *there, *self._by_digest(after, AFTER)]) & shas:
            self._counts["resolved"] += 1
            return
        wrong = next((way for way, found in leads.items() if found and not _shas(found) & shas), "place")
        self._report(row, f"{_WAYS[wrong]} does not lead to the payload from before")

    def _check_dangling(self, row: RevisitRow, before: ReferenceRow, after: ReferenceRow) -> None:
        if before != after:
            self._report(row, "its reference led nowhere before, and was changed")
            return
        if after.id is not None:
            # An id is unique, so it identifies the original even if the digest is wrong.
            was, now = (_shas(side.named(after.id)) for side in self._sides.values())
            if was and not was & now:
                self._report(row, f"{_WAYS['id']} led to a payload before, but no longer leads to it")
                return
        if self._ways(after, AFTER):
            self._counts["resolved"] += 1
            return
        self._counts["dangling_before"] += 1
        self._note(row, _DANGLING)

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

    def _file(self, number: int) -> ReadableFile:
        """The file with this number in ``captures.file``."""
        file = self._files[number // 2][number % 2]
        assert file is not None
        return file

    def _read(self, held: Held) -> StoredRecord:
        return read_record(self._file(held.file), held.offset, block_position=held.position)

    def _note(self, row: RevisitRow, text: str) -> None:
        if len(self.notes) < _KEPT_NOTES:
            self.notes.append(f"{self._place(2 * row.pair + 1, row.after_offset)}: {text}")

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
            self._report(
                row, "it has no WARC-Refers-To-Target-URI and WARC-Refers-To-Date, so it does not replay"
            )
            return []
        held = [held for held in self._sides[AFTER].at_place(reference.place) if held.date == reference.date]
        found = self._right(row, held, shas, _WAYS["place"])
        if not found or reference.id is None:
            # Only an original without an id, as in ARC files, may be referred to by URI and date only.
            if found and all(one.id is not None for one in found):
                self._report(row, f"{_WAYS['id']} is missing, but its original has a record id")
            return found
        named = self._right(row, list(self._sides[AFTER].named(reference.id)), shas, _WAYS["id"])
        both = [held for held in named if (held.place, held.date) == (reference.place, reference.date)]
        if named and not both:
            self._report(row, f"{_WAYS['id']} refers to another record than {_WAYS['place']}")
        if both and is_new_id and all(held.bare != reference.bare for held in both):
            self._report(row, f"{_WAYS['id']} and the id of its original differ in angle brackets")
        return both

    def _right(
        self, row: RevisitRow, held: list[Held], shas: AbstractSet[bytes | None], way: str
    ) -> list[Held]:
        if not held:
            verb = "refer" if way == _WAYS["place"] else "refers"
            self._report(row, f"{way} {verb} to no existing response or resource")
            return []
        right = [one for one in held if one.sha in shas]
        if not right:
            self._report(row, f"{way}: the record has another payload")
            return []
        whole = [one for one in right if one.whole]
        if not whole:
            self._report(row, f"{way}: the payload of the record is truncated or partial")
        return whole

    def _ways(self, reference: ReferenceRow, side: int) -> dict[str, list[Held]]:
        """The captures to which each way of a reference leads, the first way first; ways that lead nowhere are omitted."""
        return dict(self._sides[side].ways(reference.named))

    def _report(self, row: RevisitRow | LinkRow, reason: str, kind: str = "reference") -> None:
        places = self._place(2 * row.pair, row.before_offset), self._place(2 * row.pair + 1, row.after_offset)
        self._findings.add(kind, *places, reason)

    def _place(self, number: int, offset: int | None) -> str | None:
        """The text for a place in findings; None if that side has no such record."""
        return None if offset is None else place_of(self._file(number), offset)


def _shas(held: Iterable[Held]) -> set[bytes]:
    return {one.sha for one in held}


def _of_payload(ways: dict[str, list[Held]], shas: AbstractSet[bytes | None]) -> list[Held]:
    return [one for held in ways.values() for one in held if one.sha in shas]


def _are_in_chunks(held: Iterable[Held]) -> bool:
    """Whether *held* is not empty and all are stored in chunks."""
    return {one.chunked for one in held} == {1}

"""Whether every reference leads to what it led to before, asked as replay programs ask.

A replay program finds the original of a revisit by WARC-Refers-To-Target-URI and WARC-Refers-To-Date, another one by
WARC-Refers-To; where a revisit has neither, by its own URI and the digest. A revisit that was made or mended must lead
there by every way that it offers: to a whole response or resource, never to a revisit, whose payload is that of the
record before. One that was there before must lead, by each way that led somewhere, to the same payload. If none did
even then, it is counted as dangling and is no fault of the rewriting.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy_dedupe.afterwards.evidence import AFTER, BEFORE, CONVERTED, UNCHANGED, UNDONE, digest_forms
from scrapy_dedupe.warc.dates import parse_date

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from scrapy_dedupe.afterwards.evidence import Evidence, Held, Reference, RevisitRow
    from scrapy_dedupe.afterwards.findings import Findings

_KEPT_NOTES = 1_000
_WAYS = {
    "place": "WARC-Refers-To-Target-URI and WARC-Refers-To-Date",
    "id": "WARC-Refers-To",
    "digest": "its own URI and digest",
}


class References:
    """Asks for every revisit and every link of the evidence.

    ``place_of`` tells a place: of the pair with this number, the file after or not, and an offset. ``sha1_of`` computes
    the text of WARC-Payload-Digest for an original that has none. `resolved` counts
    the revisits after that lead to a payload, `dangling_before` those that led nowhere before either.
    """

    def __init__(
        self,
        evidence: Evidence,
        findings: Findings,
        place_of: Callable[[int, bool, int | None], str | None],
        sha1_of: Callable[[Held], str],
    ) -> None:
        self._evidence = evidence
        self._findings = findings
        self._place_of = place_of
        # The copies of one original stand together as often as not.
        self._sha1_of = lru_cache(1_024)(sha1_of)
        self.resolved = 0
        self.dangling_before = 0
        self.notes: list[str] = []

    def check_revisits(self) -> None:
        """Ask for every revisit that is there after, and for every one that became a response again."""
        for row in self._evidence.revisits():
            if row.after is None:
                if row.change == UNDONE:
                    self._check_restored(row)
            elif row.change == CONVERTED:
                self._check_converted(row, row.after)
            elif row.before is None:
                self.resolved += bool(any(self._ways(row.after, AFTER).values()))
            else:
                self._check_kept(row, row.before, row.after)

    def check_links(self) -> None:
        """Ask for every WARC-Concurrent-To, and for every WARC-Refers-To of what is no revisit."""
        for pair, before, after, field in self._evidence.dangling_links():
            self._tell(pair, before, after, f"{field} names a record that has another id now")
        for pair, before, after, field, old, new in self._evidence.changed_links():
            if old is None or new is None:
                self._tell(pair, before, after, f"{field} is gone, or was added")
            elif self._evidence.was_renamed(old, new):
                continue
            elif field == "WARC-Concurrent-To":
                self._tell(
                    pair,
                    before,
                    after,
                    f"{field} names another record, and not by the new id of the former one",
                )
            elif not {held.sha for held in self._evidence.with_id(old, BEFORE)} & {
                held.sha for held in self._evidence.with_id(new, AFTER)
            }:
                self._tell(pair, before, after, f"{field} names a record with another payload, or none")

    def _check_converted(self, row: RevisitRow, reference: Reference) -> None:
        originals = self._originals(row, reference, {row.sha})
        if not originals:
            return
        self.resolved += 1
        digests = {held.digest or row.sha1 or self._sha1_of(held) for held in originals}
        if reference.digest not in digests:
            expected = (
                " or ".join(sorted(digest for digest in digests if digest)) or "a sha1 digest of the payload"
            )
            self._tell_row(row, f"WARC-Payload-Digest is {reference.digest}, its original's is {expected}")

    def _check_restored(self, row: RevisitRow) -> None:
        if row.before is None:
            return
        shas = {held.sha for found in self._ways(row.before, BEFORE).values() for held in found}
        if not shas:
            self._tell_row(row, "nothing tells which payload it has to have, its original is not there")
        elif row.sha not in shas:
            self._tell_row(row, "its payload is not that of the original which the revisit had")

    def _check_kept(self, row: RevisitRow, before: Reference, after: Reference) -> None:
        led = self._ways(before, BEFORE)
        shas = {held.sha for found in led.values() for held in found}
        if not shas:
            self._check_dangling(row, before, after)
            return
        if row.change == UNCHANGED:
            leads = self._ways(after, AFTER)
            for way, found in led.items():
                if found and not {held.sha for held in found} & {held.sha for held in leads[way]}:
                    self._tell_row(
                        row, f"{_WAYS[way]} led to a payload before and does not lead to it any more"
                    )
                    return
            self.resolved += 1
            return
        if row.change == UNDONE:
            leads = self._ways(after, AFTER)
            wrong = [way for way, found in leads.items() if found and not {held.sha for held in found} & shas]
            if wrong or not any(leads.values()):
                self._tell_row(
                    row, f"{_WAYS[(wrong or ['place'])[0]]} does not lead to the payload of before"
                )
                return
            self.resolved += 1
            return
        originals = self._originals(row, after, shas)
        if not originals:
            return
        self.resolved += 1
        digests = {form for held in originals for form in [held.digest] if form}
        if after.digest != before.digest and digests and after.digest not in digests:
            self._tell_row(
                row,
                f"WARC-Payload-Digest is {after.digest}, its original's is {' or '.join(sorted(digests))}",
            )

    def _check_dangling(self, row: RevisitRow, before: Reference, after: Reference) -> None:
        if row.change != UNCHANGED and before[:3] != after[:3]:
            self._tell_row(row, "its reference led nowhere before, and was changed")
            return
        if any(self._ways(after, AFTER).values()):
            self.resolved += 1
            return
        self.dangling_before += 1
        if len(self.notes) < _KEPT_NOTES:
            place = self._place_of(row.pair, True, row.after_offset)
            self.notes.append(f"{place}: the original of this revisit is in neither archive")

    def _originals(
        self, row: RevisitRow, reference: Reference, shas: AbstractSet[bytes | None]
    ) -> list[Held]:
        """The originals that a new reference leads to by every way; tells what is wrong if there is none."""
        if reference.place is None:
            self._tell_row(
                row, "it has no WARC-Refers-To-Target-URI and WARC-Refers-To-Date, so it does not replay"
            )
            return []
        held = [
            held for held in self._evidence.at_place(reference.place, AFTER) if held.date == reference.date
        ]
        found = self._right(row, held, shas, _WAYS["place"])
        if not found or reference.id is None:
            return found
        named = self._right(row, self._evidence.with_id(reference.id, AFTER), shas, _WAYS["id"])
        both = [held for held in named if (held.place, held.date) == (reference.place, reference.date)]
        if named and not both:
            self._tell_row(row, f"{_WAYS['id']} names another record than {_WAYS['place']}")
        return both

    def _right(
        self, row: RevisitRow, held: list[Held], shas: AbstractSet[bytes | None], way: str
    ) -> list[Held]:
        if not held:
            self._tell_row(
                row,
                f"{way} name no response or resource that is there"
                if way == _WAYS["place"]
                else f"{way} names no response or resource that is there",
            )
            return []
        right = [one for one in held if one.sha in shas]
        if not right:
            self._tell_row(row, f"{way}: that record has another payload")
            return []
        whole = [one for one in right if one.whole]
        if not whole:
            self._tell_row(row, f"{way}: the payload of that record was cut, or is a part")
        return whole

    def _ways(self, reference: Reference, side: int) -> dict[str, list[Held]]:
        """What a reference leads to by each way that it offers, as lenient as replay programs are."""
        ways: dict[str, list[Held]] = {way: [] for way in _WAYS}
        if reference.place is not None:
            held = self._evidence.at_place(reference.place, side)
            ways["place"] = [one for one in held if _is_same_date(one.date, reference.date)] or held
        if reference.id is not None:
            ways["id"] = self._evidence.with_id(reference.id, side)
        if reference.place is None and reference.id is None:
            ways["digest"] = self._evidence.with_digest(reference.uri, reference.digest, side)
        forms = digest_forms(reference.digest)
        for way, held in ways.items():
            # Several captures of one second are told apart by the digest.
            if len(held) > 1 and (fitting := [one for one in held if one.digest in forms]):
                ways[way] = fitting
        return ways

    def _tell_row(self, row: RevisitRow, reason: str) -> None:
        self._tell(row.pair, row.before_offset, row.after_offset, reason)

    def _tell(self, pair: int, before: int | None, after: int | None, reason: str) -> None:
        self._findings.add(
            "reference", self._place_of(pair, False, before), self._place_of(pair, True, after), reason
        )


def _is_same_date(one: str | None, other: str | None) -> bool:
    if one == other:
        return True
    try:
        return bool(one and other and parse_date(one) == parse_date(other))
    except ValueError:
        return False

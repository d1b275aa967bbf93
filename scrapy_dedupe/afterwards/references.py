"""Whether every reference leads to what it led to before, asked as replay programs ask.

A replay program finds the original of a revisit by WARC-Refers-To-Target-URI and WARC-Refers-To-Date; where the date is
missing or wrong, by that URI and the digest; another one by WARC-Refers-To; where a revisit has none of these, by its
own URI and the digest. A revisit that was made or mended must lead by every way that it offers to a whole response or
resource, never to a revisit, whose payload is that of the record before, and must have the digest of that one. One that
was there before must lead, by each way that led there, to the same payload. What "there" is, all its ways say together;
where they contradict each other, the digest says it, and else the way that replay programs try first. If none led
anywhere, it is counted as dangling and is no fault of the rewriting; so is one that led only to what has another
digest, by its record and by its bytes, and not by its id, and does so no more. Where a reference was changed, a payload of its URI whose
SHA-256 it has is what it meant, even if the record of that has a digest of another algorithm.

Replay programs show the body of the original under the HTTP head of the revisit. If the body is stored in chunks and
that head does not say so, they show the chunks as a part of the page, so this must not come by a change.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy_dedupe.afterwards.evidence import AFTER, BEFORE, CONVERTED, UNDONE, digest_forms
from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.bodies import hasher_of, payload_digest
from scrapy_dedupe.warc.capture import parse_digest
from scrapy_dedupe.warc.codings import Undecodable
from scrapy_dedupe.warc.dates import parse_date
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.reading import read_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from scrapy_dedupe.afterwards.evidence import Evidence, Held, Reference, RevisitRow
    from scrapy_dedupe.afterwards.findings import Findings
    from scrapy_dedupe.warc.capture import Digest
    from scrapy_dedupe.warc.sources import ReadableFile

_KEPT_NOTES = 1_000
_WAYS = {
    "place": "WARC-Refers-To-Target-URI and WARC-Refers-To-Date",
    "target": "WARC-Refers-To-Target-URI and the digest",
    "id": "WARC-Refers-To",
    "digest": "its own URI and digest",
}


class References:
    """Asks for every revisit and every link of the evidence.

    ``place_of`` tells a place: of the pair with this number, the file after or not, and an offset;
    ``file_of`` gives the file of a capture by its number. ``pair_count`` is how many pairs there are before those of
    originals. `resolved` counts the revisits after that lead to a payload,
    `dangling_before` those that led nowhere before either, `ambiguous` the new ones whose original shares its URI and
    second with another payload.
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
        self._computed = lru_cache(_KEPT_NOTES)(self._digests_of)
        self._pair_count = pair_count
        self.resolved = 0
        self.dangling_before = 0
        self.ambiguous = 0
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
        for pair, before, after in self._evidence.reused_ids():
            self._tell(pair, before, after, "its new record id is that of another record")
        for pair, before, after, field in self._evidence.dangling_links():
            self._tell(pair, before, after, f"{field} names a record that has another id now")
        for pair, before, after, field, old, new in self._evidence.changed_links():
            if reason := self._reason_against(pair, field, old, new):
                self._tell(pair, before, after, reason)

    def _reason_against(self, pair: int, field: str, old: bytes | None, new: bytes | None) -> str | None:
        """What is wrong with another value of a link; None if nothing is."""
        is_place = field == "place"
        field = "WARC-Refers-To-Target-URI or -Date" if is_place else field
        if old is None or new is None:
            return f"{field} is gone, or was added"
        if not is_place and self._is_new_id(pair, old, new):
            return None
        if field == "WARC-Concurrent-To":
            return f"{field} names another record, and not by the new id of the former one"
        find = self._evidence.at_place if is_place else self._evidence.with_id
        if not _shas(find(old, BEFORE)) & _shas(find(new, AFTER)):
            return f"{field} names a record with another payload, or none"
        return None

    def _is_new_id(self, pair: int, old: bytes, new: bytes) -> bool:
        """Whether what was named *old* in the files of a pair has the id *new* now."""
        after = [file // 2 for file in self._evidence.files_with_id(old, AFTER)]
        if pair in after:
            # It is still there, whatever became of others with its id.
            return False
        pairs = list(self._evidence.was_renamed(old, new))
        if pairs:
            return pair in pairs or not after
        # Of a record in a file that another host rewrites, only the old id is known here.
        return (
            bool(after)
            and all(file >= self._pair_count for file in after)
            and not self._evidence.is_on_a_record(new)
        )

    def _check_converted(self, row: RevisitRow, reference: Reference) -> None:
        originals = self._originals(row, reference, {row.sha}, is_new_id=True)
        if not originals:
            return
        self.resolved += 1
        self._check_digest(row, reference, originals)
        self._check_chunks(row, reference, originals)
        assert reference.place is not None
        if len(_shas(self._evidence.at_place(reference.place, AFTER))) > 1:
            self.ambiguous += 1
            self._note(
                row, "the original shares its URI and second with another payload; a program that knows no fractions of a"
                " second may replay that one"
            )  # fmt: skip

    def _check_digest(self, row: RevisitRow, reference: Reference, originals: list[Held]) -> None:
        digests = sorted({held.digest for held in originals if held.digest})
        if reference.digest not in digests:
            self._tell_row(
                row, f"WARC-Payload-Digest is {reference.digest}, its original's is {' or '.join(digests)}"
            )

    def _check_chunks(
        self, row: RevisitRow, reference: Reference, originals: Iterable[Held], led: Iterable[Held] = ()
    ) -> None:
        """Tell a revisit whose original is in chunks of which its HTTP head does not know, unless it *led* to such."""
        if reference.unchunked and _are_in_chunks(originals) and not _are_in_chunks(led):
            self._tell_row(
                row, "its original is stored in transfer chunks, and its own HTTP head does not say so, so that they show"
            )  # fmt: skip

    def _check_restored(self, row: RevisitRow) -> None:
        if row.before is None:
            return
        shas = self._payloads(row.before, self._ways(row.before, BEFORE))
        if not shas:
            self._tell_row(row, "nothing tells which payload it has to have, its original is not there")
        elif row.sha not in shas:
            self._tell_row(row, "its payload is not that of the original which the revisit had")

    def _check_kept(self, row: RevisitRow, before: Reference, after: Reference) -> None:
        led = self._ways(before, BEFORE)
        shas = self._payloads(before, led)
        if before != after and self._leads_astray(before, led):
            led = {"target": self._by_digest(before, BEFORE)}
            shas = _shas(led["target"])
        if not shas:
            self._check_dangling(row, before, after)
            return
        if before == after:
            leads = self._ways(after, AFTER)
            # URI and digest are asked for only where URI and date lead nowhere; by these it may be found again.
            now = {way: _shas(found) & shas for way, found in leads.items()}
            now["target"] |= now["place"]
            lost = {way: found for way, found in led.items() if _shas(found) & shas and not now[way]}
            for way, found in lost.items():
                right = [one for one in found if one.sha in shas]
                if way == "id" or not all(self._is_another(one, before.digest) for one in right):
                    self._tell_row(
                        row, f"{_WAYS[way]} led to a payload before and does not lead to it any more"
                    )
                    return
            if lost and not any(now.values()):
                self.dangling_before += 1
                self._note(row, "what this revisit referred to had another digest than it says")
                return
            self._check_chunks(row, after, _of_payload(leads, shas), _of_payload(led, shas))
            self.resolved += 1
            return
        if row.change == UNDONE:
            leads = self._ways(after, AFTER)
            wrong = [way for way, found in leads.items() if found and not _shas(found) & shas]
            there = self._evidence.at_place(after.place, AFTER) if after.place is not None else ()
            # What it meant before it was mended may be there again, and another capture of that moment.
            if not _shas([*_of_payload(leads, shas), *there, *self._by_digest(after, AFTER)]) & shas:
                self._tell_row(
                    row, f"{_WAYS[(wrong or ['place'])[0]]} does not lead to the payload of before"
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

    def _check_dangling(self, row: RevisitRow, before: Reference, after: Reference) -> None:
        if before != after:
            self._tell_row(row, "its reference led nowhere before, and was changed")
            return
        if any(self._ways(after, AFTER).values()):
            self.resolved += 1
            return
        self.dangling_before += 1
        self._note(row, "the original of this revisit is in neither archive")

    def _leads_astray(self, reference: Reference, led: dict[str, list[Held]]) -> bool:
        """Whether a reference leads nowhere, or by URI and date alone to other payloads than its digest says."""
        others = [held for way, found in led.items() if way != "place" for held in found]
        return not others and all(self._is_another(held, reference.digest) for held in led["place"])

    def _by_digest(self, reference: Reference, side: int) -> list[Held]:
        """The captures of the URI of a reference with its digest, and those whose payload has it if it is a SHA-256."""
        uri = reference.uri if reference.target is None and reference.id is None else reference.target
        digest = _parsed(reference.digest)
        if uri is None or digest is None:
            return []
        found = self._evidence.with_digest(uri, reference.digest, side)
        if digest.label == "sha256":
            found += self._evidence.with_payload(uri, bytes.fromhex(digest.value), side)
        return found

    def _is_another(self, held: Held, text: str | None) -> bool:
        """Whether a capture has another digest than *text*, by its record and its payload, which is read again."""
        digest = _parsed(text)
        if digest is None or held.digest in digest_forms(text):
            return False
        computed = self._computed(held.file, held.offset, held.position, digest.label)
        return bool(computed) and digest not in computed

    def _digests_of(self, file: int, offset: int, position: int | None, label: str) -> tuple[Digest, ...]:
        """Those of a payload as it is stored, without chunks, and decoded; none if they cannot be computed."""
        try:
            record = read_record(self._file_of(file), offset, block_position=position)
            made = [payload_digest(record, label, decoded=decoded).hex for decoded in (False, True)]
            stored = hasher_of(label)
            head_bytes = record.http.length if record.http is not None else 0
            for piece in open_block(record.path, record.frame):
                stored.update(piece[head_bytes:])
                head_bytes = max(0, head_bytes - len(piece))
            return tuple(parse_digest(f"{label}:{one}") for one in (*made, stored.hexdigest()))
        except (DamagedInput, Undecodable, ValueError):
            return ()

    def _note(self, row: RevisitRow, text: str) -> None:
        if len(self.notes) < _KEPT_NOTES:
            self.notes.append(f"{self._place_of(row.pair, True, row.after_offset)}: {text}")

    @staticmethod
    def _payloads(reference: Reference, ways: dict[str, list[Held]]) -> set[bytes]:
        """The payload that a revisit stands for; several where records that cannot be told apart have several."""
        found = [held for held in ways.values() if held]
        if not found:
            return set()
        common = set.intersection(*map(_shas, found))
        if common:
            return common
        forms = digest_forms(reference.digest)
        fitting = {one.sha for held in found for one in held if one.digest in forms}
        return fitting or _shas(found[0])

    def _originals(
        self, row: RevisitRow, reference: Reference, shas: AbstractSet[bytes | None], *, is_new_id: bool
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
            # Only an original that has no id, as in ARC files, is named by URI and date alone.
            if found and all(one.id is not None for one in found):
                self._tell_row(row, f"{_WAYS['id']} is missing, and its original has a record id")
            return found
        named = self._right(row, list(self._evidence.with_id(reference.id, AFTER)), shas, _WAYS["id"])
        both = [held for held in named if (held.place, held.date) == (reference.place, reference.date)]
        if named and not both:
            self._tell_row(row, f"{_WAYS['id']} names another record than {_WAYS['place']}")
        if both and is_new_id and all(held.bare != reference.bare for held in both):
            self._tell_row(row, f"{_WAYS['id']} has not the angle brackets of that record, or has its own")
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
            held = list(self._evidence.at_place(reference.place, side))
            ways["place"] = [one for one in held if _is_same_date(one.date, reference.date)] or held
        if reference.target is not None and not ways["place"]:
            ways["target"] = self._evidence.with_digest(reference.target, reference.digest, side)
        if reference.id is not None:
            ways["id"] = list(self._evidence.with_id(reference.id, side))
        if reference.target is None and reference.id is None:
            ways["digest"] = self._evidence.with_digest(reference.uri, reference.digest, side)
        forms = digest_forms(reference.digest)
        for way, found in ways.items():
            # Several captures of one second are told apart by the digest.
            if len(found) > 1 and (fitting := [one for one in found if one.digest in forms]):
                ways[way] = fitting
        return ways

    def _tell_row(self, row: RevisitRow, reason: str) -> None:
        self._tell(row.pair, row.before_offset, row.after_offset, reason)

    def _tell(self, pair: int, before: int | None, after: int | None, reason: str) -> None:
        self._findings.add(
            "reference", self._place_of(pair, False, before), self._place_of(pair, True, after), reason
        )


def _shas(held: Iterable[Held]) -> set[bytes]:
    return {one.sha for one in held}


def _of_payload(ways: dict[str, list[Held]], shas: AbstractSet[bytes | None]) -> list[Held]:
    return [one for held in ways.values() for one in held if one.sha in shas]


def _are_in_chunks(held: Iterable[Held]) -> bool:
    """Whether there are any, all of them stored in chunks."""
    return {one.chunked for one in held} == {1}


def _parsed(text: str | None) -> Digest | None:
    try:
        return parse_digest(text) if text else None
    except ValueError:
        return None


def _is_same_date(one: str | None, other: str | None) -> bool:
    if one == other:
        return True
    try:
        return bool(one and other and parse_date(one) == parse_date(other))
    except ValueError:
        return False

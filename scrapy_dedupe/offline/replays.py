"""Replay a random sample of the new revisits, as a replay program would."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.offline.evidence import AFTER, Side, hashed_place, row_of
from scrapy_dedupe.offline.windows import are_same
from scrapy_dedupe.warc.bodies import payload_pieces
from scrapy_dedupe.warc.reading import read_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_dedupe.offline.evidence import Evidence, Held
    from scrapy_dedupe.offline.findings import Findings
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile


class Replays:
    """Replays revisits. `drawn` is the size of the sample, `right` the number of revisits with the right payload."""

    def __init__(
        self, evidence: Evidence, findings: Findings, file_of: Callable[[int], ReadableFile]
    ) -> None:
        self._evidence = evidence
        self._findings = findings
        self._file_of = file_of
        self._captures = Side(evidence, AFTER, self._open)
        self.drawn = 0
        self.right = 0

    def run(self, sample: int, seed: int) -> None:
        """Replay *sample* random revisits, or all if there are fewer."""
        count = self._evidence.converted_count()
        self.drawn = min(sample, count)
        numbers = random.Random(seed).sample(range(count), self.drawn)  # noqa: S311 - not for cryptography
        for pair, before_offset, position, after_offset in self._evidence.converted_places(numbers):
            before, after = self._file_of(2 * pair), self._file_of(2 * pair + 1)
            try:
                response = read_record(before, before_offset, block_position=position)
                reason = self._replay(response, read_record(after, after_offset))
            except DamagedInput as error:
                reason = str(error)
            if reason is None:
                self.right += 1
            else:
                self._findings.add(
                    "replay", f"{before}, offset {before_offset}", f"{after}, offset {after_offset}", reason
                )

    def _replay(self, response: StoredRecord, revisit: StoredRecord) -> str | None:
        """The reason of a failure, or None."""
        uri, date = revisit.refers_to_uri, revisit.refers_to_date
        place = hashed_place(uri, date)
        if place is None:
            return "a replay program cannot find its original"
        if all(held.date != date for held in self._captures.at_place(place)):
            return "a replay program finds no record with the URI and date that it refers to"
        held = self._captures.original(row_of(revisit).named)
        if held is None:
            return "a replay program finds no record with its digest and the URI and date that it refers to"
        original = self._open(held)
        if (original.target_uri, original.date) != (uri, date) or original.type == "revisit":
            return f"a replay program finds {original.path}, offset {original.offset}, which it does not refer to"
        if not are_same(payload_pieces(response), payload_pieces(original)):
            return f"replayed from {original.path}, offset {original.offset}, its payload differs"
        return None

    def _open(self, held: Held) -> StoredRecord:
        return read_record(self._file_of(held.file), held.offset, block_position=held.position)

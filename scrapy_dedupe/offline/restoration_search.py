"""Find the records that a restoration changes, and the possible originals of its revisits, in one reading of all files."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.tasks.state import reading
from scrapy_dedupe.warc.framing import open_head
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.references import CaptureTable, is_unmodified, reference_of
from scrapy_dedupe.warc.sources import GZIP_MAGIC

from .restoration_plan import PlannedRestoration
from .restored_heads import FORMER_ID, former, has_others, is_changed, is_own_revisit, pointed_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.references import FiledCapture

    from .inputs import Input
    from .restoration_plan import RestorationPlan

NO_ORIGINAL: Final = "its original was not found"
_UNMODIFIED: Final = "of unmodified responses (304), which had no payload"
_NO_HEAD: Final = "without an HTTP head"
_FORMER_OF_OTHERS: Final = "with Former- fields that warcrefs or dedupe did not write"
_SHARED: Final = "in a gzip member with other records"
_MOST_CANDIDATES: Final = 8
_HELD_BYTES: Final = 1 << 16  # larger revisits are read again


@dataclass(slots=True)
class RestorationScan:
    """What was found besides the changes in the plan: see `restoring.Restored`. ``revisits`` counts records to restore."""

    left: Counter[str] = field(default_factory=Counter)
    not_ours: int = 0
    not_ours_revisits: int = 0
    revisits: int = 0

    def __post_init__(self) -> None:
        self.left = Counter(self.left)

    def to_json(self) -> dict[str, Any]:
        """The arguments for an equal object."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def search(
    plan: RestorationPlan,
    inputs: Sequence[Input],
    others: Sequence[Input],
    finals: Sequence[Path],
    *,
    all_writers: bool,
    faults: Faults,
    watch: Progress,
) -> RestorationScan:
    """Read *inputs*, which get the names *finals*, and *others* once, and store the changes and candidates in the plan."""
    scan, captures = RestorationScan(), CaptureTable()
    files = [*inputs, *others]
    numbers = {str(given.file): number for number, given in enumerate(files)}
    watch.begin("looking for revisits and originals", sum(given.size_bytes for given in files))
    with closing(captures):
        for number, given in enumerate(files):
            is_other = number >= len(inputs)
            if is_other and not scan.revisits:
                break
            if is_other:
                plan.add_file(number, str(given.file), None)
            else:
                final = str(finals[number])
                plan.add_file(number, given.name, final, is_gzip=_is_gzip(given))
            for record in captures.noted(_records(given, faults)):
                if not is_other:
                    _scan(plan, scan, number, record, faults, all_writers=all_writers)
            watch.advance(given.size_bytes)
        for revisit, _ in plan.unresolved():
            found = _candidates(captures, revisit)
            places = [(numbers[str(captures.file_of(one))], one.offset, one.block_position) for one in found]
            plan.add_candidates(revisit, places)
    watch.end()
    return scan


def _records(given: Input, faults: Faults) -> Iterator[StoredRecord]:
    try:
        yield from read_records(given.file, on_damage=faults.add_damage)
    except OSError as error:
        raise ArchiveError(f"{given.name} cannot be read: {error.strerror or error}.") from error


def _scan(
    plan: RestorationPlan,
    scan: RestorationScan,
    number: int,
    record: StoredRecord,
    faults: Faults,
    *,
    all_writers: bool,
) -> None:
    if record.format != "warc":
        return
    is_own, changed = is_own_revisit(record), is_changed(record)
    if changed and not is_own and not pointed_fields(record):
        scan.not_ours += 1
        scan.not_ours_revisits += record.type == "revisit"
        return
    is_revisit = is_own or (
        all_writers and record.type == "revisit" and not is_unmodified(record) and not has_others(record)
    )
    if all_writers and record.type == "revisit" and not is_revisit:
        scan.left[_UNMODIFIED if is_unmodified(record) else _FORMER_OF_OTHERS] += 1
    if not is_revisit and not changed:
        return
    reason = None
    if not record.length:
        reason = _SHARED
    elif is_revisit and (record.http is None or record.http.status is None):
        reason = _NO_HEAD
    if reason is not None:
        if is_own or not is_revisit:
            place = f"{record.path}, offset {record.offset}"
            faults.add(place, f"the record cannot be restored ({reason})")
        else:
            scan.left[reason] += 1
        return
    if not is_revisit:
        plan.add_change(number, record.offset, record.length)
        digest = former(record, "WARC-Payload-Digest") or record.get("WARC-Payload-Digest")
        if record.type == "revisit" and digest:
            plan.add_named(digest.strip())
        return
    scan.revisits += 1
    revisit = PlannedRestoration(
        number,
        record.offset,
        record.length,
        record.get(FORMER_ID),
        record.target_uri,
        record.date,
        reference_of(record),
        record.refers_to
        or (f"{record.refers_to_uri} of {record.refers_to_date}" if record.refers_to_uri else "record"),
    )
    is_held = record.frame.block_length <= _HELD_BYTES
    data = open_head(record.path, record.frame) + record.frame.kept + b"\r\n\r\n" if is_held else None
    plan.add_revisit(revisit, data)


def _candidates(captures: CaptureTable, revisit: PlannedRestoration) -> list[FiledCapture]:
    """The possible originals of a revisit, the best first; last, records that it names but whose digest differs."""
    reference = revisit.reference
    found = [one for _, ways in captures.ways(reference) for one in ways[:_MOST_CANDIDATES]]
    # Captures with another digest are originals only if the former digests of the revisit confirm it.
    if reference.id is not None:
        found += list(captures.with_id(reference.id))[:_MOST_CANDIDATES]
    if reference.uri is not None and reference.date is not None:
        found += list(captures.in_second(reference.uri, reference.date // 1_000))[:_MOST_CANDIDATES]
    return list(dict.fromkeys(found))


def _is_gzip(given: Input) -> bool:
    with reading(given.file), given.file.open("rb") as file:
        return file.read(2) == GZIP_MAGIC[:2]

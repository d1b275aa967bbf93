"""Verify that a deduplicated archive lost nothing. Both archives are read completely, with code that the writing code
does not use.

First, every pair of files is compared (`side_by_side`), in any number of processes; facts about the records are stored on
disk (`evidence`), so that memory does not grow with the archive. Then every revisit and every reference is followed
through all files (`references`). Finally a random sample of the new revisits is replayed: the revisit is read,
its original is looked up by URI and date as a replay program does, and its payload is compared byte by byte with that of
the record before.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError, DamagedInput, SettingError, UsageError
from scrapy_dedupe.offline.evidence import AFTER, Difference, Evidence, Findings, Side, hashed_place, row_of
from scrapy_dedupe.offline.inputs import output_names
from scrapy_dedupe.offline.references import References
from scrapy_dedupe.offline.side_by_side import PairComparison, compare, place_of
from scrapy_dedupe.offline.windows import are_same
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.jobs import run_jobs
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.warc.bodies import payload_pieces
from scrapy_dedupe.warc.containers import find_files
from scrapy_dedupe.warc.reading import read_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from scrapy_dedupe.offline.evidence import Held
    from scrapy_dedupe.offline.old_files import OldRecord
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

DEFAULT_SAMPLE: Final = 100
_COUNTED: Final = ("records", "unchanged", "converted", "repointed", "restored", "rechunked", "from_arc")
_ARCHIVE_NAME: Final = re.compile(r".*\.w?arc(\.gz)?", re.IGNORECASE | re.DOTALL)
_ARC_SUFFIX: Final = re.compile(r"\.arc((?:\.gz)?)\Z", re.IGNORECASE)

Pair = tuple["ReadableFile | None", "ReadableFile | None"]
"""A file before and the file after."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification. ``files`` counts pairs, ``records`` the records of the new archive.

    Each record is one of: ``unchanged``; ``converted``, a response that became a revisit; ``repointed``, with changed
    references; ``restored``, a revisit that became a response again; ``rechunked``, with transfer chunks removed or
    added; ``from_arc``, converted from an ARC record; or it is in a finding.

    ``resolved`` counts the revisits in the new archive that lead to the right payload; ``by_digest`` counts the ones
    that are resolved only by digest, because their original is in neither archive; ``dangling_before`` revisits that
    lead nowhere, before and after; ``ambiguous`` new revisits whose original has the same URI, and a date in the same
    second, as a record with another payload: programs that ignore fractions of a second cannot distinguish the two.
    ``notes`` lists the last three. ``replayed`` counts the revisits of the sample, chosen with ``seed``, that replayed
    the right payload. ``findings`` and ``faults`` (damage that both archives have) list at most the first thousand;
    ``findings_count`` and ``faults_count`` count all. ``size_bytes`` of both archives were read, in ``seconds``.
    """

    files: int
    records: int
    unchanged: int
    converted: int
    repointed: int
    restored: int
    rechunked: int
    from_arc: int
    resolved: int
    by_digest: int
    dangling_before: int
    ambiguous: int
    sample: int
    seed: int
    replayed: int
    findings_count: int
    findings: tuple[Difference, ...]
    faults_count: int
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    size_bytes: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether there are no findings. Damage that both archives have is not a finding."""
        return not self.findings_count


def verify(
    pairs: Sequence[Pair],
    *,
    originals: Sequence[ReadableFile] = (),
    facts: Sequence[Iterable[OldRecord] | None] = (),
    sample: int = DEFAULT_SAMPLE,
    seed: int | None = None,
    jobs: Jobs = 1,
    work: Path,
    watch: Progress | None = None,
    keep_going: bool = False,
    faults: Faults | None = None,
) -> Verification:
    """Compare the files of *pairs*, before and after. A file whose partner is None is a finding.

    *facts* are facts about the file before of each pair (`old_files`); without them, it is read completely. Iterables are
    pickled if there are several *jobs*. *originals* are files outside of both archives with payloads that revisits refer to. *sample* is the number of new
    revisits to replay; without a *seed*, a random one is used. *work* is a folder for temporary data, which needs about
    300 bytes for each record; the data is removed at the end. *faults* may be the caller's collection.

    Raises DamagedInput for a damaged place, unless set to keep going, OSError for a file that cannot be read,
    ArchiveError if *work* is full, SettingError for a negative *sample*.
    """
    if sample < 0:
        raise SettingError(f"A sample cannot have {sample} revisits. Give a number of 0 or more.")
    begun = time.monotonic()
    seed = secrets.randbelow(2**31) if seed is None else seed
    faults = Faults(keep_going=keep_going) if faults is None else faults
    watch = watch or NoProgress()
    findings = Findings()
    counts: Counter[str] = Counter()
    # Originals are treated as files that both archives contain.
    files = [*pairs, *((file, file) for file in _elsewhere(originals, pairs))]
    work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="verify-", dir=work))
    try:
        evidence = Evidence(folder / "evidence.sqlite")
        try:
            tasks = [
                PairComparison(
                    number,
                    before,
                    after,
                    folder / f"{number}.sqlite",
                    number >= len(pairs),
                    faults.keep_going,
                    facts[number] if number < len(facts) else None,
                )
                for number, (before, after) in enumerate(files)
            ]
            size_bytes = _read(tasks, evidence, jobs, watch, findings, counts, faults)
            evidence.make_indexes()
            places = _Places(files)
            references = References(evidence, findings, places.text, places.file, len(pairs))
            references.check_revisits()
            references.check_links()
            replays = _Replays(evidence, findings, places.file)
            replays.run(sample, seed)
        finally:
            evidence.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Verification(
        files=len(pairs),
        **{name: counts[name] for name in _COUNTED},
        resolved=references.resolved,
        by_digest=references.by_digest,
        dangling_before=references.dangling_before,
        ambiguous=references.ambiguous,
        sample=replays.drawn,
        seed=seed,
        replayed=replays.right,
        findings_count=findings.count,
        findings=tuple(findings.first),
        faults_count=faults.count,
        faults=tuple(faults.first),
        notes=tuple(references.notes),
        size_bytes=size_bytes,
        seconds=round(time.monotonic() - begun, 3),
    )


def _read(
    tasks: Sequence[PairComparison],
    evidence: Evidence,
    jobs: Jobs,
    watch: Progress,
    findings: Findings,
    counts: Counter[str],
    faults: Faults,
) -> int:
    for task in tasks:
        before, after = task.before, task.after
        if before is None or after is None:
            there = str(before or after)
            findings.add(
                "file", None if before is None else there, None if after is None else there,
                "there is no such file before" if before is None else "there is no such file after",
            )  # fmt: skip
    watch.begin("verify", sum(_size(file) for task in tasks for file in task.files))
    waiting: dict[int, Path] = {}
    size_bytes = taken = 0
    for task, done in run_jobs(compare, tasks, jobs):
        counts.update(done.counts)
        findings.take(done.findings_count, done.findings)
        faults.take(done.faults_count, done.faults)
        size_bytes += done.size_bytes
        watch.advance(done.size_bytes)
        # Add parts in the order of the pairs, so that a seed selects the same sample for any number of processes.
        waiting[task.number] = task.evidence
        while taken in waiting:
            evidence.add_part(waiting.pop(taken))
            taken += 1
    watch.end()
    return size_bytes


class _Replays:
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


class _Places:
    """The files by their numbers in the evidence."""

    def __init__(self, files: Sequence[Pair]) -> None:
        self._files = files

    def file(self, number: int) -> ReadableFile:
        """The file with this number in ``captures.file``."""
        pair, is_after = divmod(number, 2)
        file = self._files[pair][is_after]
        if file is None:
            raise ArchiveError(f"Pair {pair} has no such file.")
        return file

    def text(self, pair: int, is_after: bool, offset: int | None) -> str | None:
        """The text for a place in findings; None if the file or offset is missing."""
        file = self._files[pair][is_after]
        return None if file is None or offset is None else place_of(file, offset)


def pairs_of(before: Path, after: Path) -> list[Pair]:
    """The pairs of two files or two folders, sorted by name; None where a side has no such file.

    Files with the same relative path are a pair, and so are an ARC file and a WARC file of the same name. Rewritten files
    are stored relative to the common parent folder of the old files (`layout`). So if no path matches, the paths before are
    taken relative to that parent folder. Folders whose names begin with a dot hold unfinished work and are skipped, as are
    files that are neither WARC nor ARC.

    Raises UsageError for a file and a folder, ArchiveError if one of them does not exist.
    """
    for path in (before, after):
        if not path.exists():
            raise ArchiveError(f"{path} does not exist. Name the archive before and the archive after.")
    if before.is_dir() != after.is_dir():
        raise UsageError(
            f"{before} and {after}: one is a file and the other a folder. Name two files or two folders."
        )
    if not before.is_dir():
        return [(before, after)]
    old, new = files_below(before), files_below(after)
    if not old:
        raise UsageError(f"{before} has no WARC or ARC files.")
    if not any(_partner(name, new) in new for name in old):
        old = {below.as_posix(): old[name] for name, below in output_names(old).items()}
    pairs: list[Pair] = []
    for name, file in sorted(old.items()):
        partner = _partner(name, new)
        pairs.append((file, None if partner in old and partner != name else new.pop(partner, None)))
    return pairs + [(None, file) for _, file in sorted(new.items())]


def _partner(name: str, new: Mapping[str, Path]) -> str:
    return name if name in new else _ARC_SUFFIX.sub(r".warc\1", name)


def files_below(folder: Path) -> dict[str, Path]:
    """The WARC and ARC files below a folder, by relative path. Links to files are followed, links to folders not."""
    files: dict[str, Path] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            if _ARCHIVE_NAME.fullmatch(name) and path.is_file():
                files[path.relative_to(folder).as_posix()] = path
    return files


def originals_of(places: Iterable[str]) -> list[ReadableFile]:
    """The files that ``--originals`` names: files, patterns, and folders including subfolders."""
    found: list[ReadableFile] = []
    for place in places:
        path = Path(place)
        if path.is_dir():
            below = files_below(path)
            if not below:
                raise UsageError(f"{place!r} has no WARC or ARC files.")
            found += [file for _, file in sorted(below.items())]
        else:
            found += find_files([place])
    return found


def _elsewhere(originals: Sequence[ReadableFile], pairs: Sequence[Pair]) -> list[ReadableFile]:
    """The originals that are not files of a pair, under any name.

    A file before would satisfy every reference, but will be gone when the file after replaces it.
    """
    taken = {_identity(file) for pair in pairs for file in pair if file is not None}
    return [file for file in originals if _identity(file) not in taken]


def _identity(file: ReadableFile) -> object:
    if not isinstance(file, Path):
        return str(file)
    facts = file.stat()
    return facts.st_dev, facts.st_ino


def _size(file: ReadableFile) -> int:
    return file.stat().st_size if isinstance(file, Path) else 0

"""Proof that an archive lost nothing: both are read again in full, by code that shares nothing with the code that writes.

Three steps. Every pair of files is walked side by side (`side_by_side`), in as many processes as one likes; what the
records hold goes into a file on disk (`evidence`), so that memory does not grow with the archive. Then every revisit
and every reference is followed through all files (`references`). Then some of the new revisits, drawn at random, are
replayed: opened at their place, their original looked up by URI and date as a replay program does, opened at its own
place, and its payload compared byte by byte with that of the record before (`replays`).
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, SettingError
from scrapy_dedupe.offline.evidence import Evidence
from scrapy_dedupe.offline.findings import Difference, Findings
from scrapy_dedupe.offline.references import References
from scrapy_dedupe.offline.replays import Replays
from scrapy_dedupe.offline.side_by_side import PairComparison, compare, place_of
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.jobs import run_jobs
from scrapy_dedupe.tasks.progress import NoProgress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.offline.pairing import Pair
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.sources import ReadableFile

DEFAULT_SAMPLE = 100


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verification saw. ``files`` counts pairs, ``records`` those of the archive after.

    Each record is one of: ``unchanged``; ``converted``, a response that became a revisit; ``repointed``, with
    other references; ``restored``, a revisit that is a response again; ``rechunked``, with or without the
    chunks of its transfer; ``from_arc``, made of a record of an ARC file; or it is in a finding.

    ``resolved`` counts the revisits after that lead to the payload which they have to have;
    ``by_digest`` those of them whose named original is in neither archive, so that only the digest leads there;
    ``dangling_before`` those that lead nowhere, before and after; ``ambiguous`` the new ones whose original
    shares its URI and second with another payload, as programs that know no fractions of a second see it;
    ``notes`` list all three; ``replayed`` those of the sample, drawn with ``seed``, whose payload came out right.
    ``findings`` and ``faults`` (damage that both archives have alike) hold the first thousand of their
    counts. ``size_bytes`` were read, of both archives, in ``seconds``.
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
        """Whether there is no finding. Damage that both archives have alike is none."""
        return not self.findings_count


def verify(
    pairs: Sequence[Pair],
    *,
    originals: Sequence[ReadableFile] = (),
    sample: int = DEFAULT_SAMPLE,
    seed: int | None = None,
    jobs: int = 1,
    work: Path,
    watch: Progress | None = None,
    keep_going: bool = False,
    faults: Faults | None = None,
) -> Verification:
    """Compare the files of *pairs*, before and after. A file whose partner is None is a finding.

    *originals* are files that are part of neither archive and hold payloads which revisits refer to. *sample* is how
    many new revisits are replayed; without a *seed* one is drawn. *work* is a folder for what is read, with room for
    about 300 bytes for each record; what is made there is removed. *faults* may be the collection of a caller.

    Raises DamagedInput for a damaged place, unless work is to go on, OSError for a file that cannot be read,
    ArchiveError if *work* is full, SettingError for a number below 0.
    """
    if sample < 0:
        raise SettingError(f"A sample cannot have {sample} revisits. Give a number from 0 on.")
    begun = time.monotonic()
    seed = secrets.randbelow(2**31) if seed is None else seed
    faults = Faults(keep_going=keep_going) if faults is None else faults
    watch = watch or NoProgress()
    findings = Findings()
    counts: Counter[str] = Counter()
    # Originals are files that both archives have.
    files = [*pairs, *((file, file) for file in _elsewhere(originals, pairs))]
    work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="verify-", dir=work))
    try:
        evidence = Evidence(folder / "evidence.sqlite")
        try:
            size_bytes = _read(files, len(pairs), evidence, folder, jobs, watch, findings, counts, faults)
            evidence.make_indexes()
            places = _Places(files)
            references = References(evidence, findings, places.told, places.file, len(pairs))
            references.check_revisits()
            references.check_links()
            replays = Replays(evidence, findings, places.file)
            replays.run(sample, seed)
        finally:
            evidence.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Verification(
        files=len(pairs),
        records=counts["records"],
        unchanged=counts["unchanged"],
        converted=counts["converted"],
        repointed=counts["repointed"],
        restored=counts["restored"],
        rechunked=counts["rechunked"],
        from_arc=counts["from_arc"],
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
    files: Sequence[Pair],
    pair_count: int,
    evidence: Evidence,
    folder: Path,
    jobs: int,
    watch: Progress,
    findings: Findings,
    counts: Counter[str],
    faults: Faults,
) -> int:
    tasks = [
        PairComparison(
            number, before, after, folder / f"{number}.sqlite", number >= pair_count, faults.keep_going
        )
        for number, (before, after) in enumerate(files)
    ]
    for before, after in files:
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
        # In the order of the pairs, so that a seed draws the same sample however many processes read.
        waiting[task.number] = task.evidence
        while taken in waiting:
            evidence.add_part(waiting.pop(taken))
            taken += 1
    watch.end()
    return size_bytes


class _Places:
    """The files by the numbers that the evidence gives them."""

    def __init__(self, files: Sequence[Pair]) -> None:
        self._files = files

    def file(self, number: int) -> ReadableFile:
        """The file with a number of ``captures.file``."""
        pair, is_after = divmod(number, 2)
        file = self._files[pair][is_after]
        if file is None:
            raise ArchiveError(f"Pair {pair} has no such file.")
        return file

    def told(self, pair: int, is_after: bool, offset: int | None) -> str | None:
        """A place as findings tell it; None if it is not there."""
        file = self._files[pair][is_after]
        return None if file is None or offset is None else place_of(file, offset)


def _elsewhere(originals: Sequence[ReadableFile], pairs: Sequence[Pair]) -> list[ReadableFile]:
    """The originals that are no files of a pair, by whatever name.

    A file before would make every reference right, and would be gone when the file after takes its place.
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

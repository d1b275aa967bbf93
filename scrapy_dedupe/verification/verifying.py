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
import secrets
import shutil
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError, SettingError, UsageError
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import link_hint, output_names
from scrapy_dedupe.tasks.jobs import run_jobs
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.tasks.work import size_of
from scrapy_dedupe.warc.archive_names import is_archive_name, with_warc_suffix
from scrapy_dedupe.warc.remote import real_place

from .evidence import Evidence, as_archive_errors
from .references import References
from .side_by_side import Compared, PairComparison, compare

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapy_dedupe.tasks.faults import Fault
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.sources import ReadableFile

    from .findings import Difference
    from .old_files import OldRecord

DEFAULT_SAMPLE: Final = 100
_COUNTED: Final = (
    *("records", "unchanged", "converted", "repointed", "restored", "rechunked", "from_arc"),
    *("resolved", "by_digest", "dangling_before", "ambiguous", "sample", "replayed"),
)

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
) -> Verification:
    """Compare the files of *pairs*, before and after. A file whose partner is None is a finding.

    *facts* are facts about the file before of each pair (`old_files`); without them, it is read completely. Iterables are
    pickled if there are several *jobs*. *originals* are files outside of both archives with payloads that revisits refer to.
    *sample* is the number of new revisits to replay; without a *seed*, a random one is used. *work* is a folder for temporary
    data, which needs about 300 bytes for each record; the data is removed at the end.

    Raises DamagedInput for a damaged place, unless set to keep going, OSError for a file that cannot be read,
    ArchiveError if *work* is full, SettingError for a negative *sample*.
    """
    if sample < 0:
        raise SettingError(f"A sample cannot have {sample} revisits. Give a number of 0 or more.")
    begun = time.monotonic()
    seed = secrets.randbelow(2**31) if seed is None else seed
    faults = Faults(keep_going=keep_going)
    watch = watch or NoProgress()
    found = Compared()
    # Originals are treated as files that both archives contain.
    files = [*pairs, *((file, file) for file in _elsewhere(originals, pairs))]
    work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="verify-", dir=work))
    try:
        known = dict(enumerate(facts))
        tasks = [
            PairComparison(
                number,
                before,
                after,
                folder / f"{number}.sqlite",
                number >= len(pairs),
                keep_going,
                known.get(number),
            )
            for number, (before, after) in enumerate(files)
        ]
        watch.begin("verify", sum(size_of(file) for task in tasks for file in task.files))
        for _, done in run_jobs(compare, tasks, jobs):
            found.add(done)
            faults.take(done.faults.count, tuple(done.faults.first))
            watch.advance(done.size_bytes)
        watch.end()
        # In the order of the pairs, so that a seed selects the same sample for any number of processes.
        with as_archive_errors(folder), closing(Evidence(folder / "evidence.sqlite")) as evidence:
            evidence.add(task.evidence for task in tasks)
            references = References(evidence, found.findings, found.counts, files)
            references.check_revisits()
            references.check_links()
            references.replay(sample, seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Verification(
        files=len(pairs),
        **{name: found.counts[name] for name in _COUNTED},
        seed=seed,
        findings_count=found.findings.count,
        findings=tuple(found.findings.first),
        faults_count=faults.count,
        faults=tuple(faults.first),
        notes=tuple(references.notes),
        size_bytes=found.size_bytes,
        seconds=round(time.monotonic() - begun, 3),
    )


def pairs_of(before: Path, after: Path) -> list[Pair]:
    """The pairs of two files or two folders, sorted by name; None where a side has no such file.

    Files with the same relative path are a pair, and so are an ARC file and a WARC file of the same name. Rewritten files
    are stored relative to the common parent folder of the old files (`output_names`). So if no path matches, the paths
    before are taken relative to that parent folder. Folders whose names begin with a dot hold unfinished work and are skipped, as are
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
    old, new = _files_below(before), _files_below(after)
    if not old:
        raise UsageError(
            f"{before} has no WARC or ARC files. Name a folder with such files.{link_hint(before)}"
        )
    if not any(_partner(name, new) in new for name in old):
        old = {below.as_posix(): old[name] for name, below in output_names(old).items()}
    pairs: list[Pair] = []
    for name, file in sorted(old.items()):
        partner = _partner(name, new)
        pairs.append((file, None if partner in old and partner != name else new.pop(partner, None)))
    return pairs + [(None, file) for _, file in sorted(new.items())]


def _partner(name: str, new: Mapping[str, Path]) -> str:
    return name if name in new else with_warc_suffix(name)


def _files_below(folder: Path) -> dict[str, Path]:
    """The WARC and ARC files below a folder, by relative path. Links to files are followed, links to folders not."""
    files: dict[str, Path] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            if is_archive_name(name) and path.is_file():
                files[path.relative_to(folder).as_posix()] = path
    return files


def _elsewhere(originals: Sequence[ReadableFile], pairs: Sequence[Pair]) -> list[ReadableFile]:
    """The originals that are not files of a pair, also not by a symbolic link.

    A file before would satisfy every reference, but will be gone when the file after replaces it. A hard link is another
    file: it keeps its content when the file before is removed or replaced.
    """
    taken = {real_place(file) for pair in pairs for file in pair if file is not None}
    return [file for file in originals if real_place(file) not in taken]

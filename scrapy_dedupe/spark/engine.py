"""The offline jobs as functions of a Spark session. See `scrapy_dedupe.offline` for what each of them does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.near import find_near_copies
from scrapy_dedupe.offline.collisions import number_clusters
from scrapy_dedupe.offline.rewriting import RewriteOptions
from scrapy_dedupe.offline.rewriting import rewrite as rewrite_files
from scrapy_dedupe.offline.steps import StepOptions, run_steps
from scrapy_dedupe.offline.summing import SumOptions, sum_files
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.outputs import check_output, left_folder
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.verification import verify as verify_pairs

from .uploads import dedupe_to_url
from .workers import SparkWorkers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from scrapy_dedupe.near import NearCopies, NearJobOptions
    from scrapy_dedupe.offline.collisions import CollisionCounts
    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.rewriting import Rewritten
    from scrapy_dedupe.offline.steps import Deduped
    from scrapy_dedupe.offline.summing import Sums
    from scrapy_dedupe.tasks.inputs import Input
    from scrapy_dedupe.verification import Pair, Verification


def sums(
    session: Any,
    inputs: Sequence[Input],
    output: Path,
    options: SumOptions | None = None,
    **others: Any,
) -> Sums:
    """Write the manifest of *inputs*, as `summing.sum_files` does; *others* are its keyword arguments."""
    options = replace(options or SumOptions(), jobs=SparkWorkers(session))
    return sum_files(inputs, output, options, **others)


def plan(
    session: Any,
    sums: Path,
    output: Path,
    places: Places,
    *,
    faults: Faults | None = None,
    force: bool = False,
) -> CollisionCounts:
    """Compare the records of the manifest *sums*, choose originals, and write the manifest of ten columns to *output*.

    Raises the exceptions of `collisions.number_clusters`, and ArchiveError if *output* exists and *force* is not set.
    """
    check_output(output, may_exist=force, choices="or replace it with --force")
    with left_folder(output) as state:
        return number_clusters(
            sums,
            output,
            places,
            state,
            faults=Faults() if faults is None else faults,
            watch=NoProgress(),
            jobs=SparkWorkers(session),
        )


def rewrite(
    session: Any,
    lines: Iterable[ManifestLine],
    files: Sequence[str] | None,
    places: Places,
    output: Path,
    options: RewriteOptions | None = None,
    **others: Any,
) -> Rewritten:
    """Write *files* with revisits, and verify them, as `rewriting.rewrite` does; *others* are its keyword arguments."""
    options = replace(options or RewriteOptions(), jobs=SparkWorkers(session))
    return rewrite_files(lines, files, places, output, options, **others)


def verify(session: Any, pairs: Sequence[Pair], *, work: Path, **others: Any) -> Verification:
    """Compare files before and after, as `verification.verify` does; *others* are its keyword arguments."""
    return verify_pairs(pairs, work=work, jobs=SparkWorkers(session), **others)


def dedupe(
    session: Any, inputs: Sequence[Input], output: Path | str | None, options: StepOptions | None = None
) -> Deduped:
    """All steps in one run, as `steps.run_steps` does. If *output* is a URL, as `uploads.dedupe_to_url` does."""
    options = replace(options or StepOptions(), jobs=SparkWorkers(session))
    faults = Faults(keep_going=options.keep_going)
    if isinstance(output, str):
        return dedupe_to_url(inputs, output, options, faults=faults, watch=NoProgress())
    return run_steps(inputs, output, options, faults=faults, watch=NoProgress())


def near(
    session: Any, inputs: Sequence[Input], output: Path, options: NearJobOptions, **others: Any
) -> NearCopies:
    """Find near copies, as `near.find_near_copies` does; *others* are its keyword arguments.

    Files are read and texts are signed on the cluster, and joined by DuckDB in this process.
    """
    return find_near_copies(inputs, output, replace(options, jobs=SparkWorkers(session)), **others)

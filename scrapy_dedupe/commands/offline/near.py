"""``near PATH… -o FILE``: find near copies across archives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import FORCE, KEEP_GOING, RECURSIVE, Option
from scrapy_dedupe.commands.output import first, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.content.canonical import kind_of
from scrapy_dedupe.downloadermiddlewares import judge_options
from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.live.responses import decoded_page
from scrapy_dedupe.near import FORMATS, NearJobOptions, PageOptions, find_near_copies
from scrapy_dedupe.near.pages import COUNTED_REASONS, REPORTED_REASONS
from scrapy_dedupe.reports.wording import clean, counted, number, size
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs, left_out

from . import continues, left_files
from .engines import ENGINES, jobs_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.near import NearCopies

_SUFFIXES: Final = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def _near(stores: CommandStores, opts: argparse.Namespace) -> NearCopies:
    if str(opts.output) == "-":
        raise UsageError("near keeps its state in a folder next to the result. Name a file for the result.")
    mimes = frozenset(mime.lower() for mime in opts.type)
    for mime in mimes:
        if kind_of(mime) is None:
            raise UsageError(f"--type {mime} is not a text type. Give a MIME type such as text/html.")
    content = stores.settings.content
    pages = PageOptions(decoded_page, judge_options(content), content.max_bytes, mimes)
    faults = Faults(keep_going=opts.keep_going)
    inputs = find_inputs(opts.paths, faults=faults, recursive=opts.recursive)
    below, are_open = left_out(opts.paths, inputs, recursive=opts.recursive)
    file_format = opts.format or _SUFFIXES.get(opts.output.suffix.lower(), "parquet")
    options = NearJobOptions(pages, file_format, **picked(opts, "force keep_going"))
    with jobs_of(opts) as jobs, Bars(opts) as bars:
        found = find_near_copies(inputs, opts.output, replace(options, jobs=jobs), faults=faults, watch=bars)
    return replace(found, left_below=below, left_open=are_open)


def _lines(found: NearCopies) -> Iterator[str]:
    revisits = f", {counted(found.revisits, 'revisit')} among them" if found.revisits else ""
    yield (
        f"{found.output}: {counted(found.documents, 'document')} in {counted(found.files, 'file')}"
        f" ({size(found.size_bytes)}){revisits}."
    )
    for kind, text in (
        ("unique", "unique"),
        ("unchanged", "unchanged: the same URI had this text before"),
        ("exact", "exact copies"),
        ("near", "near copies"),
    ):
        yield f"{number(getattr(found, kind)):>12}  {text}"
    if found.groups:
        yield (
            f"{counted(found.groups, 'group')} of several documents; the largest has"
            f" {counted(found.largest, 'document')}."
        )
    if found.skipped:
        words = COUNTED_REASONS | REPORTED_REASONS
        yield "Left out:"
        yield from (f"{number(count):>12}  {words[reason]}" for reason, count in found.skipped.items())
    yield from first([clean(str(fault)) for fault in found.named], found.reported)
    yield from left_files(found.left_below, found.left_open)
    yield from first([clean(str(fault)) for fault in found.faults], found.fault_count)


def _caveats(found: NearCopies) -> Iterator[str]:
    if found.fault_count:
        yield f"{counted(found.fault_count, 'fault')} in the input skipped"
    if found.reported:
        yield f"{counted(found.reported, 'page')} left out"


NEAR = Verb(
    _near,
    _lines,
    [
        Option("paths", "PATH", "a WARC, ARC or WACZ file, a folder, a pattern, or a URL", nargs="+"),
        Option("-o --output", "FILE", "the file for the result", type=Path, required=True),
        RECURSIVE,
        Option(
            "--format",
            None,
            "the format of the result (default: by the name of FILE, else parquet)",
            choices=tuple(FORMATS),
        ),
        Option(
            "--type",
            "MIME",
            "only pages of this MIME type, such as text/html (repeatable; default: all text types)",
            action="append",
            default=[],
        ),
        FORCE,
        *ENGINES,
        KEEP_GOING,
    ],
    caveats=_caveats,
    stopped=continues,
    store_option=None,
)

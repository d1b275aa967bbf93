"""``passages inspect``, ``passages check``, ``passages compact`` and ``passages delete``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import Option, flag
from scrapy_dedupe.commands.output import first, listed, picked
from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.passages.boilerplate import SHARE
from scrapy_dedupe.passages.catalogue import read_manifest
from scrapy_dedupe.passages.checking import check
from scrapy_dedupe.passages.inspection import inspect
from scrapy_dedupe.passages.snapshot import IndexSnapshot
from scrapy_dedupe.passages.sources import id_of_name
from scrapy_dedupe.reports.wording import clean, counted, number, size
from scrapy_dedupe.tasks.state import reading

from . import ROOT, PassageVerb, not_merged, root_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.passages.inspection import Inspected


def _inspect(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    root = root_of(stores, opts)
    with Bars(opts) as bars, bars.part("inspect", 0), IndexSnapshot.open(root) as snapshot:
        index = inspect(snapshot, opts.boilerplate_share)
        documents = list(snapshot.iter_documents()) if opts.documents else None
    return {"root": str(root), "index": index, "documents": documents}


def _inspect_lines(result: dict[str, Any]) -> Iterator[str]:
    yield result["root"]
    yield from _statistics(result["index"])
    for document in result["documents"] or ():
        lengths = f"{number(document.tokens)} tokens, {number(document.characters)} characters"
        yield f"{lengths}  {clean(document.doc_id)}"


def _statistics(index: Inspected) -> Iterator[str]:
    blotter = dict(index.parameters["blotter"])
    numbers = ", ".join(f"{name} {value}" for name, value in blotter.items() if name != "name")
    kept = "with texts" if index.parameters["has_texts"] else "without texts"
    yield (
        f"made with   {index.parameters['tokeniser']}, {blotter['name']} ({numbers}),"
        f" keys of {index.parameters['key_bits']} bits, {kept}"
    )
    yield (
        f"documents   {number(index.documents)}, {number(index.copies)} of them copies,"
        f" of {counted(index.hosts, 'host')}; {number(index.deleted)} deleted ones await compaction"
    )
    yield (
        f"texts       {number(index.texts)}, with {number(index.tokens)} tokens and"
        f" {number(index.characters)} characters"
    )
    yield (
        f"posts       {number(index.posts)} under {number(index.distinct_keys)} keys; documents a key: mean"
        f" {index.documents_a_key_mean:.2f}, sigma {index.documents_a_key_sigma:.2f}"
    )
    yield (f"boilerplate {number(index.boilerplate_keys)} keys, {number(index.boilerplate_posts)} posts")
    parts = "texts" if index.parameters["has_texts"] else "outlines"
    share = (
        "" if index.share_of_text is None else f"; without texts {index.share_of_text:.1%} of the characters"
    )
    yield (f"size        {size(index.posts_bytes)} of posts, {size(index.texts_bytes)} of {parts}{share}")
    for segment in index.segments:
        yield (
            f"segment     {segment.name}: {counted(segment.documents, 'document')} ({number(segment.deleted)}"
            f" deleted), {counted(segment.texts, 'text')}, {counted(segment.posts, 'post')},"
            f" {size(segment.posts_bytes)} + {size(segment.texts_bytes)}"
        )


INSPECT = PassageVerb(
    _inspect,
    _inspect_lines,
    [
        ROOT,
        flag("--documents", "also list the documents"),
        Option(
            "--boilerplate-share",
            "X",
            "the share above which text is boilerplate (default: %(default)s)",
            type=float,
            default=SHARE,
        ),
    ],
)


def _check(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    begin = time.monotonic()
    root = root_of(stores, opts)
    with Bars(opts) as bars:
        found = check(root, opts.full, bars)
    return {
        "root": str(root),
        **picked(found, "problems orphans segments documents texts posts"),
        "is_full": opts.full,
        "seconds": round(time.monotonic() - begin, 3),
    }


def _check_lines(result: dict[str, Any]) -> Iterator[str]:
    problems, orphans = result["problems"], result["orphans"]
    yield from first(list(map(clean, problems)))
    if orphans:
        yield (
            "Files of a running or stopped writer, which the next writer removes if it was stopped:"
            f" {clean(listed(orphans))}."
        )
    parts = [counted(result[f"{part}s"], part) for part in ("segment", "document", "text", "post")]
    verdict = counted(len(problems), "problem") if problems else "no problems"
    yield f"Checked {result['root']}: {', '.join(parts)} in {result['seconds']:.1f} s: {verdict}."


def _check_caveats(result: dict[str, Any]) -> Iterator[str]:
    if problems := result["problems"]:
        yield (
            f"The index has {counted(len(problems), 'problem')}. Index the documents again into another folder, or"
            " restore a copy of this index"
        )


CHECK = PassageVerb(
    _check,
    _check_lines,
    [ROOT, flag("--full", "also compute all fingerprints again and compare them, which takes longer")],
    caveats=_check_caveats,
)


def _compact(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    begin = time.monotonic()
    root = root_of(stores, opts)
    with Bars(opts) as bars, PassageIndex(root, create=False, command="passages compact") as index:
        index.watch = bars
        with index.writing():
            segments_before, bytes_before = _size(root)
            was_done = index.compact()
            segments, size_bytes = _size(root)
    return {
        "root": str(root),
        "was_done": was_done,  # False if the index was already compact
        "segments_before": segments_before,
        "segments": segments,
        "bytes_before": bytes_before,
        "size_bytes": size_bytes,
        "seconds": round(time.monotonic() - begin, 3),
    }


def _size(root: Path) -> tuple[int, int]:
    """The number of segments, and the size of their files in bytes."""
    manifest = read_manifest(root)
    segments = () if manifest is None else manifest.segments
    return len(segments), sum(entry.size for entry in segments)


def _compact_lines(result: dict[str, Any]) -> Iterator[str]:
    if result["was_done"]:
        before = f"{counted(result['segments_before'], 'segment')} with {size(result['bytes_before'])}"
        after = f"{counted(result['segments'], 'segment')} with {size(result['size_bytes'])}"
        yield f"{result['root']}: {before} became {after}, in {result['seconds']:.1f} s."
    else:
        yield f"{result['root']} is already compact."


COMPACT = PassageVerb(
    _compact,
    _compact_lines,
    [ROOT],
    stopped=lambda opts: "the index has the same documents as before",
)


def _delete(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    ids = [*opts.ids, *(_ids_in(opts.list) if opts.list is not None else ())]
    if not ids and opts.list is None:
        raise UsageError("No documents were given. Give their ids, or a file of ids with --from.")
    # Ignore duplicates.
    ids = list(dict.fromkeys(map(id_of_name, ids)))
    root = root_of(stores, opts)
    with Bars(opts) as bars, PassageIndex(root, create=False, command="passages delete") as index:
        index.watch = bars
        with bars.part("delete", 0):
            was_there = index.delete_many(ids)
    missing = [doc_id for doc_id, was in zip(ids, was_there, strict=True) if not was]
    return {
        "root": str(root),
        "documents": len(ids) - len(missing),
        "missing": missing,
        "not_merged": not_merged(index),
    }


def _ids_in(name: str) -> list[str]:
    where = "standard input" if name == "-" else name
    with reading(where):
        # The name may also be that of a pipe.
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    try:
        # Not splitlines(): an id may contain other characters that it treats as line ends.
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where} is not UTF-8 at byte {error.start}. Give a file with one id per line, in UTF-8."
        ) from error
    return [line for line in (line.removesuffix("\r") for line in lines) if line]


def _delete_lines(result: dict[str, Any]) -> Iterator[str]:
    yield from first([f"{clean(doc_id)} is not in the index." for doc_id in result["missing"]])
    yield f"{counted(result['documents'], 'document was', 'documents were')} deleted from {result['root']}."


def _delete_caveats(result: dict[str, Any]) -> Iterator[str]:
    if missing := result["missing"]:
        yield f"{counted(len(missing), 'document was', 'documents were')} not in the index"
    if result["not_merged"] is not None:
        yield result["not_merged"]


DELETE = PassageVerb(
    _delete,
    _delete_lines,
    [
        Option("ids", "DOC_ID", "the id of a document", nargs="*"),
        Option("--from", "FILE", "a file with one id per line; - for standard input", dest="list"),
        ROOT,
    ],
    caveats=_delete_caveats,
)

"""``content check FILE``: show the verdict on a page."""

from __future__ import annotations

import mimetypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.content.judge import PageReading
from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.live.responses import PageReader

from .archive import Archive, ArchivedText, Wanted
from .read_only import judge_options, read_only_judge
from .reasons import (
    WAS_IMPORTED,
    TextDifference,
    add_archive_arguments,
    difference,
    difference_lines,
    why_equal,
    why_near,
    why_not_judged,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.content import Judge
    from scrapy_dedupe.content.judge import Judgement

HELP = "Show the verdict that a page would get now, and the reason. Nothing is stored."

_STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class CheckedPage:
    """``verdict`` has the fields of a crawl's verdict, ``digest`` is the key of the page's text.

    ``template``: without the template of its host the page would be a near copy. ``template_share`` is the share of
    the template in the page's text. Only near copies have a ``diff``.
    """

    store: str
    file: str
    url: str
    content_type: str
    digest: str | None
    verdict: dict[str, Any]
    template: bool
    template_share: float
    why: list[str]
    diff: TextDifference | None
    notes: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the body of a page; - for standard input")
    parser.add_argument(
        "--url",
        metavar="URL",
        help="the URL of the page, which decides whether it is unchanged and which template applies (default: the file)",
    )
    parser.add_argument(
        "--content-type",
        metavar="TYPE",
        help="the Content-Type header, such as 'text/html; charset=utf-8' (default: guessed from the file name, else"
        " text/html)",
    )
    add_archive_arguments(parser)


def run(place: CommandStores, opts: argparse.Namespace) -> CheckedPage:
    content_type = opts.content_type or mimetypes.guess_type(opts.file)[0] or "text/html"
    url = opts.url or Path("stdin" if opts.file == _STDIN else opts.file).absolute().as_uri()
    body = _body(opts.file)
    store = place.open_content()
    try:
        judge = read_only_judge(place, store.content)
        reading = _reading(place, judge, url, content_type, body)
        (judged,) = judge.find([reading])
        share = judge.template_share(reading, url)
        parameters = store.content.parameters()
    finally:
        store.close()
    why = list(_why(place, judged, reading, share, parameters))
    with Bars(opts) as bars:
        archive = Archive(place, opts.warc_dir, bars)
        diff = _diff(archive, judged, reading, opts)
    return CheckedPage(
        store=place.shown(place.content_url),
        file=opts.file,
        url=url,
        content_type=content_type,
        digest=None if reading.capture is None else reading.capture.digest.hex(),
        verdict=judged.verdict.as_dict(),
        template=judged.is_template,
        template_share=round(share, 4),
        why=why,
        diff=diff,
        notes=archive.notes,
    )


def _body(file: str) -> bytes:
    if file == _STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ArchiveError(f"The file {file} cannot be read: {error.strerror}.") from error


def _reading(place: CommandStores, judge: Judge, url: str, content_type: str, body: bytes) -> PageReading:
    if len(body) > place.settings.content.max_bytes:
        return PageReading(reason="size")
    headers = [(b"Content-Type", content_type.encode("latin-1", "replace"))]
    page = PageReader(place.scrapy_settings).page(url, headers, body, crawl="check")
    return PageReading(reason=page) if isinstance(page, str) else judge.read(page)


def _why(
    place: CommandStores, judged: Judgement, reading: PageReading, share: float, parameters: dict[str, str]
) -> Iterator[str]:
    verdict, capture = judged.verdict, judged.capture
    if verdict.kind == "unknown":
        yield why_not_judged(verdict.reason)
    elif verdict.kind == "near":
        assert verdict.similarity is not None
        yield why_near(verdict.similarity, judge_options(place), parameters, reading.mime)
    elif verdict.kind == "unique":
        yield (
            "A known text is similar, but only in the template of the host; the rest is not similar."
            if judged.is_template
            else "No known text is equal or similar."
        )
    elif capture is not None and capture.original in reading.imported:
        yield WAS_IMPORTED
    else:
        yield why_equal(verdict.kind)
    if share:
        yield f"{share:.0%} of the text is the template of the host."
    if verdict.pending:
        yield "The page with the original text is still being processed, and may fail."


def _diff(
    archive: Archive, judged: Judgement, reading: PageReading, opts: argparse.Namespace
) -> TextDifference | None:
    verdict, capture = judged.verdict, judged.capture
    if verdict.kind != "near" or capture is None or capture.original is None:
        return None
    assert verdict.original_url is not None
    assert verdict.original_crawl is not None
    wanted = Wanted(capture.original, verdict.original_url, verdict.original_crawl)
    name = f"{verdict.original_url}  {verdict.as_dict()['original_seen']}"
    own = ArchivedText(reading.text, reading.mime)
    return difference((name, archive.find([wanted])[wanted]), (opts.file, own), full=opts.full)


def text(result: CheckedPage) -> str:
    verdict = result.verdict
    lines = [f"{verdict['kind']:9}  {result.url}"]
    if verdict["original_url"] is not None:
        lines.append(
            f"           of {verdict['original_url']}, {verdict['original_seen']}, crawl {verdict['original_crawl']}"
        )
    lines += [f"           {sentence}" for sentence in result.why]
    if result.diff is not None:
        lines += [f"           {line}" for line in difference_lines(result.diff)]
    return "\n".join([*lines, *result.notes])

"""``content explain URL`` and ``content check FILE``: the verdicts on the texts of a URL, and on a page, and why."""

from __future__ import annotations

import mimetypes
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import WARC_DIR, Option, flag
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.content.candidates import NAMED_MARGIN
from scrapy_dedupe.content.difference import unified_diff
from scrapy_dedupe.content.judge import Verdict
from scrapy_dedupe.content.options import ALL_TYPES
from scrapy_dedupe.content.pages import PageReading
from scrapy_dedupe.content.quarrycore import PARAMETERS
from scrapy_dedupe.content.signature import CHANCE, min_equal, similarity
from scrapy_dedupe.downloadermiddlewares import judge_options
from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.live.responses import PageReader
from scrapy_dedupe.reports.wording import number
from scrapy_dedupe.stores.base import SeenText
from scrapy_dedupe.tasks.state import reading

from . import read_only_judge
from .archive import Archive, ArchivedText, Wanted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.content import Judge, JudgeOptions
    from scrapy_dedupe.content.judge import Judgement
    from scrapy_dedupe.stores.base import ContentStore, TextMatch
_INDENT: Final = " " * 11
_SHORT_DIFF: Final = 12
_STDIN: Final = "-"
_NEW: Final = "It was new: no text known at that time was equal, or similar outside the template of the host."
_NEW_OR_IMPORTED: Final = "It was new, or imported from QuarryCore."
_WAS_IMPORTED: Final = "QuarryCore had read a page with the same text; its hash was imported."
_WHY_EQUAL: Final = {
    "unchanged": "The canonical text is exactly the same as when this URL was read before.",
    "exact": "The canonical text is exactly that of the original.",
}
_REST_DECIDED: Final = "the rest without the template had to be similar too"
_OTHER_PAGE: Final = {
    False: "A known text is similar, but only in the template of the host; the rest is not similar.",
    True: "A known text is similar, but is that of another page: the title, the first words, the URL or the rest of the text"
    " is different.",
}
_NOT_JUDGED: Final = {
    "no text": "it has no text, or only in its title and <noscript>, like a page that JavaScript fills",
    "markup": "its markup would take too long to parse",
    "size": "it is larger than DEDUPE_CONTENT_MAX_BYTES",
    "type": "its Content-Type is not a text type",
    "encoding": "its content coding or declared encoding cannot be decoded",
}
FULL: Final = flag("--full", f"show the whole diff, not {_SHORT_DIFF} lines")


def _explain(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    shown = stores.shown(stores.content_url)
    with closing(stores.open_content()) as store:
        url, known = _known(store.content, opts.url)
        with Bars(opts) as bars:
            archive = Archive(stores, opts.warc_dir, bars)
            near = chain.from_iterable(pair for pair in known if pair[0].kind == "near")
            archived = archive.find(_wanted(text) for text in near if text is not None)
        try:
            judge = read_only_judge(store.content, stores.settings.content, shown)
        except StoreRefused as error:
            judge = None
            archive.notes.append(f"The share of the template cannot be computed: {error}")
        options = judge_options(stores.settings.content)
        explainer = _Explainer(options, store.content.parameters(), judge, archived, full=opts.full)
        texts = [explainer.text(capture, original) for capture, original in known]
    return {"store": shown, "url": url, "texts": texts, "notes": archive.notes}


def _known(content: ContentStore, given: str) -> tuple[str, list[tuple[SeenText, TextMatch | None]]]:
    """The stored captures of a URL, as given or, if there are none, in the form in which Scrapy writes the URL."""
    known = content.captures(given)
    with suppress(ValueError):
        if not known and (usual := Request(given).url.partition("#")[0]) != given:
            return usual, content.captures(usual)
    return given, known


def _wanted(text: SeenText | TextMatch) -> Wanted:
    return Wanted(text.digest, text.url, text.crawl)


@dataclass(frozen=True, slots=True)
class _Explainer:
    options: JudgeOptions
    parameters: Mapping[str, str]
    judge: Judge | None
    archived: Mapping[Wanted, ArchivedText | str]
    full: bool

    def text(self, capture: SeenText, original: TextMatch | None) -> dict[str, Any]:
        """One text of the URL, with its first verdict; the digest is its key.

        There is no original of a new text, and of a copy of a forgotten text. Only near copies have a diff: the text of
        other copies is that of their original.
        """
        diff = first = None
        if original is not None:
            first = {"url": original.url, "crawl": original.crawl, "seen": _time(original.seen_ms)}
        if capture.kind == "unique":
            why = [_NEW_OR_IMPORTED if PARAMETERS.items() <= self.parameters.items() else _NEW]
        elif capture.kind != "near":
            is_imported = capture.original not in (None, capture.digest)
            why = [_WAS_IMPORTED if is_imported else _WHY_EQUAL[capture.kind]]
        else:
            why = list(self._why_near(capture, original))
            if original is not None:
                old, new = (
                    (f"{text.url}  {_time(text.seen_ms)}", self.archived[_wanted(text)])
                    for text in (original, capture)
                )
                diff = _difference(old, new, full=self.full)
        if original is None and capture.kind != "unique":
            why.append("The original has been forgotten since.")
        return {
            "kind": capture.kind,
            "seen": _time(capture.seen_ms),
            "crawl": capture.crawl,
            "digest": capture.digest.hex(),
            "original": first,
            "similarity": capture.similarity,
            "why": why,
            "diff": diff,
        }

    def _why_near(self, capture: SeenText, original: TextMatch | None) -> Iterator[str]:
        assert capture.similarity is not None
        own = self.archived[_wanted(capture)]
        mime = own.mime if isinstance(own, ArchivedText) else None
        yield _why_near(capture.similarity, self.options, self.parameters, mime)
        if self.judge is None or not isinstance(own, ArchivedText):
            return
        reading = PageReading(own.text, own.mime, capture, names=own.names)
        decided = _REST_DECIDED
        if original is not None and isinstance(kept := self.archived[_wanted(original)], ArchivedText):
            first = SeenText(original.digest, original.url, original.crawl, original.seen_ms)
            its_reading = PageReading(kept.text, kept.mime, first, names=kept.names)
            compared = self.judge.compared(Verdict("near"), reading, its_reading)
            yield from _why_same_page(compared)
            decided = _what_decided(compared, self.options, mime, is_same_url=original.url == capture.url)
        if share := self.judge.template_share(reading, capture.url):
            yield f"{share:.0%} of the text is the template of the host; {decided}."


def _explain_lines(result: dict[str, Any]) -> Iterator[str]:
    if result["texts"]:
        yield result["url"]
    for item in result["texts"]:
        yield f"{item['kind']:9}  {item['seen']}, crawl {item['crawl']}"
        yield from _reason_lines(item, item["original"])
    yield from result["notes"]


def _explain_caveats(result: dict[str, Any]) -> Iterator[str]:
    if not result["texts"]:
        yield (
            f"There are no texts of {result['url']} in {result['store']}: no page was read there, or it failed, had no"
            " text, or was purged"
        )


EXPLAIN = Verb(
    _explain,
    _explain_lines,
    [Option("url", "URL", "the URL of a page"), FULL, WARC_DIR],
    caveats=_explain_caveats,
)


def _check(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    content_type = opts.content_type or mimetypes.guess_type(opts.file)[0] or "text/html"
    url = opts.url or Path("stdin" if opts.file == _STDIN else opts.file).absolute().as_uri()
    body = _body(opts.file)
    shown = stores.shown(stores.content_url)
    with closing(stores.open_content()) as store:
        judge = read_only_judge(store.content, stores.settings.content, shown)
        reading = _reading(stores, judge, url, content_type, body)
        (judged,) = judge.find([reading])
        share = judge.template_share(reading, url)
        parameters = store.content.parameters()
    with Bars(opts) as bars:
        archive = Archive(stores, opts.warc_dir, bars)
        diff = _diff(archive, judged, reading, opts)
    return {
        "store": shown,
        "file": opts.file,
        "url": url,
        "content_type": content_type,
        "digest": None if reading.capture is None else reading.capture.digest.hex(),
        "verdict": judged.verdict.as_dict(),
        # Whether the page would be a near copy without the template of its host, whose share of the text follows.
        "template": judged.is_template,
        "template_share": round(share, 4),
        "why": list(_why(judge_options(stores.settings.content), judged, reading, share, parameters)),
        "diff": diff,
        "notes": archive.notes,
    }


def _body(file: str) -> bytes:
    if file == _STDIN:
        return sys.stdin.buffer.read()
    with reading(file):
        return Path(file).read_bytes()


def _reading(stores: CommandStores, judge: Judge, url: str, content_type: str, body: bytes) -> PageReading:
    if len(body) > stores.settings.content.max_bytes:
        return PageReading(reason="size")
    headers = [(b"Content-Type", content_type.encode("latin-1", "replace"))]
    page = PageReader(stores.scrapy_settings).page(url, headers, body, crawl="check")
    return PageReading(reason=page) if isinstance(page, str) else judge.read(page)


def _why(
    options: JudgeOptions,
    judged: Judgement,
    reading: PageReading,
    share: float,
    parameters: Mapping[str, str],
) -> Iterator[str]:
    verdict, capture = judged.verdict, judged.capture
    if verdict.kind == "unknown":
        yield f"It was not judged: {_NOT_JUDGED.get(str(verdict.reason), verdict.reason)}."
    elif verdict.kind == "near":
        assert verdict.similarity is not None
        yield _why_near(verdict.similarity, options, parameters, reading.mime)
        yield from _why_same_page(verdict)
    elif verdict.kind == "unique":
        yield (
            _OTHER_PAGE[bool(options.near_identity and reading.names)]
            if judged.is_template
            else "No known text is equal or similar."
        )
    elif capture is not None and capture.original in reading.imported:
        yield _WAS_IMPORTED
    else:
        yield _WHY_EQUAL[verdict.kind]
    if share:
        yield f"{share:.0%} of the text is the template of the host."
    if verdict.pending:
        yield "The page with the original text is still being processed, and may fail."


def _diff(
    archive: Archive, judged: Judgement, reading: PageReading, opts: argparse.Namespace
) -> dict[str, Any] | None:
    verdict, capture = judged.verdict, judged.capture
    if verdict.kind != "near" or capture is None or capture.original is None:
        return None
    assert verdict.original_url is not None
    assert verdict.original_crawl is not None
    wanted = Wanted(capture.original, verdict.original_url, verdict.original_crawl)
    name = f"{verdict.original_url}  {verdict.as_dict()['original_seen']}"
    own = ArchivedText(reading.text, reading.mime)
    return _difference((name, archive.find([wanted])[wanted]), (opts.file, own), full=opts.full)


def _check_lines(result: dict[str, Any]) -> Iterator[str]:
    verdict = result["verdict"]
    yield f"{verdict['kind']:9}  {result['url']}"
    yield from _reason_lines(result, {key: verdict[f"original_{key}"] for key in ("url", "seen", "crawl")})
    yield from result["notes"]


CHECK = Verb(
    _check,
    _check_lines,
    [
        Option("file", "FILE", "the body of a page; - for standard input"),
        Option(
            "--url",
            "URL",
            "the URL of the page, to find its earlier texts and its template (default: the file)",
        ),
        Option(
            "--content-type",
            "TYPE",
            "the Content-Type header (default: guessed from the file name, else text/html)",
        ),
        FULL,
        WARC_DIR,
    ],
)


def _why_near(
    similarity: float, options: JudgeOptions, parameters: Mapping[str, str], mime: str | None
) -> str:
    """The similarity in rows and by estimate; ``parameters`` are the store's. Uses the defaults without a MIME type."""
    near = options.near_for(mime or ALL_TYPES)
    stored = parameters.get(f"near_num_perm[{mime}]") or parameters.get("near_num_perm")
    rows = near.num_perm if stored is None else int(stored)
    equal = round(rows * (similarity * (1 - CHANCE) + CHANCE))
    return (
        f"{equal} of {rows} rows of the signatures are equal, an estimated similarity of {similarity:.3f}; texts are near"
        f" from {near.threshold:g} (DEDUPE_NEAR_THRESHOLD)."
    )


def _why_same_page(verdict: Verdict) -> Iterator[str]:
    """What was compared besides the whole texts, as far as both pages have it."""
    words = {True: "equal", False: "different"}
    parts = [
        f"{name} {words[same]}"
        for name, same in (
            ("titles without numbers:", verdict.same_title),
            ("first words outside the template:", verdict.same_beginning),
            ("last two path segments and query:", verdict.same_path),
            ("words of the URLs:", verdict.same_words),
        )
        if same is not None
    ]
    if verdict.rest_similarity is not None:
        parts.append(f"estimated similarity without templates: {verdict.rest_similarity:.3f}")
    if parts:
        yield f"Compared as well: {'; '.join(parts)}."


def _what_decided(verdict: Verdict, options: JudgeOptions, mime: str | None, *, is_same_url: bool) -> str:
    """Whether the similarity without templates decided; ``verdict`` has it by the templates as they are known now."""
    if options.near_identity and is_same_url:
        return "the rest did not have to be similar, because the URLs are equal"
    if verdict.same_path and verdict.same_title is not False:
        return "the rest did not have to be similar, because the path and the query are equal and the titles do not differ"
    near = options.near_for(mime or ALL_TYPES)
    is_named = not verdict.same_path and (verdict.same_title or verdict.same_words)
    threshold = near.threshold - NAMED_MARGIN if is_named else near.threshold
    least = similarity(min_equal(threshold, near.num_perm), near.num_perm)
    if verdict.rest_similarity is None or verdict.rest_similarity < least:
        return f"{_REST_DECIDED}, and was by the smaller template known when the page was judged"
    return _REST_DECIDED


def _difference(
    old: tuple[str, ArchivedText | str], new: tuple[str, ArchivedText | str], *, full: bool
) -> dict[str, Any]:
    """A unified diff of two named texts, without its last lines; or the reason why a text is missing."""
    (old_name, old_text), (new_name, new_text) = old, new
    lines: list[str] = []
    missing = None
    if isinstance(old_text, str) or isinstance(new_text, str):
        missing = " ".join(dict.fromkeys(item for item in (old_text, new_text) if isinstance(item, str)))
    else:
        lines = unified_diff(old_text.text, new_text.text, old_name, new_name)
        missing = None if lines else "The two texts differ only in white space."
    kept = lines if full else lines[:_SHORT_DIFF]
    return {"lines": kept, "left_out": len(lines) - len(kept), "missing": missing}


def _reason_lines(item: dict[str, Any], original: dict[str, str | None] | None) -> Iterator[str]:
    if original and original["url"] is not None:
        yield f"{_INDENT}of {original['url']}, {original['seen']}, crawl {original['crawl']}"
    diff = item["diff"] or {"lines": [], "left_out": 0, "missing": None}
    for line in filter(None, [*item["why"], diff["missing"], *diff["lines"]]):
        yield f"{_INDENT}{line}"
    if diff["left_out"]:
        yield f"{_INDENT}({number(diff['left_out'])} more lines; --full shows them)"


def _time(seen_ms: int) -> str:
    """A time as ISO 8601 in UTC, with milliseconds.

    >>> _time(0)
    '1970-01-01T00:00:00.000Z'
    """
    seen = datetime.fromtimestamp(seen_ms / 1000, tz=UTC)
    return f"{seen:%Y-%m-%dT%H:%M:%S}.{seen_ms % 1000:03}Z"

"""``content explain URL``: show the texts of a URL, their verdicts and the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scrapy import Request

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.content.judge import PageReading
from scrapy_dedupe.content.quarrycore import PARAMETERS
from scrapy_dedupe.errors import StoreRefused

from .archive import Archive, ArchivedText, Wanted
from .read_only import judge_options, read_only_judge
from .reasons import (
    WAS_IMPORTED,
    OriginalText,
    TextDifference,
    add_archive_arguments,
    difference,
    difference_lines,
    time_text,
    why_equal,
    why_near,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.content import Judge, JudgeOptions
    from scrapy_dedupe.stores.base import ContentStore, SeenText, TextMatch

    Known = list[tuple[SeenText, TextMatch | None]]

HELP = (
    "Show all texts of a URL, oldest first: whether each was new or a copy, of which page and why. Also shows the"
    " difference if the archive has both texts."
)

_NEW: Final = "It was new: no text known at that time was equal, or similar outside the template of the host."
_NEW_OR_IMPORTED: Final = "It was new, or imported from QuarryCore."


@dataclass(frozen=True, slots=True)
class ExplainedText:
    """One text of the URL, with its first verdict; ``digest`` is its key.

    ``original`` is None for a new text, and for a copy of a forgotten text. Only near copies have a ``diff``: the text
    of other copies is that of their original.
    """

    kind: str
    seen: str
    crawl: str
    digest: str
    original: OriginalText | None
    similarity: float | None
    why: list[str]
    diff: TextDifference | None


@dataclass(frozen=True, slots=True)
class Explained:
    """``notes`` are messages about missing parts of the explanation."""

    store: str
    url: str
    texts: list[ExplainedText]
    notes: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL")
    add_archive_arguments(parser)


def run(place: CommandStores, opts: argparse.Namespace) -> Explained:
    options = judge_options(place)
    store = place.open_content()
    try:
        url, known = _known(store.content, opts.url)
        with Bars(opts) as bars:
            archive = Archive(place, opts.warc_dir, bars)
            archived = archive.find(_wanted(known))
        notes = archive.notes
        try:
            judge = read_only_judge(place, store.content)
        except StoreRefused as error:
            judge = None
            notes.append(f"The share of the template cannot be computed: {error}")
        explainer = _Explainer(options, store.content.parameters(), judge, archived, full=opts.full)
        texts = [explainer.text(capture, original) for capture, original in known]
    finally:
        store.close()
    return Explained(place.shown(place.content_url), url, texts, notes)


def _known(content: ContentStore, given: str) -> tuple[str, Known]:
    """The stored captures of a URL, as given or, if there are none, in the form in which Scrapy writes the URL."""
    known = content.captures(given)
    if not known:
        try:
            usual = Request(given).url.partition("#")[0]
        except ValueError:
            return given, known
        if usual != given:
            return usual, content.captures(usual)
    return given, known


def _wanted(known: Known) -> Iterator[Wanted]:
    for capture, original in known:
        if capture.kind == "near":
            yield _text_of(capture)
            if original is not None:
                yield _text_of(original)


def _text_of(capture: SeenText | TextMatch) -> Wanted:
    return Wanted(capture.digest, capture.url, capture.crawl)


def _name(capture: SeenText | TextMatch) -> str:
    return f"{capture.url}  {time_text(capture.seen_ms)}"


@dataclass(frozen=True, slots=True)
class _Explainer:
    options: JudgeOptions
    parameters: Mapping[str, str]
    judge: Judge | None
    archived: Mapping[Wanted, ArchivedText | str]
    full: bool

    def text(self, capture: SeenText, original: TextMatch | None) -> ExplainedText:
        diff = None
        if capture.kind == "unique":
            why = [_NEW_OR_IMPORTED if PARAMETERS.items() <= self.parameters.items() else _NEW]
        elif capture.kind != "near":
            is_imported = capture.original not in (None, capture.digest)
            why = [WAS_IMPORTED if is_imported else why_equal(capture.kind)]
        else:
            own = self.archived[_text_of(capture)]
            why = list(self._why_near(capture, own))
            if original is not None:
                diff = difference(
                    (_name(original), self.archived[_text_of(original)]),
                    (_name(capture), own),
                    full=self.full,
                )
        if original is None and capture.kind != "unique":
            why.append("The original has been forgotten since.")
        return ExplainedText(
            kind=capture.kind,
            seen=time_text(capture.seen_ms),
            crawl=capture.crawl,
            digest=capture.digest.hex(),
            original=None
            if original is None
            else OriginalText(original.url, original.crawl, time_text(original.seen_ms)),
            similarity=capture.similarity,
            why=why,
            diff=diff,
        )

    def _why_near(self, capture: SeenText, own: ArchivedText | str) -> Iterator[str]:
        mime = own.mime if isinstance(own, ArchivedText) else None
        assert capture.similarity is not None
        yield why_near(capture.similarity, self.options, self.parameters, mime)
        if self.judge is None or not isinstance(own, ArchivedText):
            return
        share = self.judge.template_share(PageReading(own.text, own.mime), capture.url)
        if share:
            yield (
                f"{share:.0%} of the text is the template of the host; the rest without the template had to be similar"
                " too."
            )


def text(result: Explained) -> str:
    lines = [result.url] if result.texts else []
    for item in result.texts:
        lines.append(f"{item.kind:9}  {item.seen}, crawl {item.crawl}")
        if item.original is not None:
            original = item.original
            lines.append(f"           of {original.url}, {original.seen}, crawl {original.crawl}")
        lines += [f"           {sentence}" for sentence in item.why]
        if item.diff is not None:
            lines += [f"           {line}" for line in difference_lines(item.diff)]
    return "\n".join([*lines, *result.notes])


def caveat(result: Explained) -> str | None:
    if result.texts:
        return None
    return (
        f"There are no texts of {result.url} in {result.store}: no page was read there, or it failed, had no text,"
        " or was purged."
    )

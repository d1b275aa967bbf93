"""The few lines at the end of a crawl that say what it saved."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.reports.wording import COPIES, counted, percent, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def summary_lines(stats: Mapping[str, Any], notes: Mapping[str, str]) -> list[str]:
    """Readable lines from the crawl's stats; a layer that was not on has none.

    ``notes`` may say where the archive is (``warc``, ``wacz``), the passage index (``passages``) and the page of the report
    (``report``), which files were not moved to a storage elsewhere (``storage``), what became of the crawl in the index
    (``index``), which command says more (``more``), and that the crawl had earlier runs (``runs``), which the stats do not
    count.
    """

    def number(key: str) -> int:
        return _count(stats.get(f"dedupe/{key}"))

    lines = []
    if "dedupe/url/capacity" in stats:
        lines.append(f"  Requests  {_requests(stats)}{_failed(number('url/failed'))}")
    if any(number(f"content/{kind}") for kind in ("unique", "unknown", *COPIES)):
        lines.append(f"  Pages     {_pages(number)}")
    if "passages" in notes:
        lines.append(
            f"  Passages  {counted(number('passages/documents'), 'page')} added to the index {notes['passages']},"
            f" {number('passages/unchanged'):,} unchanged;"
            f" {counted(number('passages/texts'), 'text')} stored{_lost(number('passages/lost'))}"
        )
    if "warc" in notes or "index" in notes:
        lines.append(f"  Bytes     {_bytes(number)}")
    places = (
        ("WARC", "warc"),
        ("WACZ", "wacz"),
        ("Upload", "storage"),
        ("Index", "index"),
        ("Report", "report"),
    )
    lines += [f"  {name:9} {notes[key]}" for name, key in places if key in notes]
    if any(key.startswith("dedupe/replay/") for key in stats):
        lines.append(
            f"  Replay    {counted(number('replay/answered'), 'request')} answered from the archive,"
            f" {number('replay/missing'):,} not in it"
        )
    errors = sum(_count(value) for key, value in stats.items() if key.startswith("dedupe/errors/"))
    if errors:
        lines.append(f"  Errors    {errors:,}; see the messages above, and the stats dedupe/errors/…")
    if lines and "more" in notes:
        lines.append(f"  More      {notes['more']}")
    heading = "What was not asked, read or stored twice"
    return [f"{heading} {notes['runs']}:" if "runs" in notes else f"{heading}:", *lines] if lines else []


def _count(value: object) -> int:
    # A spider can set any stat to anything.
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0


def _requests(stats: Mapping[str, Any]) -> str:
    filtered = _count(stats.get("dupefilter/filtered"))
    # The second is scrapy-redis's.
    made = sum(_count(stats.get(key)) for key in ("scheduler/enqueued", "scheduler/enqueued/redis"))
    whole = f" of {made + filtered:,}{_share(filtered, made + filtered)}" if made else ""
    if filtered:
        return f"{filtered:,}{whole} filtered, since {'it' if filtered == 1 else 'they'} had been made before"
    return f"none{whole} filtered: each was new"


def _pages(number: Callable[[str], int]) -> str:
    copies = {kind: number(f"content/{kind}") for kind in COPIES}
    copies["near"] -= copies["changed"]
    unknown, repeating = number("content/unknown"), sum(copies.values())
    judged = number("content/unique") + repeating
    parts = [f"{count:,} {COPIES[kind]}" for kind, count in copies.items() if count]
    repeat = "repeats" if repeating == 1 else "repeat"
    text = f"{repeating:,} of {judged:,}{_share(repeating, judged)} {repeat} a text: {', '.join(parts)}"
    if not repeating:
        text = f"none of {judged:,} repeats a text"
    if dropped := number("content/dropped"):
        text += f"; {dropped:,} of them dropped"
    return f"{text}; {unknown:,} not judged because of an error" if unknown else text


def _bytes(number: Callable[[str], int]) -> str:
    written, saved = number("warc/bytes_written"), number("warc/bytes_conserved")
    revisits, missing = number("warc/revisit"), number("warc/not_archived")
    rendered = number("warc/rendered") - number("warc/resource")
    responses = counted(number("warc/response") + number("warc/resource") + revisits, "response")
    each = "it" if responses == "1 response" else "each"
    text = f"{size(written)} written for {responses}; {each} was stored whole"
    if revisits:
        text = (
            f"{size(saved)} of {size(written + saved)}{_share(saved, written + saved)} not stored again:"
            f" {revisits:,} of {responses} had been archived before"
        )
    if missing:
        text += f"; {counted(missing, 'response')} not archived because of an error"
    if rendered:
        text += f"; {counted(rendered, 'rendered or decoded response')} not archived"
    return text


def _failed(count: int) -> str:
    return f"; {count:,} failed and may be asked for again in the next run" if count else ""


def _lost(count: int) -> str:
    return f", {counted(count, 'page')} not added because of an error" if count else ""


def _share(part: int, whole: int) -> str:
    """A share in brackets, or nothing."""
    return f" ({percent(part, whole)})" if part and whole else ""

"""The deduplication summary that is logged at the end of a crawl."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.reports.wording import COPIES, counted, percent, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def summary_lines(stats: Mapping[str, Any], notes: Mapping[str, str]) -> list[str]:
    """Return the summary as lines: a heading and one row per active layer. Empty if no layer was active.

    Texts that the stats do not contain come from ``notes``. All keys are optional:

    - ``kernel``: the code that judged pages, ``compiled`` or ``Python``
    - ``warc``, ``wacz``: paths of the archive files
    - ``passages``: path of the passage index
    - ``report``: path of the report page
    - ``storage``: number of uploaded files, and the files that were not uploaded
    - ``index``: whether the crawl was committed, and to which index
    - ``more``: the command that shows the full report
    - ``runs``: set if the crawl had earlier runs, which the stats do not include
    """

    def number(key: str) -> int:
        return _count(stats.get(f"dedupe/{key}"))

    lines = {}
    if "dedupe/url/capacity" in stats:
        failed = number("url/failed")
        more = f"; {failed:,} failed and may be retried in the next run" if failed else ""
        lines["Requests"] = f"{_requests(stats)}{more}"
    if any(number(f"content/{kind}") for kind in ("unique", "unknown", *COPIES)):
        lines["Pages"] = _pages(number)
        if "kernel" in notes:
            lines["Kernel"] = notes["kernel"]
    if "passages" in notes:
        lost = number("passages/lost")
        lines["Passages"] = (
            f"{counted(number('passages/documents'), 'page')} added to the index {notes['passages']},"
            f" {number('passages/unchanged'):,} unchanged; {counted(number('passages/texts'), 'text')} stored"
            + (f", {counted(lost, 'page')} not added because of an error" if lost else "")
        )
    if "warc" in notes or "index" in notes:
        lines["Bytes"] = _bytes(number)
    if any(key.startswith("dedupe/cache/") for key in stats):
        used, looked_up = number("cache/used"), number("cache/found") + number("cache/missed")
        received = number("cache/bytes_received")
        lines["Cache"] = (
            f"{used:,} of {counted(looked_up, 'page')}{_share(used, looked_up)}"
            f" {'was' if used == 1 else 'were'} not modified: {size(received)} instead of"
            f" {size(received + number('cache/bytes_used'))} received"
        )
    titles = {"warc": "WARC", "wacz": "WACZ", "storage": "Upload", "index": "Index", "report": "Report"}
    lines |= {title: notes[key] for key, title in titles.items() if key in notes}
    if any(key.startswith("dedupe/replay/") for key in stats):
        lines["Replay"] = (
            f"{counted(number('replay/answered'), 'request')} answered from the archive,"
            f" {number('replay/missing'):,} not in it"
        )
    errors = sum(_count(value) for key, value in stats.items() if key.startswith("dedupe/errors/"))
    if errors:
        lines["Errors"] = f"{errors:,}; see the messages above, and the stats dedupe/errors/…"
    if not lines:
        return []
    if "more" in notes:
        lines["More"] = notes["more"]
    runs = f" {notes['runs']}" if "runs" in notes else ""
    return [f"Deduplication summary{runs}:", *(f"  {title:9} {text}" for title, text in lines.items())]


def _count(value: object) -> int:
    # Spiders can set any stat to a value of any type.
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0


def _requests(stats: Mapping[str, Any]) -> str:
    filtered = _count(stats.get("dupefilter/filtered"))
    # scheduler/enqueued/redis is the stat of scrapy-redis.
    enqueued = sum(_count(stats.get(key)) for key in ("scheduler/enqueued", "scheduler/enqueued/redis"))
    if not enqueued:
        return f"{counted(filtered, 'request')} {_duplicates(filtered)}"
    return _part_of(filtered, enqueued + filtered, "request")


def _pages(number: Callable[[str], int]) -> str:
    copies = {kind: number(f"content/{kind}") for kind in COPIES}
    copies["near"] -= copies["changed"]
    unknown, duplicates = number("content/unknown"), sum(copies.values())
    text = _part_of(duplicates, number("content/unique") + duplicates, "page")
    if duplicates:
        text += ": " + ", ".join(f"{count:,} {COPIES[kind]}" for kind, count in copies.items() if count)
    if dropped := number("content/dropped"):
        text += f"; {dropped:,} dropped"
    return f"{text}; {unknown:,} not judged because of an error" if unknown else text


def _bytes(number: Callable[[str], int]) -> str:
    written, saved = number("warc/bytes_written"), number("warc/bytes_conserved")
    revisits, missing = number("warc/revisit"), number("warc/not_archived")
    rendered = number("warc/rendered") - number("warc/resource")
    responses = counted(number("warc/response") + number("warc/resource") + revisits, "response")
    if revisits:
        text = (
            f"{size(saved)} of {size(written + saved)}{_share(saved, written + saved)} saved:"
            f" {revisits:,} of {responses} {_duplicates(revisits)}"
        )
    else:
        text = f"{size(written)} written for {responses}; no duplicates"
    if missing:
        text += f"; {counted(missing, 'response')} not archived because of an error"
    if rendered:
        text += f"; {counted(rendered, 'rendered or decoded response')} not archived"
    return text


def _part_of(count: int, total: int, noun: str) -> str:
    return f"{count:,} of {counted(total, noun)}{_share(count, total)} {_duplicates(count)}"


def _duplicates(count: int) -> str:
    return "was a duplicate" if count == 1 else "were duplicates"


def _share(part: int, whole: int) -> str:
    """A percentage in brackets, or nothing if *part* or *whole* is 0."""
    return f" ({percent(part, whole).replace(' %', '%')})" if part and whole else ""

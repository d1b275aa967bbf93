"""The few lines at the end of a crawl that say what it saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# In the order of the line; what did not happen is left out.
_TEXTS = {
    "unique": "new",
    "unchanged": "unchanged since an earlier capture",
    "exact": "equal to another page",
    "near": "nearly equal to another",
    "unknown": "not judged because of an error",
    "dropped": "of them dropped",
}


def summary_lines(stats: Mapping[str, Any], notes: Mapping[str, str]) -> list[str]:
    """Readable lines from the crawl's stats; a layer that was not on has none.

    ``notes`` may say where the archive is (``warc``, ``wacz``) and the passage index (``passages``), which files were not moved to a storage elsewhere
    (``storage``), and what became of the crawl in the index (``index``).
    """

    def number(key: str) -> int:
        return int(stats.get(key, 0) or 0)

    lines = []
    if "dedupe/url/capacity" in stats:
        lines.append(
            f"  URLs   {number('dedupe/url/seen'):,} different ones recorded,"
            f" {number('dupefilter/filtered'):,} requests filtered as seen{_failed(number('dedupe/url/failed'))}"
        )
    texts = [
        f"{number(f'dedupe/content/{kind}'):,} {words}"
        for kind, words in _TEXTS.items()
        if kind == "unique" or number(f"dedupe/content/{kind}")
    ]
    if len(texts) > 1 or number("dedupe/content/unique"):
        lines.append(f"  Texts  {', '.join(texts)}")
    if "passages" in notes:
        lines.append(
            f"  Parts  {number('dedupe/passages/documents'):,} pages added to the passage index {notes['passages']},"
            f" {number('dedupe/passages/unchanged'):,} unchanged;"
            f" {number('dedupe/passages/texts'):,} different texts stored{_lost(number('dedupe/passages/lost'))}"
        )
    if "warc" in notes or "index" in notes:
        written, saved = number("dedupe/warc/bytes_written"), number("dedupe/warc/bytes_conserved")
        lines.append(
            f"  Bytes  {number('dedupe/warc/response'):,} responses and"
            f" {number('dedupe/warc/revisit'):,} revisits in {sized(written)};"
            f" {sized(saved)} not stored again{share(saved, written + saved)}"
        )
    if "warc" in notes:
        lines.append(f"  WARC   {notes['warc']}")
    if "wacz" in notes:
        lines.append(f"  WACZ   {notes['wacz']}")
    if "storage" in notes:
        lines.append(f"  Store  {notes['storage']}")
    if "index" in notes:
        lines.append(f"  Index  {notes['index']}")
    if any(key.startswith("dedupe/replay/") for key in stats):
        lines.append(
            f"  Replay {number('dedupe/replay/answered'):,} requests answered from the archive,"
            f" {number('dedupe/replay/missing'):,} not in it"
        )
    errors = sum(int(value) for key, value in stats.items() if key.startswith("dedupe/errors/"))
    if errors:
        lines.append(f"  Errors {errors:,}; see the stats dedupe/errors/… and the messages above")
    return ["What was not asked, read or stored twice:", *lines] if lines else []


def _failed(count: int) -> str:
    return f", {count:,} failed and may be asked for again in the next run" if count else ""


def _lost(count: int) -> str:
    return f", {count:,} pages not added because of an error" if count else ""


def sized(size_bytes: int) -> str:
    """A size for people, in decimal units.

    >>> sized(999), sized(12_345), sized(2_500_000)
    ('999 B', '12.3 kB', '2.5 MB')
    """
    if size_bytes < 1000:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def share(part: int, whole: int) -> str:
    """A share in brackets, or nothing.

    >>> share(1, 4)
    ' (25 %)'
    """
    return f" ({100 * part / whole:.0f} %)" if part and whole else ""

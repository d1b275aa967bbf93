"""Purges crawls: removes them from the index; their files stay.

Without *force*, a crawl that others need is not purged, and no crawl is purged while the needs of a remaining crawl
are not fully known: revisits without originals would remain. Crawls that need only each other can be purged together.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError
from scrapy_dedupe.stores.crawl_index import did_you_mean, is_crawl_id

from .dependencies import Containers, Dependencies

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scrapy_dedupe.stores.base import OnDone
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.warc.manifests import ListedFile

_MAX_LINES = 20


def purge_crawls(
    index: CrawlIndex, crawls: Sequence[str], *, force: bool = False, on_done: OnDone | None = None
) -> list[str]:
    """Remove committed or canceled crawls from the index; return their ids without duplicates.

    An interrupted purge is completed first. Raises :class:`~scrapy_dedupe.errors.CrawlStateError`, without removing any
    of *crawls*, for an id that is unknown or uncommitted, and, without *force*, if a remaining crawl needs one of them
    or may need one; the message lists these crawls.
    """
    ended = end_unfinished(index, on_done)
    wanted = list(dict.fromkeys(crawls))
    left = [crawl for crawl in wanted if crawl not in ended]
    if left:
        check_purge(Dependencies(index), left, force=force)
        index.purge(left, on_done)
    return wanted


def end_unfinished(index: CrawlIndex, on_done: OnDone | None = None) -> list[str]:
    """Complete an interrupted purge, if there is one; return its crawls."""
    unfinished = index.unfinished_purge()
    if unfinished:
        index.purge(unfinished, on_done)
    return unfinished


def check_purge(dependencies: Dependencies, crawls: Sequence[str], *, force: bool = False) -> None:
    """Raise the exceptions of :func:`purge_crawls` for crawls that cannot be purged."""
    known = dependencies.crawls
    for crawl in crawls:
        if crawl not in known:
            raise CrawlStateError(
                f"The index has no crawl {crawl}, so nothing was purged. `scrapy dedupe crawls` lists the crawls."
                + did_you_mean(crawl, known)
            )
        if known[crawl].state == "uncommitted":
            raise CrawlStateError(
                f"The crawl {crawl} is not committed, so nothing was purged. Cancel it first: cancel {crawl}."
            )
    # A canceled crawl has no records, so other crawls cannot depend on it unknowingly.
    may_need = "one" if any(known[crawl].state == "committed" for crawl in crawls) else None
    if not force and (lines := needing_lines(dependencies, crawls, may_need)):
        raise CrawlStateError(
            "Nothing was purged, because remaining crawls need, or may need, what would be removed:\n"
            f"{lines}\nWait for the running crawls, purge the others too, or use --force."
        )


def needing_lines(dependencies: Dependencies, crawls: Sequence[str], may_need: str | None) -> str:
    """Indented lines that list the other crawls that need *crawls*; of many, the first ones and their number.

    With *may_need*, the word for *crawls* in these lines, also the crawls that may need them.
    """
    lines = [f"{other} needs {needed}" for other, needed in dependencies.dependants(crawls)]
    if may_need is not None:
        lines += [f"{other} {why}, and may need {may_need}" for other, why in dependencies.undecided(crawls)]
    shown = [f"  {line}" for line in lines[:_MAX_LINES]]
    if len(lines) > _MAX_LINES:
        shown.append(f"  and {len(lines) - _MAX_LINES:,} more")
    return "\n".join(shown)


def missing_crawls(index: CrawlIndex, listed: Iterable[ListedFile]) -> list[str]:
    """The committed crawls that a manifest does not name, in the order of their start.

    An entry names the crawl with its crawl id, and every crawl that has the container: by hash if both have one, else
    by file name. An invalid crawl id is ignored. Raises :class:`~scrapy_dedupe.errors.CrawlStateError` if an entry names
    no crawl in either way, since then the missing crawls cannot be determined, and if no crawl of the index is named.
    """
    committed = [info.id for info in index.crawls() if info.state == "committed"]
    holders: dict[str, list[tuple[str, str | None]]] = {}
    for crawl in committed:
        for container in filter(None, Containers(index.containers(crawl), None).known):
            for key in filter(None, (container.filename, container.hash)):
                holders.setdefault(key, []).append((crawl, container.hash))
    named: set[str] = set()
    for entry in listed:
        found = {
            crawl
            for key in (entry.hash, *{PurePosixPath(name).name for name in (entry.name, entry.place)})
            if key
            for crawl, digest in holders.get(key, ())
            if digest == entry.hash or digest is None or entry.hash is None
        }
        has_id = entry.crawl is not None and (entry.crawl in committed or is_crawl_id(entry.crawl))
        if not has_id and not found:
            raise CrawlStateError(
                f"The manifest names {entry.name} without a crawl id, and no crawl of the index has it, so it is unknown"
                ' which crawls are missing. Give it a "crawlId", or import it.'
            )
        named |= found
        if entry.crawl is not None:
            named.add(entry.crawl)
    missing = [crawl for crawl in committed if crawl not in named]
    if committed and len(missing) == len(committed):
        raise CrawlStateError(
            f"The manifest names none of the {len(committed):,} committed crawls of the index; it seems to belong to"
            " another index. To remove all of these crawls, name their ids."
        )
    return missing

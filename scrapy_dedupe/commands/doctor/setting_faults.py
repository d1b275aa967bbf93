"""Settings: unknown names, wrong values, and contradictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.reports.wording import counted
from scrapy_dedupe.settings.names import set_names, unknown_names

from .finding import CheckFinding, note, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.settings.specs import Settings

    from .context import DoctorContext


def check(context: DoctorContext) -> Iterator[CheckFinding]:
    for name, nearest in unknown_names(context.given):
        yield warning(
            f"The setting {name} is unknown and has no effect.",
            f"Did you mean {nearest}?" if nearest else "Remove it; the reference lists all settings.",
        )
    for fault in context.faults:
        yield problem(fault, "Correct it: no crawl starts with it.")
    if context.settings is None:
        return
    names = len(set_names(context.given))
    yield ok(
        f"{counted(names, 'DEDUPE_ setting')} set, all with allowed values."
        if names
        else "No DEDUPE_ setting is set; all have their defaults."
    )
    yield from _contradictions(context, context.settings)


def _contradictions(context: DoctorContext, settings: Settings) -> Iterator[CheckFinding]:
    layers = context.layers
    given = set(set_names(context.given))
    if layers and "archive" not in layers:
        for name in sorted(given & {"DEDUPE_WACZ", "DEDUPE_WARC_UPLOAD_URL", "DEDUPE_WARC_ITEM_FIELD"}):
            if context.given.get(name):
                yield warning(
                    f"The setting {name} has no effect, since no crawl is archived.",
                    "Turn the archive on (DEDUPE_WARC_ENABLED = True), or remove the setting.",
                )
    if "content" in layers and settings.content.action_unchanged == "drop":
        yield note(
            "Unchanged pages are dropped together with their links: an unchanged start page ends the crawl.",
            'To avoid this, set DEDUPE_ACTION_UNCHANGED = "mark", or meta["dedupe_action"] of the request.',
        )
    if "archive" in layers:
        if settings.warc.scope == "items":
            yield note(
                'With DEDUPE_WARC_SCOPE = "items" only responses that the spider yields as WarcItem(response) are archived;'
                " the doctor cannot check whether it does so."
            )
        if settings.warc.crawl_id is not None:
            yield note(
                f"All crawls have the id {settings.warc.crawl_id} (DEDUPE_CRAWL_ID). After a crawl with this id has been"
                " committed, no other one can start.",
                "Set it on the command line of each crawl, or remove it.",
            )
        if context.scrapy_settings.getbool("HTTPCACHE_ENABLED"):
            yield note(
                "Scrapy's HTTP cache is on. Its responses are not exchanges with a server and are not archived.",
                "Turn HTTPCACHE_ENABLED off for crawls that must be archived completely.",
            )
    if settings.replay.files and settings.replay.missing == "fail":
        yield note(
            "Requests are answered from an archive (DEDUPE_REPLAY); nothing is fetched, and nothing archived."
        )
    if "urls" in layers and settings.urls.store_url is None and _is_shared_queue(context):
        yield warning(
            "The request queue is shared through Redis (SCHEDULER), but the URL filter is not, so several processes"
            " request the same pages.",
            "Set DEDUPE_URL_STORE_URL to the URL of the Redis server.",
        )


def _is_shared_queue(context: DoctorContext) -> bool:
    return "scrapy_redis" in str(context.scrapy_settings.get("SCHEDULER"))

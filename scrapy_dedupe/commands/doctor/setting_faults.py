"""Settings: unknown names, wrong values, and values that do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.commands.figures import counted
from scrapy_dedupe.settings.names import set_names, unknown_names

from .finding import Said, note, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.settings.specs import Settings

    from .context import DoctorContext


def check(patient: DoctorContext) -> Iterator[Said]:
    for name, nearest in unknown_names(patient.given):
        yield warning(
            f"The setting {name} is unknown and has no effect.",
            f"Did you mean {nearest}?" if nearest else "Take it out; the reference lists all settings.",
        )
    for fault in patient.faults:
        yield problem(fault, "Correct it: no crawl starts with it.")
    if patient.settings is None:
        return
    names = len(set_names(patient.given))
    yield ok(
        f"{counted(names, 'DEDUPE_ setting')} set, all with values that are allowed."
        if names
        else "No DEDUPE_ setting is set; all have their defaults."
    )
    yield from _contradictions(patient, patient.settings)


def _contradictions(patient: DoctorContext, settings: Settings) -> Iterator[Said]:
    layers = patient.layers
    given = set(set_names(patient.given))
    if layers and "archive" not in layers:
        for name in sorted(given & {"DEDUPE_WACZ", "DEDUPE_WARC_UPLOAD_URL", "DEDUPE_WARC_ITEM_FIELD"}):
            if patient.given.get(name):
                yield warning(
                    f"The setting {name} has no effect, since no crawl is archived.",
                    "Turn the archive on (DEDUPE_WARC_ENABLED = True), or take the setting out.",
                )
    if "content" in layers and settings.content.action_unchanged == "drop":
        yield note(
            "Unchanged pages are dropped, and with them their links: a start page that has not changed ends the crawl.",
            'Where that is not wished, set DEDUPE_ACTION_UNCHANGED = "mark", or meta["dedupe_action"] of the request.',
        )
    if "archive" in layers:
        if settings.warc.scope == "items":
            yield note(
                'With DEDUPE_WARC_SCOPE = "items" only responses that the spider yields as WarcItem(response) are archived;'
                " whether it does so cannot be seen from here."
            )
        if settings.warc.crawl_id is not None:
            yield note(
                f"All crawls have the id {settings.warc.crawl_id} (DEDUPE_CRAWL_ID); once a crawl of this id is committed,"
                " no other one can start.",
                "Give it on the command line of each crawl, or leave it out.",
            )
        if patient.scrapy_settings.getbool("HTTPCACHE_ENABLED"):
            yield note(
                "Scrapy's HTTP cache is on. What it answers is no exchange with a server and is not archived.",
                "Turn HTTPCACHE_ENABLED off for crawls that are to be archived whole.",
            )
    if settings.replay.files and settings.replay.missing == "fail":
        yield note(
            "Requests are answered from an archive (DEDUPE_REPLAY); nothing is fetched, and nothing archived."
        )
    if "urls" in layers and settings.urls.store_url is None and _is_shared_queue(patient):
        yield warning(
            "The queue of requests is shared through Redis (SCHEDULER), the URL filter is not, so several processes ask"
            " for the same pages.",
            "Set DEDUPE_URL_STORE_URL to the URL of the Redis.",
        )


def _is_shared_queue(patient: DoctorContext) -> bool:
    return "scrapy_redis" in str(patient.scrapy_settings.get("SCHEDULER"))

"""``doctor``: checks everything that a crawl would use, and explains how to fix each problem.

Nothing is changed, and everything that a probe writes is removed again. A running crawl is not disturbed: locks are held
for milliseconds, and locks of jobs and of files that are being written are never taken.
"""

from __future__ import annotations

import textwrap
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe import __version__
from scrapy_dedupe.commands.options import Option
from scrapy_dedupe.commands.output import picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.errors import DedupeError, SettingError, StoreError
from scrapy_dedupe.reports.wording import counted

from . import outputs, probes, settings, stores, versions
from .context import LEVELS, DoctorContext, findings_of, without_new_data_folder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores

_WIDTH: Final = 100


def _run(place: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    sections = {
        "settings": settings.check_settings,
        "spiders": settings.check_spiders,
        "components": settings.check_components,
        "versions": versions.check,
        # Before the sections that write: there, failures caused by a full disk are not reported again.
        "disks": outputs.check_disks,
        "stores": stores.check,
        "left over": stores.check_leftovers,
        "probes": probes.check,
        "outputs": outputs.check_outputs,
    }
    findings: list[dict[str, Any]] = []
    sentences: set[str] = set()
    is_disk_full = False
    with without_new_data_folder():
        context = DoctorContext(place, opts.spider)
        for section, check in sections.items():
            for found in findings_of(f"section {section}", partial(check, context)):
                if is_disk_full and found.is_disk_full and section != "disks":
                    continue
                is_disk_full |= found.is_disk_full and section == "disks"
                # Every section that uses an unavailable store would report it.
                if found.level != "problem" or found.sentence not in sentences:
                    findings.append({"section": section, **picked(found, "level sentence remedy")})
                sentences.add(found.sentence)
    levels = {level: sum(found["level"] == level for found in findings) for level in LEVELS}
    return {"version": __version__, "spider": opts.spider, "levels": levels, "findings": findings}


def _lines(result: dict[str, Any]) -> Iterator[str]:
    wrapper = textwrap.TextWrapper(_WIDTH, break_long_words=False, break_on_hyphens=False)
    for section, findings in groupby(result["findings"], key=itemgetter("section")):
        yield section.capitalize()
        for found in findings:
            for lead, words in (
                (f"  {found['level']:<8} ", found["sentence"]),
                ("           -> ", found["remedy"]),
            ):
                wrapper.initial_indent, wrapper.subsequent_indent = lead, " " * len(lead)
                yield from wrapper.wrap(words)
    levels = result["levels"]
    yield ""
    yield f"{', '.join(counted(levels[level], level) for level in LEVELS[:-1])}; {levels['ok']} ok."


def _refusal(result: dict[str, Any]) -> DedupeError | None:
    sections = {found["section"] for found in result["findings"] if found["level"] == "problem"}
    if not sections:
        return None
    sentence = f"{counted(result['levels']['problem'], 'problem')} found; see above for how to fix each one."
    return SettingError(sentence) if sections & {"settings", "spiders"} else StoreError(sentence)


DOCTOR = Verb(
    _run,
    _lines,
    [Option("--spider", "NAME", "check the settings of this spider")],
    refusal=_refusal,
)

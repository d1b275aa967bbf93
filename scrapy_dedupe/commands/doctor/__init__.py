"""``doctor``: checks everything that a crawl would use, and explains how to fix each problem.

Nothing is changed, and everything that a probe writes is removed again. A running crawl is not disturbed: locks are held
for milliseconds, and locks of jobs and of files that are being written are never taken.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from scrapy_dedupe import __version__
from scrapy_dedupe.commands.options import Option
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.errors import DedupeError, SettingError, StoreError
from scrapy_dedupe.reports.wording import counted

from . import components, disks, outputs, probes, setting_faults, spiders, stores, unfinished, versions
from .context import DoctorContext, without_new_data_folder
from .finding import LEVELS, CheckFinding, Finding, from_error, problem

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.commands.stores import CommandStores

_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings in the order of the sections, and the number of findings of each level."""

    version: str
    spider: str | None
    levels: dict[str, int]
    findings: list[Finding]


def _run(place: CommandStores, opts: argparse.Namespace) -> Examination:
    sections = {
        "settings": setting_faults.check,
        "spiders": spiders.check,
        "components": components.check,
        "versions": versions.check,
        # Before the sections that write: there, failures caused by a full disk are not reported again.
        "disks": disks.check,
        "stores": stores.check,
        "left over": unfinished.check,
        "probes": probes.check,
        "outputs": outputs.check,
    }
    findings: list[Finding] = []
    is_disk_full = False
    with without_new_data_folder():
        context = DoctorContext(place, opts.spider)
        for section, check in sections.items():
            for result in _checked(check, context):
                if is_disk_full and result.is_disk_full and section != "disks":
                    continue
                is_disk_full |= result.is_disk_full and section == "disks"
                # Every section that uses an unavailable store would report it.
                if result.level != "problem" or all(result.sentence != known.sentence for known in findings):
                    findings.append(Finding(section, result.level, result.sentence, result.remedy))
    levels: dict[str, int] = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    return Examination(__version__, opts.spider, levels, findings)


def _checked(
    check: Callable[[DoctorContext], Iterator[CheckFinding]], context: DoctorContext
) -> Iterator[CheckFinding]:
    try:
        yield from check(context)
    except DedupeError as error:
        yield from_error(error)
    except OSError as error:
        place = "" if error.filename is None else f" ({error.filename})"
        yield problem(
            f"This section could not be checked completely: {error.strerror or error}{place}.",
            "Check that place and its permissions, and run the doctor again.",
        )
    except Exception as error:  # noqa: BLE001 - the other sections must still be checked
        yield problem(
            f"This section could not be checked completely: unexpected {type(error).__name__}: {error}.",
            "This is a bug of scrapy-dedupe; report it with the versions above.",
        )


def _lines(examination: Examination) -> Iterator[str]:
    for section, findings in groupby(examination.findings, key=lambda finding: finding.section):
        yield section.capitalize()
        for finding in findings:
            yield from _wrapped(f"  {finding.level:<8} ", finding.sentence)
            if finding.remedy:
                yield from _wrapped("           -> ", finding.remedy)
    counts = [counted(examination.levels[level], level) for level in LEVELS[:-1]]
    yield ""
    yield f"{', '.join(counts)}; {examination.levels['ok']} ok."


def _refusal(examination: Examination) -> DedupeError | None:
    problems = [finding for finding in examination.findings if finding.level == "problem"]
    if not problems:
        return None
    sentence = f"{counted(len(problems), 'problem')} found; see above for how to fix each one."
    if any(finding.section in ("settings", "spiders") for finding in problems):
        return SettingError(sentence)
    return StoreError(sentence)


def _wrapped(lead: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )


DOCTOR = Verb(
    _run,
    _lines,
    [Option("--spider", "NAME", "check the settings of this spider")],
    refusal=_refusal,
)

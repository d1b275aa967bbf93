"""The options and the report of `rewriting`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.offline.eligibility import Eligibility
from scrapy_dedupe.offline.savings import Savings
from scrapy_dedupe.offline.verifying import DEFAULT_SAMPLE, Verification
from scrapy_dedupe.tasks.faults import Fault

if TYPE_CHECKING:
    from scrapy_dedupe.tasks.jobs import Jobs


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """Options of `rewriting.rewrite`. ``sample`` new revisits are replayed, chosen at random with ``seed`` if given.

    ``trusts_rows``: the verification uses facts from the rows instead of reading the old files again (`row_facts`).
    """

    eligibility: Eligibility = field(default_factory=Eligibility)
    dry_run: bool = False
    in_place: bool = False
    keep_going: bool = False
    jobs: Jobs = 1
    sample: int = DEFAULT_SAMPLE
    seed: int | None = None
    force: bool = False
    trusts_rows: bool = False


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of a rewriting, or of a dry run (``is_dry_run``).

    ``converted`` copies became revisits, ``repointed`` other records have updated references, ``left`` counts the
    unchanged copies by reason, a key of `eligibility.LEFT`. Sizes are totals of whole files; in a dry run they are estimated.
    ``savings`` is only filled in a dry run. ``kept_in`` is the folder that is kept if the verification found a difference;
    then no file has its final name. ``unlisted`` are files in the folders of the rewritten files that no manifest names:
    their references to the copies are not updated.
    """

    output: str
    is_dry_run: bool
    files: int
    converted: int
    repointed: int
    left: dict[str, int]
    old_bytes: int
    new_bytes: int
    savings: Savings = field(default_factory=Savings)
    verification: Verification | None = None
    kept_in: str | None = None
    unlisted: tuple[str, ...] = ()
    faults_count: int = 0
    faults: tuple[Fault, ...] = ()

    @property
    def saved_bytes(self) -> int:
        """How much smaller the files are after the rewriting."""
        return self.old_bytes - self.new_bytes


def report_of(stored: dict[str, Any]) -> Rewritten:
    """The report that was stored with `asdict`; it must have no findings."""
    report = dict(stored)
    proof: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in report["verification"].items()
    }
    proof["faults"] = tuple(Fault(**fault) for fault in proof["faults"])
    report["verification"] = Verification(**proof)
    report["faults"] = tuple(Fault(**fault) for fault in report["faults"])
    report["savings"] = Savings()
    report["unlisted"] = tuple(report["unlisted"])
    return Rewritten(**report)

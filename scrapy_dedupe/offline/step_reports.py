"""The options and the report of `steps`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.tasks.faults import Fault

from .eligibility import Eligibility

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.tasks.jobs import Jobs

    from .savings import Savings


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Options of `steps.run_steps`; ``work`` overrides the state folder.

    ``compare`` decides when payloads are the same. ``digest``: the digest, BLAKE2b-256 and the size are equal. ``bytes``:
    the digest is equal, and then all bytes are. With ``digest``, the verification compares the new files with facts from the
    first reading of the old ones (`row_facts`); with ``bytes``, it reads the old files again.
    """

    algorithm: str = "sha256"
    compare: str = "digest"
    eligibility: Eligibility = field(default_factory=Eligibility)
    convert_arc: bool = False
    in_place: bool = False
    dry_run: bool = False
    keep_going: bool = False
    force: bool = False
    jobs: Jobs = 1
    sample: int = 100
    work: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The options that the result depends on."""
        statuses = self.eligibility.statuses
        return {
            "--hash": self.algorithm,
            "--compare": self.compare,
            "--min-size": self.eligibility.min_size,
            "--status": "all" if statuses is None else sorted(statuses),
            "--convert-arc": self.convert_arc,
            "--in-place": self.in_place,
        }


@dataclass(frozen=True, slots=True)
class Deduped:
    """The result of all steps, or of a dry run (``dry_run``).

    ``records`` counts the lines of the manifest. ``clusters`` counts digests of several records, ``collisions`` digests of
    different payloads. ``converted`` records became revisits, ``repointed`` records have updated references; ``left``
    counts the unchanged copies by reason. ``savings`` is only set in a dry run. ``verified`` records were read again.
    ``resolved`` revisits lead to their payload, ``by_digest`` of them only by their digest, since the record that they refer
    to is missing; ``dangling`` ones led nowhere before either. If there are ``findings``, no file has its final name, and
    the new files are in ``kept_in``. ``paths`` are the resulting files; ``state`` is the folder with the manifest and this
    report.
    """

    output: str
    in_place: bool
    dry_run: bool
    files: int
    arcs: int
    records: int
    clusters: int
    collisions: int
    converted: int
    repointed: int
    left: dict[str, int]
    old_bytes: int
    new_bytes: int
    savings: Savings | None = None
    verified: int = 0
    resolved: int = 0
    by_digest: int = 0
    dangling: int = 0
    replayed: int = 0
    findings_count: int = 0
    findings: tuple[str, ...] = ()
    kept_in: str | None = None
    fault_count: int = 0
    faults: tuple[Fault, ...] = ()
    paths: tuple[str, ...] = ()
    state: str | None = None

    @property
    def saved_bytes(self) -> int:
        """How much smaller the files are after deduplication."""
        return self.old_bytes - self.new_bytes

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Deduped:
        """The inverse of ``dataclasses.asdict`` for a report of finished work."""
        lists = {"findings": tuple(value["findings"]), "paths": tuple(value["paths"])}
        return cls(**value | lists | {"faults": tuple(Fault(**fault) for fault in value["faults"])})

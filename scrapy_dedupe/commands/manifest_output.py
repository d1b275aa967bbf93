"""What the verbs that make manifests of manifests have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.errors import UsageError

from .figures import number_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from scrapy_dedupe.tasks.faults import Faults

SHOWN_FAULTS = 20


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """``--force`` and ``--keep-going``."""
    parser.add_argument("--force", action="store_true", help="replace what is there already")
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="pass over lines that cannot be read, and end with exit code 4",
    )


def refuse_json_beside_lines(opts: argparse.Namespace) -> None:
    """Raise UsageError if standard output would have to take a manifest and a result."""
    if str(opts.output) == "-" and opts.json:
        raise UsageError("With -o - standard output takes the manifest; --json needs a file.")


def fault_dicts(faults: Faults) -> list[dict[str, str]]:
    """The faults that are kept, for a result."""
    return [{"place": fault.place, "reason": fault.reason} for fault in faults.first]


def faults_text(faults: Sequence[dict[str, str]], count: int) -> list[str]:
    """The first faults, a line each, and how many more there are."""
    lines = [f"{fault['place']}: {fault['reason']}" for fault in faults[:SHOWN_FAULTS]]
    if count > len(lines):
        lines.append(f"... and {number_text(count - len(lines))} more")
    return lines


def faults_caveat(faults: Sequence[dict[str, str]], count: int) -> str | None:
    """The sentence for exit code 4, or None."""
    if not count:
        return None
    lines = "1 line was" if count == 1 else f"{number_text(count)} lines were"
    first = faults[0]
    return f"{lines} passed over; the first is {first['place']}: {first['reason']}."

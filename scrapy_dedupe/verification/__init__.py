"""Verification: is a rewritten archive the archive before, with revisits for copies and updated references?

None of these modules imports the code that writes new files, so that a fault of the one is found by the other; the import
contracts check this. `verifying` runs all steps: `side_by_side` compares both files of a pair, record by record
(`old_files`, `record_changes`, `changes`), and stores facts about them (`evidence`); then `references` follows every
revisit and every other reference through all files. Differences are `findings`.
"""

from __future__ import annotations

from .verifying import DEFAULT_SAMPLE, Pair, Verification, pairs_of, verify

__all__ = ["DEFAULT_SAMPLE", "Pair", "Verification", "pairs_of", "verify"]

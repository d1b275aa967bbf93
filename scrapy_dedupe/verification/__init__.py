"""Verification: is a rewritten archive the archive before, with revisits for copies and updated references?

`verifying` runs all steps: `side_by_side` compares both files of a pair, record by record (`old_files`, `changes`, `heads`),
and stores facts about them (`evidence_writer`, `evidence`); then `references` follows every revisit and every other
reference through all files. Differences are `findings`. These are the rules:

1. Every file before is there after, and no file was added. An ARC file may have become a WARC file.
2. Every record before is there after, in the same order, and no record was added. Bytes between records and damaged
   places are the same, except for NUL bytes.
3. A record has the same bytes or the same fields and block as before, or one of these changes: a response became a
   revisit; a revisit became a response; references changed; only one side stores the payload in transfer chunks.
4. A changed record keeps the version, the other fields with their order, and the HTTP head. A ``Former-NAME`` field keeps every
   old value that cannot be derived. Its digests match, and it is written in the standard form.
5. A revisit leads to a whole capture with the payload of the response that it was, by its URI and date and by its id, and
   has the digest of this capture. Its own id is new, and no other record has it.
6. Every other reference leads to the payload to which it led before; a link to a record with a new id has this id.

None of these modules imports the code that writes new files, so that a fault of the one is found by the other; the import
contracts check this. Both use the readers in `warc`, which decide where records, blocks and HTTP heads begin and end
(`framing`, `reading`), what the payload of a record is and whether it is in chunks (`chunks`, `bodies`), and whether it is
whole (`StoredRecord.is_whole`). Texts of digests and dates are parsed by the same functions (`capture.parse_digest`,
`dates.parse_date`). `restoring` finds originals by the same rule (`warc.references`); ``dedupe`` has its own.
"""

from __future__ import annotations

from .verifying import DEFAULT_SAMPLE, Pair, Verification, pairs_of, verify

__all__ = ["DEFAULT_SAMPLE", "Pair", "Verification", "pairs_of", "verify"]

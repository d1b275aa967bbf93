"""Afterwards: duplicates in WARC files that are already on disk are found, proved, replaced by revisits, and put back.

Each step is a function of files and manifests, so that several machines can share the work: `summing` makes a
manifest of digests, `collisions` compares bytes, `numbering` chooses originals, `splitting` makes parts, `rewriting`
writes revisits, `verifying` reads both archives again, `restoring` undoes it. `arc_conversion` makes WARC of ARC.
"""

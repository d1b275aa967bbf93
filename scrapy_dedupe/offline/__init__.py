"""Offline deduplication of WARC files: find duplicates, verify them, replace them with revisits, and restore them.

Each step is a function of files and manifests, so that several machines can share the work: `summing` writes a
manifest of digests, `collisions` compares payloads, `numbering` chooses originals, `splitting` splits manifests,
`rewriting` writes revisits, `verifying` compares both archives, `restoring` reverts the change. `arc_conversion`
converts ARC files to WARC.
"""

"""The verbs that deduplicate WARC files on disk."""

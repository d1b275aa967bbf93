"""Components that read what the layers decide: report, duplicates log, metrics and passage index."""

"""Extensions that observe the crawl: report, duplicates log, metrics and passage index."""

"""The verbs of the crawl index."""

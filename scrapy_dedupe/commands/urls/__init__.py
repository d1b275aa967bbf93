"""``urls VERB``: asks, corrects, exports and fills the URL filter of a job, or one in Redis, between two runs."""

HELP = "Look after the filter of URLs that were asked for: check, forget, export and import."
VERBS = ("check", "forget", "stats", "export", "import")

"""``urls VERB``: inspects and changes the URL filter of a job that is not running, or a filter in Redis."""

HELP = "Inspect and change a URL filter: check, forget, export and import URLs."
VERBS = ("check", "forget", "stats", "export", "import")

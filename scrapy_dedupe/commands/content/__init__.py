"""``content VERB``: inspect and manage the stored texts."""

HELP = "Inspect and manage the stored texts, and explain why a page is a copy."
VERBS = ("stats", "explain", "check", "curve", "purge", "import")

"""``content VERB``: what is compared of texts, and what is remembered of them."""

HELP = "Look after the texts that were read: what is remembered of them, and why a page was called a copy."
VERBS = ("stats", "explain", "check", "curve", "purge", "import")

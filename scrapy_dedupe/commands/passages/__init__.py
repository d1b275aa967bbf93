"""``passages VERB``: find text that repeats across documents."""

HELP = "Find text that repeats across documents, and its places, with an index of passages."
PLACE_OPTION = "--root DIR"
VERBS = ("index", "like", "extract", "blot", "unblot", "inspect", "check", "compact", "delete")

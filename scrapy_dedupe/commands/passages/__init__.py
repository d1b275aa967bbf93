"""``passages VERB``: text that repeats, and where it stands."""

HELP = "Find text that repeats across documents, and say where: an index of passages, and questions to it."
PLACE_OPTION = "--root DIR"
VERBS = ("index", "like", "extract", "blot", "unblot", "inspect", "check", "compact", "delete")

"""``warc VERB``: what is done with the files of the archive after a crawl."""

HELP = (
    "Look after the WARC files: mend those of a killed crawl, pack them, and move finished ones to a storage."
)
VERBS = ("salvage", "pack", "upload")

"""``warc VERB``: work on the files of the archive after a crawl."""

HELP = "Manage WARC files: repair those of a killed crawl, pack them as WACZ, and move finished ones to a storage."
VERBS = ("salvage", "pack", "upload")

"""The verbs for the WARC and WACZ files of crawls."""

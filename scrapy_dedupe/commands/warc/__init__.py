"""The verbs for WARC and WACZ files of crawls."""

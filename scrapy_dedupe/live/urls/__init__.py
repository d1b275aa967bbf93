"""The URL filters of a running crawl, in ``JOBDIR`` or in Redis."""

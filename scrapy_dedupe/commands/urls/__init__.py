"""The verbs for a URL filter: that of a job that is not running, or one in Redis."""

"""The verbs for text that repeats across documents."""

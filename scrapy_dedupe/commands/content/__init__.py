"""The verbs for the stored texts."""

"""The ``DEDUPE_*`` settings: their specification, values and names, and the placement of components."""

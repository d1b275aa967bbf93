"""The ``DEDUPE_*`` settings: their declaration, values, names and the placement of components."""

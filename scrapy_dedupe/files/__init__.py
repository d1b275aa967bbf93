"""Writing files safely: temporary file, sync, rename, appending, locks and folder checks."""

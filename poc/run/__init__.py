"""One run from start to record."""
